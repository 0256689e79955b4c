"""This package as a contestant; see gate.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gate import Gate, gate_of, job

from rl_training.data import ReplayBuffer
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training import train
from rl_training.types import EnvSpec

FOREVER = 10**9
CHEETAH = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
CARTPOLE = EnvSpec("CartPole-v1", (4,), "discrete", (), "int64", num_actions=2)


class Ticking(Callback):
    """Ticks after every environment step, or after every update."""

    def __init__(self, gate: Gate, *, online: bool) -> None:
        self.gate, self.online = gate, online

    def on_collect_end(self, trainer: object, result: object) -> None:
        if self.online:
            self.gate.tick()

    def on_update_end(self, trainer: object, result: object) -> None:
        if not self.online:
            self.gate.tick()


def random_columns(rows: int) -> dict[str, np.ndarray]:
    """Transitions of HalfCheetah's sizes."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((rows, 17), dtype=np.float32),
        "actions": rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "next_obs": rng.standard_normal((rows, 17), dtype=np.float32),
        "dones": np.zeros(rows, dtype=np.float32),
        "next_actions": rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
    }


def whole_loop(work: dict[str, Any], gate: Gate) -> None:
    """The training command as users run it: environment or dataset, learner, logging."""
    spec = get_algorithm_spec(work["algo"])
    online = spec.loop == "online"
    with tempfile.TemporaryDirectory() as directory:
        config = TrainConfig(
            algo=work["algo"],
            env_id=work["env_id"],
            total_timesteps=FOREVER,
            eval_episodes=0,
            tensorboard=False,
            checkpoint_interval=None,
            torch_threads=work["threads"],
            num_envs=work.get("num_envs", 1),
            output_dir=Path(directory),
            algo_kwargs=work["settings"],
        )
        dataset = None if online else TransitionDataset.from_dict(random_columns(100_000))
        train(config, callbacks=[Ticking(gate, online=online)], dataset=dataset)


def pure_update(work: dict[str, Any], gate: Gate) -> None:
    """Sampling and updating, without environment and loop."""
    torch.set_num_threads(work["threads"])
    spec = get_algorithm_spec(work["algo"])
    task = CARTPOLE if spec.actions == "discrete" else CHEETAH
    hyperparameters = spec.hyperparameters(**work["settings"])
    learner = spec.build(task, hyperparameters)
    rows = work.get("rows", 100_000)
    buffer = ReplayBuffer(rows, task.obs_dim, task.action_dim, action_kind=task.action_kind)
    for start in range(0, rows, 100_000):
        count = min(100_000, rows - start)
        obs, next_obs = torch.randn(count, task.obs_dim), torch.randn(count, task.obs_dim)
        discrete = task.action_kind == "discrete"
        actions = torch.randint(2, (count,)) if discrete else torch.rand(count, task.action_dim) * 2 - 1
        buffer.add(obs, actions, torch.randn(count), next_obs, torch.zeros(count))
    while True:
        learner.update(buffer.sample(hyperparameters.batch_size))
        gate.tick()


if __name__ == "__main__":
    given = job()
    {"loop": whole_loop, "update": pure_update}[given["what"]](given, gate_of(given))
