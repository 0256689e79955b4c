"""Collecting: the agent acts in its environments, and what really happened goes to the replay buffer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.base import Algorithm, OnlineHyperparameters
from rl_training.data.n_step import NStepQueue
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.return_bounds import RunningReturns
from rl_training.data.transforms import ObservationNormalizer, RewardScaling
from rl_training.envs.episodes import EpisodeState
from rl_training.envs.factory import BoolArray, FloatArray, VectorEnv, VectorStep
from rl_training.envs.spec import ActionScaler
from rl_training.experiment.config import RewardTransform
from rl_training.runtime.numerics import NonFiniteError, all_finite, bad_entry
from rl_training.runtime.trainer import CollectResult
from rl_training.types import Batch, EnvSpec, Metrics

RECENT_EPISODES = 100
Row: TypeAlias = tuple[FloatArray, npt.NDArray[Any], FloatArray, FloatArray, BoolArray]
"""``obs, actions, rewards, next_obs, terminated`` of one step of several environments."""


class Collector:
    """Steps the environments and keeps the books of their episodes."""

    def __init__(
        self,
        *,
        envs: VectorEnv,
        num_envs: int,
        env_spec: EnvSpec,
        buffer: ReplayBuffer,
        algorithm: Algorithm,
        hyperparameters: OnlineHyperparameters,
        reward: RewardTransform | RewardScaling,
        seed: int,
        normalizer: ObservationNormalizer | None = None,
        running_returns: RunningReturns | None = None,
    ) -> None:
        self.envs, self.buffer, self.algorithm = envs, buffer, algorithm
        self._env_spec, self._scaler = env_spec, ActionScaler(env_spec)
        self._random_steps = hyperparameters.learning_starts
        self._reward = None if reward in (RewardTransform(), RewardScaling()) else reward
        self._normalizer, self._running_returns = normalizer, running_returns
        n_step, gamma = getattr(hyperparameters, "n_step", 1), hyperparameters.gamma
        self._n_step = NStepQueue(n_step, gamma, num_envs=num_envs) if n_step > 1 else None
        self._rng = np.random.default_rng(seed)
        self._device = next(iter(algorithm.networks())).device
        self._obs: FloatArray = np.zeros((num_envs, env_spec.obs_dim), dtype=np.float32)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self.episodes = 0

    def start(self) -> None:
        """Begin the first episodes."""
        self._obs = self.envs.reset()
        if not all_finite(self._obs):
            raise bad_entry("observation", "obs", self._obs, {"obs": self._obs})

    def collect(self, global_step: int, *, limit: int) -> CollectResult:
        """One step of every environment; at most ``limit`` transitions count, so that a run ends exactly."""
        actions = self._choose_actions(global_step)
        step = self.envs.step(self._scaler.to_env(actions))
        if not (
            all_finite(step.next_obs) and all_finite(step.rewards) and (step.obs is step.next_obs or all_finite(step.obs))
        ):
            raise self._bad_step(step, actions)
        count = min(len(actions), limit)
        rewards = step.rewards if self._reward is None else transform_rewards(self._reward, step.rewards)
        # dones = terminated: where a time limit cut the episode, next_obs is its real last observation and bootstraps
        obs, next_obs = self._seen(self._obs[:count]), self._seen(step.next_obs[:count])
        row = (obs, actions[:count], rewards[:count], next_obs, step.terminated[:count])
        if self._running_returns is not None:
            self._add_with_returns(row, step)
        elif self._n_step is None:
            self.buffer.add(*row)
        elif (complete := self._n_step.add(*row, step.truncated[:count])) is not None:
            self.buffer.add(*complete)
        self._obs = step.obs
        self._returns += step.rewards
        self._lengths += 1
        ended = np.flatnonzero(step.terminated | step.truncated).tolist()
        if len(ended) == 0:
            return CollectResult(num_env_steps=count)
        returns = [self._end_episode(index) for index in ended]
        return CollectResult(count, num_episodes=len(ended), metrics={"episode_return_mean": float(np.mean(returns))})

    def batches(self, batch_size: int, count: int, *, global_step: int) -> Iterator[Batch]:
        """``count`` batches of what was collected; none as long as there is nothing (n-step transitions arrive late)."""
        return self.buffer.sample_batches(batch_size, count) if len(self.buffer) > 0 else iter(())

    def _seen(self, obs: FloatArray) -> FloatArray:
        """Observations as the agent sees them."""
        if self._normalizer is None:
            return obs
        seen: FloatArray = self._normalizer(torch.from_numpy(obs)).numpy()
        return seen

    def _add_with_returns(self, row: Row, step: VectorStep) -> None:
        """Store rows with what is known of their returns, and put that right where an episode has ended."""
        assert self._running_returns is not None
        rewards = row[2]
        positions = [(self.buffer.cursor + index) % self.buffer.capacity for index in range(len(rewards))]
        self.buffer.add(*row, self._running_returns.add(positions, rewards))
        for index in np.flatnonzero(step.terminated | step.truncated).tolist():
            self.buffer.set_returns(*self._running_returns.end(index, terminated=bool(step.terminated[index])))

    def _choose_actions(self, global_step: int) -> npt.NDArray[Any]:
        """Actions in model space: uniformly random at first, then the algorithm's."""
        count = len(self._obs)
        if global_step < self._random_steps:
            if self._env_spec.action_kind == "discrete":
                return self._rng.integers(self._env_spec.num_actions, size=count)
            return self._rng.uniform(-1, 1, (count, self._env_spec.action_dim)).astype(np.float32)
        with torch.inference_mode():
            obs = torch.from_numpy(self._seen(self._obs)).to(self._device)
            actions = self.algorithm.explore(obs, global_step=global_step).cpu().numpy()
        if not all_finite(actions):  # an environment may take it and carry on as if nothing were wrong
            raise bad_entry("action", "action", actions, {"obs": self._obs, "actions": actions})
        return actions

    def _bad_step(self, step: VectorStep, actions: npt.NDArray[Any]) -> NonFiniteError:
        """What to say of a step in which an environment gave a NaN or an infinity."""
        rows = {"obs": self._obs, "actions": actions, "next_obs": step.next_obs, "rewards": step.rewards}
        rows["dones"] = step.terminated
        if not all_finite(step.rewards):
            return bad_entry("reward", "reward", step.rewards, rows)
        return bad_entry("observation", "obs", step.obs if all_finite(step.next_obs) else step.next_obs, rows)

    def _end_episode(self, index: int) -> float:
        episode_return = float(self._returns[index])
        self._recent.append((episode_return, int(self._lengths[index])))
        self._returns[index], self._lengths[index] = 0.0, 0
        self.episodes += 1
        return episode_return

    def metrics(self) -> Metrics:
        """Means over the last hundred episodes, in the task's own rewards."""
        row: Metrics = {"data/buffer_size": float(len(self.buffer)), "time/episodes": float(self.episodes)}
        if self._recent:
            row["rollout/ep_rew_mean"] = float(np.mean([episode_return for episode_return, _ in self._recent]))
            row["rollout/ep_len_mean"] = float(np.mean([length for _, length in self._recent]))
        return row

    def state_dict(self) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
        """Plain data for the manifest, and tensors by checkpoint part."""
        states = self.envs.episode_states()
        episodes = {f"actions.{index}": torch.from_numpy(state.actions) for index, state in enumerate(states)}
        episodes["obs"] = torch.from_numpy(self._obs)
        if self._n_step is not None:
            episodes |= self._n_step.state_dict()
        if self._running_returns is not None:
            episodes |= self._running_returns.state_dict()
        data = {
            "rng": self._rng.bit_generator.state,
            "episode_numbers": [state.episode for state in states],
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "recent": [list(entry) for entry in self._recent],
            "episodes": self.episodes,
        }
        return data, {"replay": self.buffer.state_dict(), "episodes": episodes}

    def load_state_dict(self, data: dict[str, Any], parts: dict[str, dict[str, torch.Tensor]]) -> bool:
        """Continue where a checkpoint stood. False if the environments did not come back to the same observations."""
        self.buffer.load_state_dict(parts["replay"])
        self._rng.bit_generator.state = data["rng"]
        self._returns = np.array(data["returns"], dtype=np.float64)
        self._lengths = np.array(data["lengths"], dtype=np.int64)
        if not self._returns.shape == self._lengths.shape == (len(self._obs),):
            raise ValueError("the returns and lengths of episodes are not those of as many environments")
        self._require_sound_replay()
        self._recent = deque(((entry[0], entry[1]) for entry in data["recent"]), maxlen=RECENT_EPISODES)
        self.episodes = data["episodes"]
        episodes = parts["episodes"]
        if self._n_step is not None:
            self._n_step.load_state_dict(episodes)
            self._require_sound_steps(episodes)
        if self._running_returns is not None:
            self._running_returns.load_state_dict(episodes)
        states = [
            EpisodeState(number, episodes[f"actions.{index}"].numpy()) for index, number in enumerate(data["episode_numbers"])
        ]
        for state in states:
            self._require_valid_actions(state.actions)
        return self._restore_envs(states, episodes["obs"].numpy())

    def _require_sound_replay(self) -> None:
        """Rows out of a file are as sound as rows out of an environment."""
        buffer = self.buffer
        rows = buffer.rows[: len(buffer)]
        if not 0 <= buffer.cursor < buffer.capacity or not math.isfinite(rows.sum(dtype=torch.float64).item()):
            raise ValueError("the replay has a write position or a number that it cannot have")
        self._require_known_actions(rows[:, buffer.obs_dim])

    def _require_sound_steps(self, episodes: dict[str, torch.Tensor]) -> None:
        """The same for steps that are held back for n-step returns."""
        for name, column in episodes.items():
            if name.startswith("n_step."):
                if name.endswith(".actions"):
                    self._require_known_actions(column)
                if name.endswith(".obs") and column.shape[1:] != self._obs.shape[1:]:
                    raise ValueError("the steps held back have observations of another size")
                if not math.isfinite(column.sum(dtype=torch.float64).item()):
                    raise ValueError("the steps held back have a number that is not finite")

    def _require_known_actions(self, actions: torch.Tensor) -> None:
        """Refuse indices of actions that there are not."""
        if self._env_spec.action_kind == "discrete":
            known = (actions >= 0) & (actions < self._env_spec.num_actions) & (actions == actions.floor())
            if not bool(known.all()):
                raise ValueError("the replay has actions that there are not")

    def _require_valid_actions(self, actions: npt.NDArray[Any]) -> None:
        """Refuse a stored episode with actions that the environment does not take."""
        spec, dtype = self._env_spec, self._scaler.dtype
        fits = actions.dtype == dtype and actions.shape[1:] == spec.action_shape
        low, high = (bound.astype(dtype).reshape(-1) for bound in (self._scaler.low, self._scaler.high))
        if spec.action_kind == "discrete":
            low, high = np.array([spec.action_start]), np.array([spec.action_start + spec.num_actions - 1])
        flat = actions.reshape(len(actions), len(low)) if fits else actions
        if not fits or not ((flat >= low) & (flat <= high)).all():
            raise ValueError("the episodes have actions that the environment does not take")

    def _restore_envs(self, states: Sequence[EpisodeState], obs: FloatArray) -> bool:
        self._obs = self.envs.restore(states)
        if np.array_equal(self._obs, obs):
            return True
        self._obs = self.envs.reset()
        self._returns[:], self._lengths[:] = 0.0, 0
        if self._n_step is not None:
            self._n_step.clear()
        if self._running_returns is not None:
            self._running_returns.clear()
        return False


def transform_rewards(transform: RewardTransform | RewardScaling, rewards: FloatArray) -> FloatArray:
    """``clip(scale * reward + shift, clip_min, clip_max)``."""
    transformed = transform.scale * rewards + transform.shift
    if transform.clip_min is not None or transform.clip_max is not None:
        transformed = np.clip(transformed, transform.clip_min, transform.clip_max)
    return transformed.astype(np.float32)
