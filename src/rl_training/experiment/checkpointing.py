"""Checkpoints: directories of safetensors files and a manifest that names, measures and checks them. No pickle.

    checkpoints/step_000005000/{manifest.json, weights, optimizer, replay, rng, episodes .safetensors}
    checkpoints/last, checkpoints/best       one line: the name of a directory beside them
    checkpoints/damaged_step_000005000       a damaged one that was set aside; nothing looks at it any more

A checkpoint is written under a temporary name, flushed, and renamed; the pointers and the deletion of older
checkpoints come after. So a crash at any moment leaves the previous checkpoint or the new one, whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rl_training import __version__
from rl_training.experiment.files import (
    delete,
    delete_temporaries,
    read_bounded,
    reason_of,
    sha256_of,
    sync_directory,
    sync_file,
    write_atomically,
    write_json,
    writing,
)
from rl_training.experiment.migrations import FORMAT_VERSION, NewerFormatError, migrate
from rl_training.types import CheckpointError

logger = logging.getLogger("rl_training")

MANIFEST = "manifest.json"
PARTS = ("weights", "optimizer", "replay", "rng", "episodes")
LARGEST_MANIFEST = 64 * 2**20
_FILES = {f"{part}.safetensors" for part in PARTS}
_STEP = re.compile(r"step_([0-9]{1,20})")  # a longer name may be one that no file can have
_LARGEST_POINTER = 4096

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
            _save_tensors(tensors, path)
            sync_file(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        content = {"format_version": FORMAT_VERSION, "package_version": __version__, **manifest, "files": files}
        write_json(temporary / MANIFEST, {**content, "checksum": _checksum(content)})
        _move_into_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save_tensors(tensors: Tensors, path: Path) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # what the library makes of a full disk
        raise OSError(str(error)) from error


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
        """The manifest, brought to this version of the format; refused if it is damaged or of another kind."""
        path = self.path / MANIFEST
        content = _read_manifest(path)
        if not isinstance(content, dict) or "format_version" not in content:
            raise CheckpointError(f"{path} is not a checkpoint of rl_training")
        checksum = content.pop("checksum", None)
        try:
            intact = checksum == _checksum(content)
        except ValueError:  # a number like 1e400
            intact = False
        if not intact:
            raise CheckpointError(f"{path} does not match its own checksum: the checkpoint is damaged or was edited")
        content = migrate(content, source=str(path))
        _require_known_files(content.get("files"), path)
        return content

    def verify(self, parts: Sequence[str] = PARTS) -> None:
        """Check parts against the manifest, without reading tensors."""
        for part in parts:
            if self.has(part):
                self._checked_file(part)

    def looks_whole(self) -> bool:
        """Whether the manifest is good and every file has its size; what a look that reads no tensors can tell."""
        try:
            for part in PARTS:
                if self.has(part):
                    self._file_of_right_size(part)
        except CheckpointError:
            return False
        return True

    def has(self, part: str) -> bool:
        """Whether the checkpoint has a part."""
        return f"{part}.safetensors" in self.manifest["files"]

    def tensors(self, part: str) -> dict[str, torch.Tensor]:
        """The tensors of one part."""
        path = self._checked_file(part)
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None

    def _checked_file(self, part: str) -> Path:
        path = self._file_of_right_size(part)
        try:
            intact = sha256_of(path) == self.manifest["files"][path.name]["sha256"]
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from None
        if not intact:
            raise CheckpointError(f"{path} does not match its checksum: the checkpoint is damaged")
        return path

    def _file_of_right_size(self, part: str) -> Path:
        path = self.path / f"{part}.safetensors"
        entry = self.manifest["files"].get(path.name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no {part}: it cannot be used for this")
        try:
            if path.is_symlink() or not path.is_file():  # a link might lead anywhere
                raise CheckpointError(f"{path} is missing or a link: the checkpoint is damaged")
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from None
        if size != entry["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes instead of {entry['bytes']}: the checkpoint is damaged")
        return path


def _read_manifest(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link: the checkpoint is damaged")
        return json.loads(read_bounded(path, LARGEST_MANIFEST), parse_constant=refuse)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is not valid JSON: the checkpoint is damaged") from None


def _require_known_files(files: Any, path: Path) -> None:
    """A manifest speaks of the files that a checkpoint can have and of no others, whatever their path."""
    if not isinstance(files, dict) or not files.keys() <= _FILES:
        raise CheckpointError(f"{path} does not list the files of a checkpoint")
    for name, entry in files.items():
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not isinstance(entry.get("sha256"), str):
            raise CheckpointError(f"{path} does not tell the size and checksum of {name}")


def find_checkpoint(path: str | Path, *, parts: Sequence[str] = ("weights",)) -> Checkpoint:
    """The checkpoint meant by a path.

    A checkpoint directory and ``best`` mean themselves. A run directory, its ``checkpoints`` and ``last`` mean the newest
    checkpoint whose ``parts`` are intact; if that is not the newest of all, a warning says why.
    """
    try:
        return _find(Path(path), parts)
    except (OSError, ValueError) as error:  # not permitted, or a name that is too long or impossible
        raise CheckpointError(f"{str(path)[:200]} cannot be read: {reason_of(error)}") from None


def _find(path: Path, parts: Sequence[str]) -> Checkpoint:
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.is_file() and path.name == "best":
        return Checkpoint(_pointed_to(path))
    if (path / MANIFEST).is_file():
        return Checkpoint(path)
    for directory in (path.parent,) if path.is_file() and path.name == "last" else (path / "checkpoints", path):
        checkpoint = CheckpointStore(directory, keep_last=1).newest(parts)
        if checkpoint is not None:
            return checkpoint
    raise CheckpointError(f"{path} is neither a checkpoint (no {MANIFEST}) nor a run directory with checkpoints")


def _pointed_to(pointer: Path) -> Path:
    try:
        name = read_bounded(pointer, _LARGEST_POINTER).decode("utf-8", errors="replace").strip()
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {reason_of(error)}") from None
    except ValueError:
        name = "far too long"
    if not _STEP.fullmatch(name):  # a name only: a pointer cannot lead out of its directory
        raise CheckpointError(f"{pointer} does not name a checkpoint beside it: {name[:60]!r}")
    target = pointer.parent / name
    if target.is_symlink() or not target.is_dir():
        raise CheckpointError(f"{pointer} names {name}, which is missing or a link")
    return target


class CheckpointStore:
    """The ``checkpoints`` directory of a run: saving, pointing, finding, forgetting."""

    def __init__(self, directory: Path, *, keep_last: int) -> None:
        self.directory, self.keep_last = directory, keep_last

    def save(self, step: int, *, manifest: Mapping[str, Any], parts: Mapping[str, Tensors], best: bool) -> Path:
        """Save a checkpoint, point ``last`` (and ``best``) to it, then drop what need not be kept.

        A ``CheckpointError`` if it cannot be written; then the checkpoints from before are as they were.
        """
        target = self.directory / checkpoint_name(step)
        with writing(target):
            write_checkpoint(target, manifest={**manifest, "is_best": best}, parts=parts)
            self._point("last", target)
            if best:
                self._point("best", target)
        self._rotate()
        return target

    def _rotate(self) -> None:
        """Keep the best and the newest ``keep_last``, not counting those that were damaged since they were written."""
        best, whole = None, 0
        with contextlib.suppress(CheckpointError):
            best = _pointed_to(self.directory / "best")
        for path in reversed(self.steps()):
            if whole < self.keep_last:
                whole += Checkpoint(path).looks_whole()
            elif path != best:
                self._forget(path)

    def _forget(self, path: Path) -> None:
        """Delete a checkpoint. Renamed first: half a deleted one would look like a damaged one."""
        doomed = path.with_name(f".{path.name}.{os.getpid()}.dropped")
        with contextlib.suppress(OSError):
            os.replace(path, doomed)
            delete(doomed)

    def steps(self) -> list[Path]:
        """Checkpoint directories, oldest first."""
        found = [path for path in self.directory.glob("step_*") if _STEP.fullmatch(path.name)]
        return sorted(found, key=_step_of)

    def newest(self, parts: Sequence[str] = PARTS) -> Checkpoint | None:
        """The newest checkpoint whose ``parts`` are intact; warns of what is wrong with newer ones. None if there is none.

        A ``CheckpointError`` if there are some but none is intact, or if the newest is of a later version of the package.
        """
        complaints = self._complaints_of_pointer()
        for path in reversed(self.steps()):
            try:
                if path.is_symlink():
                    raise CheckpointError(f"{path} is a link: it is not followed")
                checkpoint = Checkpoint(path)
                checkpoint.verify(parts)
            except NewerFormatError:
                raise
            except CheckpointError as error:
                complaints.append(str(error))
                continue
            for complaint in complaints:
                logger.warning("%s", complaint)
            if complaints:
                logger.warning("Falling back to the newest intact checkpoint, %s", path.name)
            return checkpoint
        if complaints:
            raise CheckpointError(f"no checkpoint in {self.directory} is intact:\n  " + "\n  ".join(complaints))
        return None

    def _complaints_of_pointer(self) -> list[str]:
        try:
            if (self.directory / "last").exists():
                _pointed_to(self.directory / "last")
        except CheckpointError as error:
            return [str(error)]
        return []

    def adopt(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint, from which a run is about to go on, the newest one, and finish what a crash kept from being done.

        Damaged ones that are newer would be taken for newer ones again, so they are renamed; none is deleted. Pointers
        are written if the process that saved the checkpoint did not live to write them.
        """
        with writing(self.directory):
            for path in self.steps():
                if _step_of(path) > _step_of(checkpoint.path):
                    self._set_aside(path)
            self._point("last", checkpoint.path)
            if checkpoint.manifest.get("is_best") is True:
                self._point("best", checkpoint.path)

    def _set_aside(self, path: Path) -> None:
        aside = path.with_name(f"damaged_{path.name}")
        if taken := len(list(self.directory.glob(f"{aside.name}*"))):
            aside = aside.with_name(f"{aside.name}_{taken + 1}")
        os.replace(path, aside)
        logger.warning("The damaged %s is now called %s; delete it when you like", path.name, aside.name)

    def _point(self, name: str, target: Path) -> None:
        pointer = self.directory / name
        with contextlib.suppress(CheckpointError):
            if _pointed_to(pointer) == target:
                return
        write_atomically(pointer, target.name + "\n")

    def clean(self) -> None:
        """Put right what an earlier crash left half-done."""
        for aside in list(self.directory.glob(".step_*.old")):  # see _move_into_place
            target = self.directory / aside.name.split(".")[1]
            if not target.exists():  # it crashed between the two renames: the older of the two is whole and back in place
                with contextlib.suppress(OSError):
                    os.replace(aside, target)
        for path in list(self.directory.glob(".step_*")):
            delete(path)
        delete_temporaries(self.directory)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
