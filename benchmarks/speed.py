"""Ours and the peers on the same work, interleaved in one run: medians, ratios with spread, and the share of the floor.

    python benchmarks/speed.py                     # everything; about an hour on two cores
    python benchmarks/speed.py sac td3_bc          # comparisons whose name contains one of these
    python benchmarks/speed.py --list

The peers' virtual environments are made by itself (benchmarks/.peers). In every round each contestant does one chunk of its
work while the others wait (contestants/gate.py), so that ratios hold on a noisy machine. Results go to
benchmarks/results/speed.json, tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs import ROOT, load, write_section
from peers import python_of

HERE = ROOT / "benchmarks" / "contestants"
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"
PAGE = ROOT / "docs" / "performance.md"
HIDDEN, BATCH = [256, 256], 256


@dataclass(frozen=True)
class Contestant:
    """A library (or the floor) at some work; ``copies`` run side by side."""

    name: str
    script: str
    work: dict[str, Any]
    environment: str | None = None
    copies: int = 1


@dataclass(frozen=True)
class Comparison:
    """Contestants at the same work, ours first, and the ratio that is wanted against each of the others."""

    name: str
    unit: str
    contestants: Sequence[Contestant]
    wanted: dict[str, tuple[float, float]] = field(default_factory=dict)


# -- the work --------------------------------------------------------------------------------------------------------------


def loop(algo: str, env_id: str | None, settings: dict[str, Any], *, threads: int, chunk: int, copies: int = 1) -> Contestant:
    """Our whole training loop."""
    work = {"what": "loop", "algo": algo, "env_id": env_id, "settings": settings}
    return Contestant("rl_training", "with_ours.py", {**work, **pace(threads, chunk)}, copies=copies)


def update(settings: dict[str, Any], *, threads: int, chunk: int, **changes: Any) -> Contestant:
    """Our SAC update alone."""
    work = {"what": "update", "algo": "sac", "settings": settings, **changes}
    return Contestant("rl_training", "with_ours.py", {**work, **pace(threads, chunk)})


def peer(
    library: str, algo: str, env_id: str, settings: dict[str, Any], *, threads: int, chunk: int, copies: int = 1
) -> Contestant:
    """The loop of Stable-Baselines3 and its relatives."""
    work = {"library": library, "algo": algo, "env_id": env_id, "settings": settings, **pace(threads, chunk)}
    return Contestant(library, "with_sb3.py", work, environment="sb3", copies=copies)


def pace(threads: int, chunk: int) -> dict[str, int]:
    """Threads and the size of a chunk; the warm-up covers 300 random steps, buffers and compilation."""
    return {"threads": threads, "chunk": chunk, "warmup": 300 + chunk}


ONLINE = {"learning_starts": 300, "batch_size": BATCH, "learning_rate": 3e-4}
OURS_ONLINE = {**ONLINE, "hidden_sizes": HIDDEN, "buffer_capacity": 1_000_000, "train_frequency": 1}
SB3_ONLINE = {**ONLINE, "buffer_size": 1_000_000, "train_freq": 1, "gradient_steps": 1}
NETS = {"policy_kwargs": {"net_arch": HIDDEN}}
WANTED_LOOPS = {"sac": (1.5, 2.0), "td3": (1.4, 2.0), "ddpg": (1.4, 2.0), "tqc": (1.5, 2.0)}
WANTED_OFFLINE = {
    "td3_bc": (1.7, 3.0), "iql": (1.7, 3.0), "awac": (1.4, 2.5), "rebrac": (1.3, 2.0), "bc": (2.5, 5.0), "cql": (1.3, 2.0),
}  # fmt: skip
CHUNKS_OFFLINE = {"bc": 600, "cql": 20}


def online_loops(threads: int) -> Iterable[Comparison]:
    """HalfCheetah-v5, one update a step."""
    env, where = "HalfCheetah-v5", {"threads": threads, "chunk": 200}
    for algo, wanted in WANTED_LOOPS.items():
        ours = {**OURS_ONLINE, "gradient_updates_per_step": 1}
        theirs = {**SB3_ONLINE, **NETS}
        library = "sb3_contrib" if algo == "tqc" else "sb3"
        if algo == "tqc":
            ours |= {"num_critics": 2, "num_quantiles": 25, "critic_hidden_sizes": HIDDEN}
            theirs |= {"policy_kwargs": {"net_arch": HIDDEN, "n_critics": 2, "n_quantiles": 25}}
        contestants = [loop(algo, env, ours, **where), peer(library, algo, env, theirs, **where)]
        goals = {library: wanted}
        if algo == "sac":
            contestants.append(peer("sbx", algo, env, theirs, **where))
            goals["sbx"] = (1.0, 1.3)
        yield Comparison(f"{algo} loop, {threads} thread{'s' * (threads > 1)}", "steps/s", contestants, goals)


def side_by_side() -> Comparison:
    """Two SAC runs at once, one thread each."""
    where = {"threads": 1, "chunk": 150, "copies": 2}
    ours = {**OURS_ONLINE, "gradient_updates_per_step": 1}
    theirs = {**SB3_ONLINE, **NETS}
    contestants = [loop("sac", "HalfCheetah-v5", ours, **where), peer("sb3", "sac", "HalfCheetah-v5", theirs, **where)]
    return Comparison("sac loop, two runs side by side", "steps/s each", contestants, {"sb3": (1.5, 2.0)})


def dqn_loop() -> Comparison:
    """CartPole-v1, SB3's rhythm: an update of 64 transitions every fourth step."""
    common, where = {"learning_starts": 300, "batch_size": 64, "learning_rate": 1e-3}, {"threads": 1, "chunk": 2000}
    ours = {**common, "hidden_sizes": HIDDEN, "buffer_capacity": 100_000, "train_frequency": 4, "gradient_updates_per_step": 1}
    theirs = {**common, **NETS, "buffer_size": 100_000, "train_freq": 4, "gradient_steps": 1}
    contestants = [loop("dqn", "CartPole-v1", ours, **where), peer("sb3", "dqn", "CartPole-v1", theirs, **where)]
    return Comparison("dqn loop, CartPole", "steps/s", contestants, {"sb3": (2.0, 5.0)})


def redq_loop() -> Comparison:
    """10 critics, 20 updates a step; SBX's SAC with ten critics and its actor every 20th update."""
    where = {"threads": 2, "chunk": 4}
    ours = {**OURS_ONLINE, "num_critics": 10, "subset_size": 2, "gradient_updates_per_step": 20}
    theirs = {**SB3_ONLINE, "gradient_steps": 20, "policy_delay": 20, "policy_kwargs": {"net_arch": HIDDEN, "n_critics": 10}}
    contestants = [loop("redq", "HalfCheetah-v5", ours, **where), peer("sbx", "redq", "HalfCheetah-v5", theirs, **where)]
    return Comparison("redq loop, 20 updates a step", "steps/s", contestants, {"sbx": (1.1, 2.0)})


def offline_loops() -> Iterable[Comparison]:
    """A dataset of 17 observation and 6 action dimensions, sampling included."""
    for algo, wanted in WANTED_OFFLINE.items():
        where = pace(2, CHUNKS_OFFLINE.get(algo, 150))
        ours: dict[str, Any] = {"batch_size": BATCH, "hidden_sizes": HIDDEN}
        theirs: dict[str, Any] = {"batch_size": BATCH, "hidden_sizes": HIDDEN}
        if algo == "cql":
            ours["num_cql_samples"] = theirs["n_action_samples"] = 10
        if algo == "rebrac":
            ours["layer_norm"] = theirs["layer_norm"] = True
        contestants = [
            Contestant(
                "rl_training", "with_ours.py", {"what": "loop", "algo": algo, "env_id": None, "settings": ours, **where}
            ),
            Contestant("d3rlpy", "with_d3rlpy.py", {"algo": algo, "settings": theirs, **where}, environment="d3rlpy"),
        ]
        yield Comparison(f"{algo} updates", "updates/s", contestants, {"d3rlpy": wanted})


def floors() -> Iterable[Comparison]:
    """The SAC update beside its matrix multiplies alone."""
    for threads in (1, 2):
        where = pace(threads, 200)
        floor = Contestant("floor", "floor.py", {"batch": BATCH, "hidden_sizes": HIDDEN, **where})
        ours = update({"batch_size": BATCH, "hidden_sizes": HIDDEN}, threads=threads, chunk=200)
        name = f"sac update beside its matrix multiplies, {threads} thread{'s' * (threads > 1)}"
        yield Comparison(name, "updates/s", [ours, floor], {"floor": (0.65, 0.85)})


def comparisons() -> list[Comparison]:
    """All of them."""
    return [*floors(), *online_loops(2), *online_loops(1), side_by_side(), dqn_loop(), redq_loop(), *offline_loops()]


# -- the race --------------------------------------------------------------------------------------------------------------


class Runner:
    """A contestant's processes, let through their gates together."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        interpreter = python_of(contestant.environment) if contestant.environment else sys.executable
        command = [interpreter, str(HERE / contestant.script), json.dumps(contestant.work)]
        threads = str(contestant.work["threads"])
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        # JAX has no switch for its threads, so work for one thread is bound to one core, a copy each
        bound = [["taskset", "--cpu-list", str(copy)] if threads == "1" else [] for copy in range(contestant.copies)]
        self.processes = [subprocess.Popen([*binding, *command], **pipes) for binding in bound]
        self._answers()  # the warm-up

    def lap(self) -> float:
        """Seconds per unit of one chunk."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(answer["seconds"] / answer["units"] for answer in self._answers())

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            while not (line := process.stdout.readline()).startswith('{"seconds"'):
                if not line:
                    raise SystemExit(f"{self.contestant.name} ended before its time: {self.contestant.work}")
            answers.append(json.loads(line))
        return answers

    def stop(self) -> None:
        for process in self.processes:
            process.communicate("stop\n", timeout=30)


def race(comparison: Comparison, rounds: int) -> dict[str, Any]:
    """Interleaved laps; a different one goes first each round."""
    runners = [Runner(contestant) for contestant in comparison.contestants]
    laps: dict[str, list[float]] = {runner.contestant.name: [] for runner in runners}
    for index in range(rounds):
        shift = index % len(runners)
        for runner in [*runners[shift:], *runners[:shift]]:
            laps[runner.contestant.name].append(runner.lap())
    for runner in runners:
        runner.stop()
    ours = laps["rl_training"]
    ratios = {
        name: sorted(theirs / mine for theirs, mine in zip(seconds, ours, strict=True))
        for name, seconds in laps.items()
        if name != "rl_training"
    }
    return {
        "name": comparison.name,
        "unit": comparison.unit,
        "rates": {name: 1 / statistics.median(seconds) for name, seconds in laps.items()},
        "ratios": {name: [statistics.median(values), values[0], values[-1]] for name, values in ratios.items()},
        "wanted": comparison.wanted,
        "rounds": rounds,
    }


# -- what comes out ---------------------------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """A row for every ratio."""
    lines = [
        "| work | ours | against | theirs | ratio (lowest to highest round) | wanted: at least, aim |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        for name, (middle, low, high) in result["ratios"].items():
            least, aim = result["wanted"].get(name, ("-", "-"))
            ours, theirs = result["rates"]["rl_training"], result["rates"][name]
            lines.append(
                f"| {result['name']} | {ours:,.4g} {result['unit']} | {name} | {theirs:,.4g} | "
                f"**{middle:.2f}** ({low:.2f} to {high:.2f}) | {least}, {aim} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Race what was asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of comparisons; all if none is given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--list", action="store_true", help="only name the comparisons")
    arguments = parser.parse_args()
    chosen = [c for c in comparisons() if not arguments.names or any(name in c.name for name in arguments.names)]
    if arguments.list:
        print("\n".join(comparison.name for comparison in chosen))
        return
    results = {result["name"]: result for result in load(RESULTS)}
    for comparison in chosen:
        result = race(comparison, arguments.rounds)
        results[comparison.name] = result
        print(table([result]).splitlines()[-1], flush=True)
        RESULTS.write_text(json.dumps(list(results.values()), indent=1) + "\n")
    order = [comparison.name for comparison in comparisons()]
    write_section(PAGE, "speed", table(sorted(results.values(), key=lambda result: order.index(result["name"]))))


if __name__ == "__main__":
    main()
