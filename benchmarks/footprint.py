"""Start-up and memory: command to first update, import, and a run with a full replay of a million rows.

    python benchmarks/footprint.py

Writes benchmarks/results/footprint.json and a table into docs/performance.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from jobs import ROOT, write_section

ROWS = 1_000_000
FULL_REPLAY = """
import gc, resource, sys
import numpy as np
from rl_training.data import ReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training import train

class Fill(Callback):
    def on_train_start(self, trainer):
        self.buffer = next(thing for thing in gc.get_objects() if isinstance(thing, ReplayBuffer))
        rng = np.random.default_rng(0)
        for _ in range({rows} // 10_000):
            obs = rng.standard_normal((10_001, 17), dtype=np.float32)
            self.buffer.add(obs[:-1], rng.uniform(-1, 1, (10_000, 6)), rng.standard_normal(10_000), obs[1:], np.zeros(10_000))

config = TrainConfig(algo="sac", env_id="HalfCheetah-v5", total_timesteps=300, eval_episodes=0, checkpoint_interval=None,
    output_dir=sys.argv[1], algo_kwargs={{"learning_starts": 100, "buffer_capacity": {rows}}})
fill = Fill()
train(config, callbacks=[fill])
assert len(fill.buffer) == {rows}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, fill.buffer.rows.numel() * 4)
"""


def seconds(command: Sequence[str], rounds: int) -> float:
    """Median wall time of a command, after one unmeasured call that warms the file cache."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def first_update(rounds: int, directory: str) -> float:
    """``rl-training train sac/pendulum`` that stops after one update: imports, environment, networks, update, checkpoint."""
    settings = ["max_updates=1", "algo_kwargs.learning_starts=1", "eval_episodes=0", f"output_dir={directory}"]
    options = [part for setting in settings for part in ("--set", setting)]
    return seconds([sys.executable, "-m", "rl_training", "train", "sac/pendulum", "--quiet", *options], rounds)


def full_replay(directory: str) -> tuple[int, int]:
    """Peak resident bytes of a SAC run with a full replay, its last checkpoint included, and the bytes of its rows."""
    command = [sys.executable, "-c", FULL_REPLAY.format(rows=ROWS), directory]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    resident, raw = done.stdout.split()[-2:]
    return int(resident), int(raw)


def main() -> None:
    """Measure and write down."""
    with tempfile.TemporaryDirectory() as directory:
        result: dict[str, Any] = {
            "first_update_seconds": first_update(5, directory),
            "import_seconds": seconds([sys.executable, "-c", "import rl_training"], 5),
            "help_seconds": seconds([sys.executable, "-m", "rl_training", "--help"], 5),
        }
        result["resident_bytes"], result["row_bytes"] = full_replay(directory)
    (ROOT / "benchmarks" / "results" / "footprint.json").write_text(json.dumps(result, indent=1) + "\n")
    beyond = (result["resident_bytes"] - result["row_bytes"]) / 1e6
    table = "\n".join(
        [
            "| what | measured | wanted: at most, aim |",
            "|---|---|---|",
            f"| `rl-training train sac/pendulum` to the end of its first update, one step of warm-up, with the final "
            f"checkpoint | {result['first_update_seconds']:.2f} s | 4 s, 2 s |",
            f"| `import rl_training` | {result['import_seconds']:.2f} s | - |",
            f"| `rl-training --help` | {result['help_seconds']:.2f} s | - |",
            f"| peak resident memory of a HalfCheetah run with a full replay of {ROWS:,} rows, beyond the rows' "
            f"{result['row_bytes'] / 1e6:.0f} MB | {beyond:.0f} MB | 500 MB, 350 MB |",
        ]
    )
    print(table)
    write_section(ROOT / "docs" / "performance.md", "footprint", table)


if __name__ == "__main__":
    main()
