"""From the columns of a file to ordered transitions: what each name means, where episodes end, what has to be rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.types import DataError

Array = npt.NDArray[Any]

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
    """Rows in the order they happened, with terminations and episode ends apart; what ``inspect`` looks at."""

    obs: Array
    actions: Array
    rewards: Array
    next_obs: Array | None
    terminated: npt.NDArray[np.bool_]
    ended: npt.NDArray[np.bool_]
    next_actions: Array | None = None
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


def arrange(columns: Mapping[str, Array], *, time_limit: int | None = None) -> RawTransitions:
    """Sort out episodes. ``time_limit``: an episode of this many steps was cut, whatever the file's flag says."""
    for name, array in columns.items():
        if array.dtype.kind not in "fiub" or array.ndim == 0:
            raise DataError(f"{name} must be numbers, one row each, got dtype {array.dtype} and shape {array.shape}")
    if "episode_starts" in columns and len(columns["obs"]) > len(columns["actions"]):
        return _arrange_trajectories(columns, time_limit=time_limit)
    lengths = {name: len(array) for name, array in columns.items() if name != "episode_starts"}
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
        ids = np.asarray(columns["episode_ids"]).reshape(-1)
        ended = np.append(ids[1:] != ids[:-1], True) | terminated | truncated
    else:
        ended = terminated | truncated
        if "next_obs" in columns and "truncated" not in columns:
            jumps = np.append((columns["next_obs"][:-1] != columns["obs"][1:]).reshape(count - 1, -1).any(axis=1), True)
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
        rewards=np.asarray(columns["rewards"]).reshape(-1),
        next_obs=columns.get("next_obs"),
        terminated=terminated,
        ended=ended,
        next_actions=columns.get("next_actions"),
        returns_to_go=columns.get("returns_to_go"),
        warnings=warnings,
    )
    return _apply_time_limit(raw, time_limit, ambiguous="terminated" not in columns and "truncated" not in columns)


def _arrange_trajectories(columns: Mapping[str, Array], *, time_limit: int | None) -> RawTransitions:
    """Trajectories with one more observation than actions each, split by the indices where later ones start."""
    starts = np.concatenate(([0], np.asarray(columns["episode_starts"]).reshape(-1))).astype(np.int64)
    count, episodes = len(columns["actions"]), len(starts)
    if len(columns["obs"]) != count + episodes:
        raise DataError(
            f"{episodes} trajectories of {count} actions need {count + episodes} observations, got {len(columns['obs'])}"
        )
    ends = np.append(starts[1:], count)
    if (np.diff(np.append(starts, count)) < 1).any():
        raise DataError("indices must increase and stay inside the data")
    rows = np.arange(count) + np.repeat(np.arange(episodes), np.diff(np.append(starts, count)))
    ended = np.zeros(count, dtype=bool)
    ended[ends - 1] = True
    terminated = np.zeros(count, dtype=bool)
    terminated[ends - 1] = _flags(columns["terminated"] if "terminated" in columns else columns["dones"], episodes)
    raw = RawTransitions(
        obs=columns["obs"][rows],
        actions=columns["actions"],
        rewards=np.asarray(columns["rewards"]).reshape(-1),
        next_obs=columns["obs"][rows + 1],
        terminated=terminated,
        ended=ended,
    )
    return _apply_time_limit(raw, time_limit, ambiguous=True)


def _flags(values: Array, count: int) -> npt.NDArray[np.bool_]:
    flags = np.asarray(values).reshape(-1)
    if len(flags) != count:
        raise DataError(f"a flag column has {len(flags)} entries, expected {count}")
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


def build_dataset(
    raw: RawTransitions, actions: Array, *, next_actions: Array | None = None, seed: int = 0
) -> TransitionDataset:
    """Transitions from arranged rows; ``actions`` (and ``next_actions``) are already in the model's units.

    Where a file has no next observations they are the following row's, and the last row of an episode that was cut is
    dropped; so is one whose next observation is really the next episode's first. A terminated row is kept.
    """
    count, last = len(raw.rewards), raw.ended & ~raw.terminated
    keep = np.ones(count, dtype=bool)
    if raw.next_obs is None:
        next_obs = np.concatenate((raw.obs[1:], raw.obs[-1:]))
        keep &= ~last
    else:
        next_obs = raw.next_obs
        follows = np.zeros(count, dtype=bool)
        follows[:-1] = (next_obs[:-1] == raw.obs[1:]).reshape(count - 1, -1).all(axis=1)
        leaks = last & follows
        if last[-1] and last[:-1].any() and leaks[:-1].sum() == last[:-1].sum():
            leaks[-1] = True  # nothing follows the last row, but every other cut episode was given the next one's start
        keep &= ~leaks
    if (dropped := count - int(keep.sum())) > 0:
        raw.warnings.append(f"{dropped} last rows of cut episodes have no next observation of their own and are left out")
    if next_actions is None:
        next_actions = np.concatenate((actions[1:], np.zeros_like(actions[:1])))
        next_actions[raw.ended] = 0
    mask = ~raw.ended  # no next action where the episode ended; after a termination it would not matter anyway
    kept_before = np.cumsum(keep)
    ends = kept_before[raw.episode_ends - 1]
    return TransitionDataset(
        obs=raw.obs[keep],
        actions=actions[keep],
        rewards=raw.rewards[keep],
        next_obs=next_obs[keep],
        dones=raw.terminated[keep],
        next_actions=next_actions[keep],
        next_action_mask=mask[keep],
        returns_to_go=None if raw.returns_to_go is None else raw.returns_to_go[keep],
        episode_ends=np.unique(ends[ends > 0]),
        seed=seed,
    )
