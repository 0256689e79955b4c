"""Rates of a run: steps and updates per second over the last interval, without evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rl_training.types import Metrics


class Clock:
    """Counts the seconds of a run, also those of earlier processes that worked on it."""

    def __init__(self, elapsed_before: float = 0.0, *, step: int = 0, updates: int = 0) -> None:
        self._before = elapsed_before
        self._started = self._interval_started = time.monotonic()
        self._paused = 0.0
        self._step, self._updates = step, updates

    def elapsed(self) -> float:
        """Seconds since the run first started, without the time nobody worked on it."""
        return self._before + time.monotonic() - self._started

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of something else out of the rates."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - started

    def rates(self, step: int, updates: int) -> Metrics:
        """The ``time/*`` part of a log row; begins the next interval."""
        now = time.monotonic()
        seconds = max(now - self._interval_started - self._paused, 1e-9)
        row = {
            "time/total_timesteps": float(step),
            "time/time_elapsed": self.elapsed(),
            "time/fps": (step - self._step) / seconds,
            "time/updates_per_s": (updates - self._updates) / seconds,
        }
        self._interval_started, self._paused, self._step, self._updates = now, 0.0, step, updates
        return row
