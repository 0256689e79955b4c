"""From the columns of a file to ordered transitions: what each name means, where episodes end, what has to be rebuilt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rl_training.data.lazy_columns import Array, Column, in_memory, pick_trajectories, row_blocks
from rl_training.types import DataError

SPELLINGS: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations", "observation", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "next_obs": ("next_obs", "next_observations", "next_observation", "new_obs", "next_states", "next_state"),
    "terminated": ("terminated", "terminations", "terminals", "terminal"),
    "truncated": ("truncated", "truncations", "timeouts", "timeout"),
    "dones": ("dones", "done"),
    "episode_terminals": ("episode_terminals",),
    "episode_ids": ("episode_ids", "episode_id", "eps_id", "traj_id", "trajectory_id"),
    "episode_starts": ("indices",),
    "next_actions": ("next_actions", "next_action"),
    "returns_to_go": ("returns_to_go", "mc_returns"),
}
"""What a column is called, and the names under which files are known to carry it."""

REQUIRED = ("obs", "actions", "rewards")


def find_columns(available: Sequence[str], declared: Mapping[str, str] | None = None) -> dict[str, str]:
    """Which column of a file holds what; declared ones first, then known spellings. Two candidates are refused."""
    declared = dict(declared or {})
    found: dict[str, str] = {}
    for meaning, name in declared.items():
        if meaning not in SPELLINGS:
            raise DataError(f"columns: {meaning!r} is not a column that can be declared; known: {', '.join(SPELLINGS)}")
        if name not in available:
            raise DataError(f"columns: there is no {name!r} for {meaning}; the file has {_listed(available)}")
        found[meaning] = name
    for meaning, spellings in SPELLINGS.items():
        candidates = [name for name in spellings if name in available and name not in declared.values()]
        if meaning in declared or not candidates:
            continue
        if len(candidates) > 1:
            raise DataError(f"{' and '.join(candidates)} could both be {meaning}; say which with columns: {{{meaning}: ...}}")
        found[meaning] = candidates[0]
    if "terminated" in found and "dones" in found and not {"terminated", "dones"} & declared.keys():
        raise DataError(
            f"{found['terminated']} and {found['dones']} could both say where episodes terminate; "
            "say which with columns: {terminated: ...}"
        )
    missing = [meaning for meaning in REQUIRED if meaning not in found]
    if missing:
        raise DataError(f"no column for {', '.join(missing)}; the file has {_listed(available)}; name them with columns:")
    if not {"terminated", "dones"} & found.keys():
        raise DataError(f"no column says where episodes terminate; the file has {_listed(available)}")
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:30])
    return shown if len(names) <= 30 else f"{shown}, ... ({len(names)} in all)"


@dataclass
class RawTransitions:
    """Rows in the order they happened, with terminations and episode ends apart; what ``inspect`` looks at.

    Observations and actions may be columns of a file that is still open; what is one number a row is in memory.
    """

    obs: Column
    actions: Column
    rewards: Array
    next_obs: Column | None
    terminated: npt.NDArray[np.bool_]
    ended: npt.NDArray[np.bool_]
    next_actions: Column | None = None
    returns_to_go: Array | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def episode_ends(self) -> npt.NDArray[np.int64]:
        """Index after the last row of each episode."""
        return np.flatnonzero(self.ended) + 1

    @property
    def episode_returns(self) -> npt.NDArray[np.float64]:
        """Undiscounted return of each episode."""
        starts = np.concatenate(([0], self.episode_ends[:-1])).astype(np.int64)
        return np.add.reduceat(self.rewards.astype(np.float64), starts) if len(self.rewards) else np.zeros(0)

    @property
    def episode_lengths(self) -> npt.NDArray[np.int64]:
        """Rows of each episode."""
        return np.diff(self.episode_ends, prepend=0)

    def in_memory(self) -> RawTransitions:
        """The same with every column as an array, which stays when the file is closed."""
        return replace(
            self,
            obs=in_memory(self.obs),
            actions=in_memory(self.actions),
            next_obs=None if self.next_obs is None else in_memory(self.next_obs),
            next_actions=None if self.next_actions is None else in_memory(self.next_actions),
        )


def followed(obs: Column, next_obs: Column) -> npt.NDArray[np.bool_]:
    """Which rows lead to the observation of the row after them; nothing follows the last."""
    if obs.shape != next_obs.shape:
        raise DataError(f"obs {tuple(obs.shape)} and next_obs {tuple(next_obs.shape)} must have one shape")
    follows = np.zeros(len(obs), dtype=bool)
    for start, end in row_blocks(obs, next_obs):
        same = next_obs[start:end][: len(obs) - 1 - start] == obs[start + 1 : end + 1]
        follows[start : start + len(same)] = same.all(axis=tuple(range(1, same.ndim)))
    return follows


def arrange(columns: Mapping[str, Column], *, time_limit: int | None = None) -> RawTransitions:
    """Sort out episodes. ``time_limit``: an episode of this many steps was cut, whatever the file's flag says."""
    for name, column in columns.items():
        if column.dtype.kind not in "fiub" or not column.shape:
            raise DataError(f"{name} must be numbers, one row each, got dtype {column.dtype} and shape {column.shape}")
    if "episode_starts" in columns and len(columns["obs"]) > len(columns["actions"]):
        return _arrange_trajectories(columns, time_limit=time_limit)
    lengths = {name: len(column) for name, column in columns.items() if name != "episode_starts"}
    if len(set(lengths.values())) != 1:
        raise DataError(f"columns must have the same length, got {lengths}")
    count = lengths["obs"]
    if count == 0:
        raise DataError("the dataset is empty")
    warnings: list[str] = []
    flag = _flags(columns["terminated"] if "terminated" in columns else columns["dones"], count)
    truncated = _flags(columns["truncated"], count) if "truncated" in columns else np.zeros(count, dtype=bool)
    terminated = flag & ~truncated if "terminated" not in columns else flag
    if "episode_terminals" in columns:  # d3rlpy: `terminals` may be set on rows before the last; the episode's end decides
        ended = _flags(columns["episode_terminals"], count)
        if (stray := int((terminated & ~ended).sum())) > 0:
            warnings.append(f"{stray} rows are marked terminal inside their episode; only an episode's last row can be")
        terminated = terminated & ended
    elif "episode_ids" in columns:
        ids = _numbers("episode_ids", columns)
        ended = np.append(ids[1:] != ids[:-1], True) | terminated | truncated
    else:
        ended = terminated | truncated
        if "next_obs" in columns and "truncated" not in columns:
            jumps = ~followed(columns["obs"], columns["next_obs"])
            if jumps.mean() < 0.5:  # shuffled rows jump everywhere, and have no episodes
                ended = ended | jumps
            else:
                warnings.append("rows do not follow each other: episodes are unknown")
    if not ended[-1]:
        warnings.append("the last episode is not finished")
        ended = ended.copy()
        ended[-1] = True
    raw = RawTransitions(
        obs=columns["obs"],
        actions=columns["actions"],
        rewards=_numbers("rewards", columns),
        next_obs=columns.get("next_obs"),
        terminated=terminated,
        ended=ended,
        next_actions=columns.get("next_actions"),
        returns_to_go=in_memory(columns["returns_to_go"]) if "returns_to_go" in columns else None,
        warnings=warnings,
    )
    return _apply_time_limit(raw, time_limit, ambiguous="terminated" not in columns and "truncated" not in columns)


def _arrange_trajectories(columns: Mapping[str, Column], *, time_limit: int | None) -> RawTransitions:
    """Trajectories with one more observation than actions each, split by the indices where later ones start."""
    starts = np.concatenate(([0], in_memory(columns["episode_starts"]).reshape(-1))).astype(np.int64)
    count, episodes = len(columns["actions"]), len(starts)
    if len(columns["obs"]) != count + episodes:
        raise DataError(
            f"{episodes} trajectories of {count} actions need {count + episodes} observations, got {len(columns['obs'])}"
        )
    ends = np.append(starts[1:], count)
    if (ends - starts < 1).any():
        raise DataError("indices must increase and stay inside the data")
    obs, next_obs = pick_trajectories(columns["obs"], ends - starts)
    ended = np.zeros(count, dtype=bool)
    ended[ends - 1] = True
    terminated = np.zeros(count, dtype=bool)
    terminated[ends - 1] = _flags(columns["terminated"] if "terminated" in columns else columns["dones"], episodes)
    raw = RawTransitions(
        obs=obs,
        actions=columns["actions"],
        rewards=_numbers("rewards", columns),
        next_obs=next_obs,
        terminated=terminated,
        ended=ended,
    )
    return _apply_time_limit(raw, time_limit, ambiguous=True)


def _numbers(name: str, columns: Mapping[str, Column]) -> Array:
    """A column of one number a row, in memory."""
    column = columns[name]
    if math.prod(column.shape[1:]) != 1:
        raise DataError(f"{name} must be one number a row, got shape {tuple(column.shape)}")
    return in_memory(column).reshape(-1)


def _flags(column: Column, count: int) -> npt.NDArray[np.bool_]:
    if (entries := math.prod(column.shape)) != count:
        raise DataError(f"a flag column has {entries} entries, expected {count}")
    flags = in_memory(column).reshape(-1)
    if flags.dtype != bool and not np.isin(flags, (0, 1)).all():
        raise DataError("a flag column must hold 0 and 1 only")
    return flags.astype(bool)


def _apply_time_limit(raw: RawTransitions, time_limit: int | None, *, ambiguous: bool) -> RawTransitions:
    lengths, last = raw.episode_lengths, raw.episode_ends - 1
    if time_limit is not None:
        cut = last[lengths == time_limit]
        raw.terminated = raw.terminated.copy()
        raw.terminated[cut] = False
    elif ambiguous and len(lengths) > 1 and raw.terminated[last].all() and len(set(lengths[:-1].tolist())) == 1:
        raw.warnings.append(
            f"every episode ends, marked done, after exactly {lengths[0]} steps: that looks like a time limit, "
            f"which is not a termination; if it is one, declare time_limit: {lengths[0]}"
        )
    return raw
