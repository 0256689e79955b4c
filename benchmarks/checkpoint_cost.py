"""What a checkpoint with a full replay of HalfCheetah's size costs: seconds, bytes, memory.

python benchmarks/checkpoint_cost.py [--rows 1000000] [--rounds 5] [--directory DIR]

Saves a SAC learner and its replay through the same CheckpointStore that a run uses. Needs about 0.7 GB of memory and of
disk. The directory decides what is measured: a checkpoint on a memory file system costs no disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rl_training.data import ReplayBuffer
from rl_training.experiment import checkpointing
from rl_training.experiment.checkpointing import CheckpointStore
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import EnvSpec

TASK = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
BUDGET = {"seconds": 1.5, "bytes": 1.1}


def resident() -> int:
    """Bytes of memory that this process has now."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@contextmanager
def watching_memory() -> Iterator[Callable[[], int]]:
    """The peak of resident memory while this is entered, looked at every two milliseconds."""
    peak, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        done.set()
        thread.join()


@contextmanager
def timing(names: dict[str, str], spent: dict[str, float]) -> Iterator[None]:
    """Adds up the seconds spent in functions of the checkpointing module."""
    originals = {name: getattr(checkpointing, name) for name in names}

    def timed(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return originals[name](*arguments, **options)
            finally:
                spent[names[name]] = spent.get(names[name], 0.0) + time.perf_counter() - started

        return call

    for name in names:
        setattr(checkpointing, name, timed(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(checkpointing, name, original)


def filled_replay(rows: int) -> ReplayBuffer:
    buffer = ReplayBuffer(rows, TASK.obs_dim, TASK.action_dim)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, rows, 50_000):
        count = min(50_000, rows - start)
        obs, next_obs = (torch.randn(count, TASK.obs_dim, generator=generator).numpy() for _ in range(2))
        actions = torch.rand(count, TASK.action_dim, generator=generator).numpy() * 2 - 1
        buffer.add(obs, actions, torch.randn(count, generator=generator).numpy(), next_obs, torch.zeros(count).numpy())
    return buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where checkpoints are written and deleted; the working directory")
    options = parser.parse_args()
    spec = get_algorithm_spec("sac")
    learner, buffer = spec.build(TASK, spec.hyperparameters()), filled_replay(options.rows)
    learner.update(buffer.sample(256))  # the optimisers have moments from their first step on
    raw = buffer.rows[: len(buffer)].numel() * 4
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{os.cpu_count()} cores, load {load:.1f}; {len(buffer):,} rows, {raw / 1e6:.1f} MB")
    seconds, busy, ratios, growths = [], [], [], []
    with tempfile.TemporaryDirectory(dir=options.directory or Path.cwd(), prefix=".checkpoint-cost-") as directory:
        store = CheckpointStore(Path(directory), keep_last=2)
        for round_number in range(options.rounds):
            state = learner.state_dict()
            parts = {
                "weights": state.weights,
                "optimizer": state.optimizers,
                "rng": state.generators,
                "replay": buffer.state_dict(),
            }
            before, spent = resident(), {}
            names = {"save_file": "write", "sync_file": "flush", "sha256_of": "checksum"}
            with watching_memory() as peak, timing(names, spent):
                started, worked = time.perf_counter(), time.process_time()
                path = store.save(round_number + 1, manifest={}, parts=parts, best=False)
                seconds.append(time.perf_counter() - started)
                busy.append(time.process_time() - worked)  # on a machine with other work, what it would take alone
            ratios.append(sum(file.stat().st_size for file in path.iterdir()) / raw)
            growths.append(peak() - before)
            split = ", ".join(f"{name} {value:.3f}" for name, value in spent.items())
            memory = f"{before / 1e6:.0f} MB + {growths[-1] / 1e6:.1f} MB"
            print(f"  {seconds[-1]:.3f} s, {busy[-1]:.3f} of processor ({split}), memory {memory}")
    print(f"median {statistics.median(seconds):.3f} s (at most {BUDGET['seconds']}), ", end="")
    print(f"{statistics.median(busy):.3f} s of processor time, ", end="")
    print(f"{max(ratios):.4f} x the bytes of the rows (at most {BUDGET['bytes']}), ", end="")
    print(f"at most {max(growths) / 1e6:.1f} MB more memory while saving ({max(growths) / raw:.1%} of the rows)")


if __name__ == "__main__":
    main()
