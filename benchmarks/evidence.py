"""The package's own evidence: the studies of ``benchmarks/suite``, as tables in the docs and as reports.

    python benchmarks/evidence.py                    # every study: does what is missing, then writes tables and reports
    python benchmarks/evidence.py online_classic     # some of them
    python benchmarks/evidence.py --no-run           # from the runs that are there
    python benchmarks/evidence.py --check            # fresh runs must reach the thresholds; writes nothing

Scores are deterministic returns of the final agents over 100 episodes with seeds that no run has seen, so that luck with start
states does not count. Published scores stand in ``benchmarks/references``, thresholds in ``benchmarks/thresholds.yaml``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jobs import write_section

ROOT = Path(__file__).resolve().parents[1]
SUITE = {path.stem: path for path in sorted((ROOT / "benchmarks" / "suite").glob("*.yaml"))}
THRESHOLDS = ROOT / "benchmarks" / "thresholds.yaml"
PAGE = ROOT / "docs" / "benchmarks.md"
EVALUATION_SEED, EVALUATION_EPISODES = 987_654, 100
Row = dict[str, Any]


def references_of(name: str) -> Path | None:
    """The file of published scores, if there are any."""
    path = ROOT / "benchmarks" / "references" / f"{name}.yaml"
    return path if path.is_file() else None


def thresholds_of(name: str) -> dict[str, float]:
    """What the mean score of each setting must reach."""
    from rl_training.experiment.yaml_files import read_yaml_mapping

    return dict(read_yaml_mapping(THRESHOLDS).get(name, {}))


# -- running ---------------------------------------------------------------------------------------------------------


def run(name: str, output_dir: Path, seeds: str | None, overrides: dict[str, Any]) -> tuple[Path, int]:
    """Do what is missing of a study; its directory, and the exit code of the command ``sweep``."""
    from rl_training.studies import Study

    study = Study.create(SUITE[name], output_dir=output_dir, seeds=seeds, overrides=overrides)
    print(f"{name}: {len(study.unfinished())} of {len(study.runs())} runs to do", file=sys.stderr, flush=True)

    def tell(event: Any) -> None:
        if event.kind != "started":
            print(f"{event.run['name']} {event.kind} {event.message}".rstrip(), file=sys.stderr, flush=True)

    return study.directory, study.run("process", on_event=tell).exit_code


# -- reading ---------------------------------------------------------------------------------------------------------


def unseen(run_dir: str) -> float:
    """The mean return of a run's final agent over episodes that no run has seen."""
    from rl_training.runtime.workflows import evaluate_checkpoint

    return evaluate_checkpoint(run_dir, EVALUATION_EPISODES, seed=EVALUATION_SEED)["eval_return_mean"]


def read(name: str, study: Path, known: list[Row]) -> list[Row]:
    """A row for each finished run; an agent that was scored before is not played again."""
    from rl_training.studies.evidence import gather_evidence, read_references

    references = references_of(name)
    evidence = gather_evidence([study], references=None if references is None else read_references(references))
    rows = [
        {
            "setting": record.path.parent.name,
            "seed": record.seed,
            "started": record.started,
            "steps": int(record.steps[-1]),
            "minutes": (record.wall_time or 0) / 60,
            "published": found.reference and f"{found.reference.score:,.0f} ({found.reference.source})",
            "run_dir": str(record.path),
        }
        for found in evidence.groups
        for record in found.group.counted
    ]
    scored = {(row["setting"], row["seed"], row["started"]): row["score"] for row in known if "started" in row}
    new = [row for row in rows if (row["setting"], row["seed"], row["started"]) not in scored]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        for row, score in zip(new, pool.map(unseen, [row["run_dir"] for row in new]), strict=True):
            scored[row["setting"], row["seed"], row["started"]] = score
    for row in rows:
        del row["run_dir"]  # a path of this machine
        row["score"] = scored[row["setting"], row["seed"], row["started"]]
    return rows


def by_setting(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of each setting, by seed."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        found.setdefault(row["setting"], []).append(row)
    return found


def table(rows: list[Row], order: list[str]) -> str:
    """The Markdown table of the docs."""
    lines = [
        "| setting | steps | score (mean ± sd over seeds) | per seed | published | minutes a run |",
        "|---|---|---|---|---|---|",
    ]
    grouped = by_setting(rows)
    for setting in [label for label in order if label in grouped]:
        mine = grouped[setting]
        scores = [row["score"] for row in mine]
        each = ", ".join(f"{row['seed']}: {row['score']:.0f}" for row in mine)
        minutes = np.mean([row["minutes"] for row in mine])
        score = f"**{np.mean(scores):.1f}** ± {np.std(scores):.1f}"
        lines.append(
            f"| `{setting}` | {mine[0]['steps']:,} | {score} | {each} | {mine[0]['published'] or 'none'} | {minutes:.1f} |"
        )
    return "\n".join(lines)


def check(name: str, rows: list[Row]) -> bool:
    """Whether every setting with a threshold reaches it; tells each of them."""
    grouped, passed = by_setting(rows), True
    for setting, threshold in thresholds_of(name).items():
        scores = [row["score"] for row in grouped.get(setting, [])]
        ok = bool(scores) and float(np.mean(scores)) >= threshold
        found = f"mean {np.mean(scores):.1f} over {len(scores)} seeds" if scores else "no finished run"
        print(f"{name} {setting}: {found}, threshold {threshold:g}: {'ok' if ok else 'MISSED'}", flush=True)
        passed &= ok
    return passed


# -- the command -----------------------------------------------------------------------------------------------------


def publish(name: str, output_dir: Path) -> None:
    """The table in the docs and the report beside the study, from its run directories."""
    from rl_training.studies import Study
    from rl_training.studies.report import write_report

    results = ROOT / "benchmarks" / "results" / f"{name}.json"
    study = Study.open(output_dir / name)
    known = json.loads(results.read_text()) if results.exists() else []
    rows = read(name, study.directory, known)
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(rows, indent=1) + "\n")
    write_section(PAGE, name, table(rows, [setting.label for setting in study.spec.settings]))
    report = study.directory / "report.html"
    write_report([study.directory], report, title=name, references=references_of(name))
    print(f"{name}: {len(rows)} runs, {PAGE.relative_to(ROOT)}, {report}")


def main() -> int:
    """Run, publish or check; 1 if a run failed or a threshold was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", choices=[*SUITE, []], help="which studies; all, or with --check those with thresholds"
    )
    parser.add_argument("--seeds", help="instead of the file's, e.g. 1 or 1-3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, for a quick look")
    parser.add_argument("--output-dir", type=Path, default=ROOT / "studies")
    parser.add_argument("--no-run", action="store_true", help="only read what is there")
    parser.add_argument("--check", action="store_true", help="fresh runs against the thresholds; writes nothing")
    arguments = parser.parse_args()
    from rl_training.studies.spec import parse_overrides

    overrides = parse_overrides(arguments.set)
    failed = False
    if arguments.check:
        chosen = arguments.suites or [name for name in SUITE if thresholds_of(name)]
        with tempfile.TemporaryDirectory() as directory:
            for name in chosen:
                study, code = run(name, Path(directory), arguments.seeds, overrides)
                failed |= code != 0 or not check(name, read(name, study, []))
        return int(failed)
    for name in arguments.suites or SUITE:
        if not arguments.no_run:
            failed |= run(name, arguments.output_dir, arguments.seeds, overrides)[1] != 0
        publish(name, arguments.output_dir)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
