"""``rl-training doctor DUMP``: what a run that met a NaN or an infinity left behind, in plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rl_training.experiment.files import read_bounded, reason_of
from rl_training.types import CheckpointError

REPORT = "report.json"
LARGEST_REPORT = 16 * 2**20
LARGE_OBSERVATION, LARGE_REWARD, LARGE_WEIGHT, LARGE_VALUE = 1e3, 1e3, 1e2, 1e5
"""Sizes beyond which networks of this kind are known to have trouble."""


def explain_dump(path: str | Path) -> dict[str, Any]:
    """What became non-finite and when, statistics of every tensor kept, likely causes and what to try."""
    path = Path(path)
    report = _read_report(path)
    batch = _statistics(path / "batch.safetensors", rows=True)
    weights = _statistics(path / "weights.safetensors", rows=False)
    causes, advice = _judge(report, batch, weights)
    return {
        "what": _headline(report),
        "causes": causes,
        "advice": advice,
        "report": report,
        "batch": batch,
        "weights": weights,
    }


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(read_bounded(path / REPORT, LARGEST_REPORT))
    except OSError as error:
        raise CheckpointError(
            f"{path} is not a dump of a run that met a bad number (nonfinite_step_...): {REPORT}: {reason_of(error)}"
        ) from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path / REPORT} is not valid JSON: the dump is damaged") from None
    if not isinstance(report, dict) or not {"tensor", "kind", "value", "step", "update"} <= report.keys():
        raise CheckpointError(f"{path / REPORT} is not the report of a dump")
    return report


def _statistics(path: Path, *, rows: bool) -> dict[str, dict[str, Any]]:
    """Of each tensor of a file: size, bad entries and, over the good ones, least, greatest and mean."""
    if not path.is_file():
        return {}
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    return {name: _statistics_of(tensor, rows=rows) for name, tensor in sorted(tensors.items())}


def _statistics_of(tensor: Tensor, *, rows: bool) -> dict[str, Any]:
    values = tensor.double()
    good = torch.isfinite(values)
    sound = values[good]
    facts: dict[str, Any] = {"entries": values.numel(), "non_finite": values.numel() - sound.numel()}
    if sound.numel():
        facts |= {"min": sound.min().item(), "max": sound.max().item(), "mean": sound.mean().item()}
    if rows and facts["non_finite"] and values.ndim:
        bad = (~good.reshape(len(values), -1)).any(dim=1)
        facts["bad_rows"] = torch.nonzero(bad).flatten()[:10].tolist()
    return facts


def _headline(report: Mapping[str, Any]) -> str:
    where = f" of environment {report['environment']}" if "environment" in report else ""
    return (
        f"{report['kind']} {report['tensor']}{where} became {report['value']} "
        f"at step {report['step']} (update {report['update']})"
    )


def _judge(
    report: Mapping[str, Any], batch: Mapping[str, dict[str, Any]], weights: Mapping[str, dict[str, Any]]
) -> tuple[list[str], list[str]]:
    if report["kind"] in ("observation", "reward"):
        return _blame_environment(report, batch)
    causes: list[str] = []
    advice: list[str] = []
    for name, facts in batch.items():
        if facts["non_finite"] and name != "actions":
            causes.append(
                f"the data itself is bad: {name} has {facts['non_finite']} bad entries, rows {facts.get('bad_rows')}"
            )
            advice.append("find these rows in the data and mend or drop them; 'rl-training data inspect' counts bad entries")
    if bad := [name for name, facts in weights.items() if facts["non_finite"]]:
        causes.append(f"weights are bad already ({len(bad)} tensors, first {bad[0]}): an earlier gradient step blew up")
    if (size := _largest(weights)) > LARGE_WEIGHT:
        causes.append(f"weights have grown to {size:.3g}: learning diverges")
    if (size := _largest(batch, "obs", "next_obs")) > LARGE_OBSERVATION:
        causes.append(f"observations reach {size:.3g}; networks like them around 1")
        advice.append("scale observations (offline: dataset.normalize_observations: true; else a wrapper of the environment)")
    if (size := _largest(batch, "rewards")) > LARGE_REWARD:
        causes.append(f"rewards reach {size:.3g} as the learner sees them")
        advice.append(f"bring rewards to about 1 a step: set reward.scale near {1 / size:.1g}")
    values = {key: abs(value) for key, value in _numbers(report.get("metrics")).items() if "q_" in key or "value" in key}
    if values and (size := max(values.values())) > LARGE_VALUE:
        causes.append(
            f"values are estimated at {size:.3g} ({max(values, key=lambda name: values[name])}): they feed on themselves"
        )
        advice.append("slow the targets (smaller tau), use layer_norm: true, or a smaller gamma")
    rate = _numbers(report.get("metrics")).get("learning_rate")
    advice.append("use a smaller learning_rate, a third or a tenth" + (f" of {rate:.3g}" if rate else ""))
    advice.append("start again with the change: a resumed run repeats itself exactly, and meets the same number again")
    return causes or ["nothing stands out in the tensors kept: most likely steps that are too large"], advice


def _blame_environment(report: Mapping[str, Any], batch: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    row = report.get("environment", 0)
    actions = batch.get("actions", {})
    spread = (
        f"actions between {actions['min']:.3g} and {actions['max']:.3g} (in [-1, 1])" if "min" in actions else "its action"
    )
    causes = [
        f"the environment itself gave it, in row {row} of the batch kept here, after {spread}; the agent is not at fault"
    ]
    advice = [
        "look into the environment: a division by zero, a logarithm, a simulation that became unstable",
        "end the episode (terminated) before the state leaves the sound range, or limit actions and speeds",
        "the step repeats exactly: play the actions of the episode again with its seed to see it happen",
    ]
    return causes, advice


def _largest(tensors: Mapping[str, dict[str, Any]], *names: str) -> float:
    chosen = [facts for name, facts in tensors.items() if not names or name in names]
    return max((max(abs(facts["min"]), abs(facts["max"])) for facts in chosen if "min" in facts), default=0.0)


def _numbers(metrics: Any) -> dict[str, float]:
    """The sound numbers among a report's metrics."""
    entries = metrics.items() if isinstance(metrics, dict) else ()
    return {key: value for key, value in entries if isinstance(value, float) and math.isfinite(value)}
