"""What a kind of fuzz case is, and the list of them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rl_training.types import CheckpointError, ConfigError, DataError

Recipe = dict[str, Any]
"""Plain JSON data that decides a case completely, given the base files."""

MODULES = ("configs", "yaml_texts", "checkpoints", "dumps", "dataset_files", "bad_kinds")


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of input: how cases are drawn, turned into files, and used.

    ``prepare(recipe, bases, scratch)`` writes the input files of a case; ``run(recipe, scratch)`` uses them, in
    ``scratch`` as the working directory. ``build(bases)`` makes the intact files that are mutated, once.
    """

    name: str
    recipes: st.SearchStrategy[Recipe]
    run: Callable[[Recipe, Path], None]
    prepare: Callable[[Recipe, Path, Path], None] = lambda recipe, bases, scratch: None
    build: Callable[[Path], None] = lambda bases: None
    allowed: tuple[type[Exception], ...] = (ConfigError, DataError, CheckpointError)
    deadline: float = 10.0  # seconds; generous, because the machine may be busy
    share: int = 1  # of the cases of a run, relative to the other kinds; 0: only on request
    may_stay: Callable[[str], bool] = lambda path: False  # paths that a refused case may leave behind


@cache
def all_kinds() -> dict[str, Kind]:
    """Every kind by name; imported when asked for, because the modules of the kinds import this one."""
    modules = [importlib.import_module(f"{__package__}.{name}") for name in MODULES]
    return {kind.name: kind for module in modules for kind in module.KINDS}


def fuzzed_kinds() -> dict[str, Kind]:
    """Those that a run is made of."""
    return {name: kind for name, kind in all_kinds().items() if kind.share}
