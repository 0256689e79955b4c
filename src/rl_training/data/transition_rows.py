"""From arranged columns to the rows of a dataset, a block at a time, so that the rows may go to memory or to a file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rl_training.data.columns import RawTransitions, followed
from rl_training.data.lazy_columns import Array, Column, row_blocks
from rl_training.data.offline_dataset import FloatArray, TransitionDataset, finite_returns, layout_of, only_finite, stack_rows


class TransitionRows:
    """The rows that arranged transitions make; ``actions`` (and ``next_actions``) are already in the model's units.

    Where a file has no next observations they are the following row's, and the last row of an episode that was cut is
    dropped; so is one whose next observation is really the next episode's first. A terminated row is kept.
    """

    def __init__(self, raw: RawTransitions, actions: Column, *, next_actions: Column | None = None) -> None:
        self.raw, self.actions, self.next_actions = raw, actions, next_actions
        columns = {"obs": raw.obs, "actions": actions, "rewards": raw.rewards, "dones": raw.terminated}
        columns["next_obs"] = raw.obs if raw.next_obs is None else raw.next_obs
        columns["next_actions"] = actions if next_actions is None else next_actions
        if raw.returns_to_go is not None:
            columns["returns_to_go"] = raw.returns_to_go
        self.layout = layout_of(columns)
        self.keep = _usable(raw)
        self.count = int(self.keep.sum())
        if (dropped := len(self.keep) - self.count) > 0:
            raw.warnings.append(f"{dropped} last rows of cut episodes have no next observation of their own and are left out")

    @property
    def nbytes(self) -> int:
        """Size of the finished matrix."""
        return self.count * self.layout.width * 4

    @property
    def episode_ends(self) -> npt.NDArray[np.int64]:
        """Index after the last row of each episode, among the rows that are kept."""
        ends = np.cumsum(self.keep)[self.raw.episode_ends - 1]
        return np.unique(ends[ends > 0])

    @property
    def returns_to_go(self) -> npt.NDArray[np.float32] | None:
        """Those of the file, where it has them."""
        given = self.raw.returns_to_go
        return finite_returns(None if given is None else given[self.keep])

    def blocks(self) -> Iterator[FloatArray]:
        """The rows in order; raises at the end if any was not finite."""
        return only_finite(self._all_blocks(), self.layout, self.count)

    def _all_blocks(self) -> Iterator[FloatArray]:
        raw = self.raw
        for start, end in row_blocks(raw.obs, self.actions):
            keep, ended = self.keep[start:end], raw.ended[start:end]
            obs, next_obs = _with_next(raw.obs, raw.next_obs, start, end)
            actions, next_actions = _with_next(self.actions, self.next_actions, start, end)
            if self.next_actions is None:
                next_actions = np.where(ended.reshape(-1, *[1] * (next_actions.ndim - 1)), 0, next_actions)
            columns = {
                "obs": obs,
                "actions": actions,
                "rewards": raw.rewards[start:end],
                "dones": raw.terminated[start:end],
                "next_obs": next_obs,
                "next_actions": next_actions,
                "next_action_mask": ~ended,  # no next action where the episode ended; nothing follows a termination anyway
            }
            yield self.layout.join({name: column[keep] for name, column in columns.items()})

    def in_memory(self, *, seed: int = 0) -> TransitionDataset:
        """The dataset with its rows in memory."""
        rows = stack_rows(self.blocks(), self.layout, self.count)
        return TransitionDataset.from_rows(
            rows, self.layout, episode_ends=self.episode_ends, returns_to_go=self.returns_to_go, seed=seed
        )


def build_dataset(raw: RawTransitions, actions: Column, *, seed: int = 0) -> TransitionDataset:
    """A dataset in memory; ``actions`` are already in the model's units."""
    return TransitionRows(raw, actions).in_memory(seed=seed)


def _usable(raw: RawTransitions) -> npt.NDArray[np.bool_]:
    """Rows that have a next observation of their own, or need none."""
    last = raw.ended & ~raw.terminated
    if raw.next_obs is None:
        return ~last
    leaks = last & followed(raw.obs, raw.next_obs)
    if last[-1] and last[:-1].any() and leaks[:-1].sum() == last[:-1].sum():
        leaks[-1] = True  # nothing follows the last row, but every other cut episode was given the next one's start
    return ~leaks


def _with_next(column: Column, given: Column | None, start: int, end: int) -> tuple[Array, Array]:
    """A block and what comes after each of its rows: as given, else the following row (the last row's own at the end)."""
    if given is not None:
        return column[start:end], given[start:end]
    extended = column[start : end + 1]
    following = extended[1:] if end < len(column) else np.concatenate((extended[1:], extended[-1:]))
    return extended[: end - start], following
