"""What runs show, in numbers: scores of groups with intervals, aggregates over tasks, references, and what to mind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_training.experiment.reference_scores import reference_returns
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.studies import statistics
from rl_training.studies.curves import (
    Array,
    RunGroup,
    RunRecord,
    group_runs,
    load_runs,
)
from rl_training.studies.statistics import Estimate, StatisticName
from rl_training.types import ConfigError

if TYPE_CHECKING:
    pass


FEW_SEEDS = 5
FEW_SEEDS_NOTE = (
    f"Fewer than {FEW_SEEDS} seeds: a bootstrap over so few is too sure of itself, and the true intervals are wider."
)


class Summary(NamedTuple):
    """The scores of a group."""

    scores: list[float]
    mean: float
    sd: float | None  # of the sample, between seeds; none for one seed
    iqm: Estimate

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> Summary | None:
        """None without scores."""
        values = np.asarray(scores, dtype=np.float64)
        if not values.size:
            return None
        sd = float(values.std(ddof=1)) if values.size > 1 else None
        return cls(values.tolist(), float(values.mean()), sd, statistics.estimate("iqm", values))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "iqm": self.iqm.to_dict()}


class Reference(NamedTuple):
    """A published score and where it was published."""

    score: float
    source: str


@dataclass(frozen=True, eq=False)
class GroupEvidence:
    """A group with its numbers; ``series`` is the same for the same label on every task, and so is its colour."""

    group: RunGroup
    series: int
    last: Summary | None
    best: Summary | None
    steps_per_second: Summary | None
    wall_time: Summary | None
    reference: Reference | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        group = self.group
        return {
            "task": group.task,
            "env_id": group.env_id,
            "label": group.label,
            "algo": group.algo,
            "seeds": [run.seed for run in group.counted],
            "runs": len(group.runs),
            "last": self.last and self.last.to_dict(),
            "best": self.best and self.best.to_dict(),
            "steps_per_second": self.steps_per_second and self.steps_per_second.mean,
            "wall_time": self.wall_time and self.wall_time.mean,
            "reference": self.reference and self.reference._asdict(),
        }


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Groups that share tasks, over all of these: normalised last scores and what they amount to."""

    tasks: list[str]
    labels: list[str]
    scale: str  # what 0 and 1 stand for
    left_out: list[str]  # labels that miss a task
    scores: dict[str, dict[str, Array]]  # label -> task -> normalised scores
    estimates: dict[str, dict[str, Estimate]]  # statistic -> label
    improvement: dict[tuple[str, str], Estimate]  # (row, column): that the row scores higher; empty for many labels

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tasks": self.tasks,
            "labels": self.labels,
            "scale": self.scale,
            "left_out": self.left_out,
            "estimates": {
                name: {label: found.to_dict() for label, found in row.items()} for name, row in self.estimates.items()
            },
            "probability_of_improvement": [
                {"of": one, "over": two, **found.to_dict()} for (one, two), found in self.improvement.items()
            ],
        }


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything a report shows, before it is drawn."""

    groups: list[GroupEvidence]
    runs: list[RunRecord]
    aggregates: list[Aggregate]
    references: Mapping[str, Mapping[str, Reference]]
    notes: list[str]

    @property
    def tasks(self) -> list[str]:
        """Tasks in order."""
        return list(dict.fromkeys(found.group.task for found in self.groups))

    @property
    def labels(self) -> list[str]:
        """Labels in the order of their series."""
        return list(dict.fromkeys(found.group.label for found in self.groups))

    def on(self, task: str) -> list[GroupEvidence]:
        """The groups of a task."""
        return [found for found in self.groups if found.group.task == task]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "groups": [found.to_dict() for found in self.groups],
            "aggregates": [aggregate.to_dict() for aggregate in self.aggregates],
            "runs": [_run_to_dict(run) for run in self.runs],
            "notes": self.notes,
        }


def _run_to_dict(run: RunRecord) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "algo": run.algo,
        "task": run.task,
        "seed": run.seed,
        "status": run.status,
        "counted": run.counts,
        "problem": run.problem,
        "last": run.score("last"),
        "best": run.score("best"),
    }


def gather_evidence(
    paths: Iterable[str | Path], *, references: Mapping[str, Mapping[str, Reference]] | None = None
) -> Evidence:
    """Read runs and do the statistics."""
    references = references or {}
    records = load_runs(paths)
    groups = group_runs(records)
    series = {label: index for index, label in enumerate(dict.fromkeys(group.label for group in groups))}
    evidence = [
        GroupEvidence(
            group,
            series[group.label],
            last=Summary.of(group.scores("last")),
            best=Summary.of(group.scores("best")),
            steps_per_second=Summary.of([run.steps_per_second for run in group.runs if run.steps_per_second]),
            wall_time=Summary.of([run.wall_time for run in group.counted if run.wall_time]),
            reference=references_on(references, group).get(group.algo),
        )
        for group in groups
    ]
    marked = {run.path: run for group in groups for run in group.runs}  # grouping finds seeds that were run twice
    runs = [marked.get(run.path, run) for run in records]
    aggregates, problems = _aggregate(groups)
    return Evidence(evidence, runs, aggregates, references, [*_notes(groups, runs, references), *problems])


def _notes(
    groups: Sequence[RunGroup], runs: Sequence[RunRecord], references: Mapping[str, Mapping[str, Reference]]
) -> list[str]:
    """What a reader must know before believing anything."""
    notes = []
    left_out = [run for run in runs if not run.counts]
    if left_out:
        kinds = sorted({run.status for run in left_out})
        notes.append(f"{len(left_out)} of {len(runs)} runs do not count in scores ({', '.join(kinds)}); see the list of runs.")
    counted = [len(group.counted) for group in groups if group.counted]
    if not counted:
        notes.append("No run is finished and evaluated: there are no scores yet.")
    elif min(counted) == 1:
        notes.append("Some groups have one seed: one run says little, and has no interval.")
    if any(1 < count < FEW_SEEDS for count in counted):
        notes.append(FEW_SEEDS_NOTE)
    known = {name for group in groups for name in (group.task, group.env_id)}
    notes += [f"References for {name}: no such environment here." for name in references if name not in known]
    return notes


def references_on(references: Mapping[str, Mapping[str, Reference]], group: RunGroup) -> Mapping[str, Reference]:
    """Published scores for a group's task, or for its environment."""
    return references.get(group.task) or references.get(group.env_id or "") or {}


def read_references(path: str | Path) -> dict[str, dict[str, Reference]]:
    """Published scores: environment, then algorithm (or any name), then ``score`` and ``source``."""
    found: dict[str, dict[str, Reference]] = {}
    for env_id, entries in read_yaml_mapping(Path(path)).items():
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{path}: {env_id} must map algorithms to score and source, got {entries!r}")
        for algo, entry in entries.items():
            where = f"{path}: {env_id}, {algo}"
            if not isinstance(entry, Mapping) or set(entry) != {"score", "source"}:
                raise ConfigError(f"{where} must have score and source, and nothing else, got {entry!r}")
            score = entry["score"]
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise ConfigError(f"{where}: score must be a finite number, got {score!r}")
            found.setdefault(env_id, {})[str(algo)] = Reference(float(score), str(entry["source"]))
    return found


def _aggregate(groups: Sequence[RunGroup]) -> tuple[list[Aggregate], list[str]]:
    """One aggregate for each set of tasks that groups connect: those of discrete and of continuous actions stay apart."""
    on_task: dict[str, dict[str, RunGroup]] = {}
    for group in groups:
        if group.counted:
            on_task.setdefault(group.task, {})[group.label] = group
    aggregates, problems = [], []
    for tasks in _connected(on_task):
        labels = list(dict.fromkeys(label for task in tasks for label in on_task[task]))
        if len(labels) < 2:
            continue
        complete = [label for label in labels if all(label in on_task[task] for task in tasks)]
        if len(complete) < 2:
            problems.append(f"No two groups have scores on all of {', '.join(tasks)}: nothing is aggregated over these.")
            continue
        try:
            aggregates.append(_aggregated(tasks, complete, on_task, [label for label in labels if label not in complete]))
        except _NoScaleError as error:
            problems.append(str(error))
    return aggregates, problems


def _connected(on_task: Mapping[str, Mapping[str, RunGroup]]) -> list[list[str]]:
    """Tasks that share a label, directly or by way of other tasks."""
    components: list[tuple[list[str], set[str]]] = []
    for task, by_label in on_task.items():
        labels, tasks = set(by_label), [task]
        for other in [component for component in components if component[1] & labels]:
            components.remove(other)
            tasks, labels = [*other[0], *tasks], other[1] | labels
        components.append((tasks, labels))
    return [tasks for tasks, _ in components]


class _NoScaleError(Exception):
    """All scores of a task are the same: there is no scale to put them on."""


def _aggregated(
    tasks: list[str], labels: list[str], on_task: Mapping[str, Mapping[str, RunGroup]], left_out: list[str]
) -> Aggregate:
    bounds, scale = _bounds(tasks, on_task)
    raw = {label: {task: on_task[task][label].scores("last") for task in tasks} for label in labels}
    scores = {label: statistics.normalized(raw[label], bounds) for label in labels}
    names: list[StatisticName] = ["iqm", "median", "mean", "optimality_gap"]
    if len(tasks) == 1:
        names.remove("median")  # over tasks: of a single one it is the mean
    estimates: dict[str, dict[str, Estimate]] = {
        name: {label: statistics.estimate(name, scores[label]) for label in labels} for name in names
    }
    compared = labels if len(labels) <= _MOST_COMPARED else []
    improvement = {
        (one, two): statistics.improvement_estimate(raw[one], raw[two]) for one in compared for two in compared if one != two
    }
    return Aggregate(tasks, labels, scale, left_out, scores, estimates, improvement)


def _bounds(tasks: Sequence[str], on_task: Mapping[str, Mapping[str, RunGroup]]) -> tuple[dict[str, tuple[float, float]], str]:
    """What 0 and 1 stand for on each task: known reference returns if all tasks have some, else the extremes seen here."""
    known = {task: reference_returns(next(iter(on_task[task].values())).env_id) for task in tasks}
    if all(known.values()):
        references = {task: (found.random, found.expert) for task, found in known.items() if found}
        return references, "0 is D4RL's random policy and 1 its expert"
    bounds = {}
    for task in tasks:
        scores = np.concatenate([group.scores("last") for group in on_task[task].values()])
        bounds[task] = (float(scores.min()), float(scores.max()))
        if bounds[task][0] == bounds[task][1]:
            raise _NoScaleError(f"All scores on {task} are the same: there is no scale to aggregate them on.")
    return bounds, "on each environment 0 is the lowest and 1 the highest last score of a run in this report"


_MOST_COMPARED = 12  # labels; a table of more pairs is read by nobody
STATISTIC_TITLES: dict[str, str] = {
    "iqm": "Interquartile mean",
    "median": "Median of environments",
    "mean": "Mean",
    "optimality_gap": "Optimality gap (less is better)",
}
