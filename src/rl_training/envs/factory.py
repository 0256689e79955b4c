"""Making environments: from an id, a factory or ``module:callable``, one or several, in this process or in others."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector.async_vector_env import AsyncState

from rl_training.envs.episodes import EpisodeState, SeededEpisodes
from rl_training.types import ConfigError

logger = logging.getLogger("rl_training")

EnvFactory: TypeAlias = Callable[..., gym.Env[Any, Any]]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

_CALLABLE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")  # "package.module:function"; "module:Env-v0" is Gymnasium's

NO_USER_CODE = "RL_TRAINING_NO_USER_CODE"
"""Environment variable that, set to anything but 0, forbids environment ids that import a module (``--no-user-code``)."""


def make_env(source: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """One environment; a ``ConfigError`` tells what is wrong with its id, arguments or dependencies."""
    name = source if isinstance(source, str) else env_name(source)
    if isinstance(source, str) and ":" in source and os.environ.get(NO_USER_CODE, "0") not in ("", "0"):
        raise ConfigError(f"env_id {name!r} names code to import, and user code is switched off (--no-user-code)")
    try:
        if isinstance(source, str) and not _CALLABLE.match(source):
            return gym.make(source, disable_env_checker=True, **(env_kwargs or {}))
        env = (load_callable(source) if isinstance(source, str) else source)(**(env_kwargs or {}))
    except gym.error.DependencyNotInstalled as error:
        hint = ' (try: pip install "rl-training[mujoco]")' if "mujoco" in str(error).lower() else ""
        raise ConfigError(f"env_id {name!r} needs a package that is not installed: {error}{hint}") from error
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(f"env_id {name!r} cannot be made: {error}") from error
    except TypeError as error:
        raise ConfigError(f"env_id {name!r} does not take env_kwargs {dict(env_kwargs or {})}: {error}") from error
    if not isinstance(env, gym.Env):
        raise ConfigError(f"env_id {name!r} must return a gymnasium.Env, got {type(env).__name__}")
    return env


def load_callable(path: str) -> EnvFactory:
    """The function named ``package.module:function``; modules in the working directory are found too."""
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module exists, but something it imports does not
        raise ConfigError(f"env_id {path!r}: there is no module {module_name!r}") from None
    except AttributeError:
        raise ConfigError(f"env_id {path!r}: module {module_name!r} has no {attribute!r}") from None
    if not callable(value):
        raise ConfigError(f"env_id {path!r} must be a function that returns an environment, got {type(value).__name__}")
    factory: EnvFactory = value
    return factory


def env_name(factory: EnvFactory) -> str:
    """``module:function`` for a factory that can be imported again, ``python:name`` for one that cannot."""
    name = getattr(factory, "__qualname__", type(factory).__name__)
    path = f"{getattr(factory, '__module__', '')}:{name}"
    try:
        importable = not path.startswith("__main__:") and bool(_CALLABLE.match(path)) and load_callable(path) is factory
    except (ConfigError, ImportError):
        importable = False
    return path if importable else f"python:{name}"


def factory_of(env: gym.Env[Any, Any]) -> EnvFactory:
    """A function that makes environments like one that exists: a run needs several (to train on, to be evaluated on)."""
    recipe = env.spec
    if recipe is None:
        raise ConfigError(
            f"{env} cannot be made again, and a run needs several environments: pass a function that returns one, or its id"
        )

    def make(**changes: Any) -> gym.Env[Any, Any]:
        return gym.make(recipe, **changes)

    make.__qualname__ = make.__name__ = recipe.id
    return make


class VectorStep(NamedTuple):
    """One step of every environment. ``next_obs`` is where each transition led; ``obs`` is what to act on next.

    They differ where an episode ended: there ``next_obs`` is its real last observation, ``obs`` the next one's first.
    """

    obs: FloatArray
    next_obs: FloatArray
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray


class VectorEnv(Protocol):
    """What the training loop needs of its environments."""

    def reset(self) -> FloatArray:
        """Start an episode in each."""

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Step each, resetting those whose episode ended."""

    def episode_states(self) -> list[EpisodeState]:
        """Where each stands."""

    def restore(self, states: Sequence[EpisodeState]) -> FloatArray:
        """Bring each back to where it stood; returns the observations reached."""

    def close(self) -> None:
        """Let go of resources."""


def make_vector_env(
    source: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int, seed: int, asynchronous: bool
) -> VectorEnv:
    """``num_envs`` seeded copies, stepped in this process or (``asynchronous``) in one process each."""
    make = partial(_make_seeded, source, dict(env_kwargs or {}), seed)
    if asynchronous:
        return AsyncEnvs([partial(_make_in_worker, make, index, os.getpid()) for index in range(num_envs)])
    return SyncEnvs([make(index) for index in range(num_envs)])


def _make_seeded(source: str | EnvFactory, env_kwargs: dict[str, Any], seed: int, env_index: int) -> SeededEpisodes:
    return SeededEpisodes(make_env(source, env_kwargs), seed=seed, env_index=env_index)


def _make_in_worker(make: Callable[[int], SeededEpisodes], env_index: int, trainer: int) -> SeededEpisodes:
    # Ctrl-C and a cluster's SIGTERM reach every process; only the trainer answers, and ends its workers when it has saved
    if os.getpid() != trainer:  # AsyncVectorEnv makes one in the trainer too, to look at its spaces
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return make(env_index)


class SyncEnvs:
    """Environments stepped one after the other, with same-step autoreset.

    Gymnasium's SyncVectorEnv does the same and collects infos as well; leaving them out saves 10 to 30 microseconds a
    step (measured on CartPole and HalfCheetah), as much as a CartPole step costs.
    """

    def __init__(self, envs: Sequence[SeededEpisodes]) -> None:
        self.envs = envs
        shape = envs[0].observation_space.shape
        assert shape is not None  # describe_env has refused everything but flat boxes
        self._shape = (len(envs), *shape)

    def reset(self) -> FloatArray:
        """Start an episode in each."""
        return np.array([env.reset()[0] for env in self.envs], dtype=np.float32)

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Step each, resetting those whose episode ended."""
        count = len(self.envs)
        next_obs = np.empty(self._shape, dtype=np.float32)
        rewards = np.empty(count, dtype=np.float32)
        terminated, truncated = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        for index, env in enumerate(self.envs):
            next_obs[index], rewards[index], terminated[index], truncated[index], _ = env.step(actions[index])
        obs = next_obs
        ended = terminated | truncated
        if ended.any():
            obs = next_obs.copy()
            for index in np.flatnonzero(ended).tolist():
                obs[index] = self.envs[index].reset()[0]
        return VectorStep(obs, next_obs, rewards, terminated, truncated)

    def episode_states(self) -> list[EpisodeState]:
        """Where each stands."""
        return [env.episode_state() for env in self.envs]

    def restore(self, states: Sequence[EpisodeState]) -> FloatArray:
        """Bring each back to where it stood; returns the observations reached."""
        return np.array([env.restore(state) for env, state in zip(self.envs, states, strict=True)], dtype=np.float32)

    def close(self) -> None:
        """Let go of resources."""
        for env in self.envs:
            env.close()


class AsyncEnvs:
    """Environments in one process each: worth it when a step takes longer than about a millisecond."""

    def __init__(self, makers: Sequence[Callable[[], SeededEpisodes]]) -> None:
        # spawn, not fork: forking a process that has torch threads may deadlock
        self.envs = gym.vector.AsyncVectorEnv(list(makers), context="spawn", autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

    def reset(self) -> FloatArray:
        """Start an episode in each."""
        return np.asarray(self.envs.reset()[0], dtype=np.float32)

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Step each, resetting those whose episode ended."""
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        obs = np.asarray(observations, dtype=np.float32)
        next_obs = obs
        ended = terminated | truncated
        if ended.any():
            next_obs = obs.copy()
            for index in np.flatnonzero(ended):
                next_obs[index] = infos["final_obs"][index]
        return VectorStep(obs, next_obs, rewards.astype(np.float32), terminated, truncated)

    def episode_states(self) -> list[EpisodeState]:
        """Where each stands."""
        return list(self.envs.call("episode_state"))

    def restore(self, states: Sequence[EpisodeState]) -> FloatArray:
        """Bring each back to where it stood; returns the observations reached."""
        return np.array(self.envs.call("restore_from", list(states)), dtype=np.float32)

    def close(self) -> None:
        """Let go of resources; a worker that is busy or does not answer is killed."""
        try:
            if self.envs._state is AsyncState.DEFAULT:  # else interrupted in the middle of a step
                self.envs.close()
        except (OSError, EOFError) as error:  # a worker is gone already
            logger.warning("An environment's process had ended by itself (%s)", type(error).__name__)
        finally:
            self.envs.closed = True  # whatever is left of it, it is not to be closed again when it is collected
            for process in self.envs.processes:
                process.kill()
                process.join()
