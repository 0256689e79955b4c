"""Evaluate, predict and resume from a checkpoint, for every algorithm."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from support import ALGORITHMS, tiny_config

from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.types import CheckpointError, ConfigError, DataError


@pytest.fixture(scope="module", params=ALGORITHMS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(request.param, tmp_path_factory.mktemp("run"))).run_dir


def env_of(run: Path) -> gym.Env[object, object]:
    return gym.make("CartPole-v1" if run.name.startswith("dqn") else "Pendulum-v1")


def test_evaluation_is_the_runs_own_and_repeatable(run: Path) -> None:
    metrics = evaluate_checkpoint(run, num_episodes=1)
    assert {"eval_return_mean", "eval_return_std", "eval_episodes", "global_step"} <= metrics.keys()
    assert evaluate_checkpoint(run, num_episodes=1) == metrics
    logged = (run / "evaluations.csv").read_text().splitlines()[-1].split(",")
    assert float(logged[3]) == metrics["eval_return_mean"]
    other = evaluate_checkpoint(run, num_episodes=2, seed=1234)
    assert other["eval_episodes"] == 2
    assert other["eval_return_mean"] != metrics["eval_return_mean"]


def test_prediction_is_a_valid_action(run: Path) -> None:
    env = env_of(run)
    obs, _ = env.reset(seed=0)
    action = predict_checkpoint(run, obs)
    assert env.action_space.contains(action)
    assert np.array_equal(action, predict_checkpoint(run, np.asarray(obs).tolist()))
    batch = predict_checkpoint(run, np.stack([obs, obs, obs]))
    assert batch.shape == (3, *(env.action_space.shape or ()))
    assert batch.dtype == env.action_space.dtype
    assert all(env.action_space.contains(row) for row in batch)
    env.step(action)


@pytest.mark.parametrize("obs", [[0.0], [[0.0, 0.0]], 3.0, [], [[[0.0] * 3]]])
def test_wrong_shapes_say_expected_and_given(run: Path, obs: object) -> None:
    size = env_of(run).observation_space.shape
    with pytest.raises(DataError, match=rf"shape \({np.shape(obs)[0] if np.shape(obs) else ''}.*expected \({size[0]},\)"):  # type: ignore[index, arg-type, call-overload]
        predict_checkpoint(run, obs)  # type: ignore[arg-type]


@pytest.mark.parametrize("obs", ["text", [None, 1, 2], {"a": 1}, [[1], [1, 2]]])
def test_observations_that_are_no_numbers(run: Path, obs: object) -> None:
    with pytest.raises(DataError):
        predict_checkpoint(run, obs)  # type: ignore[arg-type]


def test_nan_observation_is_named(run: Path) -> None:
    obs = np.zeros(env_of(run).observation_space.shape or ())
    obs[1] = np.nan
    with pytest.raises(DataError, match="nan at index 1"):
        predict_checkpoint(run, obs)


def test_resume_advances(run: Path) -> None:
    resumed = resume_training(run, total_timesteps=120, run_suffix="longer")
    assert resumed.metrics["global_step"] == 120
    assert resumed.checkpoint_path is not None
    assert resumed.checkpoint_path.is_dir()


def test_resuming_to_less_than_there_is(run: Path) -> None:
    with pytest.raises(ConfigError, match="total_timesteps must be >= 96"):
        resume_training(run, total_timesteps=50)


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    result = resume_training(run)
    assert result.metrics["global_step"] == 96
    assert (run / "metrics.jsonl").read_text() == before


def test_zero_episodes(run: Path) -> None:
    with pytest.raises(ConfigError, match="num_episodes must be >= 1, got 0"):
        evaluate_checkpoint(run, 0)


def test_checkpoint_of_another_algorithm(run: Path, tmp_path: Path) -> None:
    other = next(name for name in ALGORITHMS if name != run.name.split("__")[0])
    with pytest.raises(CheckpointError, match=f"not of {other}"):
        train(tiny_config(other, tmp_path), checkpoint=run)
