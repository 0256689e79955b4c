"""What several tests need: tiny configurations, comparison of runs, odd environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms
from rl_training.types import EnvSpec

ALGORITHMS = list_algorithms()
ONLINE = [name for name in ALGORITHMS if get_algorithm_spec(name).loop == "online"]
REPOSITORY = Path(__file__).resolve().parents[1]

TINY_KWARGS: dict[str, Any] = {"batch_size": 16, "hidden_sizes": [16, 16]}
TINY_EXTRA: dict[str, dict[str, Any]] = {"redq": {"gradient_updates_per_step": 2}, "cql": {"num_cql_samples": 2}}
TINY_ONLINE: dict[str, Any] = {"buffer_capacity": 512, "learning_starts": 32}


def tiny_settings(algo: str, output_dir: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run that takes a second: small networks, few steps, one evaluation episode."""
    spec = get_algorithm_spec(algo)
    online = TINY_ONLINE if spec.loop == "online" else {}
    kwargs = {**TINY_KWARGS, **online, **TINY_EXTRA.get(algo, {}), **changes.pop("algo_kwargs", {})}
    data = {} if spec.loop == "online" else {"dataset": {"kind": "random", "size": 256, "seed": 3}}
    return {
        "algo": algo,
        "env_id": "Pendulum-v1" if spec.actions == "continuous" else "CartPole-v1",
        "seed": 7,
        "total_timesteps": 96,
        "eval_episodes": 1,
        "eval_interval": 40,
        "checkpoint_interval": 30,
        "log_interval": 20,
        "tensorboard": False,
        "torch_threads": 1,
        "output_dir": str(output_dir),
        **data,
        **changes,
        "algo_kwargs": kwargs,
    }


def tiny_config(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**tiny_settings(algo, output_dir, **changes))


def tiny_spec(algo: str) -> EnvSpec:
    """A made-up task for learners without an environment."""
    if get_algorithm_spec(algo).actions == "discrete":
        return EnvSpec("made-up", (3,), "discrete", (), "int64", num_actions=2)
    return EnvSpec("made-up", (3,), "continuous", (2,), "float32", (-1.0, -2.0), (1.0, 2.0))


def random_batch(algo: str, rows: int = 16, *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    discrete = get_algorithm_spec(algo).actions == "discrete"
    actions = torch.randint(2, (rows,), generator=generator) if discrete else normal(rows, 2).clamp(-1, 1)
    return {
        "obs": normal(rows, 3),
        "actions": actions,
        "rewards": normal(rows),
        "next_obs": normal(rows, 3),
        "dones": (normal(rows) > 1).float(),
    }


def metric_rows(run_dir: Path) -> list[dict[str, float]]:
    """Rows of metrics.jsonl without the wall-clock ones."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def newest_checkpoint(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()


def assert_same_run(first: Path, second: Path) -> None:
    """Two finished runs are the same to the bit: every tensor of the checkpoint, every number of the logs."""
    one, two = newest_checkpoint(first), newest_checkpoint(second)
    assert one.name == two.name
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir())
    for part in (path.stem for path in one.glob("*.safetensors")):
        left, right = load_file(one / f"{part}.safetensors"), load_file(two / f"{part}.safetensors")
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].dtype == right[name].dtype
            assert torch.equal(left[name], right[name]), f"{part}: {name}"
    assert metric_rows(first) == metric_rows(second)
    assert (first / "evaluations.csv").read_bytes() == (second / "evaluations.csv").read_bytes()
    left, right = (json.loads((path / "manifest.json").read_text()) for path in (one, two))
    for key in ("source", "counters", "latest_metrics", "evaluation", "callbacks"):
        assert left[key] == right[key], key


class CountingEnv(gym.Env[Any, Any]):
    """Counts its steps: observation t after step t, reward 1, and an end after ``limit`` steps of the asked-for kind."""

    def __init__(self, limit: int = 3, ends: str = "truncated", noise: float = 0.0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.limit, self.ends, self.noise = limit, ends, noise
        self.t, self.episode = 0, -1

    def _obs(self) -> Any:
        wobble = self.noise * np.random.random()
        return np.array([self.t + wobble, self.episode], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        end = self.t >= self.limit
        return self._obs(), 1.0, end and self.ends in ("terminated", "both"), end and self.ends in ("truncated", "both"), {}


class OddSpaces(gym.Env[Any, Any]):
    """An environment whose only job is to have the given spaces."""

    def __init__(self, observation: str = "vector", action: str = "box") -> None:
        vector = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = {
            "vector": vector,
            "dict": gym.spaces.Dict({"a": vector}),
            "image": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "discrete": gym.spaces.Discrete(3),
        }[observation]
        self.action_space = {
            "box": vector,
            "unbounded": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32),
            "discrete": gym.spaces.Discrete(3),
            "multi": gym.spaces.MultiDiscrete([2, 2]),
        }[action]


class NanEnv(CountingEnv):
    """Gives a NaN observation at its fourth step."""

    def _obs(self) -> Any:
        return np.array([np.nan if self.t == 4 else self.t, 0], dtype=np.float32)


def not_an_env() -> int:
    return 3


class ConstantEnv(CountingEnv):
    """Always the same observation; every episode is one step."""

    def __init__(self, ends: str = "truncated") -> None:
        super().__init__(limit=1, ends=ends)

    def _obs(self) -> Any:
        return np.zeros(2, dtype=np.float32)
