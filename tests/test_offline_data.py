"""Settings of a run's data that look at whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_config

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.offline_data import load_dataset
from rl_training.types import ConfigError, DataError, EnvSpec

SPEC = EnvSpec("Pendulum-v1", (3,), "continuous", (1,), "float32", (-2.0,), (2.0,))


def data_file(directory: Path, rewards: list[float], ends: list[int]) -> Path:
    """Rows whose rewards and episode ends are given, all cut by a limit, next observations included."""
    count = len(rewards)
    timeouts = np.zeros(count, dtype=bool)
    timeouts[ends] = True
    path = directory / "data.npz"
    obs = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    np.savez(
        path,
        observations=obs,
        next_observations=obs + 0.5,
        actions=np.zeros((count, 1), dtype=np.float32),
        rewards=np.asarray(rewards, dtype=np.float32),
        terminals=np.zeros(count, dtype=bool),
        timeouts=timeouts,
    )
    return path


def config_for(path: Path, tmp_path: Path, **changes: Any) -> TrainConfig:
    dataset = {"kind": "npz", "path": str(path), "normalize_rewards": True}
    return tiny_config("iql", tmp_path, dataset=dataset, **changes)


def test_rewards_are_scaled_by_the_range_of_returns(tmp_path: Path) -> None:
    # returns 1 + 2 = 3, 5 and -1 + -1 = -2: range 7
    path = data_file(tmp_path, [1, 2, 5, -1, -1], [1, 2, 4])
    plain = load_dataset(config_for(path, tmp_path), SPEC, None).rewards  # type: ignore[union-attr]
    np.testing.assert_allclose(plain.numpy(), np.array([1, 2, 5, -1, -1]) * 1000 / 7, rtol=1e-6)
    scaled = load_dataset(config_for(path, tmp_path, reward={"scale": 0.5, "shift": 1.0}), SPEC, None).rewards  # type: ignore[union-attr]
    np.testing.assert_allclose(scaled.numpy(), np.array([1, 2, 5, -1, -1]) * 500 / 7 + 1, rtol=1e-6)


@pytest.mark.parametrize(("rewards", "ends", "message"), [([1, 2], [1], "fewer than two"), ([1, 1, 2], [1, 2], "same return")])
def test_rewards_that_cannot_be_scaled(rewards: list[float], ends: list[int], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(config_for(data_file(tmp_path, rewards, ends), tmp_path), SPEC, None)


def test_a_file_with_returns_to_go_can_be_trained_on(tmp_path: Path) -> None:
    path = data_file(tmp_path, [1, 2, 5], [1, 2])
    with np.load(path) as columns:
        np.savez(tmp_path / "with_returns.npz", **columns, returns_to_go=np.array([3, 2, 5], dtype=np.float32))
    plain = {"kind": "npz", "path": str(tmp_path / "with_returns.npz")}
    dataset = load_dataset(tiny_config("iql", tmp_path, dataset=plain), SPEC, None)
    assert "returns_to_go" in dataset.sample(4)
    with pytest.raises(DataError, match="would not belong"):
        load_dataset(tiny_config("iql", tmp_path, dataset=plain, reward={"scale": 2.0}), SPEC, None)


def test_a_mixture_has_no_episodes_to_scale_by(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="normalize_rewards"):
        tiny_config("iql", tmp_path, dataset={"kind": "mix", "parts": [{"kind": "random"}], "normalize_rewards": True})
