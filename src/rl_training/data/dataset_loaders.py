"""Reading datasets: npz, pt, hdf5 (D4RL, d3rlpy or declared columns) and Minari. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.data.columns import Array, RawTransitions, arrange, build_dataset, find_columns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.types import DataError

FILE_KINDS = {".npz": "npz", ".pt": "pt", ".pth": "pt", ".h5": "hdf5", ".hdf5": "hdf5"}


def load_transition_dataset(
    kind: str | None = None,
    *,
    dataset_path: str | Path,
    columns: Mapping[str, str] | None = None,
    time_limit: int | None = None,
    action_low: float | Array | None = None,
    action_high: float | Array | None = None,
    clip_actions: bool = False,
    seed: int = 0,
) -> TransitionDataset:
    """A dataset from a file (or Minari id), with actions scaled to [-1, 1] where bounds are given.

    ``kind`` is ``npz``, ``pt``, ``hdf5`` or ``minari``; by the file's ending if none is given.
    """
    raw = read_transitions(kind, dataset_path=dataset_path, columns=columns, time_limit=time_limit)
    low_high = None if action_low is None or action_high is None else (np.asarray(action_low), np.asarray(action_high))
    actions = scale_actions(raw.actions, low_high, clip=clip_actions, source=str(dataset_path))
    given = raw.next_actions
    next_actions = None if given is None else scale_actions(given, low_high, clip=clip_actions, source=str(dataset_path))
    return build_dataset(raw, actions, next_actions=next_actions, seed=seed)


def read_transitions(
    kind: str | None = None,
    *,
    dataset_path: str | Path,
    columns: Mapping[str, str] | None = None,
    time_limit: int | None = None,
) -> RawTransitions:
    """The arranged rows of a file, in the file's own units."""
    path = Path(dataset_path)
    kind = kind or (FILE_KINDS.get(path.suffix.lower()) if path.suffix else "minari")
    readers: dict[str, Callable[[Path, Mapping[str, str] | None], dict[str, Array]]] = {
        "npz": _read_npz,
        "pt": _read_pt,
        "hdf5": _read_hdf5,
    }
    if kind == "minari":
        return arrange(_read_minari(str(dataset_path)), time_limit=time_limit)
    if kind not in readers:
        raise DataError(f"{path}: unknown kind of dataset {kind!r}; known: {', '.join([*readers, 'minari'])}")
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        found = readers[kind](path, columns)
        return arrange(found, time_limit=time_limit)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def scale_actions(actions: Array, low_high: tuple[Array, Array] | None, *, clip: bool, source: str) -> Array:
    """Actions in [-1, 1]; out-of-range ones are an error unless clipping was asked for. Indices are left alone."""
    if np.issubdtype(actions.dtype, np.integer) or actions.dtype == bool:
        return actions.reshape(-1).astype(np.int64)
    scaled = actions.reshape(len(actions), -1).astype(np.float64)
    if low_high is not None:
        try:
            low, high = (np.broadcast_to(bound, scaled.shape[1:]).astype(np.float64) for bound in low_high)
        except ValueError:
            given = [np.shape(bound) for bound in low_high]
            raise DataError(
                f"{source}: action bounds of shapes {given} do not fit actions of {scaled.shape[1]} dimensions"
            ) from None
        if (low > high).any():
            raise DataError(f"{source}: action_low must be <= action_high, got {low.tolist()} and {high.tolist()}")
        scaled = 2 * (scaled - low) / np.where(high > low, high - low, 1.0) - 1
    outside = int((np.abs(scaled) > 1 + 1e-5).any(axis=1).sum())
    if outside and not clip:
        bounds = "" if low_high is None else f" ({np.min(low_high[0]):g} to {np.max(low_high[1]):g})"
        raise DataError(
            f"{source}: {outside} of {len(scaled)} actions are outside the action bounds{bounds}, "
            f"from {actions.min():g} to {actions.max():g}; declare action_low and action_high, or set clip_actions: true"
        )
    return np.clip(scaled, -1, 1).astype(np.float32)


def _read_npz(path: Path, declared: Mapping[str, str] | None) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {meaning: archive[name] for meaning, name in find_columns(archive.files, declared).items()}
    except (OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"is not a readable npz file: {error}") from None
    except ValueError as error:
        reason = "a column holds Python objects" if "pickle" in str(error).lower() else str(error)
        raise DataError(f"cannot be read: {reason}") from None


def _read_pt(path: Path, declared: Mapping[str, str] | None) -> dict[str, Array]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols; what is not plain tensors is refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, ValueError) as error:
        raise DataError(f"is not a file of plain tensors: {str(error).splitlines()[0][:120]}") from None
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise DataError("must hold a dictionary of tensors")
    return {meaning: content[name].numpy() for meaning, name in find_columns(list(content), declared).items()}


def _read_hdf5(path: Path, declared: Mapping[str, str] | None) -> dict[str, Array]:
    h5py = import_optional("h5py")
    try:
        with h5py.File(path, "r") as file:
            datasets: dict[str, Any] = {}
            file.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
            names = {name: datasets[name] for name in datasets if datasets[name].ndim > 0}
            found = find_columns(list(names), declared)
            for meaning, name in found.items():
                if names[name].dtype.kind not in "fiub":  # refused before it is read: object columns would be unpickled
                    raise DataError(f"column {name} ({meaning}) must be numbers, got {names[name].dtype}")
            columns = {meaning: names[name][:] for meaning, name in found.items()}
            if "discrete_action" in datasets and bool(datasets["discrete_action"][()]):
                columns["actions"] = columns["actions"].reshape(-1).astype(np.int64)
            return columns
    except OSError as error:
        raise DataError(f"is not a readable HDF5 file: {error}") from None


def _read_minari(name: str) -> dict[str, Array]:
    """Episodes with one more observation than actions; a local id, or the path of a dataset directory."""
    h5py, directory = import_optional("h5py"), find_minari_dataset(name)
    parts: dict[str, list[Array]] = {key: [] for key in ("obs", "next_obs", "actions", "rewards", "terminated", "truncated")}
    try:
        with h5py.File(directory / "data" / "main_data.hdf5", "r") as file:
            for key in sorted(file, key=lambda text: int(text.removeprefix("episode_"))):
                episode = file[key]
                if not isinstance(episode["observations"], h5py.Dataset) or not isinstance(episode["actions"], h5py.Dataset):
                    raise DataError(f"{name}: observations or actions are not flat vectors")
                observations = episode["observations"][:]
                parts["obs"].append(observations[:-1])
                parts["next_obs"].append(observations[1:])
                for column, key_in_file in (
                    ("actions", "actions"),
                    ("rewards", "rewards"),
                    ("terminated", "terminations"),
                    ("truncated", "truncations"),
                ):
                    parts[column].append(episode[key_in_file][:])
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{name} is not a readable Minari dataset: {error}") from None
    if not parts["obs"]:
        raise DataError(f"{name} has no episodes")
    return {column: np.concatenate(arrays) for column, arrays in parts.items()}


def find_minari_dataset(name: str) -> Path:
    """The directory of a local Minari dataset, by path or by id below ``MINARI_DATASETS_PATH`` (or Minari's default)."""
    root = Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))
    for directory in (Path(name), root / name):
        if (directory / "data" / "main_data.hdf5").is_file():
            return directory
    raise DataError(f"there is no Minari dataset {name!r}, neither as a directory nor below {root}")


def minari_metadata(name: str) -> dict[str, Any]:
    """The metadata file of a local Minari dataset."""
    path = find_minari_dataset(name) / "data" / "metadata.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return content


def import_optional(module: str) -> Any:
    """A package of the ``offline`` extra, or the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise DataError(f'reading this needs {module}: pip install "rl-training[offline]"') from None
