"""From Gymnasium spaces to an EnvSpec, and from actions in [-1, 1] to what an environment takes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.types import ActionKind, ConfigError, EnvSpec


def describe_env(env_id: str, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> EnvSpec:
    """The spec of a task, or a ``ConfigError`` that says what is not supported and what to do."""
    obs_shape = _flat_observation_shape(env_id, observation_space)
    if isinstance(action_space, gym.spaces.Discrete):
        return EnvSpec(
            env_id=env_id,
            obs_shape=obs_shape,
            action_kind="discrete",
            action_shape=(),
            action_dtype=str(np.dtype(action_space.dtype)),
            num_actions=int(action_space.n),
            action_start=int(action_space.start),
        )
    if not isinstance(action_space, gym.spaces.Box):
        raise ConfigError(f"env_id {env_id!r}: action space {action_space} is not supported; use Box or Discrete actions")
    if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
        raise ConfigError(
            f"env_id {env_id!r}: action space {action_space} is unbounded, so actions in [-1, 1] cannot be scaled to it; "
            "give it finite bounds, e.g. with gymnasium.wrappers.RescaleAction"
        )
    return EnvSpec(
        env_id=env_id,
        obs_shape=obs_shape,
        action_kind="continuous",
        action_shape=tuple(action_space.shape),
        action_dtype=str(action_space.dtype),
        action_low=tuple(float(x) for x in action_space.low.reshape(-1)),
        action_high=tuple(float(x) for x in action_space.high.reshape(-1)),
    )


def _flat_observation_shape(env_id: str, space: gym.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return tuple(space.shape)
    raise ConfigError(
        f"env_id {env_id!r}: observation space {space} is not supported; flat vectors (a Box of one dimension) are. "
        "gymnasium.wrappers.FlattenObservation turns most spaces into one: wrap the environment in a function "
        "and name it as env_id: 'your_module:your_function'"
    )


def require_actions(spec: EnvSpec, kind: ActionKind, algorithm: str) -> None:
    """Refuse an algorithm that cannot act in this task."""
    if spec.action_kind != kind:
        wanted, remedy = {
            "continuous": ("Box", "dqn handles Discrete actions"),
            "discrete": ("Discrete", "sac, td3 and the other actor-critic methods handle Box actions"),
        }[kind]
        given = "Discrete" if spec.action_kind == "discrete" else "Box"
        raise ConfigError(f"algo {algorithm!r} needs {wanted} actions, but {spec.env_id} has {given} actions; {remedy}")


class ActionScaler:
    """Actions of the model ([-1, 1], flat; or indices from 0) to actions of the environment, and back."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.dtype = np.dtype(spec.action_dtype)
        self.low = np.asarray(spec.action_low, dtype=np.float64)
        self.high = np.asarray(spec.action_high, dtype=np.float64)
        self.half_range = (self.high - self.low) / 2

    def to_env(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``(batch, action_dim)`` in [-1, 1], or ``(batch,)`` indices, to ``(batch, *action_shape)`` inside the bounds."""
        if self.spec.action_kind == "discrete":
            return (actions + self.spec.action_start).astype(self.dtype)
        scaled = np.clip(self.low + (actions.astype(np.float64) + 1) * self.half_range, self.low, self.high)
        return scaled.astype(self.dtype).reshape(len(actions), *self.spec.action_shape)

    def from_env(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The reverse of :meth:`to_env`; a dimension whose bounds coincide maps to 0."""
        if self.spec.action_kind == "discrete":
            return actions.astype(np.int64) - self.spec.action_start
        flat = actions.reshape(len(actions), -1).astype(np.float64)
        safe = np.where(self.half_range > 0, self.half_range, 1.0)
        return np.where(self.half_range > 0, (flat - self.low) / safe - 1, 0.0).astype(np.float32)
