"""The offline methods beside d3rlpy: the same real data, budget and settings, three seeds, on the same machine.

    python benchmarks/beside_d3rlpy.py --data DIRECTORY        # where pendulum_v1.1.0.h5 and pendulum_random_v1.1.0.h5 lie
    python benchmarks/beside_d3rlpy.py --data DIRECTORY --only iql awac

The two files are d3rlpy's own Pendulum datasets (its ``get_pendulum`` fetches them). The peer's virtual environment is made by
itself (benchmarks/.peers). Jobs of the two libraries alternate, one process and one torch thread each; results are kept in
benchmarks/results/beside_d3rlpy.json as they come. The table in docs/benchmarks.md is rewritten at the end.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from beside_d3rlpy_run import FILES
from jobs import ROOT, run_missing, write_section
from peers import python_of

ALGORITHMS = ("bc", "td3_bc", "iql", "awac", "rebrac", "cql")
LIBRARIES = ("rl_training", "d3rlpy")


def cell(results: list[dict[str, Any]]) -> str:
    """Mean, spread and number of seeds."""
    scores = [result["last"] for result in results]
    spread = f" ± {np.std(scores):.0f}" if len(scores) > 1 else ""
    return f"**{np.mean(scores):.0f}**{spread} ({len(scores)})" if scores else "-"


def table(results: list[dict[str, Any]]) -> str:
    """A row a method, a pair of columns a dataset."""
    lines = [
        "| method | random data: rl_training | d3rlpy | replay data: rl_training | d3rlpy | CPU seconds, ours / d3rlpy |",
        "|---|---|---|---|---|---|",
    ]
    for algo in ALGORITHMS:
        mine = [result for result in results if result["algo"] == algo]
        cells = [
            cell([result for result in mine if (result["data"], result["library"]) == column])
            for column in itertools.product(FILES, LIBRARIES)
        ]
        seconds = [[r["seconds"] for r in mine if r["library"] == library] for library in LIBRARIES]
        costs = " / ".join(f"{np.median(some):.0f}" if some else "-" for some in seconds)
        if mine:
            lines.append(f"| {algo} | {' | '.join(cells)} | {costs} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of the two HDF5 files")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", choices=ALGORITHMS, nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--library", choices=LIBRARIES, nargs="+", default=list(LIBRARIES))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    python_of("d3rlpy")
    os.environ["PENDULUM_DATA"] = str(arguments.data.resolve())
    jobs = [
        {"algo": algo, "data": data, "library": library, "seed": seed, "updates": arguments.updates}
        for seed, algo, data, library in itertools.product(arguments.seeds, arguments.only, FILES, arguments.library)
    ]
    results = run_missing(
        jobs,
        results=ROOT / "benchmarks" / "results" / "beside_d3rlpy.json",
        script=ROOT / "benchmarks" / "beside_d3rlpy_run.py",
        interpreter=lambda job: sys.executable if job["library"] == "rl_training" else python_of("d3rlpy"),
        workers=arguments.workers,
    )
    write_section(ROOT / "docs" / "benchmarks.md", "offline", table(results))


if __name__ == "__main__":
    main()
