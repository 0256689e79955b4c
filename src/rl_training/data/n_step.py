"""n-step transitions: rewards of several steps summed before the value of a later observation is added."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

FloatArray = npt.NDArray[np.float32]


class NStepTransitions(NamedTuple):
    """Columns for the replay buffer; ``discounts`` is gamma to the power of the steps that a row spans."""

    obs: FloatArray
    actions: npt.NDArray[Any]
    rewards: FloatArray
    next_obs: FloatArray
    terminated: npt.NDArray[np.bool_]
    discounts: FloatArray


class NStepQueue:
    """Holds back each environment's last steps until n rewards are known, or until the episode ends.

    A terminated episode leaves shorter sums without a bootstrap; a truncated one leaves shorter sums that bootstrap from
    its real last observation with the smaller power of gamma.
    """

    def __init__(self, n_step: int, gamma: float, *, num_envs: int) -> None:
        self.n_step, self.gamma = n_step, gamma
        self._pending: list[deque[tuple[FloatArray, Any, float]]] = [deque() for _ in range(num_envs)]

    def add(
        self,
        obs: FloatArray,
        actions: npt.NDArray[Any],
        rewards: FloatArray,
        next_obs: FloatArray,
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
    ) -> NStepTransitions | None:
        """Take one step of every environment; return the transitions that are now complete, if any."""
        ready: list[tuple[FloatArray, Any, float, FloatArray, bool, float]] = []
        for index in range(len(obs)):
            pending = self._pending[index]
            pending.append((obs[index].copy(), actions[index].copy(), float(rewards[index])))
            ended = bool(terminated[index] or truncated[index])
            while pending and (ended or len(pending) == self.n_step):
                total = sum(self.gamma**k * reward for k, (_, _, reward) in enumerate(pending))
                discount = self.gamma ** len(pending)
                first_obs, first_action, _ = pending.popleft()
                ready.append((first_obs, first_action, total, next_obs[index], bool(terminated[index]), discount))
        if not ready:
            return None
        columns = [np.array(column) for column in zip(*ready, strict=True)]
        return NStepTransitions(*columns)

    def clear(self) -> None:
        """Forget the running episodes."""
        for pending in self._pending:
            pending.clear()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The held-back steps of each environment, oldest first."""
        state: dict[str, torch.Tensor] = {}
        for index, pending in enumerate(self._pending):
            if pending:
                obs, actions, rewards = (np.array(column) for column in zip(*pending, strict=True))
                state |= {f"n_step.{index}.obs": torch.from_numpy(obs), f"n_step.{index}.actions": torch.from_numpy(actions)}
                state[f"n_step.{index}.rewards"] = torch.from_numpy(rewards)
        return state

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what :meth:`state_dict` gave; other entries are ignored."""
        self.clear()
        for index, pending in enumerate(self._pending):
            if f"n_step.{index}.obs" in state:
                obs, actions, rewards = (state[f"n_step.{index}.{name}"].numpy() for name in ("obs", "actions", "rewards"))
                pending.extend((o, a, float(r)) for o, a, r in zip(obs, actions, rewards, strict=True))
