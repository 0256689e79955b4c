"""The one evaluation: used while training, by ``eval``, by the Python API and by reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.runtime.numerics import all_finite, bad_entry
from rl_training.runtime.policy import Policy
from rl_training.seeding import stream_seed
from rl_training.types import Metrics


@dataclass(frozen=True)
class Episode:
    """One evaluation episode."""

    seed: int
    episode_return: float
    length: int


def evaluation_seeds(seed: int, episodes: int) -> list[int]:
    """Seeds of the evaluation episodes of a run: the same at every evaluation, and no training episode has them."""
    return [stream_seed(seed, "evaluate", index) for index in range(episodes)]


def evaluate_policy(
    policy: Policy,
    env: gym.Env[Any, Any],
    *,
    seeds: Sequence[int],
    deterministic: bool = True,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Episode] | None:
    """Play one episode per seed, with raw rewards. Returns nothing if interrupted.

    A deterministic policy draws no random number, so an evaluation leaves training exactly as it was.
    """
    episodes = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        episode_return, length, ended = 0.0, 0, False
        while not ended:
            if interrupted():
                return None
            batch = np.asarray(obs, dtype=np.float32)[np.newaxis]
            if not all_finite(batch):
                raise bad_entry("observation", "obs", batch, {"obs": batch}, evaluation_seed=seed, episode_step=length)
            actions = policy.act(batch, deterministic=deterministic)
            obs, reward, terminated, truncated, _ = env.step(actions[0])
            episode_return += float(reward)
            if not math.isfinite(float(reward)):
                rows = {"obs": batch, "actions": actions, "rewards": np.array([float(reward)])}
                raise bad_entry("reward", "reward", rows["rewards"], rows, evaluation_seed=seed, episode_step=length)
            length += 1
            ended = bool(terminated or truncated)
        episodes.append(Episode(seed, episode_return, length))
    return episodes


def summarize(episodes: Sequence[Episode]) -> Metrics:
    """Mean and spread over episodes."""
    returns = [episode.episode_return for episode in episodes]
    return {
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_length_mean": float(np.mean([episode.length for episode in episodes])),
        "eval_episodes": float(len(episodes)),
    }
