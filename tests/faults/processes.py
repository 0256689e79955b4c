"""Starting training processes and watching them: from the real command line, or forked from a warm Python."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

REPOSITORY = Path(__file__).resolve().parents[2]
POLL = 0.001


class Hang(Exception):
    """A process did not end in time."""


class Attempt:
    """One training process: its exit code when it has one, and what it said on standard error."""

    def __init__(self, pid: int, poll: Callable[[], int | None], messages: int) -> None:
        self.pid, self.started = pid, time.monotonic()
        self._poll, self._messages, self._said = poll, messages, b""
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        self._listen()
        if self._code is None:
            self._code = self._poll()
            self._listen()
        return self._code

    def wait(self, seconds: float) -> int:
        """The exit code; a process that takes longer than this is killed and told off."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.destroy()
                raise Hang(f"still running {seconds:.0f} s later; it had said: {self.said[-500:]!r}")
            time.sleep(POLL)
        return code

    def send(self, number: signal.Signals) -> bool:
        """Deliver a signal; False if there was nobody to deliver it to."""
        if self.poll() is not None:
            return False
        os.kill(self.pid, number)
        return True

    @property
    def said(self) -> str:
        """Standard error so far."""
        self._listen()
        return self._said.decode(errors="replace")

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._messages, 65536):
                self._said += piece

    def group_is_empty(self, seconds: float) -> bool:
        """Whether every process that this one started has ended too, given a little time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.01)
        return False

    def destroy(self) -> None:
        """End it and what it started, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(POLL)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._messages)


class Launcher(Protocol):
    """A way to start ``rl-training ARGUMENTS``."""

    name: str
    startup_seconds: float  # about how long a process takes before it trains

    def start(self, arguments: Sequence[str]) -> Attempt:
        """Start it in a session of its own."""


class CommandLine:
    """``python -m rl_training``, as a user starts it."""

    name, startup_seconds = "command line", 3.0

    def start(self, arguments: Sequence[str]) -> Attempt:
        """Start it in a session of its own."""
        listening, speaking = os.pipe()
        os.set_blocking(listening, False)
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=speaking,
            env=one_thread(),
            start_new_session=True,
        )
        os.close(speaking)
        return Attempt(process.pid, process.poll, listening)


class WarmPython:
    """Copies of a Python that has imported everything already; see ``warm``."""

    name, startup_seconds = "warm", 0.2

    def __init__(self) -> None:
        self._fifos = Path(tempfile.mkdtemp(prefix="faults-"))
        self._started = 0
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=one_thread(),
            cwd=REPOSITORY,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.communicate(timeout=30)  # the end of its input ends it and all its copies
        for fifo in self._fifos.iterdir():
            fifo.unlink()
        self._fifos.rmdir()

    def start(self, arguments: Sequence[str]) -> Attempt:
        """Start it in a session of its own."""
        self._started += 1
        fifo = self._fifos / f"messages-{self._started}"
        os.mkfifo(fifo)  # a pipe rather than a file: files may be made unwritable while the process runs
        listening = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        pid = self._ask({"start": list(arguments), "messages": str(fifo)})["pid"]
        return Attempt(pid, lambda: self._ask({"poll": pid})["code"], listening)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


def answer_ctrl_c() -> None:
    """A shell lets the jobs it starts in the background ignore SIGINT, and they hand that on to what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def one_thread() -> dict[str, str]:
    """The environment of a training process: one thread, so that many fit on a machine and sums are reproducible."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}
