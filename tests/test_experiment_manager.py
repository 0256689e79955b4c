"""The experiment manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ALGORITHMS, tiny_config

from rl_training.experiment.default_manager import DefaultExperimentManager


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_setup_and_resume(algo: str, tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(tiny_config(algo, tmp_path, total_timesteps=60)).train()
    assert first.run_dir.is_dir()
    assert first.checkpoint_path is not None
    resumed = manager.resume(first.checkpoint_path, total_timesteps=90).train()
    assert resumed.metrics["global_step"] == 90
    assert resumed.run_dir == first.run_dir
