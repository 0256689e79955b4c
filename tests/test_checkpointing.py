"""Checkpoint files: whole or absent, checked, and never executed."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import newest_checkpoint as newest
from support import tiny_config

from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore, find_checkpoint, write_checkpoint
from rl_training.runtime.policy import Policy
from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.types import CheckpointError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("sac", tmp_path_factory.mktemp("trained"))).run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def rewrite_manifest(checkpoint: Path, change: Any, *, checksum: bool = True) -> None:
    from rl_training.experiment.checkpointing import _checksum

    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum")
    change(manifest)
    path.write_text(json.dumps({**manifest, "checksum": _checksum(manifest)} if checksum else manifest))


def test_tensors_round_trip(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(2.5), "d": torch.zeros(0, 3)}
    write_checkpoint(tmp_path / "step_000000001", manifest={"algo": "x"}, parts={"weights": tensors})
    read = Checkpoint(tmp_path / "step_000000001").tensors("weights")
    assert all(torch.equal(tensors[name], read[name]) for name in tensors)


def test_layout(run_dir: Path) -> None:
    assert sorted(path.name for path in newest(run_dir).iterdir()) == [
        "episodes.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "replay.safetensors",
        "rng.safetensors",
        "weights.safetensors",
    ]
    assert {path.name for path in run_dir.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "evaluations.csv",
        "metadata.json",
        "metrics.jsonl",
    }
    manifest = find_checkpoint(run_dir).manifest
    assert manifest["trainer"]["should_stop"] is False
    assert manifest["trainer"]["stop_reason"] is None


def test_every_way_to_name_a_checkpoint(run_dir: Path) -> None:
    expected = newest(run_dir)
    for path in (run_dir / "checkpoints", run_dir / "checkpoints" / "last", expected):
        assert find_checkpoint(path).path == expected
    assert find_checkpoint(run_dir / "checkpoints" / "best").path.name.startswith("step_")


@pytest.mark.parametrize("part", ["weights", "optimizer", "replay", "rng", "episodes"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "swapped"])
def test_damage_is_found_and_named(part: str, damage: str, run_dir: Path) -> None:
    path = newest(run_dir) / f"{part}.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-3])
    elif damage == "flipped":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
    else:
        shutil.copy(path.with_name("weights.safetensors" if part != "weights" else "rng.safetensors"), path)
    with pytest.raises(CheckpointError, match=rf"{part}.safetensors.*damaged"):
        resume_training(newest(run_dir))


def test_resume_falls_back_to_the_newest_intact_checkpoint(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = newest(run_dir) / "optimizer.safetensors"
    bad.write_bytes(b"\0" * bad.stat().st_size)
    before = find_checkpoint(run_dir / "checkpoints" / "last").path.name
    result = resume_training(run_dir)
    assert "optimizer.safetensors does not match its checksum" in caplog.text
    assert "Falling back" in caplog.text
    assert newest(result.run_dir).name == before  # trained to the same step again


def test_no_intact_checkpoint_left(run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").glob("step_*/manifest.json"):
        path.write_text("{")
    with pytest.raises(CheckpointError, match=r"no checkpoint .* is intact"):
        resume_training(run_dir)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest.update(format_version=99), "format version 99"),
        (lambda manifest: manifest.pop("format_version"), "not a checkpoint of rl_training"),
        (lambda manifest: manifest.update(algo="nonsense"), "nonsense"),
        (lambda manifest: manifest.pop("env_spec"), "env_spec"),
        (lambda manifest: manifest["config"]["algo_kwargs"].update(hidden_sizes=[3]), "missing|unknown|shape"),
    ],
)
def test_foreign_manifests_are_refused(change: Any, message: str, run_dir: Path) -> None:
    rewrite_manifest(newest(run_dir), change)
    with pytest.raises(CheckpointError, match=message):
        Policy.from_checkpoint(newest(run_dir))


def test_an_edited_manifest_is_noticed(run_dir: Path) -> None:
    path = newest(run_dir) / "manifest.json"
    path.write_text(path.read_text().replace('"global_step": 96', '"global_step": 95'))
    with pytest.raises(CheckpointError, match="does not match its own checksum"):
        evaluate_checkpoint(newest(run_dir), 1)


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd", "step_1/../..", "", "step_\n1", "x" * 5000])
def test_pointers_cannot_lead_out(name: str, run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = newest(run_dir)
    for pointer in ("best", "last"):
        (run_dir / "checkpoints" / pointer).write_text(name)
    with pytest.raises(CheckpointError, match="does not name a checkpoint beside it"):
        find_checkpoint(run_dir / "checkpoints" / "best")
    assert find_checkpoint(run_dir).path == expected  # the newest there is, whatever the pointer says
    assert "does not name a checkpoint beside it" in caplog.text
    assert "Falling back" in caplog.text


def test_linked_parts_are_refused(run_dir: Path, tmp_path: Path) -> None:
    path = newest(run_dir) / "weights.safetensors"
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="missing or a link"):
        Policy.from_checkpoint(newest(run_dir))


def test_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        find_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        find_checkpoint(tmp_path)


def test_rotation_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in range(1, 7):
        store.save(step, manifest={}, parts={"weights": {"x": torch.tensor(step)}}, best=step == 2)
    assert [path.name for path in store.steps()] == ["step_000000002", "step_000000005", "step_000000006"]
    assert find_checkpoint(tmp_path / "best").tensors("weights")["x"] == 2
    assert find_checkpoint(tmp_path).tensors("weights")["x"] == 6


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    for value in (1, 2):
        write_checkpoint(tmp_path / "step_000000001", manifest={}, parts={"weights": {"x": torch.tensor(value)}})
    assert Checkpoint(tmp_path / "step_000000001").tensors("weights")["x"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001"]


def test_a_checkpoint_of_other_networks_leaves_no_new_directory(run_dir: Path, tmp_path: Path) -> None:
    other = tiny_config("sac", tmp_path / "other", algo_kwargs={"hidden_sizes": [8]})
    with pytest.raises(CheckpointError, match="does not fit this run"):
        train(other, checkpoint=run_dir, run_suffix="branch")
    assert not list((tmp_path / "other").iterdir())


def test_an_older_checkpoint_is_not_continued_in_place(run_dir: Path) -> None:
    older = CheckpointStore(run_dir / "checkpoints", keep_last=1).steps()[0]
    with pytest.raises(CheckpointError, match="not the newest checkpoint"):
        resume_training(older)


def test_a_pickle_in_disguise_is_not_executed(run_dir: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (canary,))

    path = newest(run_dir) / "weights.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    size, digest = path.stat().st_size, __import__("hashlib").sha256(path.read_bytes()).hexdigest()
    rewrite_manifest(
        newest(run_dir), lambda manifest: manifest["files"].update({path.name: {"bytes": size, "sha256": digest}})
    )
    with pytest.raises(CheckpointError, match="cannot be read"):
        Policy.from_checkpoint(run_dir)
    assert not canary.exists()


def test_predicting_makes_no_environment_and_unpickles_nothing(run_dir: Path) -> None:
    code = f"""
import pickle, gymnasium, torch
def refuse(*a, **k): raise SystemExit("forbidden")
pickle.load = pickle.loads = torch.load = gymnasium.make = refuse
from rl_training.runtime.policy import Policy
import sys
action = Policy.from_checkpoint({str(run_dir)!r}).predict([1.0, 0.0, 0.0])
assert action.shape == (1,), action
assert not any(name.startswith("gymnasium.envs.classic_control.p") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
