"""What tuning may try: the algorithm's own search space, changed by the user, as questions to an Optuna trial."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rl_training.algorithms.base import Choice, Range
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import build_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_files import parse_yaml
from rl_training.studies.spec import PLACED_BY_STUDY, parse_assignment, with_values
from rl_training.types import ConfigError, Problem
from rl_training.validation import suggest


def parse_space(entries: Iterable[str]) -> dict[str, Range | Choice]:
    """``key=low:high[:log]`` or ``key=a,b,c`` of each entry."""
    space: dict[str, Range | Choice] = {}
    for entry in entries:
        key, text = parse_assignment(entry, "--space")
        if key in space:
            raise ConfigError(f"--space {key} is given twice")
        space[key] = parse_values(key, text)
    return space


def parse_values(key: str, given: Any) -> Range | Choice:
    """One entry of a space as given on the command line or in a file: ``low:high[:log]``, ``a,b,c``, a list or a mapping."""
    if isinstance(given, Range | Choice):
        return given
    form = f"space {key} must be low:high, low:high:log or a list of values"
    try:
        if isinstance(given, Mapping):
            return Choice(**given) if "values" in given else Range(**given)
        if isinstance(given, list):
            return Choice(values=tuple(given))
        if ":" not in str(given) or "," in str(given):
            return Choice(values=tuple(parse_yaml(f"[{given}]", source=form)))
        bounds = re.fullmatch(r"([^:]+):([^:]+)(:log)?", str(given).strip())
        if bounds is None:
            raise ConfigError("too many colons")
        low, high = (parse_yaml(text, source=form) for text in bounds.group(1, 2))
        return Range(low=low, high=high, log=bounds[3] is not None)
    except ConfigError as error:
        raise ConfigError(f"{form}, got {given!r}: {error.problems[0]}") from None


def build_space(
    config: TrainConfig, changes: Mapping[str, Range | Choice], only: Iterable[str] | None = None
) -> dict[str, Range | Choice]:
    """The algorithm's own search space with changes, by key path; ``only`` keeps some. Every end of it is a valid setting.

    A hyper-parameter can be named without its ``algo_kwargs``.
    """
    own = get_algorithm_spec(config.algo).hyperparameters
    space = {f"algo_kwargs.{name}": values for name, values in own.whole_search_space().items()}
    space |= {_key_path(key, config): values for key, values in changes.items()}
    if only is not None:
        kept = [_key_path(key, config) for key in only]
        if unknown := [key for key in kept if key not in space]:
            known = [*space, *(key.rpartition(".")[2] for key in space)]
            hint = suggest(unknown[0], known) or "; give its values (--space)"
            raise ConfigError(f"{unknown[0]} is not in the search space{hint}")
        space = {key: space[key] for key in kept}
    if not space:
        raise ConfigError("there is nothing to tune: the search space is empty")
    for key, values in space.items():
        _require_valid_ends(config, key, values)
    return space


def _key_path(key: str, config: TrainConfig) -> str:
    hyperparameters = get_algorithm_spec(config.algo).hyperparameters.model_fields
    path = f"algo_kwargs.{key}" if key in hyperparameters else key
    if path in (*PLACED_BY_STUDY, "algo"):
        raise ConfigError(f"{path} cannot be tuned")
    return path


def _require_valid_ends(config: TrainConfig, key: str, values: Range | Choice) -> None:
    ends = values.values if isinstance(values, Choice) else (values.low, values.high)
    problems: dict[str, Problem] = {}
    for end in ends:
        try:
            build_config(with_values(config.to_dict(), {key: end}), source="space")
        except ConfigError as error:
            problems |= {str(problem): problem for problem in error.problems}
    if problems:
        raise ConfigError(list(problems.values()), source=f"the search space of {key}")


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """The setting at a key path; None where a section on the way is none."""
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def encoded(value: Any) -> Any:
    """A choice as Optuna takes it; lists become text."""
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value


def suggest_values(trial: Any, space: Mapping[str, Range | Choice]) -> dict[str, Any]:
    """Ask an Optuna trial for a value of each key; a trial that has them already gives the same ones."""
    chosen: dict[str, Any] = {}
    for key, values in space.items():
        if isinstance(values, Choice):
            by_code = {encoded(value): value for value in values.values}
            chosen[key] = by_code[trial.suggest_categorical(key, list(by_code))]
        elif isinstance(values.low, int) and isinstance(values.high, int):
            chosen[key] = trial.suggest_int(key, values.low, values.high, log=values.log)
        else:
            chosen[key] = trial.suggest_float(key, values.low, values.high, log=values.log)
    return chosen


def contains(values: Range | Choice, value: Any) -> bool:
    """Whether a value is one that tuning may try."""
    if isinstance(values, Choice):
        return value in values.values
    return isinstance(value, int | float) and values.low <= value <= values.high
