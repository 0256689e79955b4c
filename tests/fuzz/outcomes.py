"""What may come of a case, and how what may not is noticed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import traceback
from pathlib import Path

from .kinds import Kind, Recipe

SUCCESS = "success"
FORBIDDEN = ("exception", "hang", "crash", "allocation", "leftovers", "message")
LARGEST_ALLOCATION = 400 * 2**20
"""Bytes by which a case may raise the peak of resident memory; every base file is below 1 MB."""
LONGEST_MESSAGE = 20_000
"""Characters of an error message; many problems told together are a few thousand."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``success``, the name of an allowed error, or one of ``FORBIDDEN``."""

    name: str
    detail: str = ""

    @property
    def forbidden(self) -> bool:
        return self.name in FORBIDDEN


def judge(kind: Kind, recipe: Recipe, scratch: Path) -> Outcome:
    """Run a case in this process. A hang or a crash is for the process above to notice."""
    before, memory = _paths(scratch), PeakMemory()
    try:
        kind.run(recipe, scratch)
    except kind.allowed as error:
        outcome = Outcome(next(allowed.__name__ for allowed in kind.allowed if isinstance(error, allowed)), str(error))
    except BaseException as error:  # pydantic and safetensors raise panics that are no Exceptions
        return Outcome("exception", f"{type(error).__name__} {_origin(error)}\n{traceback.format_exc()}")
    else:
        outcome = Outcome(SUCCESS)
    if (growth := memory.growth()) > LARGEST_ALLOCATION:
        return Outcome("allocation", f"{growth / 2**20:.0f} MB at the peak, then {outcome}")
    left = _paths(scratch) - before
    if outcome.name in (SUCCESS, "NumericsError"):  # it ran: what it made is its result, but for what it made on the way
        left = {path for path in left if Path(path).name.startswith(".")}
    if left := {path for path in left if not kind.may_stay(path)}:
        return Outcome("leftovers", f"{sorted(left)[:10]} after {outcome}")
    if outcome.name != SUCCESS and not 0 < len(outcome.detail) <= LONGEST_MESSAGE:
        return Outcome("message", f"{len(outcome.detail)} characters: {outcome.detail[:200]!r}")
    return outcome


def _paths(directory: Path) -> set[str]:
    found = set()
    for parent, folders, files in os.walk(directory):
        found |= {os.path.relpath(os.path.join(parent, name), directory) for name in (*folders, *files)}
    return found


def _origin(error: BaseException) -> str:
    """The innermost line of the package that the exception passed through: tells faults apart."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "rl_training" in frame.filename] or list(frames)
    return f"at {Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].name}: {str(error)[:200]}" if own else ""


class PeakMemory:
    """How far the peak of this process' resident memory rises from here on; 0 where the system does not tell."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is in use now
        self._start = _peak()

    def growth(self) -> int:
        return _peak() - self._start


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
