"""What runs show: tables, comparisons, and one self-contained HTML file that asks the network for nothing.

Numbers are those of :mod:`rl_training.studies.statistics`, runs and groups those of :mod:`rl_training.studies.curves`. Only
finished runs count in scores; every run is drawn as far as it got, and listed. matplotlib draws, Jinja fills the page in with
everything escaped: names of runs and settings are somebody's text.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from rl_training import __version__
from rl_training.experiment.files import write_atomically, writing
from rl_training.experiment.reference_scores import reference_returns
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.studies import statistics
from rl_training.studies.curves import (
    Array,
    Metric,
    RunGroup,
    RunRecord,
    align_curves,
    differing,
    group_runs,
    group_sides,
    load_runs,
    short_name,
    shorten,
    show,
)
from rl_training.studies.statistics import Estimate, StatisticName
from rl_training.types import ConfigError, UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_SEEDS = 5
FEW_SEEDS_NOTE = (
    f"Fewer than {FEW_SEEDS} seeds: a bootstrap over so few is too sure of itself, and the true intervals are wider."
)


# -- tables --------------------------------------------------------------------------------------------------------------


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
            reference=_references_on(references, group).get(group.algo),
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


def _references_on(references: Mapping[str, Mapping[str, Reference]], group: RunGroup) -> Mapping[str, Reference]:
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
_TITLES: dict[str, str] = {
    "iqm": "Interquartile mean",
    "median": "Median of environments",
    "mean": "Mean",
    "optimality_gap": "Optimality gap (less is better)",
}


# -- comparison ----------------------------------------------------------------------------------------------------------


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


# -- figures -------------------------------------------------------------------------------------------------------------

# Colours that stand for others: after drawing, each becomes a CSS colour, which the page sets for light and dark mode.
_INK, _FAINT, _FIRST_SERIES = "#000001", "#000002", 16
SERIES_COLOURS = 10
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))  # once colours repeat, dashes tell series apart
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.parse_math": False,
}
_WIDTH = 4.8  # inches; 346 points, about the width of a phone, so that text is readable there and larger elsewhere


def _colour(series: int) -> str:
    return f"#0000{_FIRST_SERIES + series % SERIES_COLOURS:02x}"


def _dash(series: int) -> Any:
    return _DASHES[series // SERIES_COLOURS % len(_DASHES)]


def _new_figure(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _to_svg(figure: Figure, name: str) -> str:
    """An SVG element for an HTML page: sized by the page, coloured by it, with names of its own."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    size = re.search(r'viewBox="([^"]+)"', svg)
    assert size is not None  # matplotlib's always has one
    svg = re.sub(r"<svg[^>]*>", f'<svg viewBox="{size[1]}" class="plot" aria-hidden="true" focusable="false">', svg, count=1)
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="series-(\d+)(?:-\w+)?"', r'data-series="\1"', svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = svg.replace(_INK, "currentColor").replace(_FAINT, "var(--faint)")
    return re.sub(r"#0000([12][0-9a-f])\b", lambda found: f"var(--s{int(found[1], 16) - _FIRST_SERIES})", svg)


def draw_curves(
    groups: Sequence[GroupEvidence], references: Mapping[str, Reference] | None = None, *, name: str = "curves"
) -> str | None:
    """Mean returns of evaluations over steps with 95 % bands, as an SVG element. None if nothing was evaluated."""
    import matplotlib
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(3.0)
        drawn = [_draw_curve(axes, found) for found in groups]
        if not any(drawn):
            return None
        for algo, reference in (references or {}).items():
            series = [found.series for found in groups if found.group.algo == algo]
            colour = _colour(series[0]) if len(series) == 1 else _INK
            line = axes.axhline(reference.score, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            line.set_gid(f"series-{series[0]}-published" if len(series) == 1 else "published")
        axes.set_xlabel("gradient steps" if groups[0].group.runs[0].learns_from_data else "environment steps")
        axes.set_ylabel("evaluation return")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
        axes.margins(x=0.02)
        axes.grid(axis="x", visible=False)
        return _to_svg(figure, name)


def _draw_curve(axes: Axes, found: GroupEvidence) -> bool:
    steps, values = align_curves(found.group.runs)
    if not len(steps):
        return False
    band, colour = statistics.mean_curve(values), _colour(found.series)
    everyone = band.runs == len(values)
    marker = "o" if len(steps) <= 12 else None
    options: dict[str, Any] = {"color": colour, "linewidth": 1.6, "marker": marker, "markersize": 2.6}
    whole = np.where(everyone, band.mean, np.nan)
    (line,) = axes.plot(steps, whole, linestyle=_dash(found.series), **options)
    line.set_gid(f"series-{found.series}-line")
    if not everyone.all():  # dotted where some runs are missing, joined to the solid part
        beside = everyone.copy()
        beside[:-1] &= everyone[1:]
        beside[1:] &= everyone[:-1]
        (rest,) = axes.plot(steps, np.where(beside, np.nan, band.mean), linestyle=":", **{**options, "linewidth": 1.2})
        rest.set_gid(f"series-{found.series}-rest")
    if len(values) > 1:
        area = axes.fill_between(steps, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
        area.set_gid(f"series-{found.series}-band")
    return True


def _thousands(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def draw_intervals(estimates: Mapping[str, Estimate], series: Mapping[str, int], *, name: str = "intervals") -> str:
    """Values and intervals of one statistic, a row a label, as an SVG element."""
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(0.45 + 0.38 * len(estimates))
        for row, (label, found) in enumerate(estimates.items()):
            colour = _colour(series[label])
            if found.low is not None and found.high is not None:
                (bar,) = axes.plot([found.low, found.high], [row, row], color=colour, linewidth=6, alpha=0.4)
                bar.set_solid_capstyle("butt")
                bar.set_gid(f"series-{series[label]}-interval")
            (dot,) = axes.plot([found.value], [row], marker="|", markersize=10, markeredgewidth=2.2, color=colour)
            dot.set_gid(f"series-{series[label]}-value")
            text = axes.text(0, row - 0.28, shorten(label, 44), transform=axes.get_yaxis_transform(), va="bottom", fontsize=8)
            text.set_gid(f"series-{series[label]}-label")
            told = axes.text(
                1, row - 0.28, _told(found), transform=axes.get_yaxis_transform(), va="bottom", ha="right", fontsize=8
            )
            told.set_gid(f"series-{series[label]}-told")
        axes.set_ylim(len(estimates) - 0.5, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.04)
        return _to_svg(figure, name)


def _told(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.3g}"
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def draw_profile(aggregate: Aggregate, series: Mapping[str, int], *, name: str = "profile") -> str:
    """Performance profiles with their bands, as an SVG element."""
    import matplotlib

    every = np.concatenate([values for by_task in aggregate.scores.values() for values in by_task.values()])
    low, high = float(min(every.min(), 0.0)), float(max(every.max(), 1.0))
    thresholds = np.linspace(low - 0.02 * (high - low), high, 160)
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(2.7)
        for label in aggregate.labels:
            profile = statistics.performance_profile(aggregate.scores[label], thresholds)
            colour, number = _colour(series[label]), series[label]
            (line,) = axes.plot(
                thresholds, profile.fractions, color=colour, linewidth=1.6, linestyle=_dash(number), drawstyle="steps-post"
            )
            line.set_gid(f"series-{number}-line")
            if profile.low is not None and profile.high is not None:
                area = axes.fill_between(
                    thresholds, profile.low, profile.high, color=colour, alpha=0.18, linewidth=0, step="post"
                )
                area.set_gid(f"series-{number}-band")
        axes.set_xlabel("normalised score")
        axes.set_ylabel("fraction of runs above it")
        axes.set_ylim(-0.03, 1.03)
        return _to_svg(figure, name)


# -- animation -----------------------------------------------------------------------------------------------------------

LARGEST_ANIMATION = 1_500_000
_PATIENCE = 180.0
_PLAYED_STEPS, _EVERY = 300, 3


class Animation(NamedTuple):
    """A short episode as a data URL, with a still of it; or why there is none."""

    title: str
    moving: str = ""
    still: str = ""
    problem: str | None = None


def animate_best(evidence: Evidence, *, most: int = 6) -> list[Animation]:
    """The best agent of each task (the run with the best evaluation, its checkpoint ``best``) playing for a few seconds."""
    animations = []
    tasks = [task for task in evidence.tasks if any(len(run.steps) for found in evidence.on(task) for run in found.group.runs)]
    for task in tasks[:most]:
        members = [(run, found.group.label) for found in evidence.on(task) for run in found.group.runs if len(run.steps)]
        run, label = max(members, key=lambda member: member[0].score("best") or -math.inf)
        title = f"{task}: {label}, seed {run.seed}"
        with tempfile.TemporaryDirectory() as folder:
            facts = _film_elsewhere(run.path, Path(folder), LARGEST_ANIMATION // max(len(tasks[:most]), 1))
            if "problem" in facts:
                animations.append(Animation(title, problem=str(facts["problem"])))
                continue
            moving, still = ((Path(folder) / str(facts[key])).read_bytes() for key in ("moving", "still"))
        title += f", return {facts['return']:.1f}" if facts["ended"] else f", first {facts['steps']} steps"
        kind = "webp" if str(facts["moving"]).endswith("webp") else "gif"
        animations.append(Animation(title, _data_url(moving, kind), _data_url(still, "png")))
    return animations


def _data_url(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _film_elsewhere(run: Path, folder: Path, limit: int) -> dict[str, Any]:
    """:func:`film` in a process of its own: drawing libraries may crash, hang, print, and look at variables only once."""
    code = "import sys; from rl_training.studies.report import film_main; film_main(*sys.argv[1:])"
    search = os.pathsep.join([*(path for path in sys.path if path), os.getcwd()])
    facts: dict[str, Any] = {}
    for library in (None,) if "MUJOCO_GL" in os.environ else (None, "egl", "osmesa"):
        variables = {**os.environ, "PYTHONPATH": search, **({"MUJOCO_GL": library} if library else {})}
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(run.absolute()), str(folder), str(limit)],
                cwd=folder,  # where MuJoCo may leave its log
                env=variables,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
            facts = json.loads((done.stdout.splitlines() or ["{}"])[-1])
        except subprocess.TimeoutExpired:
            return {"problem": f"rendering took longer than {_PATIENCE:.0f} s"}
        except ValueError:
            facts = {}
        if not facts:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            facts = {"problem": f"rendering ended abruptly: {shorten(last, 200)}"}
        if "problem" not in facts or not re.search(r"OpenGL|EGL|GLFW|OSMesa|_gl\b", str(facts["problem"]), re.IGNORECASE):
            break
    return facts


def film_main(run: str, folder: str, limit: str) -> None:
    """Film, and print what came of it as JSON."""
    try:
        facts = film(Path(run), Path(folder), limit=int(limit))
    except UserError as error:
        facts = {"problem": str(error)}
    except Exception as error:  # an environment's or a drawing library's; the report only loses a picture
        facts = {"problem": f"{type(error).__name__}: {error}"}
    print(json.dumps(facts))


def film(run: Path, folder: Path, *, limit: int) -> dict[str, Any]:
    """Play the best agent of a run, and write ``moving.webp`` (or ``.gif``) of at most ``limit`` bytes and ``still.png``."""
    from PIL import Image

    from rl_training.envs.factory import make_env
    from rl_training.experiment.checkpointing import find_checkpoint
    from rl_training.runtime.evaluation import evaluation_seeds
    from rl_training.runtime.policy import load_policy
    from rl_training.runtime.workflows import config_of

    pointer = run / "checkpoints" / "best"
    checkpoint = find_checkpoint(pointer if pointer.exists() else run)
    config, policy = config_of(checkpoint), load_policy(checkpoint)
    if config.env_id is None:
        raise ConfigError("the agent was trained without an environment")
    env = make_env(config.env_id, {**config.env_kwargs, "render_mode": "rgb_array"})
    try:
        frames: list[Any] = []
        obs, _ = env.reset(seed=evaluation_seeds(config.seed, 1)[0])
        total, steps, ended = 0.0, 0, False
        while not ended and steps < _PLAYED_STEPS:
            if steps % _EVERY == 0:
                picture = np.asarray(env.render())
                if picture.ndim != 3 or picture.dtype != np.uint8:
                    raise ConfigError(f"{config.env_id} renders no picture")
                frames.append(Image.fromarray(picture[..., :3]))
            action = policy.act(np.asarray(obs, dtype=np.float32)[np.newaxis])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, steps, ended = total + float(reward), steps + 1, bool(terminated or truncated)
        rate = env.metadata.get("render_fps") or 30
    finally:
        env.close()
    moving = _encode(frames, folder, milliseconds=int(min(max(1000 * _EVERY / rate, 40), 150)), limit=limit)
    still = frames[len(frames) // 2].copy()
    still.thumbnail((240, 240))
    still.save(folder / "still.png", optimize=True)
    return {"moving": moving, "still": "still.png", "return": total, "steps": steps, "ended": ended}


def _encode(frames: Sequence[Any], folder: Path, *, milliseconds: int, limit: int) -> str:
    """Smaller and with fewer pictures until it fits."""
    from PIL import features

    kind = "webp" if features.check("webp") else "gif"
    path = folder / f"moving.{kind}"
    for width, skip in ((240, 1), (240, 2), (180, 2), (120, 3), (80, 5)):
        chosen = [frame.copy() for frame in frames[::skip]]
        for frame in chosen:
            frame.thumbnail((width, width))
        options = {"quality": 65, "method": 4} if kind == "webp" else {"optimize": True}
        chosen[0].save(path, save_all=True, append_images=chosen[1:], duration=milliseconds * skip, loop=0, **options)
        if path.stat().st_size <= limit:
            return path.name
    raise ConfigError(f"the animation could not be made smaller than {limit} bytes")


# -- the page ------------------------------------------------------------------------------------------------------------


def write_report(
    paths: Sequence[str | Path],
    output: str | Path = "report.html",
    *,
    title: str | None = None,
    video: bool = True,
    references: str | Path | None = None,
) -> Evidence:
    """Read runs, and write what they show into one HTML file that needs nothing else. Returns what is in it."""
    _require_extra()
    target = Path(output)
    if target.is_dir():
        raise ConfigError(f"{target} is a directory: name the file to write, e.g. {target / 'report.html'}")
    evidence = gather_evidence(paths, references=None if references is None else read_references(references))
    animations = animate_best(evidence) if video else []
    text = render_html(
        evidence, title=title or _title(paths), base=target.absolute().parent, animations=animations, paths=paths
    )
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    return evidence


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'a report needs {" and ".join(missing)}: pip install "rl-training[report]"')


def _title(paths: Sequence[str | Path]) -> str:
    return Path(paths[0]).absolute().name if len(paths) == 1 else f"{len(paths)} studies or runs"


def render_html(
    evidence: Evidence,
    *,
    title: str,
    base: Path,
    animations: Sequence[Animation] = (),
    paths: Sequence[str | Path] = (),
) -> str:
    """The page; links to runs are relative to ``base``, the directory it will lie in."""
    import jinja2
    from markupsafe import Markup

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, duration=_duration, integrity=_integrity, show=show, setting=short_name)
    series = {label: index for index, label in enumerate(evidence.labels)}
    tasks = [
        {
            "name": task,
            "groups": evidence.on(task),
            "curves": _markup(draw_curves(evidence.on(task), _published(evidence, task), name=f"c{index}")),
            "published": _published(evidence, task),
        }
        for index, task in enumerate(evidence.tasks)
    ]
    aggregates = [
        {
            "of": aggregate,
            "intervals": [
                (_TITLES[statistic], Markup(draw_intervals(found, series, name=f"a{index}{statistic}")))
                for statistic, found in aggregate.estimates.items()
            ],
            "profile": Markup(draw_profile(aggregate, series, name=f"p{index}")),
        }
        for index, aggregate in enumerate(evidence.aggregates)
    ]
    settings = [found.group.settings for found in evidence.groups]
    keys = [key for key in differing(settings) if key not in ("algo", "env_id")] if len(settings) > 1 else []
    shared = {key: value for key, value in (settings[0] if settings else {}).items() if key not in differing(settings)}
    return environment.get_template("report_template.html.j2").render(
        title=title,
        evidence=evidence,
        tasks=tasks,
        aggregates=aggregates,
        series=series,
        colours=SERIES_COLOURS,
        differing=keys,
        shared=shared,
        animations=animations,
        links={run.path: _link(run.path, base) for run in evidence.runs},
        label_of={run.path: (found.series, found.group.label) for found in evidence.groups for run in found.group.runs},
        version=__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["rl-training", "report", *map(str, paths)]) if paths else "",
        few_seeds=FEW_SEEDS,
    )


def _markup(svg: str | None) -> Any:
    from markupsafe import Markup

    return None if svg is None else Markup(svg)


def _published(evidence: Evidence, task: str) -> Mapping[str, Reference]:
    return _references_on(evidence.references, evidence.on(task)[0].group)


def _link(run: Path, base: Path) -> str:
    """A relative address, every odd character quoted: the name of a directory cannot become a scheme or a query."""
    try:
        relative = os.path.relpath(run.absolute(), base)
    except ValueError:  # another drive
        return run.absolute().as_uri()
    return quote(f"./{Path(relative).as_posix()}/")


def _integrity(script: str) -> str:
    """What the page's policy admits: this script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _number(value: float | None) -> str:
    """As many digits as a score has use for."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash in a table
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"  # noqa: RUF001
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
