"""MuJoCo at a small budget, beside Stable-Baselines3 on the same machine with the same settings.

    python benchmarks/mujoco.py                          # everything that is missing; about an hour and a half
    python benchmarks/mujoco.py --only sac --steps 50000

Makes a virtual environment for the peers by itself (benchmarks/.peers). Jobs of the two libraries alternate, one process
and one torch thread each; results are kept in benchmarks/results/mujoco.json as they come, so an interrupted benchmark goes
on where it was. The table in docs/benchmarks.md is rewritten at the end.
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
RESULTS = ROOT / "benchmarks" / "results" / "mujoco.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ["torch==2.13.0", "stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "gymnasium[mujoco]==1.4.0"]
REFERENCES = {
    ("sac", "HalfCheetah-v5", 50_000): "4,212 ± 498 (10 seeds, v4, CrossQ authors' SAC)",
    ("sac", "Hopper-v5", 50_000): "530 ± 284 (same)",
    ("td3", "HalfCheetah-v5", 50_000): "3,352 ± 851 (10 seeds, v1, TD3 authors)",
    ("td3", "Hopper-v5", 50_000): "285 ± 69 (same)",
}
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
    command = [interpreter, str(ROOT / "benchmarks" / "mujoco_run.py"), json.dumps(job)]
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


def table(results: list[dict[str, Any]]) -> str:
    """Ours beside theirs."""
    lines = [
        "| task | steps | rl_training | Stable-Baselines3 | published reference | steps/s, ours / SB3 |",
        "|---|---|---|---|---|---|",
    ]
    groups = sorted({(r["algo"], r["env_id"], r["steps"], json.dumps(r["overrides"])) for r in results})
    for algo, env_id, steps, overrides in groups:
        cells, speeds = [], []
        for library in ("rl_training", "sb3"):
            mine = [
                r
                for r in results
                if (r["library"], r["algo"], r["env_id"], r["steps"], json.dumps(r["overrides"]))
                == (library, algo, env_id, steps, overrides)
            ]
            scores = [r["last"] for r in sorted(mine, key=lambda r: r["seed"])]
            each = ", ".join(f"{score:.0f}" for score in scores)
            cells.append(f"**{np.mean(scores):.0f}** ({each})" if scores else "-")
            speeds.append(f"{np.median([r['steps'] / r['seconds'] for r in mine]):.0f}" if mine else "-")
        name = f"{algo} {env_id}" + (f" {overrides}" if overrides != "{}" else "")
        reference = REFERENCES.get((algo, env_id, steps), "-")
        lines.append(f"| {name} | {steps:,} | {cells[0]} | {cells[1]} | {reference} | {' / '.join(speeds)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["sac", "td3"], nargs="+", default=["td3", "sac"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    python_of_peers()
    have = {(r["library"], r["algo"], r["env_id"], r["seed"], r["steps"]) for r in load()}
    envs, libraries = ("HalfCheetah-v5", "Hopper-v5"), ("rl_training", "sb3")
    jobs = [
        {"library": library, "algo": algo, "env_id": env_id, "seed": seed, "steps": arguments.steps, "overrides": {}}
        for algo, seed, env_id, library in itertools.product(arguments.only, arguments.seeds, envs, libraries)
        if (library, algo, env_id, seed, arguments.steps) not in have
    ]
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(run, jobs))
    marked = re.compile(r"(<!-- mujoco -->\n).*?(<!-- /mujoco -->)", re.DOTALL)
    PAGE.write_text(marked.sub(lambda match: f"{match[1]}{table(load())}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
