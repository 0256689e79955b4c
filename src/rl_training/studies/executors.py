"""Running many runs: one after the other here, or several at a time in worker processes. Ray is in ``ray_executor``.

An executor asks for a run whenever it has room for one and tells what happens as a stream of events. How far a run has come
it does not tell: that stands in the run's own log, where :func:`~rl_training.studies.worker.progress_of` finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from rl_training.studies.spec import ExecutorSettings, RunSpec
from rl_training.studies.worker import Outcome, do_run, surroundings

NextRun: TypeAlias = Callable[[], RunSpec | None]
"""Gives the next run to do; none if there is none now. An executor ends when it has none and none is under way."""

STOP_SECONDS = 120.0
"""How long runs may take to save after they were asked to stop."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    ``lost``: its worker died, and the run will be continued by another. ``failed`` is for good; with ``bug`` the message is
    a traceback or tells of a worker that kept dying, without it it is a mistake in what the user gave.
    """

    kind: Literal["started", "finished", "failed", "lost"]
    run: RunSpec
    result: dict[str, Any] | None = None
    message: str = ""
    bug: bool = False


class Executor(Protocol):
    """Something that does runs."""

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Around :meth:`run`: gets hold of what runs need; a ``ConfigError`` if it cannot, before anything is made."""

    def run(self, next_run: NextRun) -> Generator[Event, None, None]:
        """Do the runs that ``next_run`` gives; closing the iterator, or Ctrl-C, has those under way save and end."""


def one_by_one(specs: Iterable[RunSpec]) -> NextRun:
    """The runs of a list, in order."""
    left = iter(specs)
    return lambda: next(left, None)


def make_executor(settings: ExecutorSettings, *, log_dir: Path, threads: int = 1) -> Executor:
    """The executor that settings ask for, for runs of so many threads; what worker processes print goes to ``log_dir``."""
    if settings.kind == "serial":
        return SerialExecutor()
    if settings.kind == "process":
        return ProcessExecutor(settings.workers or max(1, cores() // threads), retries=settings.retries, log_dir=log_dir)
    from rl_training.studies.ray_executor import RayExecutor

    return RayExecutor(settings, threads=threads)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SerialExecutor:
    """One run after the other, in this process."""

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is needed."""
        return contextlib.nullcontext()

    def run(self, next_run: NextRun) -> Generator[Event, None, None]:
        """Do the runs; a signal that a run has answered by saving ends the rest as ``KeyboardInterrupt``."""
        while (spec := next_run()) is not None:
            yield Event("started", spec)
            outcome = do_run(spec)
            if outcome["status"] == "interrupted":
                raise KeyboardInterrupt
            yield concluded(spec, outcome)


def concluded(spec: RunSpec, outcome: Outcome) -> Event:
    """The event of a run that came to an end of its own."""
    kind: Literal["finished", "failed"] = "finished" if outcome["status"] == "finished" else "failed"
    return Event(kind, spec, outcome["result"], outcome["message"], outcome["bug"])


class Resubmissions:
    """Runs whose worker died, and how often that may happen to one."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._losses: Counter[str] = Counter()
        self._waiting: deque[RunSpec] = deque()

    def next_before(self, next_run: NextRun) -> RunSpec | None:
        """A lost run if there is one, else a new one."""
        return self._waiting.popleft() if self._waiting else next_run()

    def lost(self, spec: RunSpec, why: str) -> Event:
        """Note a loss: the run is given out again, unless this has happened too often."""
        self._losses[spec["name"]] += 1
        times = self._losses[spec["name"]]
        if times > self._retries:
            often = "once" if times == 1 else f"{times} times"
            return Event("failed", spec, message=f"its worker died ({often}), the last time: {why}", bug=True)
        self._waiting.append(spec)
        return Event("lost", spec, message=why)


class ProcessExecutor:
    """Several runs at a time, each in a worker process with one thread; a worker takes one run after the other."""

    def __init__(self, workers: int, *, retries: int = 3, log_dir: Path) -> None:
        self.workers, self._retries, self._log_dir = workers, retries, log_dir
        self._started = 0

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is needed."""
        return contextlib.nullcontext()

    def run(self, next_run: NextRun) -> Generator[Event, None, None]:
        """Do the runs. However this ends, no worker is left behind, and runs under way have been saved."""
        lost = Resubmissions(self._retries)
        idle: list[_Worker] = []
        busy: dict[_Worker, RunSpec] = {}
        answers: _Answers = queue.SimpleQueue()
        try:
            while True:
                while len(busy) < self.workers and (spec := lost.next_before(next_run)) is not None:
                    worker = idle.pop() if idle else self._start_worker(answers)
                    busy[worker] = spec
                    worker.give(spec)
                    yield Event("started", spec)
                if not busy:
                    return
                worker, answer = answers.get()
                if answer is None:  # it has ended, whatever it was doing
                    words = worker.last_words()
                    if worker in idle:
                        idle.remove(worker)
                    else:
                        yield lost.lost(busy.pop(worker), words)
                    continue
                spec, outcome = busy.pop(worker), json.loads(answer)
                idle.append(worker)
                if outcome["status"] == "interrupted":  # somebody asked the worker, not us, to stop
                    yield lost.lost(spec, "it was told to stop")
                else:
                    yield concluded(spec, outcome)
        finally:
            _dismiss([*idle, *busy])

    def _start_worker(self, answers: _Answers) -> _Worker:
        self._started += 1
        return _Worker(self._log_dir / f"worker_{self._started}.log", answers)


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, log: Path, answers: _Answers) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER_PROGRAM, json.dumps(surroundings())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches the parent alone, which tells its workers once: twice would kill
            )
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: _Answers) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answers.put((self, line))
        answers.put((self, None))

    def give(self, spec: RunSpec) -> None:
        """Hand over a run."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead; its listener says so
            self._process.stdin.write(json.dumps(spec) + "\n")
            self._process.stdin.flush()

    def last_words(self) -> str:
        """How it ended."""
        self.dismiss()
        code = self._process.wait()
        return f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'} (see {self._log})"

    def dismiss(self) -> None:
        """Ask it to save and leave."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait for it to leave; then end it, which costs no more than what came after its last checkpoint."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()


_Answers: TypeAlias = "queue.SimpleQueue[tuple[_Worker, str | None]]"

# not multiprocessing: it would run the user's own script again in each worker, and this one has its threads set before torch
# is imported
_WORKER_PROGRAM = """\
import json, sys
around = json.loads(sys.argv[1])
sys.path[:], sys.argv = around["path"], around["command"]
from rl_training.studies.worker import serve
serve()
"""


def _dismiss(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.dismiss()
    try:
        for worker in workers:
            worker.wait(STOP_SECONDS)
    except BaseException:  # asked to stop a second time
        for worker in workers:
            worker.kill()
        raise
