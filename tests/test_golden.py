"""Checkpoints of released versions load for ever: they predict the same actions, play, and resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training

GOLDEN = Path(__file__).resolve().parent / "golden"
RUNS = sorted(path.parent for path in GOLDEN.glob("*/*/config.yaml"))
ORIGINAL = {"awac", "bc", "cql", "ddpg", "dqn", "iql", "rebrac", "redq", "sac", "td3", "td3_bc", "tqc"}
"""The algorithms of 0.1.0."""
NAMES = [f"{path.parent.name}-{path.name}" for path in RUNS]


def test_every_algorithm_has_one_and_they_are_small() -> None:
    assert {path.name for path in RUNS if path.parent.name == "0.1.0"} == ORIGINAL
    for version in {path.parent for path in RUNS}:
        assert sum(path.stat().st_size for path in version.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize("run_dir", RUNS, ids=NAMES)
def test_nothing_of_a_machine_is_in_it(run_dir: Path) -> None:
    for path in run_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for word in (b"/home", b"/tmp", b"/work", b"/Users", b"\\Users"):
                assert word not in content or path.suffix == ".safetensors", f"{path}: {word!r}"


@pytest.mark.parametrize("run_dir", RUNS, ids=NAMES)
def test_it_predicts_what_it_did(run_dir: Path) -> None:
    find_checkpoint(run_dir).verify()
    expected = json.loads((run_dir / "expected.json").read_text())
    np.testing.assert_allclose(predict_checkpoint(run_dir, expected["obs"]), expected["actions"], atol=1e-5)


@pytest.mark.parametrize("run_dir", RUNS, ids=NAMES)
def test_it_plays_and_resumes(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(run_dir.parent / "data.npz", tmp_path)  # what the offline ones learn from, by its name alone
    copy = shutil.copytree(run_dir, tmp_path / run_dir.name)
    monkeypatch.chdir(tmp_path)
    assert np.isfinite(evaluate_checkpoint(copy, 1)["eval_return_mean"])
    result = resume_training(copy, total_timesteps=60)
    assert result.metrics["global_step"] == 60
    assert find_checkpoint(copy).manifest["trainer"]["global_step"] == 60
