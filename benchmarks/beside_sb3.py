"""MuJoCo at a small budget, beside Stable-Baselines3 on the same machine with the same settings.

    python benchmarks/beside_sb3.py                          # everything that is missing; about two hours
    python benchmarks/beside_sb3.py --only sac --steps 50000

Makes a virtual environment for the peers by itself (benchmarks/.peers). Jobs of the two libraries alternate, one process
and one torch thread each; results are kept in benchmarks/results/beside_sb3.json as they come, so an interrupted benchmark
goes on where it was. The table in docs/benchmarks.md is rewritten at the end.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jobs import run_missing, write_section
from peers import python_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "beside_sb3.json"
PAGE = ROOT / "docs" / "benchmarks.md"
REFERENCES = {
    ("sac", "HalfCheetah-v5", 50_000): "4,212 ± 498 (10 seeds, v4, CrossQ authors' SAC)",
    ("sac", "Hopper-v5", 50_000): "530 ± 284 (same)",
    ("td3", "HalfCheetah-v5", 50_000): "3,352 ± 851 (10 seeds, v1, TD3 authors)",
    ("td3", "Hopper-v5", 50_000): "285 ± 69 (same)",
}
SHORT = 20_000  # steps REDQ makes in about half an hour of one core


def wanted(steps: int, seeds: list[int]) -> list[dict[str, Any]]:
    """SAC and TD3 of both libraries on two tasks; REDQ beside SAC on Hopper, at as many steps as half an hour allows."""

    def job(library: str, algo: str, env_id: str, seed: int, steps: int, **overrides: Any) -> dict[str, Any]:
        return {
            "library": library, "algo": algo, "env_id": env_id, "seed": seed, "steps": steps, "overrides": overrides,
        }  # fmt: skip

    pairs = itertools.product(("td3", "sac"), seeds, ("HalfCheetah-v5", "Hopper-v5"), ("rl_training", "sb3"))
    early = {"learning_starts": 5_000}
    redq = {"gradient_updates_per_step": 5, "target_entropy": -1.0, **early}
    return [
        job("rl_training", "redq", "Hopper-v5", seeds[0], SHORT, **redq),
        *(job(library, algo, env_id, seed, steps) for algo, seed, env_id, library in pairs),
        *(job("rl_training", "sac", "Hopper-v5", seed, SHORT, **early) for seed in seeds),
        *(job("rl_training", "redq", "Hopper-v5", seed, SHORT, **redq) for seed in seeds[1:]),
    ]


def scores(results: list[dict[str, Any]]) -> str:
    """Mean and every seed."""
    last = [result["last"] for result in sorted(results, key=lambda result: result["seed"])]
    return f"**{np.mean(last):.0f}** ({', '.join(f'{score:.0f}' for score in last)})" if last else "-"


def area(results: list[dict[str, Any]]) -> str:
    """Mean of the curve after the random steps: what a run earns on the way, less noisy than its last score."""
    means = [np.mean([score for step, score in result["curve"] if step > 10_000]) for result in results]
    return f"{np.mean(means):.0f}" if means else "-"


def table(results: list[dict[str, Any]]) -> str:
    """Ours beside theirs, then REDQ beside SAC."""
    lines = [
        "| task | steps | rl_training | Stable-Baselines3 | mean of the curve, ours / SB3 | published reference |",
        "|---|---|---|---|---|---|",
    ]
    plain = [result for result in results if not result["overrides"]]
    for algo, env_id, steps in sorted({(r["algo"], r["env_id"], r["steps"]) for r in plain}):
        same = [r for r in plain if (r["algo"], r["env_id"], r["steps"]) == (algo, env_id, steps)]
        mine, theirs = ([r for r in same if r["library"] == library] for library in ("rl_training", "sb3"))
        cells = [scores(mine), scores(theirs), f"{area(mine)} / {area(theirs)}", REFERENCES.get((algo, env_id, steps), "-")]
        lines.append(f"| {algo} {env_id} | {steps:,} | {' | '.join(cells)} |")
    lines += ["", "| Hopper-v5, 5,000 random steps | seeds | 10k | 15k | 20k |", "|---|---|---|---|---|"]
    for algo, name in (("redq", "REDQ, 10 critics, 5 updates a step"), ("sac", "SAC, 1 update a step")):
        mine = [r for r in results if r["overrides"] and r["algo"] == algo]
        if mine:
            curves = [dict(map(tuple, r["curve"])) for r in mine]
            cells = [f"{np.mean([curve[step] for curve in curves]):.0f}" for step in (10_000, 15_000, 20_000)]
            lines.append(f"| {name} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["sac", "td3", "redq"], nargs="+", default=["sac", "td3", "redq"])
    parser.add_argument("--library", choices=["rl_training", "sb3"], nargs="+", default=["rl_training", "sb3"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    python_of("sb3")
    results = run_missing(
        [
            job
            for job in wanted(arguments.steps, arguments.seeds)
            if job["algo"] in arguments.only and job["library"] in arguments.library
        ],
        results=RESULTS,
        script=ROOT / "benchmarks" / "beside_sb3_run.py",
        interpreter=lambda job: sys.executable if job["library"] == "rl_training" else python_of("sb3"),
        workers=arguments.workers,
    )
    write_section(PAGE, "mujoco", table(results))


if __name__ == "__main__":
    main()
