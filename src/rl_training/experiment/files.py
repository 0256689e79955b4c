"""Files that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


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
