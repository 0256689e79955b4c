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
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / ".peers"
RESULTS = ROOT / "benchmarks" / "results" / "beside_sb3.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ["torch==2.13.0", "stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "gymnasium[mujoco]==1.4.0"]
REFERENCES = {
    ("sac", "HalfCheetah-v5", 50_000): "4,212 ± 498 (10 seeds, v4, CrossQ authors' SAC)",
    ("sac", "Hopper-v5", 50_000): "530 ± 284 (same)",
    ("td3", "HalfCheetah-v5", 50_000): "3,352 ± 851 (10 seeds, v1, TD3 authors)",
    ("td3", "Hopper-v5", 50_000): "285 ± 69 (same)",
}
SHORT = 20_000  # steps REDQ makes in about half an hour of one core
_lock = threading.Lock()


def python_of_peers() -> str:
    """The interpreter of the peers' environment, made at the first call."""
    interpreter = PEERS / "bin" / "python"
    if not interpreter.exists():
        print("making the peers' environment ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([str(interpreter), "-m", "pip", "install", "--quiet", *constraints, *PACKAGES], check=True)
    return str(interpreter)


def load() -> list[dict[str, Any]]:
    """Results so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def run(job: dict[str, Any]) -> None:
    """One run in a process of its own; its result is appended to the file."""
    interpreter = sys.executable if job["library"] == "rl_training" else python_of_peers()
    command = [interpreter, str(ROOT / "benchmarks" / "beside_sb3_run.py"), json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        print(f"{job} failed:\n{done.stderr[-2000:]}", flush=True)
        return
    result = json.loads(done.stdout.splitlines()[-1])
    with _lock:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([*load(), result], indent=1) + "\n")
    print(f"{job['library']} {job['algo']} {job['env_id']} seed {job['seed']}: {result['last']:.0f}", flush=True)


def identity(job: dict[str, Any]) -> tuple[Any, ...]:
    """What tells two runs apart."""
    return (
        *(job[key] for key in ("library", "algo", "env_id", "seed", "steps")),
        json.dumps(job["overrides"], sort_keys=True),
    )


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
    lines += ["", "| Hopper-v5, 5,000 random steps | 10k | 15k | 20k | minutes a run |", "|---|---|---|---|---|"]
    for algo, name in (("redq", "REDQ, 10 critics, 5 updates a step"), ("sac", "SAC, 1 update a step")):
        mine = [r for r in results if r["overrides"] and r["algo"] == algo]
        if mine:
            curves = [dict(map(tuple, r["curve"])) for r in mine]
            cells = [f"{np.mean([curve[step] for curve in curves]):.0f}" for step in (10_000, 15_000, 20_000)]
            minutes = np.median([r["seconds"] for r in mine]) / 60
            lines.append(f"| {name} | {' | '.join(cells)} | {minutes:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["sac", "td3", "redq"], nargs="+", default=["sac", "td3", "redq"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    python_of_peers()
    have = {identity(result) for result in load()}
    jobs = [
        job for job in wanted(arguments.steps, arguments.seeds) if job["algo"] in arguments.only and identity(job) not in have
    ]
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(run, jobs))
    marked = re.compile(r"(<!-- mujoco -->\n).*?(<!-- /mujoco -->)", re.DOTALL)
    PAGE.write_text(marked.sub(lambda match: f"{match[1]}{table(load())}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
