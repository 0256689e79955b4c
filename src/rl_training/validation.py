"""Strict, frozen settings whose errors name the key, the bound, the value and the nearest known key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

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


class Settings(BaseModel):
    """Base of every config section and hyper-parameter set: unknown keys and nonsense are refused at construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(describe_problems(type(self), error)) from None


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
        return f"must be {bound}, got {given!r}"
    if kind == "literal_error":
        return f"must be one of {context['expected']}, got {given!r}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        return f"must have at {'least' if kind == 'too_short' else 'most'} {limit} entries, got {given!r}"
    for prefix, expected in _EXPECTED.items():
        if kind.startswith(prefix):
            return f"must be {expected}, got {given!r}"
    return f"is not valid ({detail['msg']}), got {given!r}"


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
