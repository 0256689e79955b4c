"""``rl-training data``: looking at datasets."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rl_training.types import ConfigError

app = typer.Typer(help="Look at datasets.", no_args_is_help=True)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH|ID", help="An npz, pt or HDF5 file, or a local Minari dataset.")],
    columns: Annotated[
        list[str], typer.Option("--column", metavar="MEANING=NAME", help="Which column is which, e.g. obs=my_states.")
    ] = [],  # noqa: B006 - typer wants a plain default
    time_limit: Annotated[int | None, typer.Option(help="An episode of this many steps was cut, not terminated.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")
    ] = False,
) -> None:
    """Count rows, episodes, terminations and time limits; show returns, ranges, and what looks wrong."""
    from rl_training.data.dataset_loaders import read_transitions
    from rl_training.data.inspection import dataset_kind, describe_transitions, histogram

    declared = {}
    for entry in columns:
        meaning, separator, name = entry.partition("=")
        if not separator:
            raise ConfigError(f"--column takes meaning=name, got {entry!r}")
        declared[meaning] = name
    raw = read_transitions(dataset_kind(path), dataset_path=path, columns=declared, time_limit=time_limit)
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
