"""Writing datasets: npz, HDF5 and Minari, with terminations and time limits apart."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rl_training.data.columns import RawTransitions
from rl_training.data.file_readers import import_optional
from rl_training.data.lazy_columns import Column, row_blocks
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
    """Write rows in the environment's units, whole or not at all; what was read from one kind can be written to another.

    Files are written block by block as the rows are read; Minari wants them all in memory.
    """
    check_target(target)
    if target.startswith(MINARI_PREFIX):
        _save_minari(raw, target.removeprefix(MINARI_PREFIX))
        return
    path, columns = Path(target), _columns(raw)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        (_write_npz if path.suffix.lower() == ".npz" else _write_hdf5)(temporary, columns)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_npz(path: Path, columns: Mapping[str, Column]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in columns.items():
            header = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": column.shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for start, end in row_blocks(column):
                    member.write(column[start:end].tobytes())


def _write_hdf5(path: Path, columns: Mapping[str, Column]) -> None:
    with import_optional("h5py").File(path, "w") as file:
        for name, column in columns.items():
            dataset = file.create_dataset(name, shape=column.shape, dtype=column.dtype)
            for start, end in row_blocks(column):
                dataset[start:end] = column[start:end]


def _columns(raw: RawTransitions) -> dict[str, Column]:
    columns: dict[str, Column] = {
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
    raw = raw.in_memory()
    obs, actions, next_obs = np.asarray(raw.obs), np.asarray(raw.actions), np.asarray(raw.next_obs)
    buffers, start = [], 0
    for number, end in enumerate(raw.episode_ends.tolist()):
        rows = slice(start, end)
        cut = np.zeros(end - start, dtype=bool)
        cut[-1] = not raw.terminated[end - 1]
        buffers.append(
            episode_buffer(
                id=number,
                observations=np.concatenate((obs[rows], next_obs[end - 1 : end])),
                actions=actions[rows],
                rewards=raw.rewards[rows],
                terminations=raw.terminated[rows],
                truncations=cut,
            )
        )
        start = end
    discrete = actions.dtype.kind in "iub" and actions.ndim == 1
    low, high = actions.min(axis=0), actions.max(axis=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that author and code link are not given
            minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                observation_space=spaces.Box(-np.inf, np.inf, obs.shape[1:], obs.dtype.type),
                action_space=spaces.Discrete(int(high) + 1) if discrete else spaces.Box(low, high, dtype=actions.dtype.type),
            )
    except ValueError as error:
        raise DataError(f"minari:{dataset_id} cannot be written: {error}") from None
