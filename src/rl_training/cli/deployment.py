"""``rl-training export``: what becomes of a trained agent."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
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
