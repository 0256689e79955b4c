"""Numbers that went wrong: noticing them, and keeping what led to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rl_training.experiment.files import reason_of, write_json
from rl_training.types import Batch, NumericsError

Kind: TypeAlias = Literal["observation", "reward", "action", "loss", "metric", "weight"]


class NonFiniteError(NumericsError):
    """A number that is NaN or infinite, where it was noticed. A run adds its step and a dump, and stops."""

    def __init__(self, kind: Kind, name: str, value: float, *, rows: Batch | None = None, **facts: Any) -> None:
        self.kind, self.name, self.value, self.rows, self.facts = kind, name, value, rows, facts
        where = "".join(f", {key} {value}" for key, value in facts.items())
        super().__init__(f"{name} is {value}{where}")


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether a small array has no NaN and no infinity.

    The sum of squares tells in a microsecond, half of what ``np.isfinite(array).all()`` takes; squares of sound but huge
    numbers may overflow, so a bad sum is looked into.
    """
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def bad_entry(kind: Kind, name: str, array: npt.NDArray[Any], rows: Mapping[str, Any], **facts: Any) -> NonFiniteError:
    """The error that names the first bad number of an array ``(environments, ...)``; ``rows`` is what to keep for a look."""
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    place = "".join(f"[{i}]" for i in index[1:])
    kept = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in rows.items()}
    return NonFiniteError(kind, f"{name}{place}", float(array[index]), rows=kept, environment=index[0], **facts)


def first_non_finite(terms: Mapping[str, Tensor | float]) -> tuple[str, float] | None:
    """Name and value of the first scalar that is NaN or infinite, if any. Terms with several entries are not looked into."""
    for name, value in terms.items():
        if isinstance(value, Tensor) and value.ndim > 0:
            continue
        number = value.item() if isinstance(value, Tensor) else value
        if not math.isfinite(number):
            return name, number
    return None


def require_finite_weights(tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network or optimiser state with a bad number in it."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = tensor[~torch.isfinite(tensor)]
            raise NonFiniteError("weight", name, float(bad[0]), bad_entries=bad.numel(), entries=tensor.numel())


def stopped_by(
    bad: NonFiniteError, directory: Path, *, step: int, update: int, weights: Mapping[str, Tensor], **facts: Any
) -> NumericsError:
    """Keep what led to a bad number in a run's directory; the error that stops the run and says where it is kept."""
    target = directory / f"nonfinite_step_{step}"
    report = {"kind": bad.kind, "tensor": bad.name, "value": bad.value, "step": step, "update": update, **bad.facts, **facts}
    dump = dump_non_finite(target, report, weights=weights, batch=bad.rows)
    where = f" of environment {bad.facts['environment']}" if "environment" in bad.facts else ""
    return NumericsError(f"{bad.name}{where} became {bad.value} at step {step} (update {update}); the run is stopped. {dump}")


def dump_non_finite(target: Path, report: Mapping[str, Any], *, weights: Mapping[str, Tensor], batch: Batch | None) -> str:
    """A directory with a report, the weights and, where there are some, the rows; returns where it is, or why not."""
    try:
        target.mkdir(exist_ok=True)
        write_json(target / "report.json", _as_json(report))
        for name, tensors in {"weights": weights, "batch": batch}.items():
            if tensors is not None:
                kept = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                save_file(kept, target / f"{name}.safetensors")
    except (OSError, SafetensorError) as error:  # the bad number is the news, not the full disk
        return f"What led to it could not be kept: {reason_of(error)}"
    return f"What led to it is in {target}; 'rl-training doctor {target}' explains it"


def _as_json(value: Any) -> Any:
    """Plain data, with ``nan`` and ``inf`` as text: JSON has no such numbers."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
