"""Episodes that can be played again: the ground of exact resume.

Every episode is reset with its own seed from the seed tree, and the actions of the running episode are kept. To bring
an environment back to where it was, reset it with that seed and replay those actions; no environment has to be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.seeding import stream_seed


@dataclass(frozen=True)
class EpisodeState:
    """Where one environment stands: which episode, and the actions taken in it so far, ``(steps, *action_shape)``."""

    episode: int
    actions: npt.NDArray[Any]


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds each episode by its number and remembers its actions."""

    def __init__(self, env: gym.Env[Any, Any], *, seed: int, env_index: int) -> None:
        super().__init__(env)
        self._seed, self._env_index = seed, env_index
        self._episode = -1
        self._actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode; its seed comes from the tree, so ``seed`` is not used."""
        self._episode += 1
        self._actions = []
        return self.env.reset(seed=stream_seed(self._seed, "episode", self._env_index, self._episode), options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, remembering the action."""
        self._actions.append(np.array(action))
        return self.env.step(action)

    def episode_state(self) -> EpisodeState:
        """What :meth:`restore` needs to come back to this point."""
        shape, dtype = self.env.action_space.shape or (), self.env.action_space.dtype
        return EpisodeState(self._episode, np.array(self._actions, dtype=dtype).reshape(-1, *shape))

    def restore(self, state: EpisodeState) -> Any:
        """Play an episode up to a point again; returns the observation it leads to."""
        self._episode = state.episode - 1
        obs, _ = self.reset()
        for action in state.actions:
            obs, _, terminated, truncated, _ = self.step(action)
            if terminated or truncated:
                break  # an environment that is not deterministic: the caller sees it by the observation
        return obs

    def restore_from(self, states: list[EpisodeState]) -> Any:
        """:meth:`restore` for vector environments that send every worker the same message."""
        return self.restore(states[self._env_index])
