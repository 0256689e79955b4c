"""Datasets from files: npz, pt, hdf5 (D4RL, d3rlpy or declared columns) and Minari, in memory or mapped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from rl_training.data.columns import RawTransitions, arrange
from rl_training.data.file_readers import READERS, find_minari_dataset
from rl_training.data.lazy_columns import Array, Column, row_blocks
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.row_cache import CacheEntry, cache_root, describe_source, wants_mapping
from rl_training.data.transition_rows import TransitionRows
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
    memory_map: bool | None = None,
    cache_dir: str | Path | None = None,
    seed: int = 0,
) -> TransitionDataset:
    """A dataset from a file (or Minari id), with actions scaled to [-1, 1] where bounds are given.

    ``kind`` is ``npz``, ``pt``, ``hdf5`` or ``minari``; by the file's ending if none is given. With ``memory_map`` the
    rows are in a file below ``cache_dir``, made when the dataset is first opened, instead of in memory; if it is none,
    that is so when they would take more than half of the memory available. The same batches are drawn either way.
    """
    kind, path = find_source(kind, dataset_path)
    bounds = None if action_low is None or action_high is None else (np.asarray(action_low), np.asarray(action_high))
    settings = {
        "columns": dict(columns or {}),
        "time_limit": time_limit,
        "bounds": None if bounds is None else [bound.astype(np.float64).tolist() for bound in bounds],
        "clip": clip_actions,
    }
    entry = CacheEntry(cache_root(cache_dir), describe_source(kind, path, settings))
    if wants_mapping(memory_map, entry.nbytes) and (cached := entry.open(seed=seed)) is not None:
        return cached
    with open_transitions(kind, dataset_path=path, columns=columns, time_limit=time_limit, cache_dir=cache_dir) as raw:
        given = raw.next_actions
        rows = TransitionRows(
            raw,
            ScaledActions(raw.actions, bounds, clip=clip_actions),
            next_actions=None if given is None else ScaledActions(given, bounds, clip=clip_actions),
        )
        if not wants_mapping(memory_map, rows.nbytes):
            return rows.in_memory(seed=seed)
        entry.build(rows)
        if entry.source != describe_source(kind, path, settings):
            raise DataError("changed while it was read")
        if (built := entry.open(seed=seed)) is None:
            raise DataError(f"its rows in {entry.directory} were removed while they were built")
        return built


@contextmanager
def open_transitions(
    kind: str | None = None,
    *,
    dataset_path: str | Path,
    columns: Mapping[str, str] | None = None,
    time_limit: int | None = None,
    cache_dir: str | Path | None = None,
) -> Iterator[RawTransitions]:
    """The arranged rows of a file, in the file's own units, read from it as they are asked for while it is open.

    Large members of an npz file are unpacked to ``cache_dir`` for that time. A ``DataError`` in between names the file.
    """
    kind, path = find_source(kind, dataset_path)
    try:
        with ExitStack() as files:
            yield arrange(READERS[kind](path, columns, files, cache_root(cache_dir)), time_limit=time_limit)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_transitions(
    kind: str | None = None,
    *,
    dataset_path: str | Path,
    columns: Mapping[str, str] | None = None,
    time_limit: int | None = None,
) -> RawTransitions:
    """The arranged rows of a file, in the file's own units, in memory."""
    with open_transitions(kind, dataset_path=dataset_path, columns=columns, time_limit=time_limit) as raw:
        return raw.in_memory()


def find_source(kind: str | None, dataset_path: str | Path) -> tuple[str, Path]:
    """The kind, by the path's ending if none is given, and the file or directory that is there."""
    path = Path(dataset_path)
    kind = kind or (FILE_KINDS.get(path.suffix.lower()) if path.suffix else "minari")
    if kind == "minari":
        return kind, find_minari_dataset(str(dataset_path))
    if kind not in READERS:
        raise DataError(f"{path}: unknown kind of dataset {kind!r}; known: {', '.join(READERS)}")
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    return kind, path


class ScaledActions:
    """Actions in [-1, 1], scaled as they are read; out-of-range ones are refused unless they are to be clipped.

    Indices are left alone.
    """

    def __init__(self, actions: Column, bounds: tuple[Array, Array] | None, *, clip: bool) -> None:
        self.actions, self.bounds = actions, None
        self.discrete = actions.dtype.kind in "iub"
        width = math.prod(actions.shape[1:])
        self.shape: tuple[int, ...] = (len(actions), width)
        self.dtype = np.dtype(np.int64 if self.discrete else np.float32)
        if self.discrete:
            if width != 1:
                raise DataError(f"discrete actions must be one index a row, got shape {tuple(actions.shape)}")
            self.shape = (len(actions),)
            return
        if bounds is not None:
            self.bounds = _bounds_of(bounds, width)
        if not clip:
            self._require_inside(bounds)

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, rows: slice, /) -> Array:
        actions = self.actions[rows]
        if self.discrete:
            return actions.reshape(-1).astype(np.int64)
        return np.clip(self._scaled(actions), -1, 1).astype(np.float32)

    def _scaled(self, actions: Array) -> Array:
        scaled = actions.reshape(len(actions), self.shape[1]).astype(np.float64)
        if self.bounds is None:
            return scaled
        low, high = self.bounds
        return 2 * (scaled - low) / np.where(high > low, high - low, 1.0) - 1

    def _require_inside(self, bounds: tuple[Array, Array] | None) -> None:
        outside, lowest, highest = 0, [], []
        for start, end in row_blocks(self.actions):
            block = self.actions[start:end]
            outside += int((np.abs(self._scaled(block)) > 1 + 1e-5).any(axis=1).sum())
            lowest.append(block.min(initial=np.inf))
            highest.append(block.max(initial=-np.inf))
        if outside:
            between = "" if bounds is None else f" ({np.min(bounds[0]):g} to {np.max(bounds[1]):g})"
            raise DataError(
                f"{outside} of {len(self)} actions are outside the action bounds{between}, from {np.min(lowest):g} to "
                f"{np.max(highest):g}; declare action_low and action_high, or set clip_actions: true"
            )


def _bounds_of(bounds: tuple[Array, Array], width: int) -> tuple[Array, Array]:
    try:
        low, high = (np.broadcast_to(bound, (width,)).astype(np.float64) for bound in bounds)
    except ValueError:
        shapes = [np.shape(bound) for bound in bounds]
        raise DataError(f"action bounds of shapes {shapes} do not fit actions of {width} dimensions") from None
    if (low > high).any():
        raise DataError(f"action_low must be <= action_high, got {low.tolist()} and {high.tolist()}")
    return low, high
