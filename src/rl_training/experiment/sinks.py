"""Where a run's numbers go. Each sink can be cut back to a checkpoint, so that a resumed log reads as if unbroken."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class LogSink(Protocol):
    """Takes rows of named numbers."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Record one row."""

    def flush(self) -> None:
        """Have everything written so far in the file."""

    def close(self) -> None:
        """Flush and let go."""


class _CutFile:
    """A text file opened for appending, first cut to the length it had at a checkpoint."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
        self.file: IO[str] = path.open("a", encoding="utf-8", newline="")

    def length(self) -> int:
        """Bytes written so far."""
        self.file.flush()
        return self.path.stat().st_size


class JsonlSink:
    """``metrics.jsonl``: one JSON object a row."""

    def __init__(self, path: Path, *, length: int = 0) -> None:
        self._target = _CutFile(path, length)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append one row."""
        self._target.file.write(json.dumps({"step": step, **row}) + "\n")

    def flush(self) -> None:
        """Have everything written so far in the file."""
        self._target.file.flush()

    def length(self) -> int:
        """Bytes written so far; a checkpoint keeps it."""
        return self._target.length()

    def close(self) -> None:
        """Flush and let go."""
        self._target.file.close()


class EvaluationsFile:
    """``evaluations.csv``: every evaluation episode with its step, seed, return and length."""

    COLUMNS = ("step", "episode", "seed", "return", "length")

    def __init__(self, path: Path, *, length: int = 0) -> None:
        self._target = _CutFile(path, length)
        self._writer = csv.writer(self._target.file, lineterminator="\n")
        if self._target.length() == 0:
            self._writer.writerow(self.COLUMNS)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append episodes and flush."""
        self._writer.writerows(rows)
        self._target.file.flush()

    def length(self) -> int:
        """Bytes written so far; a checkpoint keeps it."""
        return self._target.length()

    def close(self) -> None:
        """Flush and let go."""
        self._target.file.close()


class TensorBoardSink:
    """TensorBoard events; on resume, events after the checkpoint's step are declared void (``purge_step``)."""

    def __init__(self, directory: Path, *, resumed_at: int | None = None) -> None:
        self._directory = directory
        self._purge_step = None if resumed_at is None else resumed_at + 1
        self._writer: SummaryWriter | None = None

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Add each number under its tag."""
        if self._writer is None:  # imported at the first row: a second that a run's start need not wait for
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._directory), purge_step=self._purge_step)
        for tag, value in row.items():
            self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        """Have everything written so far in the file."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and let go."""
        if self._writer is not None:
            self._writer.close()
