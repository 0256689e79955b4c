"""The counts of the last soak and the last fuzzing, from benchmarks/results, as tables in docs/reliability.md.

make soak MINUTES=20 && make fuzz      # call this by themselves
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from jobs import ROOT, write_section

RESULTS = ROOT / "benchmarks" / "results"


def soak_table(result: dict[str, Any]) -> str:
    """Totals, then faults by kind, by the moment they met, and by algorithm."""
    exits = result["seconds_from_signal_to_exit"]
    lines = [
        f"{result['runs']} runs of {len(result['faults_by_algorithm'])} algorithms, {result['faults']} faults, "
        f"{result['resumed']} resumes, {result['processes']} processes: **{result['identical']} of {result['runs']} runs "
        f"identical** to their uninterrupted twins. At most {result['lost_steps_at_most']} steps were repeated (a checkpoint "
        f"every {result['checkpoint_interval']}); from a signal to the end of the process {exits['median']} s (median; at "
        f"most {exits['at_most']} s).",
        "",
        "| faults by | |",
        "|---|---|",
    ]
    for title, counts in (("kind", "faults_by_kind"), ("moment", "faults_by_phase"), ("algorithm", "faults_by_algorithm")):
        lines.append(f"| {title} | {', '.join(f'{name} {count}' for name, count in result[counts].items())} |")
    return "\n".join(lines)


def fuzz_table(result: dict[str, Any]) -> str:
    """A row for each kind of input."""
    refused = "refused (`ConfigError`, `DataError`, `CheckpointError`)"
    lines = [
        f"{result['cases']:,} cases, seed {result['seed']}: **{result['forbidden']} forbidden outcomes** (another exception, "
        "a crash, a hang, memory out of proportion, something half-written left behind).",
        "",
        f"| kind | cases | accepted | {refused} |",
        "|---|---|---|---|",
    ]
    for kind, outcomes in result["outcomes"].items():
        counts = Counter(outcomes)
        total, accepted = counts.total(), counts["success"]
        lines.append(f"| {kind} | {total:,} | {accepted:,} | {total - accepted:,} |")
    return "\n".join(lines)


def main() -> None:
    """Rewrite the sections for which there are results."""
    for name, table in (("soak", soak_table), ("fuzz", fuzz_table)):
        path = RESULTS / f"{name}.json"
        if path.exists():
            write_section(ROOT / "docs" / "reliability.md", name, table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
