"""Playing an environment and keeping what happened: for random datasets and ``data collect``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.data.columns import RawTransitions
from rl_training.seeding import stream_seed


def record_transitions(
    env: gym.Env[Any, Any],
    choose: Callable[[npt.NDArray[np.float32]], Any],
    *,
    steps: int,
    seed: int,
    on_step: Callable[[int], None] = lambda step: None,
) -> RawTransitions:
    """``steps`` transitions in order, actions in the environment's units; every episode has its own seed.

    The last episode is cut where the steps run out.
    """
    shape, dtype = env.action_space.shape or (), env.action_space.dtype
    obs_shape = env.observation_space.shape or ()
    obs, next_obs = (np.empty((steps, *obs_shape), dtype=np.float32) for _ in range(2))
    actions, rewards = np.empty((steps, *shape), dtype=dtype), np.empty(steps, dtype=np.float32)
    terminated, ended = np.zeros(steps, dtype=bool), np.zeros(steps, dtype=bool)
    episode = 0
    current, _ = env.reset(seed=stream_seed(seed, "data", episode))
    for step in range(steps):
        obs[step] = current
        actions[step] = action = choose(obs[step])
        current, reward, done, cut, _ = env.step(action)
        next_obs[step], rewards[step], terminated[step], ended[step] = current, float(reward), done, done or cut
        if ended[step] and step + 1 < steps:
            episode += 1
            current, _ = env.reset(seed=stream_seed(seed, "data", episode))
        on_step(step)
    ended[-1] = True
    return RawTransitions(obs, actions, rewards, next_obs, terminated, ended)
