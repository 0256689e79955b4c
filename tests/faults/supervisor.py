"""Starts a training run, harms it at chosen moments, resumes it each time, and compares it with an unharmed one.

A *fault* is a kind (what happens) and a moment (when): ``run_scenario`` injects a list of them into one run, one per
training process, and checks after each that nothing was lost beyond the last checkpoint. At the end the run must be
the same, bit for bit, as the reference: the same run with no faults.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from support import assert_same_run

from rl_training.experiment.yaml_files import dump_yaml

from . import damage, storage
from .processes import POLL, Attempt, Hang, Launcher
from .scenarios import CHECKPOINT_INTERVAL, STEPS, Scenario

PATIENCE = 180.0  # seconds after which a process that should have ended counts as hanging


class Broken(AssertionError):
    """A promise was not kept."""


def require(truth: object, problem: str) -> None:
    """Like assert, and says what is wrong also where asserts are compiled away."""
    if not truth:
        raise Broken(problem)


@dataclass(frozen=True)
class Fault:
    """What is to happen, and when."""

    kind: str
    moment: str


@dataclass
class Injected:
    """A fault that did happen."""

    kind: str
    moment: str
    phase: str
    step: int
    exit_code: int | None = None
    seconds_to_exit: float | None = None
    lost_steps: int | None = None  # reached, but not in an intact checkpoint; none if the process had not begun to train
    allowed_steps: int = 0


@dataclass
class Outcome:
    """What became of a run."""

    variant: str
    seed: int
    launcher: str
    faults: list[Injected] = field(default_factory=list)
    processes: int = 0
    resumed: int = 0
    problem: str | None = None

    @property
    def identical(self) -> bool:
        """Whether the run ended like its reference, with every promise kept on the way."""
        return self.problem is None


# -- the run and what can be seen of it from outside -------------------------------------------------------------------


class Case:
    """One run: its directory, its processes, its progress."""

    def __init__(
        self, scenario: Scenario, directory: Path, launcher: Launcher, rng: random.Random, *, on_save_error: str = "stop"
    ) -> None:
        self.scenario, self.directory, self.launcher, self.rng = scenario, directory, launcher, rng
        self.on_save_error = on_save_error
        self.outcome = Outcome(scenario.variant, scenario.seed, launcher.name)
        self.furthest = 0  # step of the log's last row, over all processes
        self.faults_left = 1
        self.damaged = False  # the newest checkpoint is, and no process has read it yet
        self.fallback_expected = False
        self.best_may_be_late = False  # a new best could not be saved and the run went on: the next save stands for it
        self._log_at_start: tuple[int, int] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.config_file = directory / "config.yaml"
        self.config_file.write_text(dump_yaml(scenario.settings(directory / "runs", on_save_error=on_save_error)))

    @property
    def run_dir(self) -> Path | None:
        """The run directory, once there is one."""
        found = [path for path in (self.directory / "runs").glob("*__seed*") if not path.name.startswith(".")]
        require(len(found) <= 1, f"there is more than one run: {found}")
        return found[0] if found else None

    @property
    def checkpoints(self) -> Path:
        """Where the run keeps its checkpoints."""
        return (self.run_dir or self.directory / "none yet") / "checkpoints"

    def start(self) -> Attempt:
        """Train, or resume what there is."""
        self._log_at_start = self._log_state()
        self.fallback_expected = self.damaged
        self.outcome.processes += 1
        if self.run_dir is None:
            return self.launcher.start(["train", str(self.config_file), "-q"])
        self.outcome.resumed += 1
        return self.launcher.start(["resume", str(self.run_dir), "-q"])

    def logged_step(self) -> int:
        """Step of the log's last whole row; 0 without one."""
        log = (self.run_dir or self.directory) / "metrics.jsonl"
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - 8192))
                rows = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        return int(json.loads(rows[-1])["step"]) if rows else 0

    def _log_state(self) -> tuple[int, int] | None:
        try:
            status = ((self.run_dir or self.directory) / "metrics.jsonl").stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    def has_trained(self) -> bool:
        """Whether the process of this turn came to write a row."""
        return self._log_state() not in (None, self._log_at_start)

    def intact_step(self) -> int | None:
        """Step of the newest intact checkpoint."""
        intact = [path for path in damage.checkpoint_steps(self.checkpoints) if damage.is_intact(path)]
        return int(intact[-1].name.removeprefix("step_")) if intact else None

    def status(self) -> str:
        """What the run says of itself."""
        metadata = (self.run_dir or self.directory) / "metadata.json"
        return str(json.loads(metadata.read_text())["status"]) if metadata.exists() else "not there yet"

    def phase(self, moment: str) -> str:
        """Where in its life the run is."""
        if moment == "step":
            return "warm-up" if self.logged_step() < self.scenario.warmup else "training"
        return moment


# -- moments: a condition to wait for, and how long to wait after it ---------------------------------------------------


def at_step(case: Case) -> tuple[Callable[[], bool], float]:
    """When the run has come some steps further than ever before."""
    reach = max(2, 2 * (STEPS - case.furthest) // (case.faults_left + 1))
    target = case.furthest + case.rng.randint(1, reach)
    return lambda: case.logged_step() >= target, case.rng.uniform(0, 0.005)


def while_starting(case: Case) -> tuple[Callable[[], bool], float]:
    """At any time before the first step."""
    return lambda: True, case.rng.uniform(0, case.launcher.startup_seconds)


def while_saving(case: Case) -> tuple[Callable[[], bool], float]:
    """A checkpoint is being written."""
    seen = set(case.checkpoints.glob(".step_*"))
    return lambda: bool(set(case.checkpoints.glob(".step_*")) - seen), case.rng.uniform(0, 0.03)


def while_evaluating(case: Case) -> tuple[Callable[[], bool], float]:
    """The row of a step that calls for an evaluation has just been written."""
    interval = case.scenario.eval_interval
    target = (case.furthest // interval + 1) * interval
    return lambda: case.logged_step() >= target, case.rng.uniform(0, 0.05)


def while_finishing(case: Case) -> tuple[Callable[[], bool], float]:
    """The last step is done: last evaluation, last checkpoint, last words."""
    return lambda: case.logged_step() >= STEPS, case.rng.uniform(0, 0.15)


MOMENTS: dict[str, Callable[[Case], tuple[Callable[[], bool], float]]] = {
    "step": at_step,
    "starting": while_starting,
    "saving": while_saving,
    "evaluating": while_evaluating,
    "finishing": while_finishing,
}


def comes(case: Case, attempt: Attempt, moment: str) -> bool:
    """Wait for a moment. False if the process ended first."""
    condition, delay = MOMENTS[moment](case)
    end = time.monotonic() + PATIENCE
    while not condition():
        if attempt.poll() is not None:
            return False
        if time.monotonic() > end:
            attempt.destroy()
            raise Hang(f"waited {PATIENCE:.0f} s for {moment}; the process had said {attempt.said[-500:]!r}")
        time.sleep(POLL)
    time.sleep(delay)
    return attempt.poll() is None


# -- kinds of faults: each ends with the process gone, and returns how many steps it may have cost ----------------------

Kind = Callable[[Case, Attempt, Injected], int]
ONE_INTERVAL, NOTHING = CHECKPOINT_INTERVAL, 0


def kill(case: Case, attempt: Attempt, done: Injected) -> int:
    """SIGKILL: no time for anything."""
    attempt.send(signal.SIGKILL)
    attempt.wait(PATIENCE)
    return ONE_INTERVAL


def terminate(case: Case, attempt: Attempt, done: Injected) -> int:
    """SIGTERM: finish the step, save, say so."""
    return _stop_politely(case, attempt, signal.SIGTERM)


def interrupt(case: Case, attempt: Attempt, done: Injected) -> int:
    """SIGINT, as Ctrl-C sends it: the same."""
    return _stop_politely(case, attempt, signal.SIGINT)


def _stop_politely(case: Case, attempt: Attempt, number: signal.Signals) -> int:
    trained = case.has_trained()
    attempt.send(number)
    code = attempt.wait(PATIENCE)
    said = f"it said {attempt.said[-500:]!r}"
    if case.status() == "finished":  # Python was leaving already
        require(code in (0, 130, -signal.SIGINT, -number), f"exit code {code} after {number.name} at the end; {said}")
        return NOTHING
    if trained:
        require(code == 130, f"exit code {code} instead of 130 after {number.name}; {said}")
        require(case.status() == "interrupted", f"after {number.name} the run calls itself {case.status()}; {said}")
        return NOTHING
    # still starting: there is nothing to save; a shell calls death by SIGINT 130 too
    require(code in (130, -signal.SIGINT, -number), f"exit code {code} after {number.name} before training; {said}")
    return ONE_INTERVAL


def two_signals(case: Case, attempt: Attempt, done: Injected) -> int:
    """Two signals in quick succession: out at once, the last good checkpoint unharmed."""
    first, second = (case.rng.choice([signal.SIGINT, signal.SIGTERM]) for _ in range(2))
    trained = case.has_trained()
    attempt.send(first)
    time.sleep(case.rng.choice([0, case.rng.uniform(0, 0.03)]))
    attempt.send(second)
    code = attempt.wait(PATIENCE)
    over = not trained or case.status() in ("interrupted", "finished")  # Python starting or leaving: nobody answers there
    expected = (0, 130, -signal.SIGINT, -first, -second) if over else (130, -signal.SIGINT)
    require(code in expected, f"exit code {code} after {first.name} and {second.name}; it said {attempt.said[-500:]!r}")
    return ONE_INTERVAL


def kill_and_damage(harm: Callable[[Path, random.Random], None]) -> Kind:
    """SIGKILL, and then the newest checkpoint is not what it was."""

    def injure(case: Case, attempt: Attempt, done: Injected) -> int:
        kill(case, attempt, done)
        intact = [path for path in damage.checkpoint_steps(case.checkpoints) if damage.is_intact(path)]
        if len(intact) < 2 or case.damaged:  # only ever the newest, with an intact one before it
            done.kind = "kill"
            return ONE_INTERVAL
        victim = case.rng.choice(damage.damageable(intact[-1]))
        before = victim.read_bytes()
        harm(victim, case.rng)
        case.damaged = victim.name != "last" and not damage.still_says_the_same(victim, before)
        newest, before_it = (int(path.name.removeprefix("step_")) for path in (intact[-1], intact[-2]))
        return ONE_INTERVAL + newest - before_it

    return injure


def disk_trouble(begin: Callable[[Case, Attempt], AbstractContextManager[None]]) -> Kind:
    """Writing fails for a while. As configured, the run stops cleanly, or goes on and makes up for it later."""

    def trouble(case: Case, attempt: Attempt, done: Injected) -> int:
        known = case.intact_step()
        with begin(case, attempt):
            code = attempt.wait(PATIENCE) if case.on_save_error == "stop" else _wait_for_complaint(case, attempt)
        require((case.intact_step() or 0) >= (known or 0), f"the checkpoint of step {known} is gone")
        if code is None:
            case.best_may_be_late = True
            code = _kill_after_next_save(case, attempt)
        blamed_the_disk = code != 2 or "could not be written" in attempt.said or "cannot be" in attempt.said
        require(code in (0, 2, -signal.SIGKILL) and blamed_the_disk, f"exit code {code}; it said {attempt.said[-500:]!r}")
        return STEPS if code == 2 and case.on_save_error == "continue" else ONE_INTERVAL

    return trouble


def _wait_for_complaint(case: Case, attempt: Attempt) -> int | None:
    """Until a write has failed, and a little longer; the exit code if the process has ended by then."""
    end = time.monotonic() + PATIENCE
    while attempt.poll() is None and "could not be written" not in attempt.said:
        require(time.monotonic() < end, f"nothing was written, and nothing said of it but {attempt.said[-500:]!r}")
        time.sleep(POLL)
    time.sleep(case.rng.uniform(0, 0.3))
    return attempt.poll()


def _kill_after_next_save(case: Case, attempt: Attempt) -> int:
    """The trouble is over: a run that went on must come to save again. Then it is killed."""
    known, end = case.intact_step() or 0, time.monotonic() + PATIENCE
    while attempt.poll() is None and (case.intact_step() or 0) <= known:
        require(time.monotonic() < end, f"no checkpoint since the trouble ended; it said {attempt.said[-500:]!r}")
        time.sleep(0.01)
    attempt.send(signal.SIGKILL)
    return attempt.wait(PATIENCE)


def run_dir_or_runs(case: Case) -> Path:
    """The run directory, or where it is going to be."""
    (case.directory / "runs").mkdir(exist_ok=True)
    return case.run_dir or case.directory / "runs"


def second_process(case: Case, attempt: Attempt, done: Injected) -> int:
    """Somebody resumes a run that is running: refused, and the run takes no harm. Then it is killed."""
    while not case.has_trained() and attempt.poll() is None:
        time.sleep(POLL)
    attempt.send(signal.SIGSTOP)  # it would go on meanwhile, perhaps to its end
    if case.status() == "finished" or attempt.poll() is not None:  # too late: it has let go of the run already
        done.kind = "kill"
        return kill(case, attempt, done)
    intruder = case.launcher.start(["resume", str(case.run_dir), "-q"])
    try:
        code = intruder.wait(PATIENCE)
        refused = code == 2 and "in use by process" in intruder.said
        require(refused, f"a second process was not refused: exit code {code}, it said {intruder.said[-500:]!r}")
    finally:
        intruder.destroy()
        intruder.close()
    return kill(case, attempt, done)


KINDS: dict[str, Kind] = {
    "kill": kill,
    "terminate": terminate,
    "interrupt": interrupt,
    "two signals": two_signals,
    "truncate": kill_and_damage(damage.truncate),
    "flip a bit": kill_and_damage(damage.flip_bit),
    "remove": kill_and_damage(damage.remove),
    "second process": second_process,
    "disk full": disk_trouble(lambda case, attempt: storage.full_disk(case.directory / "runs")),
    "read-only": disk_trouble(lambda case, attempt: storage.read_only(run_dir_or_runs(case))),
    "writes refused": disk_trouble(lambda case, attempt: storage.refused_writes(attempt.pid)),
}
STORAGE = ("disk full", "read-only", "writes refused")


def possible_kinds() -> list[str]:
    """The faults that can be injected on this machine."""
    return [kind for kind in KINDS if kind not in STORAGE or kind in storage.possible_kinds()]


# -- a whole run ------------------------------------------------------------------------------------------------------


def run_scenario(
    scenario: Scenario,
    faults: Sequence[Fault],
    *,
    reference: Path,
    directory: Path,
    launcher: Launcher,
    rng: random.Random,
) -> Outcome:
    """Train with these faults, then to the end, and compare with the finished run ``reference``."""
    case = Case(scenario, directory, launcher, rng, on_save_error=rng.choice(["stop", "continue"]))
    needs_disk = any(fault.kind == "disk full" for fault in faults)
    with storage.small_disk(directory / "runs") if needs_disk else contextlib.nullcontext():
        _go_through(case, faults, reference)
    return case.outcome


def _go_through(case: Case, faults: Sequence[Fault], reference: Path) -> None:
    try:
        for index, fault in enumerate(faults):
            case.faults_left = len(faults) - index
            if not inject(case, fault):
                break
        finish(case)
        compare(case, reference)
    except (AssertionError, Hang, OSError, ValueError) as problem:  # the last two: a file that should be there is not
        case.outcome.problem = f"{type(problem).__name__}: {problem}"


def inject(case: Case, fault: Fault) -> bool:
    """One process and its fault. False if the process came to its end without it."""
    attempt = case.start()
    try:
        if not comes(case, attempt, fault.moment):
            require_finished(case, attempt)
            return False
        done = Injected(fault.kind, fault.moment, case.phase(fault.moment), case.logged_step())
        sent = time.monotonic()
        done.allowed_steps = KINDS[fault.kind](case, attempt, done)
        done.exit_code, done.seconds_to_exit = attempt.poll(), time.monotonic() - sent
        case.outcome.faults.append(done)
        inspect(case, attempt, done)
        return True
    finally:
        attempt.destroy()
        attempt.close()


def inspect(case: Case, attempt: Attempt, done: Injected) -> None:
    """What must be true of a run directory after any fault."""
    require(attempt.group_is_empty(10), "a process of the run lives on")
    expect_fallback(case, attempt)
    reached, kept = case.logged_step(), case.intact_step() or 0
    if case.has_trained():
        done.lost_steps = reached - kept
        overshoot = case.scenario.num_envs if done.allowed_steps else 0  # several environments step past a multiple together
        require(done.lost_steps <= done.allowed_steps + overshoot, f"{done}: step {reached} was reached, only {kept} is kept")
    case.furthest = max(case.furthest, reached)


def expect_fallback(case: Case, attempt: Attempt) -> None:
    """The first process that reads a damaged checkpoint says so."""
    if case.fallback_expected and (case.has_trained() or "Falling back" in attempt.said):
        require("Falling back" in attempt.said, f"the damage went unnoticed; it said {attempt.said[-500:]!r}")
        case.fallback_expected = case.damaged = False


def finish(case: Case) -> None:
    """Let the run come to its end undisturbed."""
    attempt = case.start()
    try:
        attempt.wait(PATIENCE)
        expect_fallback(case, attempt)
        require_finished(case, attempt)
    finally:
        attempt.destroy()
        attempt.close()


def require_finished(case: Case, attempt: Attempt) -> None:
    """The process ended by itself, as it should."""
    stopped_before = "was stopped at step" in attempt.said  # early stopping: resume says so and does nothing
    expected = 2 if stopped_before else 0
    require(attempt.poll() == expected, f"exit code {attempt.poll()}; the process said {attempt.said[-600:]!r}")


def compare(case: Case, reference: Path) -> None:
    """The run is its reference, to the bit, and nothing is lying about."""
    run_dir = case.run_dir
    require(run_dir is not None, "there is no run directory")
    assert run_dir is not None
    assert_same_run(reference, run_dir)
    pointers = ("last",) if case.best_may_be_late else ("last", "best")
    for pointer in pointers:
        here, there = ((path / "checkpoints" / pointer).read_text() for path in (run_dir, reference))
        require(here == there, f"{pointer} points to {here.strip()} instead of {there.strip()}")
        require(damage.is_intact(run_dir / "checkpoints" / here.strip()), f"{pointer} points to something damaged")
    litter = [*run_dir.rglob("*.tmp"), *run_dir.glob("checkpoints/.*")]
    require(not litter, f"left lying about: {litter}")


def reference_run(scenario: Scenario, directory: Path, launcher: Launcher) -> Path:
    """The same run with no faults."""
    case = Case(scenario, directory, launcher, random.Random(0))
    finish(case)
    assert case.run_dir is not None
    return case.run_dir


def random_faults(rng: random.Random, count: int, kinds: Sequence[str]) -> list[Fault]:
    """Faults at all moments, most of them in the middle of training; the end comes only once."""
    moments = rng.choices(["step", "saving", "evaluating", "starting"], weights=[40, 25, 20, 15], k=count)
    if rng.random() < 0.4:
        moments[-1] = "finishing"
    return [Fault(rng.choice(list(kinds)), moment) for moment in moments]
