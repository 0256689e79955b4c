"""The Python surface as a newcomer meets it: short constructors, environments in every form, results that print and plot."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training import BC, SAC
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.trainer import TrainResult
from rl_training.types import ConfigError

TINY = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 8, "eval_episodes": 1, "eval_interval": 10, "log_interval": 5}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return SAC("Pendulum-v1", output_dir=tmp_path_factory.mktemp("runs"), **TINY).learn(20)


def test_an_environment_may_be_an_instance(tmp_path: Path) -> None:
    env = gym.wrappers.TimeLimit(gym.make("Pendulum-v1", g=9.0), 50)
    agent = SAC(env, output_dir=tmp_path, **TINY)
    agent.learn(20)
    assert agent.evaluate(1)["eval_length_mean"] == 50
    assert "Pendulum" in repr(agent)


def test_an_instance_that_cannot_be_made_again_is_refused() -> None:
    class Own(gym.Env[np.ndarray, np.ndarray]):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    with pytest.raises(ConfigError, match="pass a function"):
        SAC(Own())


def test_arguments_of_other_libraries_are_answered_with_the_name_to_use() -> None:
    with pytest.raises(ConfigError, match=r"no policy argument.*hidden_sizes"):
        SAC("MlpPolicy", "Pendulum-v1")
    for theirs, ours in {"buffer_size": "buffer_capacity", "train_freq": "train_frequency", "verbose": "progress_bar"}.items():
        with pytest.raises(ConfigError, match=ours):
            SAC("Pendulum-v1", **{theirs: 1})


def test_a_result_prints_its_score_steps_and_place(result: TrainResult) -> None:
    lines = str(result).splitlines()
    assert lines[0].startswith(f"score       {result.metrics['eval_return_mean']:.1f} +/- ")
    assert lines[1] == "steps       20"
    assert lines[2] == f"run         {result.run_dir}"


def test_a_result_plots_what_was_logged(result: TrainResult) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    axes = result.plot()
    [line] = axes.lines
    assert [int(step) for step in line.get_xdata()] == [10, 20]
    assert list(line.get_ydata()) == [value for _, value in result.curve()]
    assert result.plot("train/critic_loss", ax=axes) is axes
    assert len(axes.lines) == 2
    with pytest.raises(ConfigError, match=r"has not logged 'nonsense'; it has .*eval/mean_reward"):
        result.plot("nonsense")


def test_a_progress_bar_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SAC("Pendulum-v1", output_dir=tmp_path, **TINY).learn(20, progress_bar=True)
    assert "20" in capsys.readouterr().err


def test_a_dataset_may_be_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"obs": rng.normal(size=(64, 3)), "next_obs": rng.normal(size=(64, 3)), "actions": rng.uniform(-1, 1, (64, 1))}
    dataset = TransitionDataset.from_dict({**columns, "rewards": np.zeros(64), "dones": np.zeros(64)})
    settings = {"hidden_sizes": [8], "batch_size": 8, "output_dir": tmp_path}
    agent = BC(dataset=dataset, **settings)
    agent.learn(5)
    assert agent.learn(8).metrics["global_step"] == 8
    assert agent.predict(np.zeros(3)).shape == (1,)
    with pytest.raises(ConfigError, match="no use for a dataset"):
        SAC("Pendulum-v1", dataset=dataset, **settings).learn(5)
