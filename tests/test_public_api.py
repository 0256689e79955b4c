"""Agents as Python objects."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from support import ALGORITHMS, ONLINE, CountingEnv, tiny_config, tiny_settings

import rl_training
from rl_training.algorithms import ALGORITHMS as CLASS_NAMES
from rl_training.types import CheckpointError, ConfigError


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_learn_save_load_predict_evaluate_resume(algo: str, tmp_path: Path) -> None:
    agent_class = getattr(rl_training, CLASS_NAMES[algo])
    agent = agent_class(tiny_config(algo, tmp_path / "runs", total_timesteps=60))
    assert "not trained" in repr(agent)
    result = agent.learn()
    assert result.checkpoint_path.is_dir()
    saved = agent.save(tmp_path / "exports" / "agent")
    assert saved.exists()
    loaded = agent_class.load(saved)
    obs = np.zeros(4 if loaded.config.env_id == "CartPole-v1" else 3)
    assert np.array_equal(loaded.predict(obs), agent.predict(obs))
    assert {"eval_return_mean", "eval_return_std", "eval_episodes"} <= loaded.evaluate(num_episodes=1).keys()
    if algo == "dqn":
        assert isinstance(agent.predict(obs), int)
    resumed = loaded.resume(total_timesteps=80)
    assert resumed.metrics["global_step"] == 80
    assert agent.learn(total_timesteps=80).metrics["global_step"] == 80  # a second call goes on


@pytest.mark.parametrize("algo", ONLINE)
def test_short_form(algo: str, tmp_path: Path) -> None:
    settings = tiny_settings(algo, tmp_path)
    kwargs = settings.pop("algo_kwargs")
    env_id = settings.pop("env_id")
    del settings["algo"], settings["total_timesteps"]
    agent = getattr(rl_training, CLASS_NAMES[algo])(env_id, **settings, **kwargs)
    assert agent.learn(50).metrics["global_step"] == 50
    assert agent.config.hyperparameters.batch_size == 16


def test_schedules_follow_the_budget_given_to_learn(tmp_path: Path) -> None:
    settings = tiny_settings("dqn", tmp_path)
    kwargs = settings.pop("algo_kwargs")
    del settings["algo"], settings["env_id"], settings["total_timesteps"]
    agent = rl_training.DQN("CartPole-v1", **settings, **kwargs, exploration_fraction=0.5, learning_rate_schedule="linear")
    run_dir = agent.learn(60).run_dir
    config = rl_training.DQN.load(run_dir).config
    assert config.algo_kwargs["exploration_steps"] == 30
    assert config.learning_rate_schedule.horizon == 60


def test_environment_factories(tmp_path: Path) -> None:
    settings = {key: value for key, value in tiny_settings("sac", tmp_path).items() if key not in ("algo", "env_id")}
    kwargs = settings.pop("algo_kwargs")
    named = rl_training.SAC(CountingEnv, **settings, **kwargs)
    named.learn(50)
    assert named.config.env_id == "support:CountingEnv"  # importable: can be resumed from the command line

    local = rl_training.SAC(lambda: gym.make("Pendulum-v1"), **settings, **kwargs)
    local.learn(50)
    assert local.evaluate(1)["eval_episodes"] == 1
    assert local.learn(60).metrics["global_step"] == 60
    with pytest.raises(ConfigError, match="pass it again as env="):
        rl_training.SAC.load(local.learn(60).run_dir).resume(70)


def test_mistakes(tmp_path: Path) -> None:
    agent = rl_training.SAC(tiny_config("sac", tmp_path))
    for use in (lambda: agent.predict([0.0] * 3), lambda: agent.evaluate(), lambda: agent.save(tmp_path / "x"), agent.resume):
        with pytest.raises(CheckpointError, match="call learn\\(\\) or load\\(\\) first"):
            use()
    with pytest.raises(ConfigError, match="beside one"):
        rl_training.SAC(tiny_config("sac", tmp_path), seed=3)
    with pytest.raises(ConfigError, match=r"did you mean 'algo_kwargs\.buffer_capacity'"):
        rl_training.SAC("Pendulum-v1", buffer_size=10)
    (tmp_path / "taken").mkdir()
    agent.learn()
    with pytest.raises(CheckpointError, match="exists already"):
        agent.save(tmp_path / "taken")
