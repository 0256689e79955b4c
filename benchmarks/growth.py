"""How the cost of an update grows with critics, batch, width, stored rows and environments: a table and a plot.

    python benchmarks/growth.py            # about ten minutes
    python benchmarks/growth.py batch      # axes whose name contains one of these

Each axis varies one size of the pure update (sampling included; for environments: of the whole loop) and keeps the others as
in the comparisons. Sizes take turns, several rounds, and the median counts. Results go to benchmarks/results/growth.json, the
table and docs/images/growth.png into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from jobs import ROOT, load, write_section
from speed import HIDDEN, OURS_ONLINE, Contestant, Runner, pace

RESULTS = ROOT / "benchmarks" / "results" / "growth.json"
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "images" / "growth.png"
THREADS = 2


def pure_update(algo: str, settings: dict[str, Any], *, chunk: int, **changes: Any) -> Contestant:
    """Sampling and updating alone."""
    settings = {"hidden_sizes": HIDDEN, "batch_size": 256, **settings}
    work = {"what": "update", "algo": algo, "settings": settings, **pace(THREADS, chunk), **changes}
    return Contestant("rl_training", "with_ours.py", work)


def critics(count: int) -> Contestant:
    settings = {"num_critics": count, "subset_size": min(2, count), "gradient_updates_per_step": 20}
    return pure_update("redq", settings, chunk=40)


def batch(size: int) -> Contestant:
    return pure_update("sac", {"batch_size": size}, chunk=max(10, 10_000 // size))


def width(size: int) -> Contestant:
    return pure_update("sac", {"hidden_sizes": [size, size]}, chunk=max(10, 15_000 // size))


def rows(count: int) -> Contestant:
    return pure_update("sac", {}, chunk=60, rows=count)


def environments(count: int) -> Contestant:
    settings = {**OURS_ONLINE, "gradient_updates_per_step": 1}
    work = {"what": "loop", "algo": "sac", "env_id": "HalfCheetah-v5", "settings": settings, "num_envs": count}
    return Contestant("rl_training", "with_ours.py", {**work, **pace(THREADS, max(10, 160 // count))})


AXES: dict[str, tuple[Callable[[int], Contestant], Sequence[int], str]] = {
    "critics": (critics, (1, 2, 5, 10, 20), "REDQ critic updates, milliseconds each"),
    "batch": (batch, (64, 128, 256, 512, 1024, 2048, 4096), "SAC updates, milliseconds each"),
    "width": (width, (64, 128, 256, 512, 1024), "SAC updates, milliseconds each"),
    "rows": (rows, (10**4, 10**5, 10**6, 10**7), "SAC updates with sampling, milliseconds each"),
    "environments": (environments, (1, 2, 4, 8, 16), "SAC loop, milliseconds per environment step and update"),
}


def measure(axis: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of each size, in turns."""
    make, sizes, what = AXES[axis]
    runners = {size: Runner(make(size)) for size in sizes}
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size, runner in runners.items():
            laps[size].append(1000 * runner.lap() / (size if axis == "environments" else 1))
    for runner in runners.values():
        runner.stop()
    return {"axis": axis, "what": what, "milliseconds": {size: statistics.median(times) for size, times in laps.items()}}


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row an axis: every size with its cost."""
    lines = ["| axis | cost by size |", "|---|---|"]
    for result in results:
        cells = [f"{int(size):,}: **{cost:.3g}**" for size, cost in result["milliseconds"].items()]
        lines.append(f"| {result['axis']} ({result['what']}) | {' · '.join(cells)} |")
    return "\n".join(lines)


def plot(results: Sequence[dict[str, Any]]) -> None:
    """Both scales logarithmic; the dashed line is proportional growth."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(3.2 * len(results), 3), squeeze=False, layout="constrained")
    for axis, result in zip(axes[0], results, strict=True):
        sizes = [int(size) for size in result["milliseconds"]]
        costs = list(result["milliseconds"].values())
        axis.loglog(sizes, costs, marker="o")
        axis.loglog(sizes, [costs[0] * size / sizes[0] for size in sizes], linestyle="--", color="grey", linewidth=1)
        axis.set(title=result["axis"], ylabel="ms", ylim=(min(costs) / 2, max(costs) * 2))
    figure.savefig(PLOT, dpi=110)


def main() -> None:
    """Measure what was asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", help="parts of the names of axes; all if none is given")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    results = {result["axis"]: result for result in load(RESULTS)}
    for axis in AXES:
        if not arguments.axes or any(part in axis for part in arguments.axes):
            results[axis] = measure(axis, arguments.rounds)
            print(table([results[axis]]).splitlines()[-1], flush=True)
            RESULTS.write_text(json.dumps(list(results.values()), indent=1) + "\n")
    ordered = [results[axis] for axis in AXES if axis in results]
    plot(ordered)
    write_section(PAGE, "growth", table(ordered))


if __name__ == "__main__":
    main()
