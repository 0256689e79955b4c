"""Columns that are read a block at a time: data larger than memory goes the same way as data that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rl_training.types import DataError

Array = npt.NDArray[Any]

BLOCK_ROWS = 65_536
BLOCK_BYTES = 2**25  # of one column; rows of images make smaller blocks


class Column(Protocol):
    """One row each, read by slices of consecutive rows: an array, a mapped file, a dataset of an open HDF5 file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(rows, ...)``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Array: ...


def row_blocks(*columns: Column) -> Iterator[tuple[int, int]]:
    """Where each block of rows starts and ends, so that none is large in any of the columns."""
    widest = max(row_bytes(column) for column in columns)
    size = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, widest)))
    count = len(columns[0])
    for start in range(0, count, size):
        yield start, min(start + size, count)


def row_bytes(column: Column) -> int:
    """Bytes of one row."""
    return math.prod(column.shape[1:]) * column.dtype.itemsize


def in_memory(column: Column) -> Array:
    """All of a column as an array of its own."""
    return np.array(column[0 : len(column)])


def require_plausible(name: str, column: Column, *, stored: int, file_size: int) -> None:
    """Refuse a shape that a header claims and the file cannot back, before memory is asked for it.

    Compression reaches about 1000 to 1, and a column that was never written (all zeros) may claim as much as the whole file.
    """
    claimed = len(column) * row_bytes(column)
    if claimed > 1000 * stored + file_size + 2**20:
        raise DataError(
            f"column {name} claims shape {tuple(column.shape)} of {column.dtype}, {claimed:,} bytes, "
            f"but only {stored:,} bytes are there"
        )


class PickedRows:
    """Rows of another column by ascending index, as where every episode has one observation more than actions."""

    def __init__(self, column: Column, rows: npt.NDArray[np.int64], *, offset: int = 0) -> None:
        self.column, self.rows, self.offset = column, rows, offset
        self.shape, self.dtype = (len(rows), *column.shape[1:]), column.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Array:
        wanted = self.rows[rows] + self.offset
        if len(wanted) == 0:
            return self.column[0:0]
        picked: Array = self.column[int(wanted[0]) : int(wanted[-1]) + 1][wanted - wanted[0]]
        return picked


class JoinedColumn:
    """Pieces one after another, each opened only while it is read."""

    def __init__(self, open_piece: Callable[[int], Column], shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> None:
        if len({shape[1:] for shape in shapes}) > 1:
            raise DataError(f"episodes must have rows of one shape, got {sorted({shape[1:] for shape in shapes})}")
        self.open_piece, self.dtype = open_piece, dtype
        self.ends = np.cumsum([shape[0] for shape in shapes])
        self.shape = (int(self.ends[-1]), *shapes[0][1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Array:
        start, stop, _ = rows.indices(len(self))
        joined = np.empty((max(0, stop - start), *self.shape[1:]), dtype=self.dtype)
        piece, filled = int(np.searchsorted(self.ends, start, side="right")), 0
        while filled < len(joined):
            first = start + filled - (int(self.ends[piece - 1]) if piece else 0)
            part = self.open_piece(piece)[first : first + len(joined) - filled]
            joined[filled : filled + len(part)] = part
            piece, filled = piece + 1, filled + len(part)
        return joined


def pick_trajectories(obs: Column, lengths: npt.NDArray[np.int64]) -> tuple[PickedRows, PickedRows]:
    """Observations before and after each action, where an episode of ``n`` actions has ``n + 1`` of them in a row."""
    rows = np.arange(int(lengths.sum())) + np.repeat(np.arange(len(lengths)), lengths)
    return PickedRows(obs, rows), PickedRows(obs, rows, offset=1)
