"""Numbers that went wrong: noticing them, and keeping what led to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rl_training.experiment.files import write_json
from rl_training.types import Batch


def first_non_finite(terms: Mapping[str, Tensor | float]) -> tuple[str, float] | None:
    """Name and value of the first term that is NaN or infinite, if any."""
    for name, value in terms.items():
        number = value.item() if isinstance(value, Tensor) else value
        if not math.isfinite(number):
            return name, number
    return None


def dump_non_finite(target: Path, report: Mapping[str, object], *, weights: Mapping[str, Tensor], batch: Batch | None) -> None:
    """A directory with a report, the weights and, where there is one, the batch."""
    target.mkdir(exist_ok=True)
    write_json(target / "report.json", dict(report))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, target / "weights.safetensors")
    if batch is not None:
        save_file({name: tensor.contiguous() for name, tensor in batch.items()}, target / "batch.safetensors")
