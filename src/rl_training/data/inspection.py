"""What is in a dataset, before anyone learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.columns import RawTransitions
from rl_training.data.lazy_columns import Column, row_blocks


def describe_transitions(raw: RawTransitions) -> dict[str, Any]:
    """Counts, returns, ranges and warnings in plain words; plain data for JSON."""
    discrete = raw.actions.dtype.kind in "iub" and len(raw.actions.shape) == 1
    last = raw.episode_ends - 1
    returns, lengths = raw.episode_returns, raw.episode_lengths
    obs_min, obs_max, bad_obs = _range(raw.obs)
    action_min, action_max, bad_actions = _range(raw.actions)
    nan_count = bad_obs + bad_actions + _range(raw.rewards)[2] + (0 if raw.next_obs is None else _range(raw.next_obs)[2])
    facts = {
        "rows": len(raw.rewards),
        "episodes": len(last),
        "terminations": int(raw.terminated.sum()),
        "truncations": int((~raw.terminated[last]).sum()),
        **{f"return_{name}": float(getattr(np, name)(returns)) for name in ("mean", "std", "min", "max")},
        **{f"length_{name}": float(getattr(np, name)(lengths)) for name in ("mean", "min", "max")},
        "obs_dim": int(np.prod(raw.obs.shape[1:])),
        "obs_min": obs_min,
        "obs_max": obs_max,
        "action_kind": "discrete" if discrete else "continuous",
        "action_dim": int(np.prod(raw.actions.shape[1:])),
        "action_min": action_min,
        "action_max": action_max,
        "nan_count": nan_count,
        "has_next_obs": raw.next_obs is not None,
        "has_next_actions": raw.next_actions is not None,
    }
    return {**facts, "warnings": [*raw.warnings, *_doubts(facts)]}


def _range(column: Column) -> tuple[float, float, int]:
    """Smallest and largest number of a column, NaN aside, and how many are not finite."""
    low, high, bad = np.nan, np.nan, 0
    for start, end in row_blocks(column):
        if (block := column[start:end]).size:
            low = np.fmin(low, np.fmin.reduce(block, axis=None))
            high = np.fmax(high, np.fmax.reduce(block, axis=None))
            bad += int((~np.isfinite(block)).sum())
    return float(low), float(high), bad


def _doubts(facts: dict[str, Any]) -> list[str]:
    doubts = []
    if facts["nan_count"]:
        doubts.append(f"{facts['nan_count']} numbers are NaN or infinite: the data cannot be trained on as it is")
    if facts["return_std"] == 0 and facts["episodes"] > 1:
        doubts.append("every episode has the same return")
    if facts["action_kind"] == "continuous" and facts["action_min"] == facts["action_max"]:
        doubts.append("every action is the same")
    if not facts["has_next_obs"] and facts["truncations"]:
        doubts.append(f"there are no next observations: the last row of {facts['truncations']} cut episodes is left out")
    return doubts


def histogram(values: np.ndarray[Any, Any], *, bins: int = 12, width: int = 40) -> list[str]:
    """Lines of a small text histogram."""
    counts, edges = np.histogram(values, bins=min(bins, max(len(np.unique(values)), 1)))
    peak = max(int(counts.max()), 1)
    return [
        f"{low:>12.4g} to {high:<10.4g} {'█' * round(width * count / peak)} {count}"
        for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def dataset_kind(path: str | Path) -> str | None:
    """``minari`` for a directory or an id, else nothing: the loader goes by the file's ending."""
    return "minari" if Path(path).is_dir() or not Path(path).suffix else None
