"""Tuning makes up for a bad setting: SAC on Pendulum with a learning rate of 1e-6, twelve trials, one interruption.

    python benchmarks/tuning_demo.py                                  # rewrites the table in the docs
    python benchmarks/tuning_demo.py --trials 3 --steps 150 --dry     # a quick look; writes nothing

The command is sent SIGTERM in the middle of a third of its trials, and started again.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs import write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tuning_demo.json"
PAGE = ROOT / "docs" / "studies.md"
BAD_RATE = 1e-6


def command(directory: Path, trials: int, steps: int) -> list[str]:
    """The tuning command; the same when it goes on."""
    settings = [f"algo_kwargs.learning_rate={BAD_RATE}", f"total_timesteps={steps}", "tensorboard=false"]
    chosen = [word for setting in settings for word in ("--set", setting)]
    study = ["--name", "demo", "--output-dir", str(directory), "--only", "learning_rate", "--seeds", "2"]
    return [sys.executable, "-m", "rl_training", "tune", "sac/pendulum", "--trials", str(trials), *chosen, *study, "--json"]


def interrupt(line: list[str], study: Path, after: int) -> int:
    """Start, send SIGTERM once so many trials have begun and one is under way, and give the exit code."""
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    under_way = study / "runs" / f"trial_{after}" / "seed1" / "metrics.jsonl"
    while process.poll() is None and not (under_way.exists() and under_way.stat().st_size > 0):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    return process.wait()


def finish(line: list[str]) -> dict[str, Any]:
    """Start again, to the end."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def table(told: dict[str, Any], steps: int) -> str:
    """The Markdown of the docs."""
    best = told["best"]
    states = [trial["status"] for trial in told["trials"]]
    lines = [
        f"{len(states)} trials of {steps:,} steps on two seeds ({states.count('finished')} finished, {states.count('pruned')} "
        f"pruned); interrupted in trial {told['interrupted_in']} (exit code {told['exit_code']}) and continued.",
        "",
        "| setting, on two fresh seeds | learning rate | last evaluation (mean ± sd) |",
        "|---|---|---|",
    ]
    for row in told["confirmed"]:
        rate = BAD_RATE if row["setting"] == "base" else best["values"]["algo_kwargs.learning_rate"]
        name = "as given" if row["setting"] == "base" else f"best (trial {best['number']})"
        lines.append(f"| {name} | {rate:.2g} | {row['mean']:.1f} ± {row['std']:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Tune, with an interruption; 1 if the best setting is not better than the given one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        study, line = Path(directory) / "demo", command(Path(directory), arguments.trials, arguments.steps)
        third = arguments.trials // 3
        exit_code = interrupt(line, study, third)
        told = {**finish(line), "interrupted_in": third, "exit_code": exit_code}
        check = subprocess.run([*line[:3], "train", told["best_file"], "--dry-run"], stdout=subprocess.DEVNULL, check=False)
    text = table(told, arguments.steps)
    print(text)
    if not arguments.dry:
        told = {key: value for key, value in told.items() if key not in ("study_dir", "best_file")}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"steps": arguments.steps, **told}, indent=1) + "\n")
        write_section(PAGE, "tuning", text)
    means = {row["setting"]: row["mean"] for row in told["confirmed"]}
    improved = all(mean > means["base"] for name, mean in means.items() if name != "base")
    return 0 if improved and exit_code == 130 and check.returncode == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
