"""Is the installation sound? Facts, and what is wrong with them."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rl_training import __version__
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_directory import installed_versions
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training

EXTRAS = {"mujoco": "mujoco"}
"""Optional packages and the extra that brings them."""


def diagnose() -> dict[str, Any]:
    """Facts by name, and problems in plain words; trains and resumes an agent for a few steps to be sure."""
    facts = {
        "rl_training": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
        "torch threads": str(torch.get_num_threads()),
        "cuda": "available" if torch.cuda.is_available() else "not available",
        "free disk": f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB",
        **installed_versions("torch", "gymnasium", "numpy", "pydantic", "safetensors", "tensorboard"),
    }
    for module, extra in EXTRAS.items():
        missing = f'not installed (pip install "rl-training[{extra}]")'
        facts[module] = installed_versions(module).get(module, "installed") if find_spec(module) else missing
    problems = []
    try:
        facts["training"] = _try_training()
    except Exception as error:  # whatever it is, the doctor reports it
        problems.append(f"training SAC on Pendulum-v1 for a few steps failed: {type(error).__name__}: {error}")
    return {"facts": facts, "problems": problems}


def _try_training() -> str:
    with tempfile.TemporaryDirectory() as directory:
        config = TrainConfig(
            algo="sac",
            env_id="Pendulum-v1",
            total_timesteps=40,
            eval_episodes=1,
            tensorboard=False,
            output_dir=Path(directory),
            algo_kwargs={"learning_starts": 10, "buffer_capacity": 100, "batch_size": 16, "hidden_sizes": (16, 16)},
        )
        result = resume_training(train(config).run_dir, 60)
        return f"trained, saved and resumed an agent ({result.metrics['global_step']:.0f} steps)"
