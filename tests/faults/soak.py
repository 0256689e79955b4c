"""Faults for as long as asked: ``python -m tests.faults.soak --minutes 10 --seed 0``. Exit code 1 if any run differs.

Each run is one scenario with several faults; the seed decides scenarios, kinds and moments. One run in ten is started from the
real command line every time, the others from a warm Python; see ``processes``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shlex
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .processes import CommandLine, Launcher, WarmPython, answer_ctrl_c
from .scenarios import CHECKPOINT_INTERVAL, STEPS, VARIANTS, Scenario
from .supervisor import Outcome, possible_kinds, random_faults, reference_run, run_scenario

POLITE = ("terminate", "interrupt")
DAMAGE = ("truncate", "flip a bit", "remove")


class Soak:
    """Runs until the time is up or enough faults have been injected."""

    def __init__(self, directory: Path, *, seed: int, minutes: float, faults: int | None) -> None:
        self.directory, self.seed = directory, seed
        self.outcomes: list[Outcome] = []
        self._end, self._wanted = time.monotonic() + 60 * minutes, faults
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._references: dict[Scenario, Path] = {}
        self._variants = list(VARIANTS)
        random.Random(seed).shuffle(self._variants)

    def work(self) -> None:
        """One worker: run after run."""
        with WarmPython() as warm:
            while not self._is_over():
                with self._lock:
                    number = next(self._numbers)
                self._record(number, self._run(number, warm))

    def stop(self) -> None:
        """Start no further run."""
        self._end = 0.0

    def _is_over(self) -> bool:
        injected = sum(len(outcome.faults) for outcome in self.outcomes)
        return time.monotonic() > self._end or (self._wanted is not None and injected >= self._wanted)

    def _run(self, number: int, warm: Launcher) -> Outcome:
        rng = random.Random(f"{self.seed}/{number}")
        rounds, position = divmod(number, len(self._variants))
        scenario = Scenario(self._variants[position], seed=self.seed + rounds // 4)
        if scenario not in self._references:
            self._references[scenario] = reference_run(scenario, self.directory / f"reference_{number:04d}", warm)
        return run_scenario(
            scenario,
            random_faults(rng, rng.randint(5, 10), possible_kinds()),
            reference=self._references[scenario],
            directory=self.directory / f"run_{number:04d}",
            launcher=CommandLine() if rng.random() < 0.1 else warm,
            rng=rng,
        )

    def _record(self, number: int, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
        story = "; ".join(f"{fault.kind} {fault.moment} {fault.step} exit {fault.exit_code}" for fault in outcome.faults)
        verdict = "identical" if outcome.identical else f"NOT IDENTICAL: {outcome.problem}\n     ({story})"
        print(f"{number:4} {outcome.variant:24} {outcome.launcher:12} {len(outcome.faults):2} faults  {verdict}", flush=True)
        if outcome.identical:
            shutil.rmtree(self.directory / f"run_{number:04d}")


def largest(numbers: Iterable[float]) -> float | None:
    """The maximum, if there are any."""
    return max(numbers, default=None)


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    """The counts that the documentation shows."""
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    losses = [(fault, fault.lost_steps) for fault in faults if fault.lost_steps is not None]
    exits = [fault.seconds_to_exit for fault in faults if fault.kind in POLITE and fault.seconds_to_exit is not None]
    return {
        "runs": len(outcomes),
        "faults": len(faults),
        "processes": sum(outcome.processes for outcome in outcomes),
        "resumed": sum(outcome.resumed for outcome in outcomes),
        "identical": sum(outcome.identical for outcome in outcomes),
        "from_the_command_line": sum(outcome.launcher == CommandLine.name for outcome in outcomes),
        "faults_by_kind": dict(Counter(fault.kind for fault in faults).most_common()),
        "faults_by_phase": dict(Counter(fault.phase for fault in faults).most_common()),
        "faults_by_algorithm": dict(Counter(o.variant.split(",")[0] for o in outcomes for _ in o.faults).most_common()),
        "steps_of_a_run": STEPS,
        "checkpoint_interval": CHECKPOINT_INTERVAL,
        "lost_steps_at_most": largest(lost for fault, lost in losses if fault.allowed_steps <= CHECKPOINT_INTERVAL),
        "lost_steps_at_most_besides_a_damaged_checkpoint": largest(
            lost - (fault.allowed_steps - CHECKPOINT_INTERVAL) for fault, lost in losses if fault.kind in DAMAGE
        ),
        "seconds_from_signal_to_exit": {
            "median": round(statistics.median(exits), 2) if exits else None,
            "at_most": round(max(exits), 2) if exits else None,
        },
        "problems": [f"{o.variant}, seed {o.seed}, {o.launcher}: {o.problem}" for o in outcomes if not o.identical],
    }


def main() -> int:
    """Soak, tell, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="no run is started after this time")
    parser.add_argument("--seed", type=int, default=0, help="decides scenarios, faults and moments")
    parser.add_argument("--faults", type=int, help="stop when so many have been injected")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--output", type=Path, help="also write the counts to this JSON file")
    arguments = parser.parse_args()
    answer_ctrl_c()

    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(directory, seed=arguments.seed, minutes=arguments.minutes, faults=arguments.faults)
    print(f"faults that can be had here: {', '.join(possible_kinds())}", flush=True)
    begun = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(soak.work) for _ in range(arguments.jobs)]
        try:
            for job in jobs:
                job.result()
        except KeyboardInterrupt:
            print("stopping when the current runs are done", flush=True)
            soak.stop()
    summary = {
        "command": f"python -m tests.faults.soak {shlex.join(sys.argv[1:])}",
        "minutes": round((time.monotonic() - begun) / 60, 1),
        **summarize(soak.outcomes),
    }
    print(json.dumps(summary, indent=1))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n")
    if summary["problems"]:
        print(f"what was left of the runs that differ is in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
