"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. algo_kwargs.learning_rate=1e-3.")
]

# -- of sweep and tune -----------------------------------------------------------------------------------------------

StudySource = Annotated[
    str | None, typer.Argument(metavar="[PRESET|FILE|STUDY]", help="A preset, a YAML file, or the directory of a study.")
]
Kind = Annotated[str | None, typer.Option("--executor", help="serial, process (several at a time) or ray.")]
Workers = Annotated[int | None, typer.Option(help="Runs at a time; as many as the machine has cores for, if not given.")]
RayAddress = Annotated[str | None, typer.Option(help="An existing Ray cluster; one on this machine if not given.")]
CpusPerRun = Annotated[float | None, typer.Option(help="CPUs that Ray sets aside for a run.")]
GpusPerRun = Annotated[float | None, typer.Option(help="GPUs that Ray sets aside for a run.")]
StudyParent = Annotated[Path | None, typer.Option(help="Where the study's directory is made (studies).")]
StudyName = Annotated[str | None, typer.Option(help="Name of the study's directory.")]
Imports = Annotated[list[str], typer.Option("--import", metavar="MODULE", help="A module that registers environments.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop; nothing is made.")]
