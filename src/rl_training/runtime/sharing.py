"""Handing an agent on: a checkpoint with its model card, in a folder or on the Hugging Face hub. JSON and safetensors only."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpointing import MANIFEST, PARTS, Checkpoint, find_checkpoint
from rl_training.experiment.files import delete, write_atomically, writing
from rl_training.runtime.model_card import model_card
from rl_training.runtime.policy import load_policy
from rl_training.types import CheckpointError, ConfigError

HUB = "hub:"
"""What distinguishes a repository on the hub, ``hub:owner/name``, from a folder."""
CARD = "README.md"
_CHECKPOINT_FILES = {MANIFEST, *(f"{part}.safetensors" for part in PARTS)}
_OTHER_FILES = {CARD, ".gitattributes"}


def push_checkpoint(checkpoint: str | Path, target: str, *, private: bool = False, api: Any = None) -> str:
    """Copy a checkpoint and its card to a new folder, or to the repository ``hub:owner/name``, which is made if need be.

    ``api`` is a ``huggingface_hub.HfApi``; one with the user's own login if none. Returns where it went.
    """
    source = find_checkpoint(checkpoint, parts=PARTS)
    source.verify()
    load_policy(source)
    if not target.startswith(HUB):
        with _new_directory(Path(target)) as folder:
            _copy(source, folder)
        return target
    with tempfile.TemporaryDirectory() as temporary, _hub_errors(target):
        _copy(source, Path(temporary))
        hub, repository = api or _hub(), _repository(target)
        hub.create_repo(repo_id=repository, private=private, exist_ok=True)
        message = f"{source.manifest['algo']}, step {source.manifest['trainer']['global_step']}"
        hub.upload_folder(repo_id=repository, folder_path=temporary, commit_message=message)
    return target


def pull_checkpoint(source: str, target: str | Path, *, revision: str | None = None, api: Any = None) -> Path:
    """Fetch a checkpoint from a folder or ``hub:owner/name``; it is at ``target`` if it is whole and safe, or not at all.

    Whatever is there besides a checkpoint's files and its card (pickles, ``.pt``, code, ...) is a reason to refuse it.
    """
    destination = Path(target)
    with _new_directory(destination) as folder:
        if source.startswith(HUB):
            with tempfile.TemporaryDirectory() as temporary, _hub_errors(source):
                hub, repository = api or _hub(), _repository(source)
                names = list(hub.list_repo_files(repo_id=repository, revision=revision))
                _require_safe_kinds(names, source)
                wanted = sorted({*names} & {*_CHECKPOINT_FILES, CARD})
                hub.snapshot_download(repo_id=repository, revision=revision, local_dir=temporary, allow_patterns=wanted)
                _fetch(Path(temporary), wanted, folder)
        else:
            origin = Path(source)
            if not origin.is_dir():
                raise CheckpointError(f"{origin} is no folder; a repository on the hub is written {HUB}owner/name")
            names = [
                path.relative_to(origin).as_posix() for path in origin.rglob("*") if not path.is_dir() or path.is_symlink()
            ]
            _require_safe_kinds(names, source)
            _fetch(origin, sorted({*names} & {*_CHECKPOINT_FILES, CARD}), folder)
        checkpoint = Checkpoint(folder)
        checkpoint.verify()
        load_policy(checkpoint)
    return destination


def _copy(source: Checkpoint, folder: Path) -> None:
    """The files that the manifest names, and a card; what else may lie beside them stays."""
    for name in (MANIFEST, *source.manifest["files"]):
        shutil.copyfile(source.path / name, folder / name)
    write_atomically(folder / CARD, model_card(source))


def _fetch(origin: Path, names: Iterable[str], folder: Path) -> None:
    for name in names:
        if (origin / name).is_symlink() or not (origin / name).is_file():
            raise CheckpointError(f"{origin / name} is missing or a link: it is not followed")
        shutil.copyfile(origin / name, folder / name)


def _require_safe_kinds(names: Iterable[str], source: str) -> None:
    present = set(names)
    if foreign := sorted(present - _CHECKPOINT_FILES - _OTHER_FILES):
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise CheckpointError(
            f"{source} holds files that are no part of a checkpoint: {', '.join(foreign[:3])}{more}. Nothing is taken from it"
        )
    if MANIFEST not in present:
        raise CheckpointError(f"{source} holds no checkpoint: there is no {MANIFEST}")


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """A directory that appears under its name when it is complete."""
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another path")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with writing(target):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            os.replace(temporary, target)
        finally:
            delete(temporary)


def _repository(address: str) -> str:
    name = address.removeprefix(HUB)
    if name.count("/") != 1 or not all(name.split("/")):
        raise ConfigError(f"a repository on the hub is written {HUB}owner/name, got {address}")
    return name


def _hub() -> Any:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError:
        raise ConfigError('sharing on the hub needs huggingface_hub: pip install "rl-training[hub]"') from None
    return HfApi()


@contextlib.contextmanager
def _hub_errors(address: str) -> Iterator[None]:
    """No network, no such repository, no permission: the user's to mend."""
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{address} cannot be reached: {reason}") from error
