"""Makes the golden checkpoints of this version: one small run of every algorithm, which later versions must be able to use.

python tests/golden/make.py [ALGORITHM ...]

Writes ``tests/golden/<version>/<algo>/`` (a run directory and ``expected.json``, the actions for some observations) and the
data the offline ones learn from. Existing ones are left alone: a released version's checkpoints never change.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training import __version__
from rl_training.data.dataset_writers import save_transitions
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms
from rl_training.runtime.training import train
from rl_training.runtime.workflows import collect_transitions, predict_checkpoint

HERE = Path(__file__).resolve().parent
DATA = "data.npz"
EXTRA: dict[str, dict[str, Any]] = {
    "redq": {"gradient_updates_per_step": 2, "num_critics": 3},
    "tqc": {"num_critics": 2, "num_quantiles": 5, "top_quantiles_to_drop_per_net": 1},
    "cql": {"num_cql_samples": 2},
    "dqn": {"n_step": 2, "dueling": True},
}
NORMALIZED = ("awac", "td3_bc")
KEPT = ("status", "algo", "env_id", "seed", "torch_threads", "versions", "stop_reason", "metrics")
"""What of the metadata says nothing of the machine."""


def config_of(algo: str) -> TrainConfig:
    spec = get_algorithm_spec(algo)
    online = spec.loop == "online"
    kwargs = {"batch_size": 8, "hidden_sizes": [8], **EXTRA.get(algo, {})}
    if online:
        kwargs |= {"buffer_capacity": 64, "learning_starts": 16}
    if "critic_hidden_sizes" in spec.hyperparameters.model_fields:
        kwargs["critic_hidden_sizes"] = [8]
    return TrainConfig(
        algo=algo,
        env_id="CartPole-v1" if spec.actions == "discrete" else "Pendulum-v1",
        seed=3,
        total_timesteps=40,
        eval_interval=None,
        eval_episodes=1,
        checkpoint_interval=None,
        log_interval=20,
        tensorboard=False,
        torch_threads=1,
        dataset=None if online else {"kind": "npz", "path": DATA, "normalize_observations": algo in NORMALIZED},
        algo_kwargs=kwargs,
    )


def make(algo: str, target: Path) -> None:
    """Train in the working directory, so that no path of this machine gets into a file, and keep the result."""
    run_dir = train(config_of(algo)).run_dir
    metadata = json.loads((run_dir / "metadata.json").read_text())
    (run_dir / "metadata.json").write_text(json.dumps({key: metadata[key] for key in KEPT}, indent=2) + "\n")
    obs_dim = 4 if metadata["env_id"] == "CartPole-v1" else 3
    observations = np.random.default_rng(0).normal(size=(5, obs_dim)).round(3).tolist()
    expected = {"obs": observations, "actions": np.asarray(predict_checkpoint(run_dir, observations)).tolist()}
    (run_dir / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    shutil.copytree(run_dir, target)


def main() -> None:
    version = HERE / __version__
    version.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        if not (version / DATA).exists():
            save_transitions(collect_transitions(env_id="Pendulum-v1", steps=64, seed=1), str(version / DATA))
        shutil.copy(version / DATA, DATA)
        for algo in sys.argv[1:] or list_algorithms():
            if (version / algo).exists():
                print(f"{algo}: is there already")
                continue
            make(algo, version / algo)
            size = sum(path.stat().st_size for path in (version / algo).rglob("*") if path.is_file())
            print(f"{algo}: {size / 1000:.0f} kB")
        os.chdir(HERE)


if __name__ == "__main__":
    main()
