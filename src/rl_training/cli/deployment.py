"""``rl-training export``, ``video`` and ``card``: what becomes of a trained agent."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import Json, NoUserCode

app = typer.Typer()

Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="Run directory, checkpoint directory, or its last/best pointer.")
]


class Format(str, Enum):
    """Kinds of file that a policy can be exported to."""

    onnx = "onnx"
    torch = "torch"


@app.command()
def export(
    checkpoint: Checkpoint,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write; policy.onnx or policy.pt if none."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="ONNX or TorchScript; what the file's name says (.onnx, .pt) if none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the policy as one file that runs without this package: raw observation in, environment action out."""
    from rl_training.runtime.exporting import export_policy

    exported = export_policy(checkpoint, output, format=None if form is None else form.value)
    if as_json:
        print(json.dumps(exported.to_dict()))
        return
    print(f"{exported.format} policy written to {exported.path} ({exported.path.stat().st_size:,} bytes)")
    print(f"checked on {exported.observations:,} observations: largest difference {exported.largest_difference:.2g}")


@app.command()
def video(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: .mp4 or .gif.")] = Path(
        "video.mp4"
    ),
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="Episodes to film, one after the other.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of the episodes; the run's own if not given.")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames per second; the environment's own pace if not given.")] = None,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Film a trained agent at play, without a screen; each picture shows the step and the return so far."""
    from rl_training.runtime.video import film_checkpoint

    film = film_checkpoint(checkpoint, output, episodes=episodes, seed=seed, fps=fps)
    if as_json:
        print(json.dumps(film))
        return
    for number, episode in enumerate(film["episodes"], start=1):
        print(f"episode {number}   return {episode['return']:.2f}, {episode['length']} steps")
    print(f"video       {film['path']} ({film['frames']} pictures, {film['fps']:g} a second)")


@app.command()
def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, checkpoint directory, or its last/best pointer.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path("MODEL_CARD.md"),
    evaluate: Annotated[
        int | None, typer.Option(metavar="N", help="Play so many fresh episodes for it; else scores are those of the run.")
    ] = None,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Write a model card in Markdown: task, algorithm, scores, use, settings, data, versions, limitations."""
    from rl_training.runtime.model_card import write_model_card

    path = write_model_card(run, output, evaluate=evaluate)
    print(json.dumps({"card": str(path)}) if as_json else f"model card  {path}")
