"""``rl-training data``: looking at datasets, changing their format, making them."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rl_training.cli.options import Json, NoUserCode
from rl_training.types import ConfigError

app = typer.Typer(help="Look at datasets, change their format, make them.", no_args_is_help=True)

TimeLimit = Annotated[int | None, typer.Option(help="An episode of this many steps was cut, not terminated.")]
Columns = Annotated[
    list[str], typer.Option("--column", metavar="MEANING=NAME", help="Which column is which, e.g. obs=my_states.")
]


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH|ID", help="An npz, pt or HDF5 file, or a local Minari dataset.")],
    columns: Columns = [],  # noqa: B006 - typer wants a plain default
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Count rows, episodes, terminations and time limits; show returns, ranges, and what looks wrong."""
    from rl_training.data.dataset_loaders import open_transitions
    from rl_training.data.inspection import dataset_kind, describe_transitions, histogram

    with open_transitions(dataset_kind(path), dataset_path=path, columns=_declared(columns), time_limit=time_limit) as raw:
        facts = describe_transitions(raw)
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{facts['rows']:,} transitions in {facts['episodes']:,} episodes: {facts['terminations']:,} terminated, ", end="")
    print(f"{facts['truncations']:,} cut by a limit")
    spread = f"{facts['return_mean']:.2f} +/- {facts['return_std']:.2f}"
    print(f"returns      {spread}  ({facts['return_min']:.2f} to {facts['return_max']:.2f})")
    print(f"lengths      {facts['length_mean']:.1f}  ({facts['length_min']:.0f} to {facts['length_max']:.0f})")
    print(f"observations {facts['obs_dim']} dimensions  ({facts['obs_min']:.4g} to {facts['obs_max']:.4g})")
    actions = f"{facts['action_dim']} dimensions" if facts["action_kind"] == "continuous" else "discrete"
    print(f"actions      {actions}  ({facts['action_min']:.4g} to {facts['action_max']:.4g})")
    print(f"in the file  next observations: {'yes' if facts['has_next_obs'] else 'no'}, ", end="")
    print(f"next actions: {'yes' if facts['has_next_actions'] else 'no'}, not finite: {facts['nan_count']}")
    for warning in facts["warnings"]:
        print(f"note         {warning}")
    if sys.stdout.isatty():
        print("\nreturns of episodes")
        print("\n".join(histogram(raw.episode_returns)))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="An npz, pt or HDF5 file, or a local Minari dataset.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="A .npz or .hdf5 file, or minari:<dataset id>.")],
    columns: Columns = [],  # noqa: B006
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Write a dataset in another format, with terminations and time limits apart."""
    from rl_training.data.dataset_loaders import open_transitions
    from rl_training.data.dataset_writers import check_target, save_transitions
    from rl_training.data.inspection import dataset_kind

    check_target(target)
    with open_transitions(dataset_kind(source), dataset_path=source, columns=_declared(columns), time_limit=time_limit) as raw:
        save_transitions(raw, target)
    _tell_saved(len(raw.rewards), len(raw.episode_ends), target, as_json)


@app.command()
def collect(
    target: Annotated[str, typer.Argument(metavar="OUT", help="A .npz or .hdf5 file, or minari:<dataset id>.")],
    checkpoint: Annotated[
        str | None, typer.Option(help="Run or checkpoint whose agent plays; a random policy if none.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment; the checkpoint's own if none.")] = None,
    steps: Annotated[int, typer.Option(help="Transitions to collect.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the episodes and of a random policy.")] = 0,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample the agent's actions.")] = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Play an agent, or a random policy, and keep the transitions as a dataset."""
    from rich.console import Console
    from rich.progress import Progress

    from rl_training.data.dataset_writers import check_target, save_transitions
    from rl_training.runtime.workflows import collect_transitions

    check_target(target)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("collecting", total=steps)
        raw = collect_transitions(
            checkpoint,
            env_id=env,
            steps=steps,
            seed=seed,
            deterministic=not stochastic,
            on_step=lambda step: progress.update(task, completed=step + 1) if step % 100 == 99 else None,
        )
    save_transitions(raw, target)
    _tell_saved(len(raw.rewards), len(raw.episode_ends), target, as_json)


def _declared(columns: list[str]) -> dict[str, str]:
    declared = {}
    for entry in columns:
        meaning, separator, name = entry.partition("=")
        if not separator:
            raise ConfigError(f"--column takes meaning=name, got {entry!r}")
        declared[meaning] = name
    return declared


def _tell_saved(rows: int, episodes: int, target: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"path": target, "rows": rows, "episodes": episodes}))
    else:
        print(f"{rows:,} transitions in {episodes:,} episodes written to {target}")
