"""Deliberately bad functions: each does what a case must never do, to prove that it is noticed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import strategies as st

from rl_training.types import ConfigError

from .kinds import Kind, Recipe


def _misbehave(recipe: Recipe, scratch: Path) -> None:
    how = recipe["how"]
    if how == "raise":
        raise KeyError("not a UserError")
    if how == "panic":
        raise SystemExit(1)
    if how == "spin":
        while True:
            pass
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "allocate":
        bytearray(b"x") * 2**29
    if how == "claim":
        bytearray(2**40)
    if how == "half-written":
        Path("run").mkdir()
        raise ConfigError("refused, but only after a directory was made")
    if how == "temporary":
        Path(".run.tmp").touch()
    if how == "silent":
        raise ConfigError("")
    if how == "verbose":
        raise ConfigError("x" * 10**6)
    if how == "refuse":
        raise ConfigError("as it should")


KINDS = (Kind("bad", recipes=st.just({"how": "well"}), run=_misbehave, share=0),)
