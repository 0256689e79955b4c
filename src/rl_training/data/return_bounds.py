"""Returns that rows are known to lead to at least: exact where an episode terminated, a lower bound where it was cut.

After a cut (by a time limit, or because the episode still runs) the worst reward of the data is taken to follow for ever,
so a bound is never above the return that the recorded policy would have had. Cal-QL (arXiv:2303.05479) needs this: a value
that is too high would free its critics from the penalty, one that is too low only leaves them as careful as CQL's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.types import DataError

FloatArray = npt.NDArray[np.float32]


def worst_return(rewards: npt.NDArray[np.float32], gamma: float) -> float:
    """What follows a cut at worst: the least reward for ever, or nothing if all rewards are positive."""
    if gamma >= 1.0:
        raise DataError(f"bounds of returns need a discount below 1, got gamma {gamma:g}")
    return min(0.0, float(rewards.min())) / (1.0 - gamma)


def discounted_returns(rewards: npt.ArrayLike, *, gamma: float, following: float) -> FloatArray:
    """Discounted return from each step of one episode, after whose last step comes a return of ``following``."""
    steps = np.asarray(rewards, dtype=np.float64)
    returns, running = np.empty_like(steps), following
    for index in range(len(steps) - 1, -1, -1):
        returns[index] = running = steps[index] + gamma * running
    return returns.astype(np.float32)


def return_bounds(
    rewards: FloatArray, terminated: npt.NDArray[np.bool_], episode_ends: npt.NDArray[np.int64], *, gamma: float
) -> FloatArray:
    """The bounds of whole episodes, rows in order; ``episode_ends`` holds the index after the last row of each."""
    worst, bounds, start = worst_return(rewards, gamma), np.empty(len(rewards), dtype=np.float32), 0
    for end in episode_ends.tolist():
        following = 0.0 if terminated[end - 1] else worst
        bounds[start:end] = discounted_returns(rewards[start:end], gamma=gamma, following=following)
        start = end
    return bounds


class RunningReturns:
    """Which rows of a replay buffer belong to the running episodes: their bounds are raised when the episode ends."""

    def __init__(self, *, num_envs: int, capacity: int, gamma: float, worst: float) -> None:
        self.capacity, self.gamma, self.worst = capacity, gamma, worst
        # each step writes num_envs rows, so an older row has been overwritten
        self._rows: list[deque[tuple[int, float]]] = [deque(maxlen=max(1, capacity // num_envs)) for _ in range(num_envs)]

    def add(self, positions: Sequence[int], rewards: FloatArray) -> FloatArray:
        """Note one row of each environment; returns what is known of their returns so far."""
        for rows, position, reward in zip(self._rows, positions, rewards.tolist(), strict=False):
            rows.append((position, reward))
        return (rewards + self.gamma * self.worst).astype(np.float32)

    def end(self, env_index: int, *, terminated: bool) -> tuple[list[int], FloatArray]:
        """Positions and returns of the rows of an episode that has ended."""
        rows = self._rows[env_index]
        returns = discounted_returns(
            [reward for _, reward in rows], gamma=self.gamma, following=0.0 if terminated else self.worst
        )
        positions = [position for position, _ in rows]
        rows.clear()
        return positions, returns

    def clear(self) -> None:
        """Forget the running episodes; their rows keep the bounds they have."""
        for rows in self._rows:
            rows.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Positions and rewards of every running episode."""
        state = {}
        for index, rows in enumerate(self._rows):
            state[f"running.{index}.positions"] = torch.tensor([position for position, _ in rows], dtype=torch.int64)
            state[f"running.{index}.rewards"] = torch.tensor([reward for _, reward in rows], dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave."""
        for index, rows in enumerate(self._rows):
            positions, rewards = state[f"running.{index}.positions"], state[f"running.{index}.rewards"]
            if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < self.capacity:
                raise ValueError("a running episode has rows where the replay has none")
            rows.clear()
            rows.extend(zip(positions.tolist(), rewards.tolist(), strict=True))
