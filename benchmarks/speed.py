"""Updates and environment steps per second on this machine, for every registered online algorithm.

python benchmarks/speed.py [--threads N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch

from rl_training.data import ReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training import train
from rl_training.types import EnvSpec


def task(discrete: bool) -> EnvSpec:
    """HalfCheetah's sizes, or CartPole's."""
    if discrete:
        return EnvSpec("CartPole-v1", (4,), "discrete", (), "int64", num_actions=2)
    return EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)


def updates_per_second(algo: str, seconds: float) -> float:
    """The bare update, sampling included."""
    spec = get_algorithm_spec(algo)
    env_spec = task(spec.actions == "discrete")
    hyperparameters = spec.hyperparameters()
    learner = spec.build(env_spec, hyperparameters)
    buffer = ReplayBuffer(20_000, env_spec.obs_dim, env_spec.action_dim, action_kind=env_spec.action_kind)
    shape = (20_000, env_spec.obs_dim)
    actions = torch.randint(2, (20_000,)) if env_spec.action_kind == "discrete" else torch.rand(20_000, 6) * 2 - 1
    buffer.add(torch.randn(shape), actions, torch.randn(20_000), torch.randn(shape), torch.zeros(20_000))
    for _ in range(20):
        learner.update(buffer.sample(hyperparameters.batch_size))
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        learner.update(buffer.sample(hyperparameters.batch_size))
        count += 1
    return count / (time.perf_counter() - started)


class Stopwatch(Callback):
    """Times the steps after the warm-up."""

    def __init__(self, skip: int) -> None:
        self.skip, self.started, self.ended, self.steps = skip, 0.0, 0.0, 0

    def on_collect_end(self, trainer: object, result: object) -> None:
        step = trainer.global_step  # type: ignore[attr-defined]
        if step == self.skip:
            self.started = time.perf_counter()
        self.ended, self.steps = time.perf_counter(), step - self.skip


def steps_per_second(algo: str, threads: int) -> float:
    """The whole training loop, one update a step."""
    discrete = get_algorithm_spec(algo).actions == "discrete"
    watch = Stopwatch(skip=200)
    with tempfile.TemporaryDirectory() as directory:
        config = TrainConfig(
            algo=algo,
            env_id=task(discrete).env_id,
            total_timesteps=800,
            eval_episodes=0,
            tensorboard=False,
            torch_threads=threads,
            output_dir=directory,  # type: ignore[arg-type]
            algo_kwargs={"learning_starts": 150, "train_frequency": 1, "gradient_updates_per_step": 1},
        )
        train(config, callbacks=[watch])
    return watch.steps / (watch.ended - watch.started)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = [name for name in list_algorithms() if get_algorithm_spec(name).loop == "online"]
    updates: dict[str, list[float]] = {name: [] for name in names}
    steps: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):  # interleaved, so that a slow minute of the machine hits everyone
        for name in names:
            updates[name].append(updates_per_second(name, 3.0))
            steps[name].append(steps_per_second(name, arguments.threads))
    print(
        f"\nmedian of {arguments.rounds} rounds, {arguments.threads} thread(s), each algorithm's default networks and batch\n"
    )
    print("| algorithm | updates/s | training steps/s (one update each) |\n|---|---|---|")
    for name in names:
        print(f"| {name} | {statistics.median(updates[name]):.0f} | {statistics.median(steps[name]):.0f} |")


if __name__ == "__main__":
    main()
