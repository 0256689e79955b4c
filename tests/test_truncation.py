"""A time limit is not a termination: what is stored, and what is learnt from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ALGORITHMS, CountingEnv, newest_checkpoint, tiny_config

from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.training import train

CONTINUOUS_ONLINE = [
    name
    for name in ALGORITHMS
    if get_algorithm_spec(name).loop == "online" and get_algorithm_spec(name).actions == "continuous"
]


def stored_rows(run_dir: Path) -> dict[str, torch.Tensor]:
    """Columns of the replay: obs(2) | action(1) | reward | terminated | next_obs(2)."""
    rows = load_file(newest_checkpoint(run_dir) / "replay.safetensors")["rows"]
    return {"obs": rows[:, :2], "reward": rows[:, 3], "done": rows[:, 4], "next_obs": rows[:, 5:7]}


@pytest.mark.parametrize("algo", CONTINUOUS_ONLINE)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("ends", ["truncated", "terminated", "both"])
def test_stored_dones_and_next_observations(algo: str, num_envs: int, ends: str, tmp_path: Path) -> None:
    config = tiny_config(
        algo,
        tmp_path,
        env_id="support:CountingEnv",
        env_kwargs={"limit": 4, "ends": ends},
        num_envs=num_envs,
        total_timesteps=60,
    )
    stored = stored_rows(train(config).run_dir)
    assert len(stored["done"]) == 60
    assert torch.equal(stored["next_obs"][:, 0], stored["obs"][:, 0] + 1)  # the observation before the reset
    assert torch.equal(stored["next_obs"][:, 1], stored["obs"][:, 1])  # of the same episode
    last_steps = stored["next_obs"][:, 0] == 4
    assert last_steps.any()
    assert torch.equal(stored["done"], last_steps.float() * (ends != "truncated"))


@pytest.mark.parametrize(("ends", "value"), [("truncated", 2.0), ("terminated", 1.0)])
def test_value_of_a_one_step_task(ends: str, value: float, tmp_path: Path) -> None:
    """Reward 1 a step, one step an episode, gamma 0.5. Cut by a time limit the value is 1/(1 - 0.5); terminated, it is 1."""
    config = tiny_config(
        "sac",
        tmp_path,
        env_id="support:ConstantEnv",
        env_kwargs={"ends": ends},
        total_timesteps=600,
        eval_episodes=0,
        algo_kwargs={"gamma": 0.5, "learning_rate": 1e-2, "tau": 0.1, "alpha": 1e-6, "learn_alpha": False},
    )
    assert train(config).metrics["q_mean"] == pytest.approx(value, abs=0.02)


def test_several_environments_keep_the_update_ratio(tmp_path: Path) -> None:
    updates = {}
    for num_envs in (1, 3, 5):
        config = tiny_config(
            "sac",
            tmp_path,
            num_envs=num_envs,
            total_timesteps=100,
            algo_kwargs={"learning_starts": 40, "gradient_updates_per_step": 2},
        )
        result = train(config)
        assert result.metrics["global_step"] == 100  # exactly, also where 3 does not divide it
        updates[num_envs] = result.metrics["update_count"]
    assert updates == {1: 120, 3: 120, 5: 120}


def test_training_every_few_steps(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, total_timesteps=100, algo_kwargs={"learning_starts": 40, "train_frequency": 8})
    assert train(config).metrics["update_count"] == 100 // 8 - 40 // 8


def test_rewards_are_transformed_for_learning_only(tmp_path: Path) -> None:
    config = tiny_config(
        "sac",
        tmp_path,
        env_id="support:CountingEnv",
        env_kwargs={"limit": 5},
        total_timesteps=40,
        reward={"scale": 3.0, "shift": -1.0, "clip_max": 1.5},
    )
    result = train(config)
    assert set(stored_rows(result.run_dir)["reward"].tolist()) == {1.5}
    assert result.metrics["eval_return_mean"] == 5.0  # the task's own rewards


def test_counting_env_is_what_these_tests_think(tmp_path: Path) -> None:
    env = CountingEnv(limit=2)
    assert env.reset()[0].tolist() == [0, 0]
    assert env.step(None)[0].tolist() == [1, 0]
    assert env.step(None)[3] is True
