"""Run directories with damaged, exchanged and edited checkpoints; edits also with every checksum put right again."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load, save

from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.policy import load_policy
from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.types import CheckpointError, ConfigError, DataError, NumericsError

from . import byte_mutations, yaml_texts
from .kinds import Kind, Recipe

STEPS = 24
BASES: dict[str, dict[str, Any]] = {
    "sac": {"env_id": "Pendulum-v1", "algo_kwargs": {"buffer_capacity": 64, "learning_starts": 8}},
    "dqn": {"env_id": "CartPole-v1", "algo_kwargs": {"buffer_capacity": 64, "learning_starts": 8, "n_step": 3}},
    "td3_bc": {"env_id": "Pendulum-v1", "dataset": {"size": 64, "normalize_observations": True}, "algo_kwargs": {}},
    "iql": {"env_id": "Pendulum-v1", "dataset": {"size": 64}, "early_stopping": {"patience": 3}, "algo_kwargs": {}},
}
PART_NAMES = ("weights", "optimizer", "replay", "rng", "episodes")


def build(bases: Path) -> None:
    """A finished run of each base, with three checkpoints. Its output directory is relative, so inside a case's scratch."""
    home = os.getcwd()
    os.chdir(bases)
    try:
        _train_bases(bases)
    finally:
        os.chdir(home)


def _train_bases(bases: Path) -> None:
    for algo, settings in BASES.items():
        if not (bases / algo).exists():
            kwargs = {"batch_size": 8, "hidden_sizes": [8], **settings["algo_kwargs"]}
            common = {
                "total_timesteps": STEPS,
                "eval_episodes": 1,
                "eval_interval": 16,
                "checkpoint_interval": 8,
                "keep_last": 3,
            }
            quiet = {"log_interval": 8, "tensorboard": False, "torch_threads": 1, "output_dir": "output"}
            result = train(TrainConfig(algo=algo, **{**settings, **common, **quiet, "algo_kwargs": kwargs}))
            result.run_dir.rename(bases / algo)


# -- putting checksums right -------------------------------------------------------------------------------------------


def checksum(manifest: dict[str, Any]) -> str:
    """As the package computes it; a test compares the two."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal(checkpoint: Path, manifest: Any = None) -> None:
    """Make the manifest agree with the files and with itself, so that what lies behind the checksums is tested."""
    path = checkpoint / "manifest.json"
    content = json.loads(path.read_text()) if manifest is None else manifest
    if isinstance(content, dict):
        entries = content.get("files")
        for name, entry in entries.items() if isinstance(entries, dict) and manifest is None else ():
            if (checkpoint / name).is_file():
                data = (checkpoint / name).read_bytes()
                entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        content["checksum"] = checksum(content)
    path.write_text(json.dumps(content, indent=2))


# -- mutations ---------------------------------------------------------------------------------------------------------


def newest(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()


def _parts(run: Path) -> list[Path]:
    return sorted(newest(run).glob("*.safetensors"))


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


def damage_any_file(run: Path, bases: Path, rng: random.Random) -> None:
    path = rng.choice(_files(run))
    path.write_bytes(byte_mutations.damage(path.read_bytes(), rng))


def damage_newest(run: Path, bases: Path, rng: random.Random) -> None:
    path = rng.choice([*_parts(run), newest(run) / "manifest.json"])
    path.write_bytes(byte_mutations.damage(path.read_bytes(), rng))


def damage_part_sealed(run: Path, bases: Path, rng: random.Random) -> None:
    path = rng.choice(_parts(run))
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:  # the header of a safetensors file is small, and most of what can go wrong is in it
        path.write_bytes(byte_mutations.damage(data[:header], rng) + data[header:])
    else:
        path.write_bytes(byte_mutations.damage(data, rng))
    seal(newest(run))


def claim_sealed(run: Path, bases: Path, rng: random.Random) -> None:
    """A safetensors header that promises what is not there."""
    path = rng.choice(_parts(run))
    claims = (
        {"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        {"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"__metadata__": {"a": 1}},
        {},
        [],
    )
    header = json.dumps(rng.choice(claims)).encode()
    length = rng.choice((len(header), 2**40, 2**63, 0))
    path.write_bytes(length.to_bytes(8, "little") + header + b"\x00" * rng.choice((0, 4, 64)))
    seal(newest(run))


def remove(run: Path, bases: Path, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 5))):
        path = rng.choice(sorted(run.rglob("*")) or [run])
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def swap(run: Path, bases: Path, rng: random.Random) -> None:
    """Two files with each other's content; two parts also with the manifest put right."""
    sealed = rng.random() < 0.5
    one, two = rng.choice(_parts(run) if sealed else _files(run)), rng.choice(_parts(run))
    first, second = one.read_bytes(), two.read_bytes()
    checkpoint = newest(run)
    one.write_bytes(second)
    two.write_bytes(first)
    if sealed:
        seal(checkpoint)


def exchange_part(run: Path, bases: Path, rng: random.Random) -> None:
    """A part of another step, another run or another algorithm."""
    donor = rng.choice([bases / name for name in BASES])
    other = rng.choice(sorted(donor.glob("checkpoints/step_*/*.safetensors")))
    rng.choice((newest(run) / other.name, rng.choice(_parts(run)))).write_bytes(other.read_bytes())
    if rng.random() < 0.7:
        seal(newest(run))


def exchange_checkpoint(run: Path, bases: Path, rng: random.Random) -> None:
    """A whole intact checkpoint of something else."""
    donor = rng.choice(sorted((bases / rng.choice(sorted(BASES))).glob("checkpoints/step_*")))
    target = rng.choice(sorted(run.glob("checkpoints/step_*")))
    shutil.rmtree(target)
    shutil.copytree(donor, target)


def directory_for_file(run: Path, bases: Path, rng: random.Random) -> None:
    path = rng.choice(_files(run))
    path.unlink()
    path.mkdir()


def link(run: Path, bases: Path, rng: random.Random) -> None:
    """A link where a file or directory should be: outwards, to nothing, to itself."""
    path = rng.choice(sorted(run.rglob("*")))
    intact = bases / rng.choice(sorted(BASES)) / path.relative_to(run)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(rng.choice((intact, Path("nowhere"), Path(path.name), Path("/dev/null"), Path("/etc/passwd"), Path(".."))))


def point_elsewhere(run: Path, bases: Path, rng: random.Random) -> None:
    """Garbage and paths in ``last`` and ``best``."""
    texts = (
        "",
        "\n",
        "x",
        "..",
        "../..",
        "/",
        "/etc/passwd",
        "step_",
        "step_x",
        "step_1/../..",
        "step_" + "9" * 400,
        "step_٣",
    )
    texts += (
        "step_000000008",
        "step_000000008\nstep_000000016",
        "step_000000099",
        "\x00",
        "step_000000024\x00",
        "é",
        str(newest(run)),
    )
    data = rng.choice([text.encode() for text in texts] + [b"\xff\xfe", rng.randbytes(50)])
    for name in rng.choice((["last"], ["best"], ["last", "best"])):
        (run / "checkpoints" / name).write_bytes(data)


def rename_checkpoint(run: Path, bases: Path, rng: random.Random) -> None:
    names = (
        "step_",
        "step_x",
        "step_-1",
        "step_999999999",
        "step_" + "9" * 200,
        "step_٣",
        "step_1 ",
        ".step_000000024.1.tmp",
        "last2",
    )
    path = rng.choice(sorted(run.glob("checkpoints/step_*")))
    path.rename(path.with_name(rng.choice(names)))


JSON_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        0.5,
        -0.5,
        1e-320,
        1e308,
        2**31,
        2**63,
        -(2**63),
        2**64,
        10**30,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "0",
        "nan",
        "../x",
        "/etc/passwd",
        "\x00",
        "\ud800",
        "sac",
        "float32",
        "int64",
        "object",
        "discrete",
        "continuous",
    ),
    *([], [1], [0], [-1], [None], [[1]], [1.5, "x"], [10**9], [2**63], {}, {"a": 1}, {"": None}),
)
SLOW = {
    "eval_episodes": 2,
    "num_envs": 2,
    "gradient_updates_per_step": 3,
    "num_critics": 8,
    "eval_interval": 99,
    "batch_size": 512,
}
"""Settings that would honestly take for ever, and what they are cut to."""


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*path, key), *_places(value, (*path, key)))]


def edit_json(manifest: dict[str, Any], rng: random.Random) -> None:
    """One entry anywhere in a mapping removed, renamed, doubled or given another value."""
    if not manifest:
        return
    section = rng.choice(sorted(manifest))  # by section, or the many settings of the config would get nearly every edit
    inner = _places(manifest[section], (section,)) if rng.random() < 0.9 else []
    *home, key = rng.choice(inner) if inner else (section,)
    container: Any = manifest
    for part in home:
        container = container[part]
    value = container[key]
    choice = rng.choice(("value", "value", "value", "near", "remove", "add"))
    if choice == "value":
        container[key] = rng.choice(JSON_VALUES)
    elif choice == "near" and isinstance(value, int | float):
        container[key] = rng.choice((value + 1, value - 1, -value, value * 2, float(value), str(value), [value]))
    elif choice == "remove":
        del container[key]
    elif isinstance(container, dict):
        container[f"{key}{rng.choice(('', '_', 's'))}x"] = value
    else:
        container.append(rng.choice((value, *JSON_VALUES)))


def _bounded(manifest: dict[str, Any]) -> dict[str, Any]:
    for section in (
        manifest.get("config"),
        (manifest.get("config") or {}).get("algo_kwargs") if isinstance(manifest.get("config"), dict) else None,
    ):
        for name, limit in SLOW.items() if isinstance(section, dict) else ():
            if isinstance(section.get(name), int | float) and section[name] > limit:
                section[name] = limit
    return manifest


def edit_manifest(run: Path, bases: Path, rng: random.Random) -> None:
    path = newest(run) / "manifest.json"
    manifest = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit_json(manifest, rng)
    if rng.random() < 0.9:
        seal(newest(run), _bounded(manifest))
    else:
        path.write_text(json.dumps(manifest))


def edit_manifest_text(run: Path, bases: Path, rng: random.Random) -> None:
    texts = (
        "",
        "[]",
        "null",
        "1",
        '"x"',
        "{}",
        '{"format_version": 1}',
        '{"format_version": 99}',
        '{"format_version": [1]}',
        "[" * 10**5,
        "9" * 5000,
    )
    texts += (
        '{"format_version": 1, "checksum": null}',
        '{"format_version": 1e400}',
        '{"a": ' * 5000,
        '{"format_version": NaN}',
        "\ufeff{}",
        "\x00",
    )
    paths = sorted(run.glob("checkpoints/*/manifest.json")) if rng.random() < 0.3 else [newest(run) / "manifest.json"]
    text = rng.choice(texts)
    for path in paths:
        path.write_bytes(text.encode(rng.choice(("utf-8", "utf-8", "utf-16"))))
        if rng.random() < 0.3 and text == "{}":
            seal(path.parent, {"format_version": 1, "files": {}})


def change_tensors(run: Path, bases: Path, rng: random.Random) -> None:
    """A valid safetensors file with other tensors than the run needs."""
    path = rng.choice(_parts(run))
    tensors = load(path.read_bytes())
    name = rng.choice(sorted(tensors)) if tensors else "x"
    tensor = tensors.get(name, torch.zeros(1))
    floating = tensor.is_floating_point() and tensor.numel() > 0
    changes: dict[str, Callable[[], Any]] = {
        "remove": lambda: tensors.pop(name, None),
        "rename": lambda: tensors.update({f"{name}x": tensors.pop(name, tensor)}),
        "add": lambda: tensors.update(extra=torch.zeros(3)),
        "type": lambda: tensors.update({name: tensor.to(rng.choice((torch.float16, torch.int8, torch.float64, torch.bool)))}),
        "flat": lambda: tensors.update({name: tensor.reshape(-1).clone()}),
        "empty": lambda: tensors.update({name: torch.zeros(0)}),
        "longer": lambda: tensors.update({name: torch.cat((tensor.reshape(1, -1), tensor.reshape(1, -1)))}),
        "scalar": lambda: tensors.update({name: torch.tensor(rng.choice((0, -1, 2**62, 10**6)))}),
        "nan": lambda: tensors.update({name: torch.full_like(tensor, rng.choice((np.nan, np.inf, 1e38)))} if floating else {}),
        "huge": lambda: tensors.update({name: torch.full_like(tensor, 100)}),
    }
    changes[rng.choice(sorted(changes))]()
    path.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))
    seal(newest(run))


def edit_config(run: Path, bases: Path, rng: random.Random) -> None:
    path = run / "config.yaml"
    path.write_bytes(yaml_texts.mutate(path.read_bytes(), rng))
    if rng.random() < 0.5:  # no checkpoint: the file alone decides
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()


MUTATIONS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    mutation.__name__: mutation
    for mutation in (
        *(damage_any_file, damage_newest, damage_part_sealed, claim_sealed, remove, swap, exchange_part, exchange_checkpoint),
        *(directory_for_file, link, point_elsewhere, rename_checkpoint, edit_manifest, edit_manifest_text, change_tensors),
        edit_config,
    )
}

DEEP = ("change_tensors", "damage_part_sealed", "edit_manifest")  # they pass the checksums, so they are drawn more often


def prepare(recipe: Recipe, bases: Path, scratch: Path) -> None:
    shutil.copytree(bases / recipe["base"], scratch / "run")
    MUTATIONS[recipe["mutation"]](scratch / "run", bases, random.Random(recipe["seed"]))
    (scratch / "output").mkdir()


# -- operations --------------------------------------------------------------------------------------------------------

OBSERVATION = {"dqn": [0.0] * 4}


def _where(recipe: Recipe, scratch: Path) -> Path:
    """The run directory, or one of the other ways to name a checkpoint."""
    run = scratch / "run"
    ways = {
        "run": run,
        "checkpoints": run / "checkpoints",
        "last": run / "checkpoints" / "last",
        "best": run / "checkpoints" / "best",
    }
    return ways.get(recipe["where"]) or run / "checkpoints" / f"step_{STEPS:09d}"


def look(recipe: Recipe, scratch: Path) -> None:
    """Find, verify, load the policy, act."""
    checkpoint = find_checkpoint(_where(recipe, scratch))
    checkpoint.verify()
    action = load_policy(checkpoint).predict(OBSERVATION.get(recipe["base"], [0.0] * 3))
    assert np.isfinite(np.asarray(action, dtype=np.float64)).all(), f"an action of {action}"


def evaluate(recipe: Recipe, scratch: Path) -> None:
    evaluate_checkpoint(_where(recipe, scratch), 1)


def resume(recipe: Recipe, scratch: Path) -> None:
    """Go on for a few steps, in the run directory or in one that branches off."""
    suffix = "branch" if recipe["branch"] else None
    result = resume_training(_where(recipe, scratch), STEPS + 4, suffix)
    assert result.checkpoint_path is not None
    Checkpoint(result.checkpoint_path).verify()


def _stays_after_resume(path: str) -> bool:
    """A refused resume notes in the run directory that it failed; a run stopped by NaN keeps what led to it."""
    return path in ("run/metadata.json", "run/config.yaml") or "nonfinite_step_" in path


_mutated = {
    "base": st.sampled_from(sorted(BASES)),
    "mutation": st.sampled_from([*sorted(MUTATIONS), *DEEP * 3]),
    "seed": st.integers(0, 2**32 - 1),
}
_ways = {
    "where": st.sampled_from(("run", "run", "checkpoints", "last", "best", "step", "step", "step")),
    "branch": st.booleans(),
}
_recipes = st.fixed_dictionaries({**_mutated, **_ways})
_errors = (ConfigError, DataError, CheckpointError, NumericsError)  # the last for weights that are sound files of NaN

KINDS = (
    Kind("checkpoint", _recipes, look, prepare, build, allowed=_errors, share=15),
    Kind("evaluate", _recipes, evaluate, prepare, build, allowed=_errors, share=2, deadline=20),
    Kind("resume", _recipes, resume, prepare, build, allowed=_errors, share=4, deadline=30, may_stay=_stays_after_resume),
)
