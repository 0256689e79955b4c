"""Being asked to stop: finish the step, save, leave."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """While entered, the first SIGINT or SIGTERM only sets ``received``; a second one ends the process as it always did."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._at_once = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals to no other thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        for other, handler in self._previous.items():  # a shell has its background jobs ignore SIGINT; not so a second one
            signal.signal(other, signal.default_int_handler if handler in (signal.SIG_IGN, None) else handler)
        if self._at_once:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, the first signal ends the work there and then: for long work that has nothing to save yet."""
        self._at_once = True
        try:
            if self.received is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}
