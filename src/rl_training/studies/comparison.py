"""Is A better than B? Groups of runs side by side, and the probability of improvement in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.studies import statistics
from rl_training.studies.curves import (
    Array,
    Metric,
    RunGroup,
    RunRecord,
    group_sides,
    load_runs,
)
from rl_training.studies.evidence import FEW_SEEDS, FEW_SEEDS_NOTE, Summary
from rl_training.studies.statistics import Estimate
from rl_training.types import ConfigError

if TYPE_CHECKING:
    pass


class ComparedGroup(NamedTuple):
    """A row of a comparison."""

    side: str
    group: RunGroup
    summary: Summary


class Finding(NamedTuple):
    """That runs of one group score higher than those of another, on one task or on average over several."""

    tasks: list[str]
    first: str
    second: str
    probability: Estimate
    seeds: tuple[int, int]

    def sentence(self) -> str:
        """In words."""
        where = self.tasks[0] if len(self.tasks) == 1 else f"over {len(self.tasks)} environments"
        text = f"{where}: {self.first} scores higher than {self.second} with probability {self.probability.value:.2f}"
        if self.probability.low is None or self.probability.high is None:
            return f"{text} ({self.probability.note})."
        text += f", 95 % interval {self.probability.low:.2f} to {self.probability.high:.2f}"
        undecided = self.probability.low <= 0.5 <= self.probability.high
        return f"{text} ({self.seeds[0]} and {self.seeds[1]} seeds{'; which is better remains open' if undecided else ''})."


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups of several sides on the tasks they share."""

    metric: Metric
    rows: dict[str, list[ComparedGroup]]  # by task
    findings: list[Finding]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "metric": self.metric,
            "environments": [
                {
                    "task": task,
                    "groups": [
                        {"side": row.side, "label": row.group.label, "seeds": len(row.summary.scores), **row.summary.to_dict()}
                        for row in rows
                    ],
                }
                for task, rows in self.rows.items()
            ],
            "findings": [
                {
                    "tasks": found.tasks,
                    "first": found.first,
                    "second": found.second,
                    "probability": found.probability.to_dict(),
                    "sentence": found.sentence(),
                }
                for found in self.findings
            ],
            "notes": self.notes,
        }


def compare(paths: Sequence[str | Path], *, metric: Metric = "last") -> Comparison:
    """Each group of the first path beside each group of the others, on the environments they share.

    Of a single path, its first group is compared with its others.
    """
    records = [load_runs([path]) for path in paths]
    _require_apart(paths, records)
    sides = group_sides(records)
    names = [str(path) for path in paths]
    rows: dict[str, list[ComparedGroup]] = {}
    for name, groups in zip(names, sides, strict=True):
        scored = [group for group in groups if group.counted]
        if not scored:
            reasons = "\n".join(f"  {run.path}: {run.problem}" for group in groups for run in group.runs[:3])
            raise ConfigError(
                f"{name} has no finished run with an evaluation:\n{reasons}" if groups else _unreadable(name, records)
            )
        for group in scored:
            summary = Summary.of(group.scores(metric))
            assert summary is not None  # it has counted runs
            rows.setdefault(group.task, []).append(ComparedGroup(name, group, summary))
    findings = _findings(rows, names, metric)
    if not findings:
        raise ConfigError(_nothing_to_compare(rows, names))
    return Comparison(metric, rows, findings, _comparison_notes(records, rows))


def _unreadable(name: str, records: Sequence[Sequence[RunRecord]]) -> str:
    problems = [f"  {run.path}: {run.problem}" for runs in records for run in runs if run.problem][:3]
    return f"no run of {name} can be read:\n" + "\n".join(problems)


def _require_apart(paths: Sequence[str | Path], records: Sequence[Sequence[RunRecord]]) -> None:
    owner: dict[Path, str] = {}
    for path, runs in zip(paths, records, strict=True):
        for run in runs:
            before = owner.setdefault(run.path.resolve(), str(path))
            if before != str(path) or len(set(map(str, paths))) < len(paths):
                raise ConfigError(f"{run.path} belongs to both {before} and {path}: a run cannot be compared with itself")


def _findings(rows: Mapping[str, Sequence[ComparedGroup]], names: Sequence[str], metric: Metric) -> list[Finding]:
    several = len(names) > 1

    def title(row: ComparedGroup) -> str:
        return f"{row.group.label} ({row.side})" if several else row.group.label

    found: dict[tuple[str, str], dict[str, tuple[Array, Array]]] = {}
    for task, on_task in rows.items():
        firsts = [row for row in on_task if row.side == names[0]]
        for first in firsts if several else firsts[:1]:
            for second in on_task:
                if (second.side != names[0]) if several else (second is not first):
                    pair = (first.group.scores(metric), second.group.scores(metric))
                    found.setdefault((title(first), title(second)), {})[task] = pair
    findings = []
    for (better, worse), pairs in found.items():
        for tasks in [[task] for task in pairs] + ([list(pairs)] if len(pairs) > 1 else []):
            one, two = ({task: pairs[task][side] for task in tasks} for side in (0, 1))
            seeds = (min(map(len, one.values())), min(map(len, two.values())))
            findings.append(Finding(tasks, better, worse, statistics.improvement_estimate(one, two), seeds))
    return findings


def _nothing_to_compare(rows: Mapping[str, Sequence[ComparedGroup]], names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} holds one group on each environment: give a second run or study to compare it with"
    has = {name: sorted(task for task, on_task in rows.items() if any(row.side == name for row in on_task)) for name in names}
    listed = "\n".join(f"  {name}: {', '.join(tasks)}" for name, tasks in has.items())
    return f"{names[0]} has no environment in common with the others:\n{listed}"


def _comparison_notes(records: Sequence[Sequence[RunRecord]], rows: Mapping[str, Sequence[ComparedGroup]]) -> list[str]:
    notes = []
    left_out = [run for runs in records for run in runs if not run.counts]
    if left_out:
        notes.append(
            f"{len(left_out)} run(s) do not count: " + "; ".join(f"{run.path}: {run.problem}" for run in left_out[:5])
        )
    seeds = [len(row.summary.scores) for on_task in rows.values() for row in on_task]
    return [*notes, FEW_SEEDS_NOTE] if min(seeds) < FEW_SEEDS else notes
