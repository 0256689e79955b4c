"""Where a run's numbers go. Each sink can be cut back to a checkpoint, so that a resumed log reads as if unbroken.

Files grow by whole entries. An entry that cannot be written (disk full) raises ``OSError``, leaves no half behind, and is
written before the next one, so a log is complete again as soon as there is space.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol


class LogSink(Protocol):
    """Takes rows of named numbers."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Record one row."""

    def flush(self) -> None:
        """Have everything written so far in the file."""

    def close(self) -> None:
        """Flush and let go."""


class _Entries:
    """A file that grows by whole entries, first cut to the length it had at a checkpoint."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._waiting = b""
        self._length = min(length, path.stat().st_size) if path.exists() else 0
        if path.exists() and path.stat().st_size > self._length:
            os.truncate(path, self._length)

    def open(self) -> BinaryIO:
        """The file; made, with its directory, when it is first needed."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def add(self, entry: bytes) -> None:
        """Take an entry, to be written with the next one."""
        self._waiting += entry

    def write(self, entry: bytes) -> None:
        """Append an entry, and those that could not be written before it."""
        self.add(entry)
        self.flush()

    def flush(self) -> None:
        """Have every entry in the file."""
        if not self._waiting:
            return
        file = self.open()
        self._cut(file)
        try:
            rest = memoryview(self._waiting)
            while rest:  # a nearly full disk takes a part first, and complains at the next attempt
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._cut(file)
            raise
        self._length, self._waiting = self._length + len(self._waiting), b""

    def _cut(self, file: BinaryIO) -> None:
        """Take back half an entry, if a failed write left one."""
        if os.fstat(file.fileno()).st_size > self._length:
            file.truncate(self._length)

    def length(self) -> int:
        """Bytes written so far, all of them on the disk: a checkpoint counts on them."""
        self.flush()
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self._length

    def close(self) -> None:
        """Flush and let go; by now whoever wants to know of errors has asked."""
        with contextlib.suppress(OSError):
            self.flush()
        if self._file is not None:
            self._file.close()


class JsonlSink:
    """``metrics.jsonl``: one JSON object a row."""

    def __init__(self, path: Path, *, length: int = 0) -> None:
        self._target = _Entries(path, length)
        self._target.open()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append one row."""
        self._target.write((json.dumps({"step": step, **row}) + "\n").encode())

    def flush(self) -> None:
        """Have everything written so far in the file."""
        self._target.flush()

    def length(self) -> int:
        """Bytes written so far; a checkpoint keeps it."""
        return self._target.length()

    def close(self) -> None:
        """Flush and let go."""
        self._target.close()


class EvaluationsFile:
    """``evaluations.csv``: every evaluation episode with its step, seed, return and length."""

    COLUMNS = ("step", "episode", "seed", "return", "length")

    def __init__(self, path: Path, *, length: int = 0) -> None:
        self._target = _Entries(path, length)
        self._target.open()
        if self._target.length() == 0:
            self.write([self.COLUMNS])

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append episodes; all of an evaluation or none."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._target.write(text.getvalue().encode())

    def flush(self) -> None:
        """Have everything written so far in the file."""
        self._target.flush()

    def length(self) -> int:
        """Bytes written so far; a checkpoint keeps it."""
        return self._target.length()

    def close(self) -> None:
        """Flush and let go."""
        self._target.close()


_file_numbers = itertools.count()


class TensorBoardSink:
    """TensorBoard events; on resume, events after the checkpoint's step are declared void.

    Records are written here and now with TensorBoard's own record writer. Its usual writer has a thread for it, whose
    errors come late and which leaves half a record behind when the disk is full.
    """

    def __init__(self, directory: Path, *, resumed_at: int | None = None) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_numbers)}"
        self._target = _Entries(directory / name)
        self._resumed_at = resumed_at
        self._records: Any = None

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Add a record with each number under its tag."""
        # imported at the first row: half a second that a run's start need not wait for
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        if self._records is None:
            self._begin()
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
        self._records.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)).SerializeToString())

    def _begin(self) -> None:
        """The records that a file starts with."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        head = io.BytesIO()
        records = RecordWriter(head)
        records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if self._resumed_at is not None:
            void = Event(wall_time=time.time(), step=self._resumed_at + 1, session_log=SessionLog(status=SessionLog.START))
            records.write(void.SerializeToString())
        self._target.add(head.getvalue())
        self._records = RecordWriter(self._target)

    def flush(self) -> None:
        """Have everything written so far in the file."""
        self._target.flush()

    def close(self) -> None:
        """Flush and let go."""
        self._target.close()
