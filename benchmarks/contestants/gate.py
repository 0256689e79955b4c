"""How contestants of the speed benchmark are timed: each is a process that works in chunks and waits between them.

The benchmark lets one contestant through at a time, round after round, so that all of them meet the same machine. A contestant
calls ``tick`` after every unit of work (an environment step, an update); at the end of a chunk it prints the seconds the chunk
took and waits for a line on standard input. Start-up, compilation and warm-up are outside the timing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Gate:
    """Counts units of work and pauses after each chunk."""

    def __init__(self, *, chunk: int, warmup: int) -> None:
        self.chunk, self.left = chunk, warmup
        self.started: float | None = None

    def tick(self) -> None:
        """One unit is done."""
        self.left -= 1
        if self.left == 0:
            self._pause()

    def _pause(self) -> None:
        seconds = None if self.started is None else time.perf_counter() - self.started
        print(json.dumps({"seconds": seconds, "units": self.chunk}), flush=True)
        if sys.stdin.readline().strip() != "go":
            os._exit(0)  # in the middle of somebody's training loop: there is no tidy way out, and nothing to keep
        self.left, self.started = self.chunk, time.perf_counter()


def job() -> dict[str, Any]:
    """The work of this process, from its command line."""
    work: dict[str, Any] = json.loads(sys.argv[1])
    return work


def gate_of(work: dict[str, Any]) -> Gate:
    """The gate of a piece of work."""
    return Gate(chunk=work["chunk"], warmup=work["warmup"])
