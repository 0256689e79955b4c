"""``rl-training finetune``: an offline agent goes on learning in its environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import Json, NoUserCode, Overrides, Quiet
from rl_training.cli.running import run_and_tell
from rl_training.types import ConfigError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainResult

app = typer.Typer()


@app.command()
def finetune(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Run or checkpoint of an offline agent.")],
    total_timesteps: Annotated[int, typer.Option(help="Environment steps to take.")],
    env: Annotated[str | None, typer.Option(help="Environment to learn in; the checkpoint's own if none.")] = None,
    algo: Annotated[
        str | None, typer.Option(help="Go on as another method: sac from awac or cql, td3 from td3_bc or rebrac.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="FILE", help="Other data than the agent was trained on, for the offline share.")
    ] = None,
    offline_share: Annotated[
        str | None,
        typer.Option(metavar="SHARE|FROM:TO[:STEPS]", help="Share of offline rows in each batch, e.g. 0.5 or 0.5:0.1:5000."),
    ] = None,
    updates_per_step: Annotated[int | None, typer.Option(help="Gradient steps per environment step.")] = None,
    buffer_capacity: Annotated[int | None, typer.Option(help="Transitions of the environment that are kept.")] = None,
    num_envs: Annotated[int | None, typer.Option(help="Environments stepped together.")] = None,
    exploration_noise: Annotated[
        float | None, typer.Option(help="Noise on the actions of a deterministic policy (td3_bc, rebrac, td3).")
    ] = None,
    calibrated: Annotated[bool, typer.Option("--calibrated", help="Cal-QL, for a cql agent.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of this run; the checkpoint's if none.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where the run directory is made.")] = None,
    overrides: Overrides = [],  # noqa: B006 - typer wants a plain default
    run_suffix: Annotated[str | None, typer.Option(help="Appended to the run directory's name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    quiet: Quiet = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Continue an agent that was trained on data online: its data stay in every batch, and no action is random."""
    from rl_training.experiment.yaml_files import dump_yaml
    from rl_training.runtime.finetuning import finetune_config
    from rl_training.runtime.training import train

    given = {
        "offline_share": None if offline_share is None else _share(offline_share),
        "updates_per_step": updates_per_step,
        "buffer_capacity": buffer_capacity,
        "num_envs": num_envs,
        "exploration_noise": exploration_noise,
        "calibrated": calibrated or None,
        "seed": seed,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    config = finetune_config(
        checkpoint,
        env,
        total_timesteps=total_timesteps,
        algo=algo,
        dataset=dataset,
        settings={name: value for name, value in given.items() if value is not None},
        overrides=overrides,
    )
    if dry_run:
        settings = config.resolved().to_dict()
        print(json.dumps(settings) if as_json else dump_yaml(settings), end="\n" if as_json else "")
        return

    def start(callbacks: list[object]) -> TrainResult:
        return train(config, callbacks=callbacks, run_suffix=run_suffix)

    run_and_tell(start, quiet=quiet, as_json=as_json)


def _share(text: str) -> dict[str, Any]:
    """``0.5`` or ``0.5:0.1`` or ``0.5:0.1:5000`` as the section that it stands for."""
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        raise ConfigError(
            f"--offline-share takes a share (0.5), or from:to (0.5:0) or from:to:steps (0.5:0:5000), got {text!r}"
        )
    return dict(zip(("initial", "final", "steps"), numbers, strict=False))
