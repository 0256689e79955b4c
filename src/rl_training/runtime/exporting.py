"""A trained policy as one file that runs without this package: ONNX, or a TorchScript program.

The file takes raw observations ``(batch, obs_dim)`` and gives actions as the environment takes them:
``(batch, *action_shape)``, or ``(batch,)`` numbers of discrete actions. Normalisation and scaling are inside. It holds the
deterministic policy and nothing of the critics. Before it is moved into place, the written file is run beside
:meth:`Policy.predict`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_training import __version__
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.files import delete, sync_file, writing
from rl_training.runtime.onnx_policy import OnnxPolicy
from rl_training.runtime.policy import Policy, load_policy
from rl_training.types import CheckpointError, ConfigError

ExportFormat: TypeAlias = Literal["onnx", "torch"]
Act: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]

SUFFIXES: dict[str, ExportFormat] = {".onnx": "onnx", ".pt": "torch"}
OPSET = 18
"""Version of ONNX's operators: the one torch's exporter writes without conversion; onnxruntime >= 1.14 runs it."""
CHECKED_OBSERVATIONS = 1_000
TOLERANCE = 1e-5
"""How far an exported action may be off, in units of half the action's range where that is more than 1."""


@dataclass(frozen=True)
class ExportedPolicy:
    """A file that was written, and how far its actions were from the policy's on random observations."""

    path: Path
    format: ExportFormat
    largest_difference: float
    observations: int
    metadata: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "path": str(self.path)}


def export_policy(
    checkpoint: str | Path, path: str | Path | None = None, *, format: ExportFormat | None = None
) -> ExportedPolicy:
    """Write the policy of a checkpoint as one file; ``format`` follows from the name, and is ``onnx`` if there is none.

    Raises :class:`CheckpointError`, and leaves nothing behind, if the file does not act as the policy does.
    """
    form = format or ("onnx" if path is None else _format_of(Path(path)))
    target = Path(path) if path is not None else Path("policy").with_suffix(_suffix_of(form))
    if target.is_dir():
        raise ConfigError(f"{target} is a directory: name the file to write, e.g. {target / ('policy' + _suffix_of(form))}")
    if form == "onnx":
        _require_onnx()
    opened = find_checkpoint(checkpoint)
    policy = load_policy(opened)
    metadata = {
        "rl_training": __version__,
        "algo": str(opened.manifest["algo"]),
        "env_id": policy.env_spec.env_id,
        "env_spec": json.dumps(policy.env_spec.to_dict()),
        "global_step": str(opened.manifest.get("trainer", {}).get("global_step", "")),
    }
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            act = _WRITERS[form](policy, temporary, metadata)
            difference = largest_difference(policy, act)
            sync_file(temporary)
            os.replace(temporary, target)
        finally:
            delete(temporary)
    return ExportedPolicy(target, form, difference, CHECKED_OBSERVATIONS, metadata)


def _format_of(path: Path) -> ExportFormat:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: say the format (onnx or torch), or name the file *.onnx or *.pt")
    return SUFFIXES[path.suffix]


def _suffix_of(form: ExportFormat) -> str:
    return next(suffix for suffix, name in SUFFIXES.items() if name == form)


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'exporting to ONNX needs {" and ".join(missing)}: pip install "rl-training[export]"')


class DeterministicPolicy(nn.Module):
    """From raw observations to environment actions, in tensors throughout; the same arithmetic as :class:`Policy`."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, self.spec = policy, policy.env_spec
        self.low = torch.tensor(self.spec.action_low, dtype=torch.float64)
        self.high = torch.tensor(self.spec.action_high, dtype=torch.float64)
        for parameter in policy.algorithm.networks():  # they become constants of the program
            parameter.requires_grad_(False)

    def forward(self, obs: Tensor) -> Tensor:
        """``(batch, obs_dim)`` to ``(batch, *action_shape)``, or ``(batch,)`` for discrete actions."""
        if self.policy.normalizer is not None:
            obs = self.policy.normalizer(obs)
        actions = self.policy.algorithm.act(obs, deterministic=True)
        dtype = getattr(torch, self.spec.action_dtype)
        if self.spec.action_kind == "discrete":
            return (actions + self.spec.action_start).to(dtype)
        scaled = self.low + (actions.double() + 1) * ((self.high - self.low) / 2)
        return scaled.clamp(self.low, self.high).to(dtype).reshape(-1, *self.spec.action_shape)


def _write_onnx(policy: Policy, path: Path, metadata: dict[str, str]) -> Act:
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            DeterministicPolicy(policy).eval(),
            (torch.zeros(2, policy.env_spec.obs_dim),),  # of more than one row: a single one would be taken for the only size
            input_names=["observation"],
            output_names=["action"],
            dynamic_shapes={"obs": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # the exporter's older form returns nothing
        program.model.metadata_props.update(metadata)
        for node in program.model.graph:
            node.metadata_props.clear()  # where in whose directories the code stood
        program.save(str(path), external_data=False)
    return OnnxPolicy(path).predict


def _write_torch(policy: Policy, path: Path, metadata: dict[str, str]) -> Act:
    """TorchScript, because its loader reads numbers and a program, and unpickles no Python object; torch.export's does."""
    with _quiet_exporter(), torch.no_grad():
        traced = torch.jit.trace(DeterministicPolicy(policy).eval(), torch.zeros(2, policy.env_spec.obs_dim))
        whole = io.BytesIO()
        torch.jit.save(torch.jit.freeze(traced), whole, _extra_files={"metadata.json": json.dumps(metadata)})
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
            for entry in source.infolist():
                if not entry.filename.endswith(".debug_pkl"):  # where in whose directories the code stood
                    target.writestr(entry.filename, source.read(entry))
        program = torch.jit.load(str(path))

    def act(obs: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        with torch.no_grad():
            actions: npt.NDArray[Any] = program(torch.from_numpy(obs)).numpy()
        return actions

    return act


_WRITERS: dict[ExportFormat, Callable[[Policy, Path, dict[str, str]], Act]] = {"onnx": _write_onnx, "torch": _write_torch}


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Exporters tell of packages that are not needed here, and of what will change in torch itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def largest_difference(policy: Policy, act: Act, *, seed: int = 0) -> float:
    """Run an exported file beside the policy, on one observation and on a batch; refuse it if their actions differ."""
    observations = random_observations(policy, seed=seed)
    expected, exported = policy.predict(observations), act(observations)
    if exported.shape != expected.shape or exported.dtype != expected.dtype:
        raise CheckpointError(
            f"the exported file gives actions of shape {exported.shape} and type {exported.dtype}, "
            f"the policy {expected.shape} and {expected.dtype}: it is not kept"
        )
    exported[0] = act(observations[:1])[0]
    if policy.env_spec.action_kind == "discrete":
        differing = exported != expected
        differing[differing] = ~_is_a_tie(policy, observations[differing], exported[differing])
        difference = float(differing.sum())
    else:
        low, high = np.array(policy.env_spec.action_low), np.array(policy.env_spec.action_high)
        unit = np.maximum(1.0, (high - low) / 2).reshape(policy.env_spec.action_shape)
        difference = float((np.abs(exported.astype(np.float64) - expected) / unit).max())
    if not difference <= TOLERANCE:  # NaN is refused too
        raise CheckpointError(f"the exported file's actions are off by up to {difference:.3g}: it is not kept")
    return difference


def _is_a_tie(policy: Policy, obs: npt.NDArray[np.float32], choice: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether the policy itself makes that choice next to an observation: then two values tie, and rounding decides."""
    tie = np.zeros(len(obs), dtype=np.bool_)
    for factor in (1 - TOLERANCE, 1 + TOLERANCE) if len(obs) else ():
        tie |= policy.predict(obs * np.float32(factor)) == choice
    return tie


def random_observations(policy: Policy, *, seed: int = 0) -> npt.NDArray[np.float32]:
    """Observations like those of the data, where the agent knows its mean and spread; else small and larger numbers."""
    generator = np.random.default_rng(seed)
    draws: npt.NDArray[np.float64] = generator.standard_normal((CHECKED_OBSERVATIONS, policy.env_spec.obs_dim))
    if policy.normalizer is None:
        draws = draws * generator.choice([0.1, 1.0, 5.0], (CHECKED_OBSERVATIONS, 1))
    else:
        draws = policy.normalizer.mean.numpy() + policy.normalizer.std.numpy() * draws
    return draws.astype(np.float32)
