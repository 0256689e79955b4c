"""Would it pay to have the C library keep freed memory? SAC updates with and without, in turns.

Every update allocates and frees the same few megabytes of activations, and glibc may give them back to the operating system
in between, which then maps and clears the same pages again.

python benchmarks/experiments/allocator.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

ROUNDS = 5
CODE = """
import ctypes, json, resource, sys, time
import torch
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import EnvSpec

threads, keep = int(sys.argv[1]), sys.argv[2] == "kept"
torch.set_num_threads(threads)
if keep:  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD of malloc.h
    for name, megabytes in ((-3, 32), (-1, 256), (-2, 16)):
        assert ctypes.CDLL(None).mallopt(name, megabytes << 20) == 1
task = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
spec = get_algorithm_spec("sac")
learner = spec.build(task, spec.hyperparameters())
batch = {"obs": torch.randn(256, 17), "actions": torch.rand(256, 6) * 2 - 1, "rewards": torch.randn(256),
         "dones": torch.zeros(256), "next_obs": torch.randn(256, 17)}
for _ in range(50):
    learner.update(batch)
faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
for _ in range(300):
    learner.update(batch)
seconds = time.perf_counter() - started
print(json.dumps([300 / seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / 300]))
"""


def main() -> None:
    """Print a table."""
    print("| threads | freed memory | updates/s | page faults an update |\n|---|---|---|---|")
    for threads in ("1", "2"):
        measured: dict[str, list[list[float]]] = {"given back": [], "kept": []}
        for _ in range(ROUNDS):
            for how, rows in measured.items():
                done = subprocess.run([sys.executable, "-c", CODE, threads, how], capture_output=True, text=True, check=True)
                rows.append(json.loads(done.stdout))
        for how, rows in measured.items():
            rate, faults = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"| {threads} | {how} | {rate:.0f} | {faults:.1f} |", flush=True)


if __name__ == "__main__":
    main()
