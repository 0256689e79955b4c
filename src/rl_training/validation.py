"""Strict, frozen settings whose errors name the key, the bound, the value and the nearest known key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails
from typing_extensions import Self

from rl_training.types import ConfigError, Problem

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
}

LARGEST_INT = 2**63 - 1
LARGEST_DEPTH, LARGEST_CONTENT = 32, 100_000
LONGEST_SHOWN = 200


class Settings(BaseModel):
    """Base of every config section and hyper-parameter set: unknown keys and nonsense are refused at construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(describe_problems(type(self), error)) from None

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        for name, value in self:
            for number in value if isinstance(value, tuple | list) else (value,):
                if isinstance(number, int) and abs(number) > LARGEST_INT:
                    raise ValueError(f"{name} must be at most 2**63 - 1, got {shown(number)}")
        return self


def require_plain_data(data: Mapping[str, Any]) -> None:
    """Refuse, before anything looks at the values, what no settings file needs and what would break on its way to one.

    Text that cannot be written, keys that are not text, nesting without end, and contents that stand for millions of
    entries because they are referred to many times.
    """
    seen = 0
    stack: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while stack:
        path, value = stack.pop()
        seen += 1
        if seen > LARGEST_CONTENT or len(path) > LARGEST_DEPTH:
            raise ConfigError(f"settings are nested deeper than {LARGEST_DEPTH} levels or have over {LARGEST_CONTENT} entries")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise ConfigError([Problem(".".join(path), f"must have text as keys, got {shown(key)}")])
                stack += [((*path, key), key), ((*path, key), value[key])]
        elif isinstance(value, list | tuple | set | frozenset):
            stack += [((*path, str(index)), item) for index, item in enumerate(value)]
        elif isinstance(value, str) and not _is_writable(value):
            place = ".".join(part if _is_writable(part) else ascii(part)[1:-1] for part in path)
            raise ConfigError([Problem(place, f"has characters that cannot be written: {shown(value)}")])


def _is_writable(text: str) -> bool:
    """No zero byte, no half of a surrogate pair, and not the one sign that YAML writes and reads back as a space."""
    return not any(character in "\0\x85" or "\ud800" <= character <= "\udfff" for character in text)


def odd_values(data: Any) -> Iterator[Any]:
    """What JSON and YAML cannot carry unchanged: neither text, finite number, boolean, none nor a list or mapping of such."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for value in data:
            yield from odd_values(value)
    elif not (
        data is None
        or isinstance(data, str)
        or (isinstance(data, int) and abs(data) <= LARGEST_INT)
        or (isinstance(data, float) and math.isfinite(data))
    ):
        yield data


def shown(value: Any) -> str:
    """A value as a message shows it, cut if it is long."""
    try:
        text = ascii(value) if isinstance(value, str) and not _is_writable(value) else repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, absurd nesting
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like a wrong one, if any is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def describe_problems(model: type[BaseModel], error: ValidationError) -> list[Problem]:
    """Every problem of a failed validation, in the words of this package."""
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):  # a nested section has already told its own problems
            problems += [problem.under(path) for problem in cause.problems]
        else:
            problems.append(Problem(path, _explain(model, detail)))
    paths = [problem.path for problem in problems]  # a list with bad entries is also "too short": tell the cause only
    return [p for p in problems if not any(path.startswith(f"{p.path}.") for path in paths) or not p.path]


def _explain(model: type[BaseModel], detail: ErrorDetails) -> str:
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return f"is not a known key{suggest(name, model.model_fields)}"
    if kind == "value_error":
        return str(context["error"])
    bound = _bounds(model, name, context)
    if bound and kind.startswith(("greater_than", "less_than")):
        return f"must be {bound}, got {shown(given)}"
    if kind == "literal_error":
        return f"must be one of {context['expected']}, got {shown(given)}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        return f"must have at {'least' if kind == 'too_short' else 'most'} {limit} entries, got {shown(given)}"
    for prefix, expected in _EXPECTED.items():
        if kind.startswith(prefix):
            return f"must be {expected}, got {shown(given)}"
    return f"is not valid ({detail['msg']}), got {shown(given)}"


def _bounds(model: type[BaseModel], name: str, context: dict[str, Any]) -> str:
    """``>= 1`` for a field with one bound, ``in (0, 1]`` for a field with two."""
    limits: dict[str, Any] = {}
    if name in model.model_fields:
        for constraint in model.model_fields[name].metadata:
            limits |= {key: getattr(constraint, key) for key in ("gt", "ge", "lt", "le") if hasattr(constraint, key)}
    low, high = limits.get("gt", limits.get("ge")), limits.get("lt", limits.get("le"))
    if low is not None and high is not None:
        return f"in {'(' if 'gt' in limits else '['}{low:g}, {high:g}{')' if 'lt' in limits else ']'}"
    for key, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        if key in context:
            return f"{sign} {context[key]:g}"
    return ""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
