"""Seeing a run through on the command line: a progress display while it lasts, then the result and what to type next."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainResult

EXIT_INTERRUPTED = 130


def run_and_tell(start: Callable[[list[object]], TrainResult], *, quiet: bool, as_json: bool) -> None:
    """Run with a progress display and tell the result."""
    from rich.console import Console

    from rl_training.runtime.progress import ProgressDisplay

    display = None if quiet else ProgressDisplay(console=Console(stderr=True))
    try:
        result = start([display] if display else [])
    finally:
        if display:
            display.close()
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _tell(result)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _tell(result: TrainResult) -> None:
    """The result in words, and what to type next."""
    print(f"{result}\nnext")
    if not result.interrupted:
        print(f"  rl-training eval {result.run_dir}")
    extend = "" if result.interrupted else f" --total-timesteps {int(result.metrics['global_step']) * 2}"
    print(f"  rl-training resume {result.run_dir}{extend}")
    print(f"  tensorboard --logdir {result.run_dir / 'tensorboard'}")
