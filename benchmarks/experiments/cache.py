"""What is it worth to keep activations in the cache? REDQ and CQL updates with and without, in turns.

python benchmarks/experiments/cache.py            # half a minute

On two threads REDQ's ensemble is batched either way.
"""

from __future__ import annotations

import statistics
import time

import torch

from rl_training.algorithms import cql
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.mlp import EnsembleMLP
from rl_training.types import EnvSpec

TASK = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
ROUNDS, EVERYTHING = 7, 10**12
SWITCHES = {  # where the size is set, its name, updates a lap
    "redq": (EnsembleMLP, "CACHED_ENTRIES", 20),
    "cql": (cql, "ROWS_AT_ONCE", 2),
}


def main() -> None:
    """Print a table."""
    print("| algorithm | threads | in parts, ms an update | all at once | ratio |\n|---|---|---|---|---|")
    batch = {"obs": torch.randn(256, 17), "actions": torch.rand(256, 6) * 2 - 1, "rewards": torch.randn(256)}
    batch |= {"dones": torch.zeros(256), "next_obs": torch.randn(256, 17)}
    for algo, (owner, name, updates) in SWITCHES.items():
        spec, in_parts = get_algorithm_spec(algo), getattr(owner, name)
        learner = spec.build(TASK, spec.hyperparameters(hidden_sizes=[256, 256], batch_size=256))
        for threads in (1, 2):
            torch.set_num_threads(threads)
            laps: dict[int, list[float]] = {in_parts: [], EVERYTHING: []}
            for _ in range(ROUNDS):
                for size, times in laps.items():
                    setattr(owner, name, size)
                    started = time.perf_counter()
                    for _ in range(updates):
                        learner.update(batch)
                    times.append(1000 * (time.perf_counter() - started) / updates)
            parts, whole = (statistics.median(times) for times in laps.values())
            print(f"| {algo} | {threads} | {parts:.1f} | {whole:.1f} | {whole / parts:.2f} |", flush=True)
        setattr(owner, name, in_parts)


if __name__ == "__main__":
    main()
