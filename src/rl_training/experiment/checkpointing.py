"""Checkpoints: directories of safetensors files and a manifest that names, measures and checks them. No pickle.

    checkpoints/step_000005000/{manifest.json, weights, optimizer, replay, rng, episodes .safetensors}
    checkpoints/last, checkpoints/best       one line: the name of a directory beside them

A checkpoint is written under a temporary name, flushed, and renamed; the pointers and the deletion of older
checkpoints come after. So a crash at any moment leaves the previous checkpoint or the new one, whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rl_training import __version__
from rl_training.experiment.files import sha256_of, sync_directory, sync_file, write_atomically, write_json
from rl_training.types import CheckpointError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
PARTS = ("weights", "optimizer", "replay", "rng", "episodes")
_STEP = re.compile(r"^step_(\d+)$")

Tensors = Mapping[str, torch.Tensor]


def checkpoint_name(step: int) -> str:
    """Directory name; zero-padded so that names sort by step."""
    return f"step_{step:09d}"


def write_checkpoint(target: Path, *, manifest: Mapping[str, Any], parts: Mapping[str, Tensors]) -> None:
    """Write a whole checkpoint directory, or nothing."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        files: dict[str, dict[str, Any]] = {}
        for part, tensors in parts.items():
            path = temporary / f"{part}.safetensors"
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
            sync_file(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        content = {"format_version": FORMAT_VERSION, "package_version": __version__, **manifest, "files": files}
        write_json(temporary / MANIFEST, {**content, "checksum": _checksum(content)})
        _move_into_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _move_into_place(temporary: Path, target: Path) -> None:
    """Rename; an older directory of that name steps aside first and is deleted last."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        os.replace(target, aside)
    os.replace(temporary, target)
    sync_directory(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _checksum(manifest: Mapping[str, Any]) -> str:
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its manifest has been checked; each part is checked when it is read."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest, refused if it is damaged or of another kind."""
        path = self.path / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise CheckpointError(f"{path} is not valid JSON: the checkpoint is damaged") from None
        if not isinstance(content, dict) or "format_version" not in content:
            raise CheckpointError(f"{path} is not a checkpoint of rl_training")
        if content["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {content['format_version']}, this package reads {FORMAT_VERSION}"
            )
        checksum = content.pop("checksum", None)
        if checksum != _checksum(content):
            raise CheckpointError(f"{path} does not match its own checksum: the checkpoint is damaged or was edited")
        return content

    def verify(self) -> None:
        """Check every part, without reading tensors."""
        for part in PARTS:
            if self.has(part):
                self._checked_file(part)

    def has(self, part: str) -> bool:
        """Whether the checkpoint has a part."""
        return f"{part}.safetensors" in self.manifest["files"]

    def tensors(self, part: str) -> dict[str, torch.Tensor]:
        """The tensors of one part."""
        path = self._checked_file(part)
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None

    def _checked_file(self, part: str) -> Path:
        path = self.path / f"{part}.safetensors"
        entry = self.manifest["files"].get(path.name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no {part}: it cannot be used for this")
        if path.is_symlink() or not path.is_file():
            raise CheckpointError(f"{path} is missing: the checkpoint is damaged")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes instead of {entry['bytes']}: the checkpoint is damaged")
        if sha256_of(path) != entry["sha256"]:
            raise CheckpointError(f"{path} does not match its checksum: the checkpoint is damaged")
        return path


def find_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint meant by a path: a checkpoint directory, a pointer (``last``, ``best``) or a run directory."""
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.is_file() and path.name in ("last", "best"):
        return Checkpoint(_pointed_to(path))
    if (path / MANIFEST).is_file():
        return Checkpoint(path)
    for directory in (path / "checkpoints", path):
        if (directory / "last").is_file():
            return Checkpoint(_pointed_to(directory / "last"))
    raise CheckpointError(f"{path} is neither a checkpoint (no {MANIFEST}) nor a run directory with checkpoints")


def _pointed_to(pointer: Path) -> Path:
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not _STEP.match(name):  # a name only: a pointer cannot lead out of its directory
        raise CheckpointError(f"{pointer} does not name a checkpoint beside it: {name[:60]!r}")
    return pointer.parent / name


class CheckpointStore:
    """The ``checkpoints`` directory of a run: saving, pointing, forgetting."""

    def __init__(self, directory: Path, *, keep_last: int) -> None:
        self.directory, self.keep_last = directory, keep_last

    def save(self, step: int, *, manifest: Mapping[str, Any], parts: Mapping[str, Tensors], best: bool) -> Path:
        """Save a checkpoint, point ``last`` (and ``best``) to it, then drop what need not be kept."""
        target = self.directory / checkpoint_name(step)
        write_checkpoint(target, manifest=manifest, parts=parts)
        write_atomically(self.directory / "last", target.name + "\n")
        if best:
            write_atomically(self.directory / "best", target.name + "\n")
        self._rotate()
        return target

    def _rotate(self) -> None:
        kept = {path.name for path in self.steps()[-self.keep_last :]}
        with contextlib.suppress(OSError, CheckpointError):
            kept.add(_pointed_to(self.directory / "best").name)
        for path in self.steps():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def steps(self) -> list[Path]:
        """Checkpoint directories, oldest first."""
        found = [path for path in self.directory.glob("step_*") if _STEP.match(path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))

    def newest_intact(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that verifies, and what was wrong with newer ones."""
        complaints = []
        for path in reversed(self.steps()):
            try:
                checkpoint = Checkpoint(path)
                checkpoint.verify()
            except CheckpointError as error:
                complaints.append(str(error))
            else:
                return checkpoint, complaints
        return None, complaints

    def clean(self) -> None:
        """Remove what an earlier crash left half-written."""
        for path in self.directory.glob(".step_*"):
            shutil.rmtree(path, ignore_errors=True)
