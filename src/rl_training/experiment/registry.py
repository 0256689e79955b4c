"""Looking algorithms up by name. The list itself is in :mod:`rl_training.algorithms`."""

from __future__ import annotations

import importlib

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import AlgorithmSpec
from rl_training.types import ConfigError
from rl_training.validation import suggest

__all__ = ["AlgorithmSpec", "get_algorithm_spec", "list_algorithms"]


def list_algorithms() -> tuple[str, ...]:
    """The registered names, in the order they are shown."""
    return tuple(ALGORITHMS)


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The spec of a registered algorithm, or a ``ConfigError`` with the nearest name."""
    if name not in ALGORITHMS:
        raise ConfigError(f"algo {name!r} is not known{suggest(name, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
    spec: AlgorithmSpec = importlib.import_module(f"rl_training.algorithms.{name}").SPEC
    return spec
