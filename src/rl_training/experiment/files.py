"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.types import CheckpointError


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step; a crash leaves the old content or the new, never half of either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_json(path: Path, data: Any) -> None:
    """A JSON file, replaced in one step. Floats keep every bit; NaN is refused rather than written."""
    write_atomically(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def sync_file(path: Path) -> None:
    """Have a file's content on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Have a directory's entries on the disk, where the system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # e.g. Windows
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_bounded(path: Path, limit: int) -> bytes:
    """A file's content; ``OSError`` if it cannot be read or is no plain file, ``ValueError`` if it is larger than that."""
    if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe or a device might never end
        raise OSError(f"{path.name} is not a regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{path.name} has {size} bytes; more than {limit} are not read")
        return file.read(size)


def delete(path: Path) -> None:
    """Remove a file, a link or a whole directory; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def delete_temporaries(directory: Path) -> None:
    """Remove what a process that was killed in the middle of :func:`write_atomically` left behind."""
    for path in list(directory.glob(".*.tmp")):
        delete(path)


def reason_of(error: Exception) -> str:
    """What went wrong, in the system's words and without the number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


@contextlib.contextmanager
def writing(what: Path | str) -> Iterator[None]:
    """A write that fails (disk full, not permitted) is told as a ``CheckpointError``, not as a bug."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{what} cannot be written: {reason_of(error)}") from error
