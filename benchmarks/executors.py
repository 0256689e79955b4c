"""How long eight runs take with each executor, and whether they come out the same.

    python benchmarks/executors.py                       # 4 seeds x 2 settings of sac/pendulum; rewrites the table in the docs
    python benchmarks/executors.py --steps 150 --dry     # a quick look; writes nothing

Run it on a quiet machine: the executors are timed one after the other. What Ray takes to start is part of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs import write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "executors.json"
PAGE = ROOT / "docs" / "studies.md"
PRESET, SEEDS, GRID = "sac/pendulum", "1-4", {"algo_kwargs.learning_rate": [1e-3, 3e-4]}


def timed(kind: str, directory: Path, steps: int) -> dict[str, Any]:
    """The study with one executor: how long it took, and a fingerprint of every final checkpoint."""
    from rl_training.studies import Study

    overrides = {"total_timesteps": steps, "tensorboard": False}
    study = Study.create(PRESET, seeds=SEEDS, grid=GRID, overrides=overrides, output_dir=directory, name=kind)
    started = time.monotonic()
    result = study.run(kind)
    seconds = time.monotonic() - started
    if result.exit_code != 0:
        raise SystemExit(f"{kind}: {[run.message for run in result.runs if run.message]}")
    return {
        "executor": kind,
        "seconds": seconds,
        "bits": {f"{r.setting}/{r.seed}": fingerprint(r.run_dir) for r in result.runs},
    }


def fingerprint(run_dir: Path) -> str:
    """Checksums of all files of the last checkpoint, and the evaluations."""
    checkpoint = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    return json.dumps({name: entry["sha256"] for name, entry in files.items()}) + (run_dir / "evaluations.csv").read_text()


def table(rows: list[dict[str, Any]], steps: int, cores: int) -> str:
    """The Markdown table of the docs."""
    first = rows[0]["seconds"]
    lines = [
        f"| executor ({cores} cores, {steps:,} steps a run) | seconds | beside serial | same bits |",
        "|---|---|---|---|",
    ]
    for row in rows:
        same = "yes" if row["same_bits"] else "**no**"
        lines.append(f"| `{row['executor']}` | {row['seconds']:.0f} | {first / row['seconds']:.2f} times as fast | {same} |")
    return "\n".join(lines)


def main() -> int:
    """Time each executor; 1 if one of them gave other bits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", nargs="+", default=["serial", "process", "ray"])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for kind in arguments.executors:
            rows.append(timed(kind, Path(directory), arguments.steps))
            print(f"{kind}: {rows[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    reference = rows[0]["bits"]
    told = [{"executor": r["executor"], "seconds": r["seconds"], "same_bits": r["bits"] == reference} for r in rows]
    text = table(told, arguments.steps, cores)
    print(text)
    if not arguments.dry:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"cores": cores, "steps": arguments.steps, "rows": told}, indent=1) + "\n")
        write_section(PAGE, "executors", text)
    return 0 if all(row["same_bits"] for row in told) else 1


if __name__ == "__main__":
    raise SystemExit(main())
