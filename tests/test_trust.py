"""Faults lose nothing: locks, full disks, rotation, damaged checkpoints, signals, bad numbers, hostile files, old formats."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from support import CountingEnv, assert_same_run, metric_rows, newest_checkpoint, tiny_config, tiny_settings

from rl_training.cli import main
from rl_training.experiment import checkpointing, migrations
from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore, find_checkpoint, write_checkpoint
from rl_training.experiment.lock import run_lock
from rl_training.experiment.sinks import EvaluationsFile, JsonlSink, TensorBoardSink
from rl_training.experiment.yaml_files import dump_yaml, parse_yaml, read_yaml_mapping
from rl_training.runtime import run as run_module
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.numerics import all_finite
from rl_training.runtime.policy import Policy
from rl_training.runtime.signals import StopSignals
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.types import CheckpointError, ConfigError, EnvSpec, NumericsError

OBS = [0.1, 0.2, 0.3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints at steps 90 and 96, and an older best one."""
    return train(tiny_config("sac", tmp_path_factory.mktemp("trained"))).run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def status(run_dir: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return metadata


def rewrite_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a manifest and give it a valid checksum, as an attacker would."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum")
    change(manifest)
    path.write_text(json.dumps({**manifest, "checksum": checkpointing._checksum(manifest)}))


def replace_part(checkpoint: Path, part: str, content: bytes) -> None:
    """Put other bytes in a checkpoint's file, with the right size and checksum in the manifest."""
    import hashlib

    path = checkpoint / f"{part}.safetensors"
    path.write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_manifest(checkpoint, lambda manifest: manifest["files"].update({path.name: entry}))


# -- the lock --------------------------------------------------------------------------------------------------------


def test_a_second_holder_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        with pytest.raises(CheckpointError, match=rf"is in use by process {os.getpid()} on \S+\. "), run_lock(tmp_path):
            pass
        assert (tmp_path / ".lock").exists()  # the refused one has not removed it
    assert not list(tmp_path.iterdir())
    with run_lock(tmp_path):
        pass


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".lock").symlink_to(victim)
    with pytest.raises(CheckpointError, match="cannot be locked"), run_lock(tmp_path):
        pass
    assert victim.read_text() == "precious"


HOLDER = """
import os, sys, time
from pathlib import Path
from rl_training.experiment.lock import run_lock
with run_lock(Path(sys.argv[1])):
    if sys.argv[2] == "forks":
        if os.fork() == 0:
            print("held", flush=True)
            time.sleep(60)  # a child that outlives its parent, as an environment's own worker may
            os._exit(0)
    else:
        print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["plain", "forks"])
def test_the_lock_of_a_killed_process_is_free_at_once(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), kind]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match=f"in use by process {holder.pid} "), run_lock(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with run_lock(tmp_path):
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)
    return value


def saved_run(directory: Path) -> Path | None:
    """The run directory below, once it has a checkpoint."""
    pointers = [path for path in directory.glob("*/checkpoints/last") if not path.parts[-3].startswith(".")]
    return pointers[0].parent.parent if pointers else None


def group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def long_config(tmp_path: Path, algo: str = "sac", **changes: Any) -> str:
    settings = {"total_timesteps": 1_000_000, "checkpoint_interval": 50, "eval_interval": None, "log_interval": 50}
    path = tmp_path / "long.yaml"
    path.write_text(dump_yaml(tiny_settings(algo, tmp_path / "runs", **{**settings, **changes})))
    return str(path)


def test_two_processes_and_a_killed_trainer_with_workers(tmp_path: Path) -> None:
    """While one trains, resuming is refused; when it is killed, its workers neither hold the lock nor live on."""
    process = start("train", long_config(tmp_path, num_envs=2, vectorization="async"), "-q")
    run_dir = wait_for(lambda: saved_run(tmp_path / "runs"), process)
    with pytest.raises(CheckpointError, match=f"is in use by process {process.pid} on"):
        resume_training(run_dir)
    assert process.poll() is None
    assert status(run_dir)["status"] == "running"
    process.kill()
    process.communicate()
    with run_lock(run_dir):
        pass
    end = time.monotonic() + 30
    while group_exists(process.pid):
        assert time.monotonic() < end, "workers live on"
        time.sleep(0.05)


# -- disks that are full ---------------------------------------------------------------------------------------------


class FullDisk:
    """Stands in for ``save_file``: fails for the checkpoints of some steps, in the middle of their third file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.names, self.original, self.failures = names, checkpointing.save_file, 0
        monkeypatch.setattr(checkpointing, "save_file", self)

    def __call__(self, tensors: Any, path: Path) -> None:
        if path.stem == "rng" and any(name in path.parent.name for name in self.names):
            self.failures += 1
            path.write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        self.original(tensors, path)


def test_a_failed_save_changes_nothing_but_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("sac", tmp_path, eval_interval=None)
    whole = train(config)
    disk = FullDisk(monkeypatch, "step_000000060")
    result = train(config)
    assert disk.failures == 1
    assert "No space left on device" in caplog.text
    assert "step_000000030 is intact" in caplog.text
    assert_same_run(whole.run_dir, result.run_dir)
    names = sorted(path.name for path in (result.run_dir / "checkpoints").iterdir())
    assert names == ["best", "last", "step_000000090", "step_000000096"]


def test_a_failed_save_is_tried_again_at_the_next_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, "step_000000030", "step_000000040")  # the first checkpoint, and the first best evaluation
    result = train(tiny_config("sac", tmp_path, eval_interval=40, keep_last=5))
    assert disk.failures == 2
    best = (result.run_dir / "checkpoints" / "best").read_text().strip()
    assert best == "step_000000060" or int(best.removeprefix("step_")) > 60  # or a later evaluation was better
    assert (result.run_dir / "checkpoints" / "step_000000060").is_dir()


def test_stopping_at_the_first_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings("sac", tmp_path / "runs", eval_interval=None, on_save_error="stop")
    config_file = tmp_path / "config.yaml"
    config_file.write_text(dump_yaml(settings))
    with monkeypatch.context() as patch:
        FullDisk(patch, "step_000000060")
        assert main(["train", str(config_file), "-q"]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "Traceback" not in message
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert status(run_dir)["status"] == "failed"
    assert "No space left" in status(run_dir)["stop_reason"]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["last", "step_000000030"]
    whole = train(tiny_config("sac", tmp_path / "whole", eval_interval=None))
    assert_same_run(whole.run_dir, resume_training(run_dir).run_dir)


def test_the_last_save_must_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("sac", tmp_path, eval_interval=None)
    with monkeypatch.context() as patch:
        FullDisk(patch, "step_000000096")
        with pytest.raises(CheckpointError, match=r"at step 96 .*step_000000090 is intact"):
            train(config)
    (run_dir,) = tmp_path.iterdir()
    assert status(run_dir)["status"] == "failed"
    assert_same_run(train(config).run_dir, resume_training(run_dir).run_dir)


def test_an_error_is_not_hidden_by_metadata_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Trouble(Callback):
        def on_update_end(self, trainer: TrainerState, result: object) -> None:
            monkeypatch.setattr("rl_training.experiment.run_directory.write_json", full)
            raise ZeroDivisionError("the first problem")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ZeroDivisionError, match="the first problem"):
        train(tiny_config("sac", tmp_path), callbacks=[Trouble()])
    assert "metadata.json could not be updated (No space left on device)" in caplog.text


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The system writes a part of what would exceed the limit and then refuses: what a disk does that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_row_is_in_the_log_whole_or_not_at_all(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, {"a": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with file_size_limit(len(before) + 7):
        for step in (2, 3):
            with pytest.raises(OSError, match="too large"):
                sink.write(step, {"a": float(step)})
            assert (tmp_path / "metrics.jsonl").read_bytes() == before
        with pytest.raises(OSError, match="too large"):
            sink.length()  # a checkpoint is not to be made: the rows before it are not on the disk
    sink.write(4, {"a": 4.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sink.length() == (tmp_path / "metrics.jsonl").stat().st_size
    sink.close()


def test_half_a_row_that_could_not_be_taken_back_is_taken_back_later(tmp_path: Path) -> None:
    sink = EvaluationsFile(tmp_path / "evaluations.csv")
    with (tmp_path / "evaluations.csv").open("a") as file:
        file.write("12,3")
    sink.write([(1, 0, 5, "1.5", 9)])
    assert (tmp_path / "evaluations.csv").read_text() == "step,episode,seed,return,length\n1,0,5,1.5,9\n"
    sink.close()
    again = EvaluationsFile(tmp_path / "evaluations.csv", length=32)
    assert (tmp_path / "evaluations.csv").read_text() == "step,episode,seed,return,length\n"
    again.close()


def events(directory: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("a")]


def test_tensorboard_reads_what_is_written_also_after_a_full_disk_and_a_resume(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    with file_size_limit(3), pytest.raises(OSError, match="too large"):
        sink.write(1, {"a": 1.0, "b": 0.0})
    sink.write(2, {"a": 2.0})
    (file,) = tmp_path.iterdir()
    with file_size_limit(file.stat().st_size + 5), pytest.raises(OSError, match="too large"):
        sink.write(3, {"a": 3.0})
    sink.write(4, {"a": 4.0})
    sink.close()
    assert events(tmp_path) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    resumed = TensorBoardSink(tmp_path, resumed_at=2)
    resumed.write(3, {"a": 30.0})
    resumed.close()
    assert events(tmp_path) == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_logs_that_meet_a_full_disk_are_complete_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(tiny_config("sac", tmp_path))
    calls = []

    class Unlucky(run_module.RunLogs):
        def write(self, step: int, row: dict[str, float]) -> None:
            with file_size_limit(100) if step == 60 else contextlib.nullcontext():
                calls.append(step)
                super().write(step, row)

    monkeypatch.setattr(run_module, "RunLogs", Unlucky)
    result = train(tiny_config("sac", tmp_path))
    assert 60 in calls
    assert "the log could not be written at step 60 (File too large)" in caplog.text
    assert metric_rows(whole.run_dir) == metric_rows(result.run_dir)
    with pytest.raises(CheckpointError, match="the log could not be written at step 60"):
        train(tiny_config("sac", tmp_path, on_save_error="stop"))


# -- rotation --------------------------------------------------------------------------------------------------------


def save(store: CheckpointStore, step: int, *, best: bool = False) -> Path:
    return store.save(step, manifest={}, parts={"weights": {"x": torch.full((9,), float(step))}}, best=best)


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in store.steps()]


def test_rotation_does_not_count_damaged_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        path = save(store, step)
    (path / "weights.safetensors").write_bytes(b"rotten")
    save(store, 4)
    assert steps(store) == [2, 3, 4]  # 2 and 4 are the newest two that are whole
    assert store.newest() == Checkpoint(tmp_path / "step_000000004")
    save(store, 5)
    assert steps(store) == [4, 5]


def test_the_last_intact_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1)
    original = checkpointing.write_checkpoint

    def write_rotten(target: Path, **content: Any) -> None:
        original(target, **content)
        (target / "manifest.json").write_text("{}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "write_checkpoint", write_rotten)
        save(store, 2)
    assert steps(store) == [1, 2]
    assert store.newest() == Checkpoint(tmp_path / "step_000000001")


def test_half_a_deletion_is_not_taken_for_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1)
    monkeypatch.setattr(checkpointing, "delete", lambda path: (path / "manifest.json").unlink())  # and then it is killed
    save(store, 2)
    monkeypatch.undo()
    assert list(tmp_path.glob(".step_000000001*"))
    assert store.newest() == Checkpoint(tmp_path / "step_000000002")
    assert not caplog.text
    store.clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_000000002"]


def test_a_crash_between_the_two_renames_of_a_replaced_checkpoint_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1)
    original, calls = os.replace, []

    def dies_at_the_last(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) == 3:  # after the manifest's and the old directory's
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(checkpointing.os, "replace", dies_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        save(store, 1)
    monkeypatch.undo()
    assert store.steps() == []
    store.clean()
    assert steps(store) == [1]
    assert find_checkpoint(tmp_path).tensors("weights")["x"][0] == 1


def test_the_best_is_kept_whatever_its_age(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    for step in range(1, 6):
        save(store, step, best=step == 2)
    assert steps(store) == [2, 5]


# -- damaged checkpoints ---------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights flipped": lambda checkpoint: flip(checkpoint / "weights.safetensors"),
    "manifest missing": lambda checkpoint: (checkpoint / "manifest.json").unlink(),
    "manifest flipped": lambda checkpoint: flip(checkpoint / "manifest.json"),
    "manifest empty": lambda checkpoint: (checkpoint / "manifest.json").write_text(""),
    "directory empty": lambda checkpoint: [path.unlink() for path in checkpoint.iterdir()],
    "directory gone": shutil.rmtree,
    "a file instead": lambda checkpoint: (shutil.rmtree(checkpoint), checkpoint.write_text("hello")),
    "a link instead": lambda checkpoint: checkpoint.symlink_to(checkpoint.rename(checkpoint.parents[2] / "elsewhere")),
    "a linked manifest": lambda checkpoint: (checkpoint / "manifest.json").symlink_to(
        (checkpoint / "manifest.json").rename(checkpoint.parents[2] / "elsewhere.json")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_every_use_of_a_run_falls_back(
    damage: Callable[[Path], object], run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(newest_checkpoint(run_dir))
    before = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    older = run_dir / "checkpoints" / "step_000000090"
    for use in (
        lambda: evaluate_checkpoint(run_dir, 1)["global_step"] == 90,
        lambda: np.array_equal(predict_checkpoint(run_dir, OBS), predict_checkpoint(older, OBS)),
        lambda: find_checkpoint(run_dir / "checkpoints" / "last").path == older,
    ):
        caplog.clear()
        assert use()
        assert "Falling back to the newest intact checkpoint, step_000000090" in caplog.text
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == before  # looking changes nothing
    caplog.clear()
    result = resume_training(run_dir)
    assert "Falling back" in caplog.text
    assert newest_checkpoint(result.run_dir).name == "step_000000096"
    find_checkpoint(run_dir).verify()
    set_aside = [path.name for path in (run_dir / "checkpoints").glob("damaged_*")]
    assert set_aside == ([] if damage is shutil.rmtree else ["damaged_step_000000096"])
    caplog.clear()
    evaluate_checkpoint(run_dir, 1)
    assert not caplog.text


def test_a_resumed_run_after_a_fall_back_is_the_same_run(run_dir: Path, trained: Path) -> None:
    flip(newest_checkpoint(run_dir) / "replay.safetensors")
    assert_same_run(trained, resume_training(run_dir).run_dir)


def test_branching_off_a_damaged_run_leaves_it_as_it_is(run_dir: Path) -> None:
    flip(newest_checkpoint(run_dir) / "replay.safetensors")
    before = sorted(str(path) for path in run_dir.rglob("*"))
    resume_training(run_dir, 120, "branch")
    assert sorted(str(path) for path in run_dir.rglob("*")) == before


def test_damage_that_a_use_does_not_read_does_not_matter_to_it(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(newest_checkpoint(run_dir) / "replay.safetensors")
    assert evaluate_checkpoint(run_dir, 1)["global_step"] == 96
    assert not caplog.text


def test_a_named_checkpoint_that_is_damaged_is_refused(run_dir: Path) -> None:
    best = find_checkpoint(run_dir / "checkpoints" / "best").path
    flip(best / "weights.safetensors")
    for path in (best, run_dir / "checkpoints" / "best"):
        with pytest.raises(CheckpointError, match="does not match its checksum"):
            predict_checkpoint(path, OBS)
    shutil.rmtree(best)
    with pytest.raises(CheckpointError, match=f"names {best.name}, which is missing"):
        predict_checkpoint(run_dir / "checkpoints" / "best", OBS)


def test_pointers_that_a_crash_kept_from_being_written_are_made_up_for(run_dir: Path) -> None:
    newest, best = newest_checkpoint(run_dir), run_dir / "checkpoints" / "best"
    rewrite_manifest(newest, lambda manifest: manifest.update(is_best=True))
    (run_dir / "checkpoints" / "last").write_text("step_000000090\n")
    best.write_text("step_000000090\n")
    resume_training(run_dir)  # it was finished: nothing is saved
    assert newest_checkpoint(run_dir) == newest
    assert find_checkpoint(best).path == newest


def test_the_last_evaluation_is_in_the_last_checkpoint_also_after_an_interruption(tmp_path: Path) -> None:
    """A signal in the evaluation of the last step: the checkpoint of that step is saved again when it has been made up for."""
    config = tiny_config("sac", tmp_path, log_interval=50)
    original = run_module.evaluate_policy

    def interrupted(policy: Any, env: Any, **options: Any) -> Any:
        if len(calls) == 2:  # after those of steps 40 and 80
            os.kill(os.getpid(), signal.SIGINT)
        calls.append(1)
        return original(policy, env, **options)

    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "evaluate_policy", interrupted)
        stopped = train(config)
    assert stopped.stop_reason == "interrupted by SIGINT"
    assert_same_run(train(config).run_dir, resume_training(stopped.run_dir).run_dir)


def test_leftovers_of_a_killed_process_are_removed(run_dir: Path) -> None:
    leftovers = [run_dir / ".metadata.json.123.tmp", run_dir / "checkpoints" / ".last.123.tmp"]
    for path in leftovers:
        path.write_text("half")
    (run_dir / "checkpoints" / ".step_000000100.123.tmp").mkdir()
    resume_training(run_dir)
    assert not list(run_dir.rglob(".*"))


# -- signals ---------------------------------------------------------------------------------------------------------


class SignalAt(Callback):
    """Sends itself signals after the updates of a step."""

    def __init__(self, step: int, *numbers: signal.Signals) -> None:
        self.step, self.numbers = step, numbers

    def on_update_end(self, trainer: TrainerState, result: object) -> None:
        if trainer.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


def test_a_signal_while_saving_waits_for_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpointing.save_file

    def interrupted(tensors: Any, path: Path) -> None:
        if path.stem == "replay" and "step_000000060" in path.parent.name:
            os.kill(os.getpid(), signal.SIGTERM)
        original(tensors, path)

    monkeypatch.setattr(checkpointing, "save_file", interrupted)
    config = tiny_config("sac", tmp_path, eval_interval=None)
    result = train(config)
    assert result.stop_reason == "interrupted by SIGTERM"
    assert newest_checkpoint(result.run_dir).name == "step_000000060"
    find_checkpoint(result.run_dir).verify()
    monkeypatch.undo()
    assert_same_run(train(config).run_dir, resume_training(result.run_dir).run_dir)


def test_a_second_signal_stops_at_once_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("sac", tmp_path, eval_interval=None)
    with pytest.raises(KeyboardInterrupt):
        train(config, callbacks=[SignalAt(50, signal.SIGINT, signal.SIGINT)])
    (run_dir,) = tmp_path.iterdir()
    assert status(run_dir)["status"] == "interrupted"
    assert newest_checkpoint(run_dir).name == "step_000000030"
    assert_same_run(train(config).run_dir, resume_training(run_dir).run_dir)


def test_a_second_signal_while_saving_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpointing.save_file

    def interrupted(tensors: Any, path: Path) -> None:
        original(tensors, path)
        if "step_000000060" in path.parent.name:
            os.kill(os.getpid(), signal.SIGINT)

    config = tiny_config("sac", tmp_path, eval_interval=None)
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "save_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    (run_dir,) = tmp_path.iterdir()
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["last", "step_000000030"]
    assert_same_run(train(config).run_dir, resume_training(run_dir).run_dir)


@pytest.mark.parametrize("algo", ["sac", "iql"])
def test_a_signal_in_an_evaluation_or_before_the_first_step(algo: str, tmp_path: Path) -> None:
    class Stop(gym.Wrapper[Any, Any, Any, Any]):
        """Sends a signal at the n-th step of any environment."""

        count, at = 0, 0

        def step(self, action: Any) -> Any:
            type(self).count += 1
            if type(self).count == type(self).at:
                os.kill(os.getpid(), signal.SIGINT)
            return self.env.step(action)

    def make() -> gym.Env[Any, Any]:
        return Stop(gym.make("Pendulum-v1"))

    config = tiny_config(algo, tmp_path, eval_interval=40)
    data_steps = 256 if algo == "iql" else 0
    Stop.at = data_steps + (40 if algo == "sac" else 0) + 100  # in the first evaluation
    stopped = train(config, env=make)
    assert stopped.stop_reason == "interrupted by SIGINT"
    assert newest_checkpoint(stopped.run_dir).name == "step_000000040"
    Stop.at = 0
    assert_same_run(train(config, env=make).run_dir, resume_training(stopped.run_dir, env=make).run_dir)
    if algo == "iql":  # while the data is made, there is nothing to save
        Stop.count, Stop.at = 0, 100
        with pytest.raises(KeyboardInterrupt):
            train(config.replace(output_dir=tmp_path / "nothing"), env=make)
        assert Stop.count == 100
        assert not (tmp_path / "nothing").exists()


def test_work_that_may_end_at_once() -> None:
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt), signals.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == "SIGTERM"
        with pytest.raises(KeyboardInterrupt), signals.at_once():
            pytest.fail("not to be begun after a signal")


@pytest.mark.parametrize("preset", ["sac/pendulum", "redq/pendulum", "cql/pendulum"])
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_presets_end_soon_after_a_signal(preset: str, number: signal.Signals, tmp_path: Path) -> None:
    interval = ["--set", "checkpoint_interval=200", "--set", "torch_threads=1"]
    process = start("train", preset, "-q", "--output-dir", str(tmp_path), *interval)
    run_dir = wait_for(lambda: saved_run(tmp_path), process)
    os.kill(process.pid, number)
    signalled = time.monotonic()
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert time.monotonic() - signalled < 2 * max(1.0, load)
    assert status(run_dir)["status"] == "interrupted"
    find_checkpoint(run_dir).verify()


def test_a_signal_to_the_whole_group_leaves_workers_to_their_trainer(tmp_path: Path) -> None:
    process = start("train", long_config(tmp_path, num_envs=2, vectorization="async"), "-q")
    run_dir = wait_for(lambda: saved_run(tmp_path / "runs"), process)
    os.killpg(process.pid, signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert status(run_dir)["status"] == "interrupted"


def test_sigterm_ends_a_command_that_has_no_run(tmp_path: Path) -> None:
    process = start("predict", str(tmp_path), stdin=subprocess.PIPE)
    time.sleep(3)  # it waits for an observation
    process.terminate()
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message


# -- numbers ---------------------------------------------------------------------------------------------------------


class SickEnv(CountingEnv):
    """Gives a bad observation or reward at its fifth step."""

    def __init__(self, what: str, value: str = "nan") -> None:
        super().__init__(limit=20)
        self.what, self.value = what, float(value)

    def _obs(self) -> Any:
        obs = super()._obs()
        if self.what == "obs" and self.t == 5:
            obs[1] = self.value
        if self.what == "first obs" and self.t == 0 and self.episode == 1:
            obs[1] = self.value
        return obs

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, self.value if self.what == "reward" and self.t == 5 else reward, terminated, truncated, info


def dump_of(run_dir: Path) -> Path:
    (dump,) = run_dir.glob("nonfinite_step_*")
    return dump


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("what", "name", "step", "kind"),
    [("obs", r"obs\[1\]", 4, "observation"), ("reward", "reward", 4, "reward"), ("first obs", r"obs\[1\]", 19, "observation")],
)
def test_bad_numbers_of_an_environment_stop_the_run(
    what: str, value: str, name: str, step: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config("sac", tmp_path, env_id="test_trust:SickEnv", env_kwargs={"what": what, "value": value})
    with pytest.raises(NumericsError, match=rf"{name} of environment 0 became {value} at step {step} .*doctor"):
        train(config)
    (run_dir,) = tmp_path.iterdir()
    assert status(run_dir)["status"] == "failed"
    dump = dump_of(run_dir)
    report = json.loads((dump / "report.json").read_text())
    assert (report["kind"], report["value"], report["step"]) == (kind, value, step)
    assert main(["doctor", str(dump)]) == 0
    out = capsys.readouterr().out
    assert "the environment itself gave it" in out
    assert f"became {value} at step {step}" in out


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_environment_is_named(num_envs: int, tmp_path: Path) -> None:
    made = []

    def make() -> gym.Env[Any, Any]:
        made.append(1)
        return SickEnv("obs" if len(made) == 1 + num_envs else "nothing")  # the first one made is only looked at

    with pytest.raises(NumericsError, match=rf"obs\[1\] of environment {num_envs - 1} became nan"):
        train(tiny_config("sac", tmp_path, num_envs=num_envs), env=make)


def test_bad_numbers_in_an_evaluation(tmp_path: Path) -> None:
    made = []

    def make() -> gym.Env[Any, Any]:
        made.append(1)
        return SickEnv("reward" if len(made) == 3 else "nothing")

    with pytest.raises(NumericsError, match="reward of environment 0 became nan at step 40"):
        train(tiny_config("sac", tmp_path), env=make)
    assert "evaluation_seed" in json.loads((dump_of(next(tmp_path.iterdir())) / "report.json").read_text())


class Sabotage(Callback):
    """Makes a weight bad after a step, as a gradient step that overflows would."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.algorithm: Any = None

    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        if trainer.global_step == self.step:
            with torch.no_grad():
                next(iter(self.algorithm.networks()))[:] = float("nan")


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Sabotage:
    callback = Sabotage(50)
    original = run_module.Run.__init__

    def remember(self: Any, config: Any, *, algorithm: Any, **options: Any) -> None:
        callback.algorithm = algorithm
        original(self, config, algorithm=algorithm, **options)

    monkeypatch.setattr(run_module.Run, "__init__", remember)
    return callback


def test_bad_weights_are_never_saved(sabotage: Sabotage, tmp_path: Path) -> None:
    sabotage.step = 59  # random actions, no updates: only the checkpoint of step 60 can notice
    config = tiny_config("sac", tmp_path, algo_kwargs={"learning_starts": 80}, eval_interval=None)
    with pytest.raises(NumericsError, match=r"model\.\S+ became nan at step 60"):
        train(config, callbacks=[sabotage])
    (run_dir,) = tmp_path.iterdir()
    assert newest_checkpoint(run_dir).name == "step_000000030"
    find_checkpoint(run_dir).verify()


def test_a_bad_action_does_not_reach_the_environment(
    sabotage: Sabotage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config("sac", tmp_path, algo_kwargs={"train_frequency": 1000}, eval_interval=None)
    with pytest.raises(NumericsError, match=r"action\[0\] of environment 0 became nan at step 50"):
        train(config, callbacks=[sabotage])
    dump = dump_of(next(tmp_path.iterdir()))
    assert main(["doctor", str(dump)]) == 0
    assert "weights are bad already" in capsys.readouterr().out
    policy = Policy(sabotage.algorithm, EnvSpec.from_dict(find_checkpoint(dump.parent).manifest["env_spec"]))
    with pytest.raises(NumericsError, match=r"action\[0\] is nan"):
        policy.predict(OBS)


def test_the_doctor_explains_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NumericsError, match="critic_loss became"):
        train(tiny_config("sac", tmp_path, reward={"scale": 1e30}))
    dump = dump_of(next(tmp_path.iterdir()))
    assert main(["doctor", str(dump), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "loss critic_loss became" in found["what"]
    assert found["batch"]["rewards"]["non_finite"] == 0
    assert abs(found["batch"]["rewards"]["min"]) > 1e20
    assert any("rewards reach" in cause for cause in found["causes"])
    assert any("reward.scale" in advice for advice in found["advice"])
    assert {path.suffix for path in dump.iterdir()} == {".json", ".safetensors"}


def test_the_doctor_finds_the_rows_of_bad_data(tmp_path: Path) -> None:
    from rl_training.runtime.dumps import explain_dump
    from rl_training.runtime.numerics import dump_non_finite

    batch = {"obs": torch.zeros(8, 2), "rewards": torch.zeros(8)}
    batch["obs"][5, 1], batch["rewards"][2] = float("inf"), float("nan")
    report = {"tensor": "critic_loss", "kind": "loss", "value": float("nan"), "step": 3, "update": 3}
    dump_non_finite(tmp_path / "dump", report, weights={"w": torch.zeros(2)}, batch=batch)
    found = explain_dump(tmp_path / "dump")
    assert found["batch"]["obs"]["bad_rows"] == [5]
    assert found["batch"]["rewards"]["bad_rows"] == [2]
    assert sum("the data itself is bad" in cause for cause in found["causes"]) == 2


def test_a_dump_that_cannot_be_written_does_not_hide_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rl_training.runtime.numerics.write_json", full)
    with pytest.raises(NumericsError, match=r"obs\[1\] .* became nan at step 4 .*could not be kept: No space left on device"):
        train(tiny_config("sac", tmp_path, env_id="test_trust:SickEnv", env_kwargs={"what": "obs"}))


@pytest.mark.parametrize("kind", ["nothing", "empty", "text", "list", "other", "torn"])
def test_the_doctor_refuses_what_is_no_dump(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump"
    if kind != "nothing":
        path.mkdir()
        report = {"tensor": "x", "kind": "loss", "value": "nan", "step": 1, "update": 1}
        texts = {"text": "hello", "list": "[1]", "other": "{}", "torn": json.dumps(report)}
        if kind in texts:
            (path / "report.json").write_text(texts[kind])
        (path / "weights.safetensors").write_bytes(b"\xff" * 50)
    assert main(["doctor", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_huge_but_sound_numbers_are_sound() -> None:
    assert all_finite(np.array([[1e30, -1e38]], dtype=np.float32))
    assert all_finite(np.zeros((0, 3), dtype=np.float32))
    assert not all_finite(np.array([[1e30, np.nan]], dtype=np.float32))
    assert not all_finite(np.array([np.inf], dtype=np.float32))


# -- hostile files ---------------------------------------------------------------------------------------------------


def test_a_manifest_cannot_name_other_files(run_dir: Path) -> None:
    for name in ("../../../../etc/passwd", "/etc/passwd", "notes.txt"):
        copy = Path(shutil.copytree(newest_checkpoint(run_dir), run_dir / "copy"))
        rewrite_manifest(copy, lambda manifest, name=name: manifest["files"].update({name: {"bytes": 1, "sha256": ""}}))
        with pytest.raises(CheckpointError, match="does not list the files of a checkpoint"):
            predict_checkpoint(copy, OBS)
        shutil.rmtree(copy)


def test_a_manifest_cannot_copy_files_about(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    rewrite_manifest(newest_checkpoint(run_dir), lambda manifest: manifest["logs"].update({"../secret": 6}))
    branch = resume_training(run_dir, 97, "branch").run_dir
    assert not list(branch.rglob("secret*"))
    assert (branch / "metrics.jsonl").is_file()


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(files=None),
        lambda manifest: manifest.update(files={"weights.safetensors": 3}),
        lambda manifest: manifest.update(trainer=3),
        lambda manifest: manifest["trainer"].pop("global_step"),
        lambda manifest: manifest["trainer"].update(global_step=-1),
        lambda manifest: manifest["trainer"].update(stop_reason=[1]),
        lambda manifest: manifest["logs"].update({"metrics.jsonl": -5}),
        lambda manifest: manifest["config"].update(env_id=7),
        lambda manifest: manifest.update(env_spec={"obs_shape": 3}),
        lambda manifest: manifest["env_spec"].update(action_dtype="no such thing"),
        lambda manifest: manifest["env_spec"].update(action_low=[-1.0, -1.0]),
        lambda manifest: manifest["env_spec"].update(obs_shape=[10**15]),
        lambda manifest: manifest.update(normalizer={"mean": "x"}),
        lambda manifest: manifest.update(normalizer={"mean": [0.0] * 7, "std": [1.0] * 7}),
        lambda manifest: manifest.update(source={}),
        lambda manifest: manifest["evaluation"].update(best="good"),
        lambda manifest: manifest["evaluation"].update(best={"eval_return_mean": "x"}),
        lambda manifest: manifest.update(latest_metrics={"critic_loss": "x"}),
        lambda manifest: manifest["source"].update(returns=[]),
        lambda manifest: manifest["source"].update(rng={"bit_generator": "PCG64", "state": {"state": 10**60, "inc": 1}}),
    ],
)
def test_manifests_with_nonsense_in_them(change: Callable[[dict[str, Any]], object], run_dir: Path) -> None:
    newest, refused = newest_checkpoint(run_dir), 0
    rewrite_manifest(newest, change)
    for use in (
        lambda: predict_checkpoint(newest, OBS),
        lambda: evaluate_checkpoint(newest, 1),
        lambda: resume_training(newest),
    ):
        try:
            use()
        except CheckpointError:
            refused += 1
    assert refused  # some of it does not matter to some of them; nothing leads to another exception


@pytest.mark.parametrize("name", ["critic_optimizer.exp_avg", "nobody.exp_avg"])
def test_an_optimiser_that_does_not_fit_is_refused_before_the_run_goes_on(name: str, run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    checkpointing.save_file({name: torch.zeros(3)}, newest / "odd.safetensors")
    replace_part(newest, "optimizer", (newest / "odd.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"does not fit this run: .*optimiser"):
        resume_training(newest)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("episodes", "actions.0", torch.full((3, 1), 7.0)),
        ("episodes", "actions.0", torch.zeros(3, 2)),
        ("episodes", "actions.0", torch.zeros(3, 1, dtype=torch.int64)),
        ("replay", "rows", torch.full((5, 9), float("nan"))),
        ("replay", "cursor", torch.tensor(10**6)),
    ],
)
def test_tensors_that_no_run_could_have_saved(part: str, name: str, value: torch.Tensor, run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    tensors = Checkpoint(newest).tensors(part)
    checkpointing.save_file({**tensors, name: value}, newest / "odd.safetensors")
    replace_part(newest, part, (newest / "odd.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="does not fit this run"):
        resume_training(newest)


def header_claiming(rows: int) -> bytes:
    header = json.dumps({"rows": {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, rows * 32]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * 64


@pytest.mark.parametrize("content", [header_claiming(10**12), (10**12).to_bytes(8, "little") + b"{}", b""])
@pytest.mark.parametrize("part", ["weights", "replay"])
def test_claims_of_size_are_checked_before_memory_is_taken(content: bytes, part: str, run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    replace_part(newest, part, content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="cannot be read"):
        resume_training(newest)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("change", [{"hidden_sizes": [300_000, 300_000]}, {"critic_hidden_sizes": [10**9]}])
def test_networks_that_the_weights_do_not_fill_are_not_made(change: dict[str, Any], run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    rewrite_manifest(newest, lambda manifest: manifest["config"]["algo_kwargs"].update(change))
    for use in (lambda: predict_checkpoint(newest, OBS), lambda: resume_training(newest)):
        with pytest.raises(CheckpointError, match="its networks need"):
            use()


def test_a_manifest_is_not_read_without_limit(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "LARGEST_MANIFEST", 100)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        predict_checkpoint(newest_checkpoint(run_dir), OBS)


def test_pipes_are_not_waited_for(run_dir: Path) -> None:
    manifest = newest_checkpoint(run_dir) / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert evaluate_checkpoint(run_dir, 1)["global_step"] == 90


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "more than 100000 entries"),
        ("a: &a [*a]", "part of"),
        ("a: &a {b: {c: *a}}", "part of"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: !!python/name:os.system", "not valid YAML"),
        ("[" * 3000, "not valid YAML"),
        ("a: 1\nb: 2\na: 3", "appears twice"),
        ("? [1]\n: 2", "not valid YAML"),
    ],
)
def test_yaml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, source="text")


def test_yaml_with_a_few_aliases_is_fine() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}", source="text")["c"] == {"x": 1, "y": 2}


def test_yaml_files_have_a_size(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: " + "x" * 1_000_001)
    with pytest.raises(ConfigError, match="more than 1000000 are not read"):
        read_yaml_mapping(path)


def test_an_answer_does_not_repeat_all_of_a_wrong_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_config("sac", tmp_path, seed="x" * 100_000, total_timesteps=parse_yaml("-0x" + "f" * 9000, source=""))
    assert len(str(caught.value)) < 2000


# -- code of the user's ----------------------------------------------------------------------------------------------


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the working directory that leaves a file when it is imported."""
    (tmp_path / "canary_module.py").write_text(f"open({str(tmp_path / 'sang')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "sang"
    sys.modules.pop("canary_module", None)


@pytest.mark.parametrize("env_id", ["canary_module:make", "canary_module:Env-v0", "canary_module:nested.make"])
def test_user_code_can_be_switched_off(
    env_id: str, canary: Path, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(tiny_settings("sac", tmp_path / "runs", env_id=env_id)))
    newest = newest_checkpoint(run_dir)
    rewrite_manifest(newest, lambda manifest: manifest["config"].update(env_id=env_id))
    for command in (
        ["--no-user-code", "train", str(config)],
        ["train", str(config), "--no-user-code"],
        ["eval", str(newest), "--no-user-code"],
        ["resume", str(newest), "--no-user-code"],
        ["data", "collect", "out.npz", "--checkpoint", str(newest), "--no-user-code"],
        ["data", "collect", "out.npz", "--env", env_id, "--no-user-code"],
    ):
        assert main(command) == 2, command
        assert "user code is switched off" in capsys.readouterr().err
        assert "RL_TRAINING_NO_USER_CODE" not in os.environ
    assert not canary.exists()
    assert predict_checkpoint(newest, OBS).shape == (1,)  # which needs no environment
    assert main(["train", str(config)]) == 2  # without the switch the module is imported
    assert canary.exists()


def test_user_code_can_be_switched_off_by_the_environment(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("sac", tmp_path, env_id="canary_module:make")
    monkeypatch.setenv("RL_TRAINING_NO_USER_CODE", "1")
    with pytest.raises(ConfigError, match="user code is switched off"):
        train(config)
    train(tiny_config("sac", tmp_path / "runs", total_timesteps=40))  # other environments are as ever
    monkeypatch.setenv("RL_TRAINING_NO_USER_CODE", "0")
    with pytest.raises(ConfigError, match="no 'make'"):
        train(config)
    assert canary.exists()


# -- versions --------------------------------------------------------------------------------------------------------


def test_older_manifests_are_brought_up_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "step_000000001", manifest={"old": 1}, parts={})
    rewrite_manifest(tmp_path / "step_000000001", lambda manifest: manifest.update(format_version=0))
    with pytest.raises(CheckpointError, match="no longer read"):
        Checkpoint(tmp_path / "step_000000001").manifest  # noqa: B018
    monkeypatch.setattr(migrations, "FORMAT_VERSION", 2)
    monkeypatch.setitem(migrations.MIGRATIONS, 0, lambda manifest: {**manifest, "middle": manifest["old"] + 1})
    monkeypatch.setitem(migrations.MIGRATIONS, 1, lambda manifest: {**manifest, "new": manifest["middle"] + 1})
    manifest = Checkpoint(tmp_path / "step_000000001").manifest
    assert (manifest["new"], manifest["format_version"]) == (3, 2)


def test_a_later_format_is_refused_not_taken_for_damage(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = newest_checkpoint(run_dir)
    rewrite_manifest(newest, lambda manifest: manifest.update(format_version=2, package_version="9.9.9"))
    for command in (["resume", str(run_dir)], ["eval", str(run_dir)], ["predict", str(run_dir), "--obs", "[0,0,0]"]):
        assert main(command) == 2
        assert "written by rl_training 9.9.9" in (message := capsys.readouterr().err)
        assert "upgrade the package" in message
    assert newest.is_dir()


@pytest.mark.parametrize("version", [-1, "1", None, 1.5, True])
def test_versions_that_are_none(version: object, run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    rewrite_manifest(newest, lambda manifest: manifest.update(format_version=version))
    with pytest.raises(CheckpointError, match="which is none"):
        predict_checkpoint(newest, OBS)


def test_settings_of_a_later_version_are_named(run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)
    rewrite_manifest(
        newest, lambda manifest: (manifest.update(package_version="0.9.0"), manifest["config"].update(brand_new_setting=1))
    )
    for use in (lambda: resume_training(newest), lambda: evaluate_checkpoint(newest, 1)):
        with pytest.raises(CheckpointError, match=r"(?s)brand_new_setting is not a known key.*written by rl_training 0\.9\.0"):
            use()


def test_settings_that_came_later_have_their_defaults(run_dir: Path) -> None:
    newest = newest_checkpoint(run_dir)

    def forget(manifest: dict[str, Any]) -> None:
        for name in ("on_save_error", "keep_last", "max_epochs"):
            manifest["config"].pop(name)
        manifest["config"]["algo_kwargs"].pop("layer_norm")

    rewrite_manifest(newest, forget)
    assert evaluate_checkpoint(newest, 1)["global_step"] == 96
    assert resume_training(newest, 100).metrics["global_step"] == 100
