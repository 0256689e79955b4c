"""``rl-training share``: handing agents on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import Json

app = typer.Typer(help="Hand agents on: a checkpoint with its model card, in a folder or on a hub.", no_args_is_help=True)


@app.command()
def push(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Run directory, checkpoint directory, or its last/best pointer.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="FOLDER|hub:OWNER/NAME", help="A new folder, or a Hugging Face repository.")
    ],
    private: Annotated[bool, typer.Option("--private", help="If the repository is made now, show it to nobody else.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a checkpoint and a model card (README.md) to a new folder or to the Hugging Face hub."""
    from rl_training.runtime.sharing import push_checkpoint

    where = push_checkpoint(checkpoint, target, private=private)
    print(json.dumps({"target": where}) if as_json else f"checkpoint and model card are now in {where}")


@app.command()
def pull(
    source: Annotated[str, typer.Argument(metavar="FOLDER|hub:OWNER/NAME", help="What `share push` filled.")],
    target: Annotated[Path, typer.Argument(metavar="DEST", help="The directory to make; it is a checkpoint then.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    as_json: Json = False,
) -> None:
    """Fetch a shared checkpoint; it is kept only if its checksums are right and nothing but JSON and safetensors is there."""
    from rl_training.runtime.sharing import pull_checkpoint

    path = pull_checkpoint(source, target, revision=revision)
    print(json.dumps({"checkpoint_path": str(path)}) if as_json else f"checkpoint in {path}; try: rl-training eval {path}")
