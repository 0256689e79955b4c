"""The border to Gymnasium: spaces, scaling, seeding, autoreset, exact restore."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support import CountingEnv, OddSpaces, not_an_env

from rl_training.envs.factory import env_name, make_env, make_vector_env
from rl_training.envs.spec import ActionScaler, describe_env, require_actions
from rl_training.seeding import stream_seed
from rl_training.types import ConfigError, EnvSpec


def spec_of(env: gym.Env[Any, Any]) -> EnvSpec:
    return describe_env("test", env.observation_space, env.action_space)


def test_spec_of_pendulum_and_cartpole() -> None:
    pendulum = spec_of(gym.make("Pendulum-v1"))
    assert (pendulum.obs_dim, pendulum.action_dim, pendulum.action_low, pendulum.action_high) == (3, 1, (-2.0,), (2.0,))
    cartpole = spec_of(gym.make("CartPole-v1"))
    assert (cartpole.action_kind, cartpole.num_actions, cartpole.action_dim) == ("discrete", 2, 1)
    assert EnvSpec.from_dict(pendulum.to_dict()) == pendulum


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"observation": "dict"}, "observation space .* not supported.*FlattenObservation"),
        ({"observation": "image"}, "observation space .* not supported"),
        ({"observation": "discrete"}, "observation space .* not supported"),
        ({"action": "unbounded"}, "unbounded.*RescaleAction"),
        ({"action": "multi"}, "action space .* not supported"),
    ],
)
def test_unsupported_spaces_say_what_to_do(spaces: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(OddSpaces(**spaces))


def test_kind_of_actions_must_fit_the_algorithm() -> None:
    with pytest.raises(ConfigError, match="'sac' needs Box actions, but test has Discrete actions; dqn"):
        require_actions(spec_of(OddSpaces(action="discrete")), "continuous", "sac")


def test_scaling_is_per_dimension_and_invertible() -> None:
    scaler = ActionScaler(EnvSpec("x", (1,), "continuous", (2,), "float32", (-2.0, 0.0), (2.0, 10.0)))
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], dtype=np.float32)
    scaled = scaler.to_env(actions)
    assert scaled.tolist() == [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [1.0, 2.5]]
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaler.from_env(scaled), actions, atol=1e-6)
    assert scaler.to_env(np.array([[7.0, -7.0]])).tolist() == [[2.0, 0.0]]  # never outside the bounds


def test_scaled_actions_are_inside_awkward_float32_bounds() -> None:
    space = gym.spaces.Box(np.float32(-0.1), np.float32(0.7), (3,), np.float32)
    scaler = ActionScaler(describe_env("x", gym.spaces.Box(-1, 1, (1,)), space))
    for value in (-1.0, 1.0, np.nextafter(np.float32(1), np.float32(0))):
        assert space.contains(scaler.to_env(np.full((1, 3), value, dtype=np.float32))[0])


def test_discrete_scaling_respects_the_start() -> None:
    spec = describe_env("x", gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3, start=-1))
    assert ActionScaler(spec).to_env(np.array([0, 2])).tolist() == [-1, 1]
    assert ActionScaler(spec).from_env(np.array([-1, 1])).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("source", "kwargs", "message"),
    [
        ("Nope-v0", None, "'Nope-v0' cannot be made"),
        ("Pendulum-v9", None, "Pendulum-v9"),
        ("Pendulum-v1", {"nonsense": 1}, "does not take env_kwargs.*nonsense"),
        ("no_such_module:make", None, "no module 'no_such_module'"),
        ("support:no_such_function", None, "has no 'no_such_function'"),
        ("support:not_an_env", None, "must return a gymnasium.Env, got int"),
        ("support:REPOSITORY", None, "must be a function"),
        (not_an_env, None, "must return a gymnasium.Env"),
    ],
)
def test_impossible_environments_are_config_errors(source: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(source, kwargs)


def test_environments_by_callable_and_factory() -> None:
    assert isinstance(make_env("support:CountingEnv", {"limit": 5}), CountingEnv)
    assert make_env(partial(CountingEnv, limit=4)).limit == 4  # type: ignore[attr-defined]
    assert env_name(CountingEnv) == "support:CountingEnv"
    assert env_name(lambda: CountingEnv()).startswith("python:")


@pytest.mark.parametrize("ends", ["truncated", "terminated", "both"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_autoreset_keeps_the_real_last_observation(ends: str, num_envs: int) -> None:
    envs = make_vector_env(CountingEnv, {"limit": 3, "ends": ends}, num_envs=num_envs, seed=0, asynchronous=False)
    envs.reset()
    actions = np.zeros((num_envs, 1), dtype=np.float32)
    steps = [envs.step(actions) for _ in range(4)]
    assert [step.next_obs[0, 0] for step in steps] == [1, 2, 3, 1]
    assert [step.obs[0, 0] for step in steps] == [1, 2, 0, 1]
    assert all((step.terminated == (ends != "truncated")).all() for step in steps[2:3])
    assert all((step.truncated == (ends != "terminated")).all() for step in steps[2:3])


def test_every_episode_of_every_environment_has_its_own_seed() -> None:
    def first_obs(seed: int) -> np.ndarray:
        envs = make_vector_env("Pendulum-v1", num_envs=3, seed=seed, asynchronous=False)
        obs = [envs.reset()]
        for _ in range(400):
            step = envs.step(np.zeros((3, 1), dtype=np.float32))
            if step.truncated.any():
                obs.append(step.obs)
        return np.concatenate(obs)

    one, same, other = first_obs(1), first_obs(1), first_obs(2)
    assert len(np.unique(one, axis=0)) == len(one) == 9
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_streams_do_not_collide() -> None:
    seeds = {stream_seed(1, "episode", env, episode) for env in range(10) for episode in range(100)}
    seeds |= {stream_seed(1, "evaluate", episode) for episode in range(100)}
    assert len(seeds) == 1100


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "Hopper-v5"])
def test_an_episode_can_be_restored_in_its_middle(env_id: str) -> None:
    def make() -> Any:
        return make_vector_env(env_id, num_envs=2, seed=3, asynchronous=False)

    envs = make()
    envs.reset()
    space = gym.vector.utils.batch_space(make_env(env_id).action_space, 2)
    space.seed(0)
    for _ in range(57):
        last = envs.step(space.sample())
    restored = make()
    assert np.array_equal(restored.restore(envs.episode_states()), last.obs)
    for _ in range(30):
        action = space.sample()
        one, two = envs.step(action), restored.step(action)
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_asynchronous_environments_do_the_same_as_synchronous_ones() -> None:
    steps = []
    for asynchronous in (False, True):
        envs = make_vector_env("Pendulum-v1", num_envs=2, seed=5, asynchronous=asynchronous)
        obs = [envs.reset()]
        for t in range(203):
            step = envs.step(np.full((2, 1), np.sin(t), dtype=np.float32))
            obs += [step.obs, step.next_obs, step.rewards, step.truncated]
        states = envs.episode_states()
        assert [state.episode for state in states] == [1, 1]
        assert np.array_equal(envs.restore(states), step.obs)
        envs.close()
        steps.append(obs)
    assert all(np.array_equal(a, b) for a, b in zip(*steps, strict=True))
