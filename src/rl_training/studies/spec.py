"""What a study is: settings x seeds, checked before anything runs, and the plain-JSON specs of its runs."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from pydantic import Field, field_validator

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import build_config, find_config, read_config
from rl_training.experiment.yaml_files import parse_yaml, read_yaml_mapping
from rl_training.types import ConfigError, Problem
from rl_training.validation import Settings

PLACED_BY_STUDY = ("seed", "output_dir")
"""Settings of a run that its place in the study decides."""
LARGEST_STUDY = 100_000
"""Runs; more are taken for a slip of the pen."""
_LONGEST_LABEL = 80
_SHOWN_DIFFERENCES = 5
_MISSING = object()


class CallbackSpec(TypedDict):
    """A callback by the name of its class (``module:Class``) and its keyword arguments."""

    use: str
    options: dict[str, Any]


class RunSpec(TypedDict):
    """All that a worker needs to do a run, as plain JSON with absolute paths: any process on any machine can do it."""

    name: str
    config: dict[str, Any]
    run_dir: str
    imports: list[str]
    callbacks: list[CallbackSpec]


class ExecutorSettings(Settings):
    """How runs are run."""

    kind: Literal["serial", "process", "ray"] = Field("process", description="here, in worker processes, or on Ray")
    workers: int | None = Field(None, ge=1, description="runs at a time; as many as there are cores for if none")
    retries: int = Field(3, ge=0, description="how often a run whose worker died is started again")
    ray_address: str | None = Field(None, description="an existing Ray cluster; a local one of our own if none")
    cpus_per_run: float | None = Field(None, gt=0, description="CPUs that Ray sets aside for a run; its threads if none")
    gpus_per_run: float = Field(0.0, ge=0, description="GPUs that Ray sets aside for a run")


class Setting(Settings):
    """One point of the grid: what it changes, and the whole configuration but for seed and place."""

    label: str
    changes: dict[str, Any]
    config: dict[str, Any]


class Point(NamedTuple):
    """One point of the grid before it is checked; ``base`` is named where a study has several."""

    base: str | None
    changes: dict[str, Any]
    settings: Mapping[str, Any]


class StudySpec(Settings):
    """What ``study.json`` holds."""

    name: str
    source: str
    grid: dict[str, list[Any]]
    seeds: tuple[int, ...]
    imports: tuple[str, ...] = ()
    settings: tuple[Setting, ...]

    def run_specs(self, directory: Path) -> list[RunSpec]:
        """The runs, seed after seed of each setting, as directories ``runs/<label>/seed<k>`` below ``directory``."""
        return [
            run_spec(directory, setting.label, setting.config, seed, imports=self.imports)
            for setting in self.settings
            for seed in self.seeds
        ]


class StudyFile(Settings):
    """A ``study.yaml``."""

    base: tuple[str, ...] = Field(
        min_length=1, description="a preset or a configuration file (relative to this one), or a list of them"
    )
    set: dict[str, Any] = Field(default_factory=dict, description="settings that differ from the base, by key path")
    grid: dict[str, Any] = Field(default_factory=dict, description="values to try, by key path")
    seeds: Any = Field(None, description="[1, 2, 3] or 1-10")
    name: str | None = Field(None, description="name of the study's directory")
    output_dir: str | None = Field(None, description="where that directory is made")
    executor: ExecutorSettings = Field(default_factory=ExecutorSettings, description="a kind, or {kind, workers, ...}")
    imports: list[str] = Field(default_factory=list, description="modules that register environments")

    @field_validator("base", mode="before")
    @classmethod
    def _base_alone(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("base")
    @classmethod
    def _bases_differ(cls, bases: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(bases)) < len(bases):
            raise ValueError(f"must not name one twice, got {', '.join(bases)}")
        return bases

    @field_validator("executor", mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


def run_spec(
    directory: Path,
    label: str,
    config: Mapping[str, Any],
    seed: int,
    *,
    imports: Iterable[str] = (),
    callbacks: Iterable[CallbackSpec] = (),
) -> RunSpec:
    """The spec of one run of a study."""
    run_dir = directory.absolute() / "runs" / label / f"seed{seed}"
    return {
        "name": f"{label}/seed{seed}",
        "config": {**config, "seed": seed, "output_dir": str(run_dir.parent)},
        "run_dir": str(run_dir),
        "imports": list(imports),
        "callbacks": list(callbacks),
    }


# -- reading what the user gave --------------------------------------------------------------------------------------


def is_study_file(source: str | Path) -> bool:
    """Whether a path is a YAML file with a ``base``, which no configuration of a run has."""
    path = Path(source)
    return path.is_file() and path.suffix in (".yaml", ".yml") and "base" in read_yaml_mapping(path)


def read_settings_file(path: Path, model: type[Settings]) -> Any:
    """A YAML file as a settings model; problems are told under its name."""
    try:
        return model(**read_yaml_mapping(path))
    except ConfigError as error:
        if error.source is not None:
            raise
        raise ConfigError(error.problems, source=str(path)) from None


def base_settings(source: str | Path, *, beside: Path | None = None) -> dict[str, Any]:
    """The settings of a preset or file, as given; ``beside`` is where a relative file is looked for first."""
    near = None if beside is None else beside / source
    return read_config(near if near is not None and near.is_file() else find_config(source))


def parse_seeds(given: Any) -> tuple[int, ...]:
    """``[1, 2, 3]``, ``"1-10"`` or ``"1,2,5-7"`` as numbers; a ``ConfigError`` for none, a repeated or an impossible one."""
    given = () if given is None else given
    entries = given if isinstance(given, list | tuple | range) else str(given).split(",")
    seeds: list[int] = []
    for entry in entries:
        text = str(entry).strip()
        numbers = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text)
        if isinstance(entry, bool) or (text and numbers is None):
            raise ConfigError(f"seeds must be whole numbers >= 0 such as 1-10 or 1,2,5, got {text!r}")
        if numbers is not None:
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            if last < first or last - first > LARGEST_STUDY:
                raise ConfigError(f"seeds {text!r} must go from a smaller to a larger number, at most {LARGEST_STUDY} of them")
            seeds += range(first, last + 1)
    if not seeds:
        raise ConfigError("seeds must name at least one seed, e.g. 1-10 or 1,2,5")
    if repeated := [str(seed) for seed, times in Counter(seeds).items() if times > 1]:
        raise ConfigError(f"seeds must differ: {', '.join(repeated)} named twice")
    return tuple(seeds)


def parse_assignment(text: str, option: str) -> tuple[str, str]:
    """Key path and text of ``key.path=text``."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"{option} takes key.path=value, got {text!r}")
    return key.strip(), value


def parse_grid(entries: Iterable[str]) -> dict[str, list[Any]]:
    """``key.path=a,b,c`` of each entry; values are YAML, so ``[64,64],[256,256]`` are two lists."""
    grid: dict[str, list[Any]] = {}
    for entry in entries:
        key, text = parse_assignment(entry, "--grid")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; name all its values at once")
        grid[key] = parse_yaml(f"[{text}]", source=f"--grid {entry}")
    return grid


def parse_overrides(entries: Iterable[str]) -> dict[str, Any]:
    """``key.path=value`` of each entry; the value is YAML."""
    pairs = (parse_assignment(entry, "--set") for entry in entries)
    return {key: parse_yaml(text, source=f"--set {key}={text}") for key, text in pairs}


def with_values(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values put in at their key paths."""
    changed = copy.deepcopy(dict(data))
    for path, value in changes.items():
        *sections, name = path.split(".")
        target = changed
        for section in sections:
            inner = target.get(section)
            if not isinstance(inner, dict | None):
                raise ConfigError(f"{path} cannot be set: {section} is {inner!r}, not a section")
            target[section] = {} if inner is None else inner
            target = target[section]
        target[name] = copy.deepcopy(value)
    return changed


# -- from settings to a study ----------------------------------------------------------------------------------------


def plan_study(
    bases: Mapping[str, Mapping[str, Any]],
    *,
    source: str,
    name: str,
    seeds: Any,
    grid: Mapping[str, Any] | None = None,
    imports: Iterable[str] = (),
) -> StudySpec:
    """The checked study of ``bases`` (settings by name) x ``grid`` x ``seeds``; nothing is made or run."""
    if not re.fullmatch(r"\w[\w.=+-]*", name):
        raise ConfigError(f"a study's name must be a file name of letters, digits and -_.=+, got {name!r}")
    grid = _checked_grid(grid or {})
    numbers = parse_seeds(seeds)
    count = len(numbers) * len(bases)
    for values in grid.values():
        count *= len(values)
    if count > LARGEST_STUDY:
        raise ConfigError(f"the study has {count} runs; more than {LARGEST_STUDY} are not planned")
    points = [
        Point(base if len(bases) > 1 else None, dict(zip(grid, values, strict=True)), settings)
        for base, settings in bases.items()
        for values in itertools.product(*grid.values())
    ]
    configs = _checked_configs(points, source=source)
    labels = _labels(points)
    return StudySpec(
        name=name,
        source=source,
        grid=grid,
        seeds=numbers,
        imports=tuple(imports),
        settings=tuple(
            Setting(label=label, changes=point.changes, config=config)
            for label, point, config in zip(labels, points, configs, strict=True)
        ),
    )


def _checked_grid(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    problems = []
    for key, values in grid.items():
        if key in PLACED_BY_STUDY:
            home = {"seed": "seeds", "output_dir": "the study's directory"}[key]
            problems.append(Problem(f"grid {key}", f"is decided by {home}"))
        elif not isinstance(values, list):
            problems.append(Problem(f"grid {key}", f"must be a list of values, got {values!r}"))
        elif not values:
            problems.append(Problem(f"grid {key}", "must have at least one value"))
        elif len({json.dumps(value, default=str) for value in values}) < len(values):
            problems.append(Problem(f"grid {key}", f"must not name a value twice, got {values}"))
    if problems:
        raise ConfigError(problems)
    return dict(grid)


def _checked_configs(points: Iterable[Point], *, source: str) -> list[dict[str, Any]]:
    """The configuration of each point; every problem is told once."""
    configs: list[dict[str, Any]] = []
    problems: dict[str, Problem] = {}
    for point in points:
        try:
            configs.append(settled_config(with_values(point.settings, point.changes)))
        except ConfigError as error:
            problems |= {str(problem): problem for problem in error.problems}
    if problems:
        raise ConfigError(list(problems.values()), source=source)
    return configs


def settled_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration of a run as plain data, but for seed and place; one torch thread unless it says otherwise."""
    config = TrainConfig(**settings)
    if config.torch_threads is None:  # part of the bits of a run, so that every executor must agree on it
        config = config.replace(torch_threads=1)
    data = config.resolved().to_dict()
    _make_paths_absolute(data["dataset"])
    return {key: value for key, value in data.items() if key not in PLACED_BY_STUDY}


def _make_paths_absolute(dataset: dict[str, Any] | None) -> None:
    """A worker may have another working directory. The id of a Minari dataset is not a path."""
    if dataset is None:
        return
    for key in ("path", "cache_dir"):
        path = dataset.get(key)
        if path is not None and (dataset["kind"] != "minari" or Path(path).is_dir()):
            dataset[key] = str(Path(path).expanduser().absolute())
    for part in dataset.get("parts", ()):
        _make_paths_absolute(part)


def _labels(points: list[Point]) -> list[str]:
    """A short and safe file name for each point, e.g. ``learning_rate=0.001__tau=0.02``, ``sac-pendulum`` or ``base``."""
    labels = [_label(point) for point in points]
    folded = [label.lower() for label in labels]  # some file systems do not tell upper from lower case
    return [
        label if len(label) <= _LONGEST_LABEL and folded.count(label.lower()) == 1 else f"{label[:60]}-{_digest(point)}"
        for label, point in zip(labels, points, strict=True)
    ]


def _label(point: Point) -> str:
    changes = point.changes
    short = [key.rpartition(".")[2] for key in changes]
    names = [name if short.count(name) == 1 else key for key, name in zip(changes, short, strict=True)]
    pieces = [f"{name}={_value_label(value)}" for name, value in zip(names, changes.values(), strict=True)]
    return "__".join(pieces if point.base is None else [_value_label(point.base), *pieces]) or "base"


def _value_label(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(_value_label(entry) for entry in value)
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+-]+", "-", text).strip("-") or "-"


def _digest(point: Point) -> str:
    what = point.changes if point.base is None else [point.base, point.changes]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]


# -- the same or another study ---------------------------------------------------------------------------------------


def differences(there: StudySpec, here: StudySpec) -> list[str]:
    """What makes two studies different, seeds apart; nothing if ``here`` continues ``there``."""
    found = differing("grid", there.grid, here.grid) + differing("imports", list(there.imports), list(here.imports))
    found = found or differing("settings", *([setting.label for setting in spec.settings] for spec in (there, here)))
    if found:
        return shortened(found)
    for old, new in zip(there.settings, here.settings, strict=True):
        found += config_differences(old.config, new.config)
    return shortened(list(dict.fromkeys(found)))


def config_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Settings in which two configurations differ, seed and place apart; what came later than one of them has its default."""
    old, new = (build_config(config, source="a stored configuration").to_dict() for config in (there, here))
    for key in PLACED_BY_STUDY:
        del old[key], new[key]
    return differing("", old, new)


def differing(path: str, there: Any, here: Any) -> list[str]:
    """A line for each place at which two plain values differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys([*there, *here])
        inner = ((f"{path}.{key}".strip("."), there.get(key, _MISSING), here.get(key, _MISSING)) for key in keys)
        return [line for entry in inner for line in differing(*entry)]
    if there == here:
        return []
    shown = ("not given" if value is _MISSING else json.dumps(value) for value in (there, here))
    return [f"{path} is {' there, '.join(shown)} here"]


def shortened(lines: list[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    more = len(lines) - _SHOWN_DIFFERENCES
    return lines if more <= 0 else [*lines[:_SHOWN_DIFFERENCES], f"and {more} more"]
