"""A process that runs cases, and the one that watches it: a hang or a crash is an outcome, not the end."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .kinds import Recipe, all_kinds
from .outcomes import Outcome, judge

ADDRESS_SPACE = 3 * 2**30
"""Bytes that a worker may claim beyond what it has after its imports: a larger claim fails instead of filling the machine."""
SETUP_DEADLINE = 300.0


class Supervisor:
    """Runs cases one at a time in a worker, which is replaced when it hangs or dies."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bases = directory, directory / "bases"
        self.bases.mkdir(parents=True, exist_ok=True)
        self._trace = directory / "hang.txt"
        self._process: Any = None
        self._connection: Any = None
        self._built: set[str] = set()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def run(self, kind: str, recipe: Recipe, *, inputs: Path | None = None, deadline: float | None = None) -> Outcome:
        """The outcome of one case; ``inputs`` are its files if they are not to be made from the recipe."""
        self.build(kind)
        deadline = deadline or all_kinds()[kind].deadline
        scratch = Path(tempfile.mkdtemp(dir=self.directory, prefix="case_"))
        try:
            if inputs is not None:
                shutil.copytree(inputs, scratch, symlinks=True, dirs_exist_ok=True)
            order = ("run", kind, recipe, str(scratch), inputs is None, deadline)
            return self._ask(order, deadline)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def prepare(self, kind: str, recipe: Recipe, target: Path) -> None:
        """Only write the input files of a case."""
        self.build(kind)
        self._must(("prepare", kind, recipe, str(target)))

    def build(self, kind: str) -> None:
        """Make the intact files of a kind, once."""
        if kind not in self._built:
            self._must(("build", kind))
            self._built.add(kind)

    def _must(self, order: tuple[Any, ...]) -> None:
        answer = self._ask(order, SETUP_DEADLINE)
        if answer.name != "done":
            raise RuntimeError(f"the harness itself failed at {order[:3]}: {answer}")

    def _ask(self, order: tuple[Any, ...], deadline: float) -> Outcome:
        if self._process is None:
            self._start()
        self._connection.send(order)
        if not self._connection.poll(deadline):
            self._stop()
            return Outcome("hang", f"{deadline:g} s passed\n{self._trace.read_text() if self._trace.exists() else ''}")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self._stop()
            return Outcome("crash", f"the process ended with {code}\n{self._trace.read_text()}")
        if answer.name == "harness":
            raise RuntimeError(f"the harness itself failed at {order[:3]}: {answer.detail}")
        outcome: Outcome = answer
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's locks and threads
        self._connection, theirs = context.Pipe()
        arguments = (theirs, str(self.bases), str(self._trace))
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(SETUP_DEADLINE):
            raise RuntimeError("the fuzz worker did not start")
        self._connection.recv()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None


def serve(connection: Connection, bases: str, trace: str) -> None:
    """The worker: answers orders until its supervisor is gone."""
    _be_quiet()
    kinds = all_kinds()
    with open(trace, "w") as log:
        faulthandler.enable(log)  # where a crash happened
        _limit_address_space()
        connection.send("ready")
        while True:
            try:
                action, name, *rest = connection.recv()
            except (EOFError, ConnectionError):
                return
            try:
                if action == "build":
                    kinds[name].build(Path(bases))
                    answer = Outcome("done")
                elif action == "prepare":
                    kinds[name].prepare(rest[0], Path(bases), Path(rest[1]))
                    answer = Outcome("done")
                else:
                    answer = _run_case(name, rest, Path(bases), log)
            except Exception as error:
                import traceback

                answer = Outcome("harness", f"{error!r}\n{traceback.format_exc()}")
            connection.send(answer)


def _run_case(name: str, rest: list[Any], bases: Path, log: Any) -> Outcome:
    recipe, scratch, to_prepare, deadline = rest[0], Path(rest[1]), rest[2], rest[3]
    kind = all_kinds()[name]
    if to_prepare:
        kind.prepare(recipe, bases, scratch)
    home = os.getcwd()
    os.chdir(scratch)
    log.truncate(0)
    faulthandler.dump_traceback_later(0.8 * deadline, file=log)  # where it hangs, if it does
    try:
        return judge(kind, recipe, scratch)
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.chdir(home)


def _be_quiet() -> None:
    os.environ.update(OMP_NUM_THREADS="1", PATH="", RL_TRAINING_NO_USER_CODE="1")  # no PATH: no git to ask for a revision
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    logging.getLogger("rl_training").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)


def _limit_address_space() -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # not Linux
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESS_SPACE, hard))
