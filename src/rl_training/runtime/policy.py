"""A trained agent that acts: observations in, environment actions out. Needs no environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.data.transforms import ObservationNormalizer
from rl_training.envs.spec import ActionScaler
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.numerics import all_finite, bad_entry
from rl_training.runtime.observations import as_batch
from rl_training.types import CheckpointError, EnvSpec

UNFIT = (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError)
"""What content of the wrong kind in a manifest or among tensors leads to."""


class Policy:
    """The policy of a learner, with the border to its environment: shapes, bounds and dtypes."""

    def __init__(self, algorithm: Algorithm, env_spec: EnvSpec, *, normalizer: ObservationNormalizer | None = None) -> None:
        self.algorithm, self.env_spec, self.normalizer = algorithm, env_spec, normalizer
        self._scaler = ActionScaler(env_spec)
        self._device = next(iter(algorithm.networks())).device

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, device: str = "cpu") -> Policy:
        """The policy stored in a checkpoint; reads its weights only."""
        return load_policy(find_checkpoint(path), device=device)

    def predict(self, obs: npt.ArrayLike, *, deterministic: bool = True) -> Any:
        """One action for one observation, a batch of actions for a batch; valid for ``env.step`` as they are.

        Continuous actions have the action space's shape and dtype; a discrete action is a plain ``int``.
        """
        batch, single = as_batch(obs, self.env_spec.obs_shape)
        actions = self.act(batch, deterministic=deterministic)
        if not single:
            return actions
        return int(actions[0]) if self.env_spec.action_kind == "discrete" else actions[0]

    def act(self, obs: npt.NDArray[np.float32], *, deterministic: bool = True) -> npt.NDArray[Any]:
        """Environment actions for checked observations ``(batch, obs_dim)``."""
        return self._scaler.to_env(self.unscaled_actions(obs, deterministic=deterministic))

    def unscaled_actions(self, obs: npt.NDArray[np.float32], *, deterministic: bool = True) -> npt.NDArray[Any]:
        """The same actions in the algorithm's own units: in [-1, 1], or indices from 0."""
        with torch.inference_mode():
            observations = torch.from_numpy(obs)
            if self.normalizer is not None:
                observations = self.normalizer(observations)
            actions = self.algorithm.act(observations.to(self._device), deterministic=deterministic)
        chosen: npt.NDArray[Any] = actions.cpu().numpy()
        if not all_finite(chosen):  # an environment may take it and carry on as if nothing were wrong
            raise bad_entry("action", "action", chosen, {"obs": obs, "actions": chosen})
        return chosen


def load_policy(checkpoint: Checkpoint, *, device: str = "cpu") -> Policy:
    """A policy from an opened checkpoint."""
    require_stored_networks(checkpoint)
    manifest = checkpoint.manifest
    try:
        spec = get_algorithm_spec(manifest["algo"])
        env_spec = EnvSpec.from_dict(manifest["env_spec"])
        hyperparameters = spec.hyperparameters(**manifest["config"]["algo_kwargs"])
        algorithm = spec.build(env_spec, hyperparameters, device=device)
        algorithm.load_weights(checkpoint.tensors("weights"))
        normalizer = normalizer_from_dict(manifest["normalizer"])
        if normalizer is not None and not normalizer.mean.shape == normalizer.std.shape == env_spec.obs_shape:
            raise ValueError("its normaliser does not fit its observations")
        return Policy(algorithm, env_spec, normalizer=normalizer)
    except UNFIT as error:
        raise CheckpointError(f"{checkpoint.path} cannot be loaded: {_reason(error)}") from None


def require_stored_networks(checkpoint: Checkpoint) -> None:
    """Networks are made only if as much is stored as they need: a manifest cannot ask for all the memory there is."""
    manifest = checkpoint.manifest
    stored = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.tensors("weights").values())
    try:
        spec = get_algorithm_spec(manifest["algo"])
        with torch.device("meta"):  # shapes without memory
            model = spec.build_model(
                EnvSpec.from_dict(manifest["env_spec"]), spec.hyperparameters(**manifest["config"]["algo_kwargs"])
            )
        needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    except UNFIT as error:
        raise CheckpointError(f"{checkpoint.path} cannot be loaded: {_reason(error)}") from None
    if needed > stored:
        raise CheckpointError(
            f"{checkpoint.path} cannot be loaded: its networks need {needed} bytes, but its weights have {stored}"
        )


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def normalizer_to_dict(normalizer: ObservationNormalizer | None) -> dict[str, list[float]] | None:
    """For the manifest; floats keep every bit."""
    return None if normalizer is None else {"mean": normalizer.mean.tolist(), "std": normalizer.std.tolist()}


def normalizer_from_dict(data: dict[str, list[float]] | None) -> ObservationNormalizer | None:
    """The reverse of :func:`normalizer_to_dict`."""
    return None if data is None else ObservationNormalizer(torch.tensor(data["mean"]), torch.tensor(data["std"]))
