"""How well the presets learn: several seeds each, a table with its command, and thresholds to hold.

    python benchmarks/learning.py                  # every quick entry, three seeds; rewrites the table in the docs
    python benchmarks/learning.py sac/pendulum     # some of them
    python benchmarks/learning.py --check          # fail where a threshold is missed; writes nothing

Runs go in parallel, one torch thread each. Scores are deterministic returns of the final agent over 100 episodes with
seeds that no run has seen, so that luck with start states does not count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jobs import write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "learning.json"
PAGE = ROOT / "docs" / "benchmarks.md"
EVALUATION_SEED, EVALUATION_EPISODES = 987_654, 100


@dataclass(frozen=True)
class Entry:
    """A preset, the score its mean over seeds must reach, and what others report."""

    preset: str
    threshold: float
    reference: str


ENTRIES = [
    Entry("sac/pendulum", -200, "-157 ± 89 at 20,000 steps (RL Zoo, one run)"),
    Entry("td3/pendulum", -200, "-152 ± 90 at 20,000 steps (RL Zoo, one run)"),
    Entry("ddpg/pendulum", -200, "-152 ± 94 at 20,000 steps (RL Zoo, one run)"),
    Entry("tqc/pendulum", -200, "-151 ± 88 at 20,000 steps (RL Zoo, one run)"),
    Entry("redq/pendulum", -200, "-250 within 25,000 steps (Tianshou's test)"),
    Entry("dqn/cartpole", 475, "500 ± 0 at 50,000 steps (RL Zoo, one run)"),
]


def run(preset: str, seed: int, output_dir: str) -> dict[str, float | str]:
    """One run in a process of its own."""
    from rl_training.experiment.presets import load_config
    from rl_training.runtime.training import train
    from rl_training.runtime.workflows import evaluate_checkpoint

    started = time.monotonic()
    config = load_config(preset, [f"seed={seed}", f"output_dir={output_dir}", "torch_threads=1", "tensorboard=false"])
    result = train(config)
    score = evaluate_checkpoint(result.run_dir, EVALUATION_EPISODES, seed=EVALUATION_SEED)["eval_return_mean"]
    return {
        "preset": preset,
        "seed": seed,
        "steps": result.metrics["global_step"],
        "last": score,
        "best_evaluation": result.metrics["best_eval_return_mean"],
        "minutes": (time.monotonic() - started) / 60,
    }


def table(rows: list[dict[str, float | str]]) -> str:
    """The Markdown table of the docs."""
    lines = [
        "| preset | steps | score (mean ± sd over seeds) | per seed | reference | minutes a run |",
        "|---|---|---|---|---|---|",
    ]
    for entry in ENTRIES:
        mine = sorted((row for row in rows if row["preset"] == entry.preset), key=lambda row: row["seed"])
        if mine:
            scores = [float(row["last"]) for row in mine]
            each = ", ".join(f"{row['seed']}: {float(row['last']):.0f}" for row in mine)
            minutes = np.mean([float(row["minutes"]) for row in mine])
            score = f"**{np.mean(scores):.1f}** ± {np.std(scores):.1f}"
            lines.append(
                f"| `{entry.preset}` | {float(mine[0]['steps']):,.0f} | {score} | {each} | {entry.reference} | {minutes:.1f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Run what was asked for; 1 if a threshold was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help="which entries; all if none is named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--check", action="store_true", help="only compare with the thresholds")
    arguments = parser.parse_args()
    chosen = [entry for entry in ENTRIES if not arguments.presets or entry.preset in arguments.presets]
    jobs = [(entry.preset, seed) for entry in chosen for seed in arguments.seeds]
    rows = []
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for row in pool.map(run, *zip(*((*job, directory) for job in jobs), strict=True)):
            rows.append(row)
            print(f"{row['preset']} seed {row['seed']}: {row['last']:.1f} ({row['minutes']:.1f} min)", flush=True)
    failed = False
    for entry in chosen:
        mean = np.mean([float(row["last"]) for row in rows if row["preset"] == entry.preset])
        verdict = "ok" if mean >= entry.threshold else "MISSED"
        failed |= verdict == "MISSED"
        print(f"{entry.preset}: mean {mean:.1f}, threshold {entry.threshold:g}: {verdict}")
    if not arguments.check:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        rows += [row for row in kept if row["preset"] not in {entry.preset for entry in chosen}]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        write_section(PAGE, "learning", table(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
