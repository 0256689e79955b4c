"""A run that was interrupted, in whatever way, ends with the same bits as one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import ALGORITHMS, ONLINE, assert_same_run, tiny_config, tiny_settings

from rl_training.experiment import checkpointing
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training


class Crash(BaseException):
    """Stands for the process dying: nothing below may catch it."""


class CrashAt(Callback):
    """Dies after the updates of a given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: TrainerState, result: object) -> None:
        if trainer.global_step >= self.step:
            raise Crash

    def on_train_start(self, trainer: TrainerState) -> None:
        self.run_dir = trainer.run_dir


def crashed_run(config: Any, step: int) -> Path:
    crash = CrashAt(step)
    with pytest.raises(Crash):
        train(config, callbacks=[crash])
    return crash.run_dir


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("step", [50, 61, 95])
def test_crash_in_the_middle(algo: str, step: int, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path)
    whole = train(config)
    resumed = resume_training(crashed_run(config, step))
    assert_same_run(whole.run_dir, resumed.run_dir)


@pytest.mark.parametrize("algo", ONLINE)
@pytest.mark.parametrize("change", [{"num_envs": 3}, {"num_envs": 2, "vectorization": "async"}])
def test_crash_with_several_environments(algo: str, change: dict[str, Any], tmp_path: Path) -> None:
    if "vectorization" in change and algo != ONLINE[0]:
        pytest.skip("processes are the same for every algorithm; tested with one")
    config = tiny_config(algo, tmp_path, **change)
    whole = train(config)
    resumed = resume_training(crashed_run(config, 80))
    assert_same_run(whole.run_dir, resumed.run_dir)


def test_the_comparison_itself_can_fail(tmp_path: Path) -> None:
    one, other = (train(tiny_config("sac", tmp_path, seed=seed)) for seed in (1, 2))
    with pytest.raises(AssertionError):
        assert_same_run(one.run_dir, other.run_dir)


def test_crash_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, checkpoint_interval=None, eval_interval=None)
    whole = train(config)
    run_dir = crashed_run(config, 50)
    assert not list((run_dir / "checkpoints").iterdir())
    assert_same_run(whole.run_dir, resume_training(run_dir).run_dir)


@pytest.mark.parametrize("moment", ["save_file", "write_json", "_move_into_place"])
def test_crash_while_a_checkpoint_is_written(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("sac", tmp_path, eval_interval=None)
    whole = train(config)
    original, calls = getattr(checkpointing, moment), []

    def dies_on_the_second_checkpoint(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > {"save_file": 7, "write_json": 1, "_move_into_place": 1}[moment]:
            monkeypatch.setattr(checkpointing.shutil, "rmtree", lambda *a, **k: None)  # a dead process tidies nothing
            raise Crash
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, moment, dies_on_the_second_checkpoint)
        with pytest.raises(Crash):
            train(config, run_suffix="crashed")
    monkeypatch.undo()
    run_dir = next(tmp_path.glob("*crashed"))
    assert list((run_dir / "checkpoints").glob(".step_*"))  # half a checkpoint is lying about
    resumed = resume_training(run_dir)
    assert not list((run_dir / "checkpoints").glob(".step_*"))
    assert_same_run(whole.run_dir, resumed.run_dir)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    """With cadences that fall on the old end, the extended run is the longer run."""
    short = {"total_timesteps": 60, "eval_interval": 20, "log_interval": 20, "checkpoint_interval": 20}
    whole = train(tiny_config("sac", tmp_path, **{**short, "total_timesteps": 100}))
    first = train(tiny_config("sac", tmp_path, **short))
    resumed = resume_training(first.run_dir, 100)
    assert resumed.run_dir == first.run_dir
    assert resumed.metrics["global_step"] == 100
    assert_same_run(whole.run_dir, resumed.run_dir)


def test_schedules_and_early_stopping_continue(tmp_path: Path) -> None:
    change = {
        "learning_rate_schedule": {"type": "cosine", "warmup_steps": 10},
        "early_stopping": {"patience": 4},
        "eval_interval": 11,
    }
    config = tiny_config("sac", tmp_path, **change)
    whole = train(config)
    assert_same_run(whole.run_dir, resume_training(crashed_run(config, 70)).run_dir)


def test_an_environment_that_is_not_deterministic_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config("sac", tmp_path, env_id="support:CountingEnv", env_kwargs={"limit": 50, "noise": 1.0})
    resumed = resume_training(crashed_run(config, 75))
    assert "not deterministic" in caplog.text
    assert resumed.metrics["global_step"] == 96


def test_branching_off_leaves_the_first_run_alone(tmp_path: Path) -> None:
    first = train(tiny_config("sac", tmp_path, total_timesteps=60))
    before = {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()}
    branch = resume_training(first.checkpoint_path or "", 90, "branch")
    assert branch.run_dir != first.run_dir
    assert branch.run_dir.name.endswith("__branch")
    assert {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()} == before
    assert (branch.run_dir / "metrics.jsonl").read_text().startswith((first.run_dir / "metrics.jsonl").read_text())


# -- real processes, really killed -----------------------------------------------------------------------------------


def start(config_file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rl_training", "train", str(config_file), "-q", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def resume(run_dir: Path) -> None:
    command = [sys.executable, "-m", "rl_training", "resume", "--checkpoint", str(run_dir), "-q"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def the_run(directory: Path) -> Path | None:
    return next((path for path in directory.glob("*__seed*") if not path.name.startswith(".")), None)


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)


KILLS: dict[str, dict[str, Any]] = {
    "pendulum": {},
    "three environments": {"num_envs": 3},
    "hopper": {"env_id": "Hopper-v5"},
}


@pytest.mark.parametrize("change", KILLS.values(), ids=KILLS.keys())
def test_kill_9_at_random_moments(change: dict[str, Any], tmp_path: Path) -> None:
    settings = tiny_settings(
        "sac", tmp_path / "killed", total_timesteps=900, checkpoint_interval=60, eval_interval=300, **change
    )
    config_file = tmp_path / "config.yaml"
    config_file.write_text(dump_yaml(settings))
    whole = train(
        tiny_config("sac", tmp_path / "whole", total_timesteps=900, checkpoint_interval=60, eval_interval=300, **change)
    )
    chance = random.Random(len(str(change)))
    process = start(config_file)
    for attempt in range(3):
        wait_for(
            lambda: the_run(tmp_path / "killed") and any((the_run(tmp_path / "killed") / "checkpoints").iterdir()), process
        )
        time.sleep(chance.uniform(0, 0.4))
        process.kill()
        process.wait()
        run_dir = the_run(tmp_path / "killed")
        assert run_dir is not None
        if attempt < 2:
            command = [sys.executable, "-m", "rl_training", "resume", str(run_dir), "-q"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1.0 + chance.uniform(0, 1.5))
    resume(run_dir)
    assert_same_run(whole.run_dir, run_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_finish_the_step_save_and_exit_130(number: signal.Signals, tmp_path: Path) -> None:
    settings = tiny_settings("sac", tmp_path / "stopped", total_timesteps=2000, checkpoint_interval=None, eval_interval=700)
    config_file = tmp_path / "config.yaml"
    config_file.write_text(dump_yaml(settings))
    process = start(config_file)
    log = "metrics.jsonl"
    wait_for(
        lambda: (run := the_run(tmp_path / "stopped")) and (run / log).exists() and (run / log).stat().st_size > 400, process
    )
    os.kill(process.pid, number)
    assert process.wait(timeout=30) == 130
    run_dir = the_run(tmp_path / "stopped")
    assert run_dir is not None
    assert '"status": "interrupted"' in (run_dir / "metadata.json").read_text()
    resume(run_dir)
    whole = train(tiny_config("sac", tmp_path / "whole", total_timesteps=2000, checkpoint_interval=None, eval_interval=700))
    assert_same_run(whole.run_dir, run_dir)
