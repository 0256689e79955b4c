"""``rl-training ope``: how good agents are, judged from data alone."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import Json, NoUserCode

if TYPE_CHECKING:
    from rl_training.runtime.ope.result import OPEResult

app = typer.Typer()


class Kind(str, Enum):
    """Kinds of dataset."""

    hdf5 = "hdf5"
    npz = "npz"
    pt = "pt"
    minari = "minari"


@app.command()
def ope(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="Run directories, checkpoints or last/best pointers.")
    ],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="PATH|ID", help="File or local Minari dataset; the one the agent was trained on if none."),
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Kind of the dataset; by its name if none.")] = None,
    updates: Annotated[int | None, typer.Option(help="Gradient steps of each fit (10,000).")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount per step; the agents' own if none.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fits; the same for every agent.")] = 0,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Estimate the value of agents from a dataset, without playing them, and rank them (fitted Q evaluation)."""
    from rich.console import Console
    from rich.progress import Progress

    from rl_training.runtime.ope.checkpoints import rank_checkpoints

    settings: dict[str, Any] = {"updates": updates, "gamma": gamma}
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("fitting", total=len(checkpoints))
        results = rank_checkpoints(
            checkpoints,
            dataset,
            kind=None if kind is None else kind.value,
            seed=seed,
            on_result=lambda result: progress.advance(task),
            **{name: value for name, value in settings.items() if value is not None},
        )
    if as_json:
        print(json.dumps({"ranking": [result.to_dict() for result in results]}))
    else:
        _print(results)


def _print(results: list[OPEResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, first = Console(), results[0]
    title = f"value at {first.episodes:,} initial states, discount {first.gamma:g}; the data's own {first.behaviour_value:.4g}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("agent", overflow="fold", min_width=16)
    for name in ("step", "value [95 % interval]", "TD", "own TD", "unlike"):
        table.add_column(name, justify="right", no_wrap=True)
    names = _short_names([result.name for result in results])
    for result in results:
        cells = [
            names[result.name],
            f"{result.global_step:,}",
            f"{result.fqe_value:.4g} [{result.fqe_low:.4g}, {result.fqe_high:.4g}]",
            f"{result.td_error:.3g}",
            "-" if result.agent_td_error is None else f"{result.agent_td_error:.3g}",
            f"{result.unsupported_share:.0%}",
        ]
        table.add_row(*(Text(cell) for cell in cells))  # Text: a name in brackets is no markup
    console.print(table)
    shared = [warning for warning in first.warnings if all(warning in result.warnings for result in results)]
    for warning in shared:
        console.print(Text(f"warning: {warning}"), soft_wrap=True)
    for result in results:
        for warning in (warning for warning in result.warnings if warning not in shared):
            console.print(Text(f"warning: {names[result.name]}: {warning}"), soft_wrap=True)


def _short_names(paths: list[str]) -> dict[str, str]:
    """Paths without the directories that all of them are in."""
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    return {path: os.path.relpath(os.path.abspath(path), shared) for path in paths}
