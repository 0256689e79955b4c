"""From run directories to tidy data: what each run was, how it went, and which runs are seeds of the same thing.

A run directory is one with ``config.yaml`` and ``metadata.json``; any directory above some is a study here. Files are read as
they are, without importing torch or checking settings, so runs of older versions and runs in progress can be looked at.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from rl_training.experiment.files import read_bounded, reason_of
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.types import ConfigError
from rl_training.validation import flatten

Array: TypeAlias = npt.NDArray[np.float64]
Metric: TypeAlias = Literal["last", "best"]

BOOKKEEPING = frozenset(
    {
        "seed",
        "output_dir",
        "log_interval",
        "tensorboard",
        "tracking",
        "tracking_options.project",
        "tracking_options.group",
        "tracking_options.tags",
        "tracking_options.entity",
        "tracking_options.mlflow_uri",
        "checkpoint_interval",
        "keep_last",
        "on_save_error",
        "torch_threads",
        "device",
        "vectorization",
        "dataset.memory_map",
        "dataset.cache_dir",
    }
)
"""Settings that do not say what is learnt or how: runs that differ in nothing else are seeds of one group."""

_LARGEST_METADATA = 4_000_000
_LARGEST_LOG = 512_000_000
_LONGEST_LABEL = 72
_LONGEST_VALUE = 24


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as its directory tells it. ``problem`` says why its score does not count, if it does not."""

    path: Path
    algo: str = "?"
    env_id: str | None = None
    seed: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    status: str = "broken"  # finished, running, interrupted, failed; broken: its files cannot be read
    problem: str | None = None
    started: str = ""
    steps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    returns: Array = field(default_factory=lambda: np.zeros(0))  # mean over the episodes of each evaluation
    wall_time: float | None = None  # seconds, evaluations and all
    steps_per_second: float | None = None  # of training alone

    @property
    def counts(self) -> bool:
        """Whether its scores go into statistics: it is finished, was evaluated, and is no second run of the same seed."""
        return self.problem is None

    def score(self, metric: Metric) -> float | None:
        """Mean return of the last evaluation, or of the best one."""
        if not len(self.returns):
            return None
        return float(self.returns[-1] if metric == "last" else self.returns.max())

    @property
    def task(self) -> str:
        """The environment; for a run that learns from data also which data, since that makes another task of it."""
        name = self.env_id or "no environment"
        dataset = self.config.get("dataset")
        return f"{name} ({_dataset_name(dataset)})" if isinstance(dataset, Mapping) else name

    @property
    def learns_from_data(self) -> bool:
        """Whether its steps are gradient steps on a dataset, not steps in an environment."""
        return isinstance(self.config.get("dataset"), Mapping)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that differ only in their seed, on one task."""

    task: str
    label: str
    algo: str
    settings: Mapping[str, Any]  # flat, without bookkeeping
    runs: tuple[RunRecord, ...]

    @property
    def env_id(self) -> str | None:
        """The environment's id."""
        return self.runs[0].env_id

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs whose scores count."""
        return tuple(run for run in self.runs if run.counts)

    def scores(self, metric: Metric) -> Array:
        """One score a counted run, in the order of seeds."""
        return np.array([run.score(metric) for run in self.counted], dtype=np.float64)


def load_runs(paths: Iterable[str | Path]) -> list[RunRecord]:
    """The runs in and below some directories, each once; a ``ConfigError`` for a path without any."""
    found: dict[Path, Path] = {}
    for path in paths:
        for run in find_runs(Path(path)):
            found.setdefault(run.resolve(), run)
    if not found:
        raise ConfigError("give a run directory, or a directory with runs below it")
    return [read_run(path) for path in found.values()]


def find_runs(path: Path) -> list[Path]:
    """Run directories in and below a path, sorted."""
    try:
        if not path.exists():
            raise ConfigError(f"{path} does not exist")
        if _is_run(path):
            return [path]
        found = sorted(_runs_below(path)) if path.is_dir() else []
        inside = next((parent for parent in path.absolute().parents if _is_run(parent)), None)
    except (OSError, ValueError) as error:  # not permitted, or an impossible name
        raise ConfigError(f"{str(path)[:200]} cannot be read: {reason_of(error)}") from None
    if not found:
        hint = f"; it is inside the run {inside}: give that" if inside else ""
        raise ConfigError(f"no runs in or below {path}: a run directory has config.yaml and metadata.json{hint}")
    return found


def _runs_below(path: Path) -> Iterator[Path]:
    for directory, names, _ in os.walk(path):  # follows no links, so it ends
        below = [Path(directory) / name for name in sorted(names) if not name.startswith(".")]
        yield from (child for child in below if _is_run(child))
        names[:] = [child.name for child in below if not _is_run(child)]


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.yaml").is_file() and (path / "metadata.json").is_file()
    except OSError:
        return False


def read_run(path: Path) -> RunRecord:
    """What a run directory tells. Never raises for its content: what is wrong with it becomes its ``problem``."""
    try:
        config = read_yaml_mapping(path / "config.yaml")
        metadata = _read_metadata(path / "metadata.json")
        algo = config.get("algo")
        if not isinstance(algo, str):
            raise ConfigError(f"{path / 'config.yaml'} names no algorithm")
        env_id, seed = config.get("env_id"), config.get("seed")
        run = RunRecord(
            path,
            algo=algo,
            env_id=None if env_id is None else str(env_id),
            seed=seed if type(seed) is int else None,
            config=config,
            status=str(metadata.get("status", "unknown")),
            started=str(metadata.get("started", "")),
        )
    except ConfigError as error:
        return RunRecord(path, problem=str(error))
    try:
        steps, returns = _read_evaluations(path / "evaluations.csv")
        wall_time, rate = _read_times(path / "metrics.jsonl")
    except (OSError, ValueError, csv.Error) as error:
        return replace(run, status="broken", problem=f"its logs cannot be read: {reason_of(error)}")
    run = replace(run, steps=steps, returns=returns, wall_time=wall_time, steps_per_second=rate)
    return replace(run, problem=_why_not_counted(run, metadata.get("stop_reason")))


def _why_not_counted(run: RunRecord, reason: Any) -> str | None:
    if run.status != "finished":
        step = f" at step {run.steps[-1]}" if len(run.steps) else ""
        because = f": {reason}" if isinstance(reason, str) and reason else ""
        return f"{run.status}, last evaluated{step}{because}" if step else f"{run.status}, not evaluated yet{because}"
    return None if len(run.steps) else "finished, but never evaluated"


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(read_bounded(path, _LARGEST_METADATA))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from None
    if not isinstance(metadata, dict):
        raise ConfigError(f"{path} must hold an object, got {type(metadata).__name__}")
    return metadata


def _lines(path: Path) -> list[str]:
    """The whole lines of a log: a run in progress may be in the middle of its last one."""
    if not path.exists():
        return []
    text = read_bounded(path, _LARGEST_LOG).decode("utf-8", errors="replace")
    return text.split("\n")[:-1]


def _read_evaluations(path: Path) -> tuple[npt.NDArray[np.int64], Array]:
    """Steps of the evaluations and the mean return of each; the file has a row an episode."""
    episodes: dict[int, list[float]] = {}
    for number, row in enumerate(csv.DictReader(_lines(path)), start=2):
        try:
            step, score = int(row["step"]), float(row["return"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path.name} has no step and return in line {number}") from None
        if not math.isfinite(score) or not 0 <= step < 2**62:
            raise ValueError(f"{path.name} has the return {score} at step {str(step)[:20]} in line {number}")
        episodes.setdefault(step, []).append(score)
    steps = sorted(episodes)
    return np.array(steps, dtype=np.int64), np.array([np.mean(episodes[step]) for step in steps], dtype=np.float64)


def _read_times(path: Path) -> tuple[float | None, float | None]:
    """Seconds of a run with everything, and its steps per second without evaluations and checkpoints."""
    elapsed, before, steps, seconds = None, 0.0, 0.0, 0.0
    for line in _lines(path):
        try:
            row = json.loads(line)
            total, rate = float(row["time/total_timesteps"]), float(row["time/fps"])
            elapsed = float(row["time/time_elapsed"])
        except (ValueError, KeyError, TypeError, RecursionError):  # a row of an evaluation, or damaged
            continue
        if rate > 0 and total > before and math.isfinite(rate):  # each row's rate is of the steps since the row before
            steps, seconds, before = steps + total - before, seconds + (total - before) / rate, total
    return elapsed if elapsed is not None and math.isfinite(elapsed) else None, steps / seconds if seconds else None


# -- groups --------------------------------------------------------------------------------------------------------------


def group_runs(runs: Iterable[RunRecord]) -> list[RunGroup]:
    """Seeds of the same setting on the same task, together.

    A second run of the same setting and seed tells nothing new (runs are reproducible): the newest finished one counts.
    """
    return label_groups(_gather(runs))


def group_sides(sides: Sequence[Iterable[RunRecord]]) -> list[list[RunGroup]]:
    """Each side's runs grouped for themselves, but named so that groups of different sides can be told apart too."""
    gathered = [_gather(runs) for runs in sides]
    labelled = iter(label_groups([group for groups in gathered for group in groups]))
    return [[next(labelled) for _ in groups] for groups in gathered]


def _gather(runs: Iterable[RunRecord]) -> list[RunGroup]:
    gathered: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        if run.config:
            gathered.setdefault((run.task, _text(_identity(run.config))), []).append(run)
    groups = [
        RunGroup(task, members[0].algo, members[0].algo, _identity(members[0].config), _each_seed_once(members))
        for (task, _), members in gathered.items()
    ]
    return sorted(groups, key=lambda group: (group.task, group.algo, _text(group.settings)))


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make runs the same but for chance, flat."""
    flat = {key: value for key, value in flatten(config).items() if key not in BOOKKEEPING}
    constant = flat.get("learning_rate_schedule.type") == "constant" and not flat.get("learning_rate_schedule.warmup_steps")
    if constant:
        flat.pop("learning_rate_schedule.horizon", None)  # says nothing then
    return flat


def _each_seed_once(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    newest: dict[int | None, RunRecord] = {}
    for run in sorted(runs, key=lambda run: (run.started, str(run.path))):
        if run.counts:
            newest[run.seed] = run
    marked = [
        replace(run, problem=f"the same setting and seed as {newest[run.seed].path.name}, which counts")
        if run.counts and newest[run.seed] is not run
        else run
        for run in runs
    ]
    return tuple(sorted(marked, key=lambda run: (run.seed is None, run.seed or 0, str(run.path))))


def label_groups(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Groups called by their algorithm and the settings in which they differ from others of it on the same task."""
    labelled: list[RunGroup] = []
    taken: dict[tuple[str, str], str] = {}
    for group in groups:
        rivals = [other.settings for other in groups if (other.task, other.algo) == (group.task, group.algo)]
        words = [f"{short_name(key)}={show(group.settings.get(key))}" for key in differing(rivals)]
        text, number = " ".join([group.algo, *words]), 1
        label = shorten(text, _LONGEST_LABEL)
        while taken.setdefault((group.task, label), _text(group.settings)) != _text(group.settings):
            number += 1
            label = f"{shorten(text, _LONGEST_LABEL - 5)} #{number}"  # what tells them apart was left out
        labelled.append(replace(group, label=label))
    return labelled


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all of them, in order of appearance."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key, _ABSENT) != settings[0].get(key, _ABSENT) for each in settings)]


_ABSENT = object()


def short_name(key: str) -> str:
    """A setting as people call it: hyper-parameters without their section."""
    return key.removeprefix("algo_kwargs.")


def show(value: Any) -> str:
    """A setting's value in a few characters."""
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shorten(text, _LONGEST_VALUE)


def shorten(text: str, length: int) -> str:
    """Text with its middle left out if it is long: ends tell paths and numbers apart."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"


def _dataset_name(dataset: Mapping[str, Any]) -> str:
    path = dataset.get("path")
    if isinstance(path, str) and path:
        return path if dataset.get("kind") == "minari" and not Path(path).is_absolute() else Path(path).stem
    return f"{dataset.get('kind', 'unknown')} data"


# -- curves --------------------------------------------------------------------------------------------------------------


def align_curves(runs: Iterable[RunRecord]) -> tuple[npt.NDArray[np.int64], Array]:
    """Evaluation curves on the union of their steps: ``(steps,)`` and ``(runs, steps)``.

    Between two evaluations of a run its curve is a straight line. Before its first and after its last one there is nothing
    (NaN): a run that ended early is not drawn on as if it had stayed where it was. Runs without evaluations are left out.
    """
    evaluated = [run for run in runs if len(run.steps)]
    if not evaluated:
        return np.zeros(0, dtype=np.int64), np.zeros((0, 0))
    steps = np.unique(np.concatenate([run.steps for run in evaluated]))
    rows = [np.interp(steps, run.steps, run.returns, left=np.nan, right=np.nan) for run in evaluated]
    return steps, np.stack(rows)
