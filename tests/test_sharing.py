"""Sharing: what is pushed comes back the same, and nothing unsafe or damaged is ever put in place."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
from support import REPOSITORY

from rl_training import SAC
from rl_training.cli import main
from rl_training.runtime.sharing import pull_checkpoint, push_checkpoint
from rl_training.types import CheckpointError, ConfigError

GOLDEN = REPOSITORY / "tests" / "golden" / "0.1.0" / "sac"


class FakeHub:
    """The calls of ``huggingface_hub.HfApi`` that are used, on a folder."""

    def __init__(self, home: Path) -> None:
        self.home, self.calls = home, []

    def create_repo(self, *, repo_id: str, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create_repo", repo_id, private, exist_ok))
        (self.home / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        (self.home / repo_id / ".gitattributes").write_text("*.safetensors filter=lfs\n")

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.calls.append(("upload_folder", repo_id, commit_message))
        shutil.copytree(folder_path, self.home / repo_id, dirs_exist_ok=True)

    def list_repo_files(self, *, repo_id: str, revision: str | None) -> list[str]:
        self.calls.append(("list_repo_files", repo_id, revision))
        if not (self.home / repo_id).is_dir():
            raise RuntimeError(f"404: there is no {repo_id}\nRequest ID: 123")
        return [path.name for path in (self.home / repo_id).iterdir()]

    def snapshot_download(self, *, repo_id: str, revision: str | None, local_dir: str, allow_patterns: list[str]) -> str:
        self.calls.append(("snapshot_download", repo_id, revision))
        for name in allow_patterns:
            shutil.copyfile(self.home / repo_id / name, Path(local_dir) / name)
        (Path(local_dir) / ".cache").mkdir()  # as the library leaves one
        return local_dir


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return Path(push_checkpoint(GOLDEN, str(tmp_path / "shared")))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it raises
    shared, pulled = tmp_path / "a" / "shared", tmp_path / "b" / "pulled"
    assert main(["share", "push", str(GOLDEN), str(shared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"target": str(shared)}
    kinds = {path.suffix for path in shared.iterdir()}
    assert kinds == {".md", ".json", ".safetensors"}
    assert main(["share", "pull", str(shared), str(pulled), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"checkpoint_path": str(pulled)}
    assert names_in(pulled) == names_in(shared)
    assert (pulled / "README.md").read_text().startswith("---\nlibrary_name: rl-training")
    obs = [0.5, 0.5, 1.0]
    assert SAC.load(pulled).predict(obs) == SAC.load(GOLDEN).predict(obs)
    assert main(["share", "push", str(GOLDEN), "hub:me/agent"]) == 2
    assert 'pip install "rl-training[hub]"' in capsys.readouterr().err


def test_the_hub(tmp_path: Path) -> None:
    hub = FakeHub(tmp_path / "hub")
    assert push_checkpoint(GOLDEN, "hub:me/agent", private=True, api=hub) == "hub:me/agent"
    pulled = pull_checkpoint("hub:me/agent", tmp_path / "pulled", revision="main", api=hub)
    assert [call[0] for call in hub.calls] == ["create_repo", "upload_folder", "list_repo_files", "snapshot_download"]
    assert hub.calls[0] == ("create_repo", "me/agent", True, True)
    assert hub.calls[1] == ("upload_folder", "me/agent", "sac, step 40")
    assert hub.calls[3][2] == "main"
    assert SAC.load(pulled).predict([0.0, 0.0, 0.0]) == SAC.load(GOLDEN).predict([0.0, 0.0, 0.0])
    assert names_in(pulled) == [name for name in names_in(tmp_path / "hub" / "me" / "agent") if name != ".gitattributes"]


def test_the_calls_exist_in_the_library() -> None:
    from inspect import signature

    from huggingface_hub import HfApi

    for name in ("create_repo", "upload_folder", "list_repo_files", "snapshot_download"):
        used = set(signature(getattr(FakeHub, name)).parameters)
        assert used <= set(signature(getattr(HfApi, name)).parameters), name


@pytest.mark.parametrize("name", ["agent.pkl", "weights.pt", "setup.py", "more/weights.safetensors", "policy.onnx"])
def test_other_kinds_of_files_are_refused(name: str, shared: Path, tmp_path: Path) -> None:
    (shared / name).parent.mkdir(exist_ok=True)
    (shared / name).write_bytes(pickle.dumps("anything"))
    with pytest.raises(CheckpointError, match=f"no part of a checkpoint: {name}"):
        pull_checkpoint(str(shared), tmp_path / "pulled")
    assert names_in(tmp_path) == ["shared"]
    hub = FakeHub(tmp_path / "hub")
    (tmp_path / "hub" / "me").mkdir(parents=True)
    if "/" not in name:
        shutil.copytree(shared, tmp_path / "hub" / "me" / "agent")
        with pytest.raises(CheckpointError, match="Nothing is taken"):
            pull_checkpoint("hub:me/agent", tmp_path / "pulled", api=hub)
        assert [call[0] for call in hub.calls] == ["list_repo_files"]  # not even downloaded


def test_damage_is_noticed_before_anything_is_in_place(shared: Path, tmp_path: Path) -> None:
    weights = shared / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        pull_checkpoint(str(shared), tmp_path / "pulled")
    weights.write_bytes(pickle.dumps("disguised"))
    with pytest.raises(CheckpointError, match="damaged"):
        pull_checkpoint(str(shared), tmp_path / "pulled")
    weights.unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        pull_checkpoint(str(shared), tmp_path / "pulled")
    weights.symlink_to(GOLDEN / "checkpoints" / "step_000000040" / "weights.safetensors")
    with pytest.raises(CheckpointError, match="a link"):
        pull_checkpoint(str(shared), tmp_path / "pulled")
    assert names_in(tmp_path) == ["shared"]


def test_a_damaged_checkpoint_is_not_pushed(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(GOLDEN / "checkpoints" / "step_000000040", tmp_path / "damaged")
    (checkpoint / "replay.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        push_checkpoint(checkpoint, str(tmp_path / "shared"))
    assert names_in(tmp_path) == ["damaged"]


def test_only_files_of_the_checkpoint_are_pushed(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(GOLDEN / "checkpoints" / "step_000000040", tmp_path / "checkpoint")
    (checkpoint / "notes.txt").write_text("private")
    push_checkpoint(checkpoint, str(tmp_path / "shared"))
    assert not (tmp_path / "shared" / "notes.txt").exists()


def test_mistakes(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        push_checkpoint(GOLDEN, str(shared))
    with pytest.raises(ConfigError, match="exists already"):
        pull_checkpoint(str(shared), shared)
    with pytest.raises(CheckpointError, match="is no folder; a repository on the hub is written hub:owner/name"):
        pull_checkpoint("me/agent", tmp_path / "pulled")
    with pytest.raises(ConfigError, match="written hub:owner/name"):
        push_checkpoint(GOLDEN, "hub:agent", api=FakeHub(tmp_path))
    with pytest.raises(ConfigError, match=r"hub:me/none cannot be reached: 404: there is no me/none$"):
        pull_checkpoint("hub:me/none", tmp_path / "pulled", api=FakeHub(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        pull_checkpoint(str(tmp_path / "empty"), tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
