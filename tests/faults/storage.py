"""A disk that takes nothing any more, for a while.

Where file systems may be mounted (root), a run lies on a small tmpfs that is filled to the last byte, or its directory is
covered by a read-only view of itself: real ENOSPC and EROFS. Elsewhere the directory loses its write permission (EACCES),
and on every Linux the kernel can be told to refuse a process any write to a file (RLIMIT_FSIZE = 0, EFBIG), from outside and
while it runs. Nothing is replaced inside the training process: what safetensors writes from Rust is refused just the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SMALL = 24  # megabytes; a run of the scenarios takes two or three


@functools.cache
def can_mount() -> bool:
    """Whether this process may mount file systems."""
    if shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        done = _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory)
        return done and _run("umount", directory)


def _run(*command: str) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A directory that is a disk of its own, as long as it lasts; what it held then is kept."""
    directory.mkdir(parents=True, exist_ok=True)
    if not _run("mount", "-t", "tmpfs", "-o", f"size={SMALL}m", "tmpfs", str(directory)):
        raise OSError(f"{directory}: a tmpfs could not be mounted")
    copy = directory.with_name(f"{directory.name}.copy")
    try:
        yield
    finally:
        shutil.copytree(directory, copy)
        _run("umount", "--lazy", str(directory))
        directory.rmdir()
        copy.rename(directory)


@contextlib.contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """No byte is left on the disk that a directory lies on; only for a :func:`small_disk`."""
    ballast = directory / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def refused_writes(pid: int) -> Iterator[None]:
    """A process may not write to any file."""
    with contextlib.suppress(ProcessLookupError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing can be made, changed or removed in a directory; files that are open stay open."""
    with _read_only_view(directory) if can_mount() else _without_permission(directory):
        yield


@contextlib.contextmanager
def _read_only_view(directory: Path) -> Iterator[None]:
    name = str(directory)
    while not (_run("mount", "--bind", name, name) and _run("mount", "-o", "remount,bind,ro", name)):
        if not _run("umount", "--lazy", name):  # the first step failed; the second only does when a file was just opened
            raise OSError(f"{directory} could not be made read-only")
    try:
        yield
    finally:
        _run("umount", "--lazy", name)


@contextlib.contextmanager
def _without_permission(directory: Path) -> Iterator[None]:
    directories = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
    modes = [(path, path.stat().st_mode) for path in directories]
    try:
        for path, mode in modes:
            path.chmod(mode & ~0o222)
        yield
    finally:
        for path, mode in modes:
            path.chmod(mode)


def possible_kinds() -> list[str]:
    """The storage faults that can be had here."""
    kinds = {
        "disk full": can_mount(),
        "read-only": can_mount() or os.geteuid() != 0,  # root may write where permission bits say no
        "writes refused": hasattr(resource, "prlimit"),
    }
    return [kind for kind, possible in kinds.items() if possible]
