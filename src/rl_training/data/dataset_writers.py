"""Writing datasets: npz, HDF5 and Minari, with terminations and time limits apart."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.columns import RawTransitions
from rl_training.data.dataset_loaders import import_optional
from rl_training.types import DataError

MINARI_PREFIX = "minari:"


def check_target(target: str) -> None:
    """Refuse a target that cannot be written, before any work is done for it."""
    if target.startswith(MINARI_PREFIX):
        import_optional("minari")
        return
    path = Path(target)
    if path.suffix.lower() not in (".npz", ".h5", ".hdf5"):
        raise DataError(f"{target}: write to a .npz, .h5 or .hdf5 file, or to minari:<dataset id>")
    if path.exists():
        raise DataError(f"{target} exists already; choose another name")
    if not path.parent.is_dir():
        raise DataError(f"{target} cannot be written: there is no directory {path.parent}")


def save_transitions(raw: RawTransitions, target: str) -> None:
    """Write rows in the environment's units, whole or not at all; what was read from one kind can be written to another."""
    check_target(target)
    if target.startswith(MINARI_PREFIX):
        _save_minari(raw, target.removeprefix(MINARI_PREFIX))
        return
    path, columns = Path(target), _columns(raw)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        if path.suffix.lower() == ".npz":
            np.savez_compressed(temporary, **columns)
        else:
            with import_optional("h5py").File(temporary, "w") as file:
                for name, column in columns.items():
                    file.create_dataset(name, data=column)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _columns(raw: RawTransitions) -> dict[str, Any]:
    columns = {
        "observations": raw.obs,
        "actions": raw.actions,
        "rewards": raw.rewards,
        "terminations": raw.terminated,
        "truncations": raw.ended & ~raw.terminated,
    }
    optional = {"next_observations": raw.next_obs, "next_actions": raw.next_actions, "returns_to_go": raw.returns_to_go}
    return columns | {name: column for name, column in optional.items() if column is not None}


def _save_minari(raw: RawTransitions, dataset_id: str) -> None:
    minari = import_optional("minari")
    episode_buffer = import_optional("minari.data_collector").EpisodeBuffer
    if raw.next_obs is None:
        raise DataError("a Minari dataset keeps the observation after the last action, which this data does not have")
    buffers, start = [], 0
    for number, end in enumerate(raw.episode_ends.tolist()):
        rows = slice(start, end)
        cut = np.zeros(end - start, dtype=bool)
        cut[-1] = not raw.terminated[end - 1]
        buffers.append(
            episode_buffer(
                id=number,
                observations=np.concatenate((raw.obs[rows], raw.next_obs[end - 1 : end])),
                actions=raw.actions[rows],
                rewards=raw.rewards[rows],
                terminations=raw.terminated[rows],
                truncations=cut,
            )
        )
        start = end
    discrete = raw.actions.dtype.kind in "iub" and raw.actions.ndim == 1
    low, high = raw.actions.min(axis=0), raw.actions.max(axis=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that author and code link are not given
            minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                observation_space=spaces.Box(-np.inf, np.inf, raw.obs.shape[1:], raw.obs.dtype.type),
                action_space=spaces.Discrete(int(high) + 1)
                if discrete
                else spaces.Box(low, high, dtype=raw.actions.dtype.type),
            )
    except ValueError as error:
        raise DataError(f"minari:{dataset_id} cannot be written: {error}") from None
