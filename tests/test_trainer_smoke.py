"""Every ``train_<name>`` from a configuration to a usable run directory."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from support import ALGORITHMS, metric_rows, tiny_config

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.training import TrainFunction, train
from rl_training.types import ConfigError, NumericsError


def train_function(algo: str) -> TrainFunction:
    function: TrainFunction = getattr(import_module(f"rl_training.runtime.{algo}_trainer"), f"train_{algo}")
    return function


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_run_directory(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path, tensorboard=True)
    result = train_function(algo)(config, run_suffix="smoke")
    assert result.run_dir.parent == tmp_path.absolute()
    assert result.run_dir.name.startswith(f"{algo}__{config.env_id}__seed7__")
    assert result.run_dir.name.endswith("__smoke")
    assert result.checkpoint_path is not None
    assert result.checkpoint_path.is_dir()
    assert {"global_step", "eval_return_mean", "eval_return_std", "eval_episodes", "learning_rate"} <= result.metrics.keys()
    resolved = TrainConfig(**yaml.safe_load((result.run_dir / "config.yaml").read_text()))
    assert resolved.hyperparameters == config.resolved().hyperparameters
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["status"] == "finished"
    assert metadata["torch_threads"] == 1
    assert metadata["versions"]["torch"]
    assert list((result.run_dir / "tensorboard").glob("events*"))
    assert (result.run_dir / "checkpoints" / "best").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_same_config_same_bits(algo: str, tmp_path: Path) -> None:
    one, two = (train(tiny_config(algo, tmp_path)) for _ in range(2))
    assert one.run_dir != two.run_dir
    assert metric_rows(one.run_dir) == metric_rows(two.run_dir)
    other = train(tiny_config(algo, tmp_path, seed=8))
    assert metric_rows(one.run_dir) != metric_rows(other.run_dir)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_evaluation_does_not_disturb_training(algo: str, tmp_path: Path) -> None:
    often, never = (train(tiny_config(algo, tmp_path, eval_interval=interval)) for interval in (7, None))
    name = "loss" if "loss" in often.metrics else "bc_loss" if algo == "bc" else "critic_loss"
    assert often.metrics[name] == never.metrics[name]


def test_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    from rl_training.runtime.training import train_function as make

    with pytest.raises(ConfigError, match="train_td3 was given a configuration with algo 'sac'"):
        make("td3")(tiny_config("sac", tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"env_id": "Nope-v0"},
        {"env_id": "support:OddSpaces", "env_kwargs": {"observation": "dict"}},
        {"env_id": "support:OddSpaces", "env_kwargs": {"action": "unbounded"}},
        {"env_id": "CartPole-v1"},
        {"device": "cuda"},
        {"algo_kwargs": {"buffer_capacity": 10**15}},
    ],
)
def test_a_run_that_cannot_start_leaves_nothing(change: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(tiny_config("sac", tmp_path / "out", **change))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_unwritable_output_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"output_dir .*file.* cannot be written"):
        train(tiny_config("sac", tmp_path / "file"))


def test_non_finite_observation_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match=r"obs\[0\] of environment 0 became nan at step 3"):
        train(tiny_config("sac", tmp_path, env_id="support:NanEnv", env_kwargs={"limit": 10}))
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "failed"


def test_non_finite_loss_stops_the_run_and_is_saved(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match=r"critic_loss became (inf|nan) at step \d+") as caught:
        train(tiny_config("sac", tmp_path, reward={"scale": 1e30}))
    (run_dir,) = tmp_path.iterdir()
    (dump,) = run_dir.glob("nonfinite_step_*")
    assert str(dump) in str(caught.value)
    assert {path.name for path in dump.iterdir()} == {"report.json", "batch.safetensors", "weights.safetensors"}


def test_thread_count_is_set_and_put_back(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    train(tiny_config("sac", tmp_path, torch_threads=before + 1, total_timesteps=40))
    assert torch.get_num_threads() == before
