"""One process per run directory: a lock that the system takes back when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_training.experiment.files import reason_of
from rl_training.types import CheckpointError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("rl_training")

LOCK = ".lock"
_held: set[int] = set()  # descriptors; a forked child closes its copies, or it would keep the lock of a dead parent


def _let_go_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go_in_child)


@contextlib.contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Hold a run directory; a ``CheckpointError`` names the process that holds it already.

    The lock is ``flock`` on ``<run>/.lock``, so a killed process leaves none behind. Windows and file systems without
    ``flock`` have no lock: there, keeping to one process per directory is the user's affair.
    """
    if sys.platform == "win32":
        yield
        return
    path = directory / LOCK
    descriptor = _acquire(path)
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # not in a forked child
            _held.discard(descriptor)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)  # while it is held, so that nobody else's lock is removed
            os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        try:
            # a link is not followed: the file is about to be overwritten
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened, so the run cannot be locked: {reason_of(error)}") from error
        _lock(descriptor, path)
        if _is_still_there(descriptor, path):
            break
        os.close(descriptor)  # its holder ended, and removed it, between our opening and our locking it
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise CheckpointError(
            f"{path.parent} is in use by {holder}. Wait for it to end or stop it, or branch off with a run suffix"
        ) from None
    except OSError as error:  # some network file systems
        logger.warning("%s cannot be locked (%s): see that no other process uses this run", path.parent, reason_of(error))


def _is_still_there(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False
