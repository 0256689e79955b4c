"""Would ``torch.compile`` pay? SAC updates with and without it, in turns, and what the first updates cost.

python benchmarks/experiments/compiled.py            # needs a C++ compiler; some minutes
"""

from __future__ import annotations

import statistics
import time

import torch

from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import Batch, EnvSpec

TASK = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
UPDATES, ROUNDS, FIRST = 40, 9, 5


def seconds(learner: object, batch: Batch, updates: int) -> float:
    """Wall time of so many updates."""
    started = time.perf_counter()
    for _ in range(updates):
        learner.update(batch)  # type: ignore[attr-defined]
    return time.perf_counter() - started


def main() -> None:
    """Print a table."""
    print("| threads | eager, updates/s | compiled, updates/s | ratio | first five updates |\n|---|---|---|---|---|")
    spec = get_algorithm_spec("sac")
    batch = {"obs": torch.randn(256, 17), "actions": torch.rand(256, 6) * 2 - 1, "rewards": torch.randn(256)}
    batch |= {"dones": torch.zeros(256), "next_obs": torch.randn(256, 17)}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        eager, compiled = (spec.build(TASK, spec.hyperparameters()) for _ in range(2))
        for module in (compiled.model.actor, compiled.model.critics, compiled.target_critics):  # type: ignore[attr-defined]
            module.compile(dynamic=False)
        seconds(eager, batch, FIRST)
        first = seconds(compiled, batch, FIRST)
        times = [(seconds(eager, batch, UPDATES), seconds(compiled, batch, UPDATES)) for _ in range(ROUNDS)]
        plain, fused = (UPDATES / statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {threads} | {plain:.0f} | {fused:.0f} | {fused / plain:.2f} | {first:.0f} s |", flush=True)
        torch.compiler.reset()


if __name__ == "__main__":
    main()
