"""Options that several commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

NO_USER_CODE = "RL_TRAINING_NO_USER_CODE"  # envs.factory asks for it; named here too because that module imports Gymnasium


def _switch_off(wanted: bool) -> bool:
    if wanted:
        os.environ[NO_USER_CODE] = "1"
    return wanted


NoUserCode = Annotated[
    bool,
    typer.Option("--no-user-code", callback=_switch_off, help="Refuse environments that import code (module:name)."),
]
