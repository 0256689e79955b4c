"""Opening files of transitions: npz, pt, HDF5 and Minari. Heavy columns stay in the file; nothing in it is ever executed."""

from __future__ import annotations

import json
import lzma
import math
import os
import pickle
import shutil
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from rl_training.data.columns import find_columns
from rl_training.data.lazy_columns import Array, Column, JoinedColumn, in_memory, pick_trajectories, require_plausible
from rl_training.types import DataError

LARGEST_METADATA = 2**24
IN_MEMORY_BYTES = 2**28  # npz and pt files up to this size are read at once, larger ones by mapping
MINARI_COLUMNS = {"rewards": "rewards", "terminated": "terminations", "truncated": "truncations"}

Reader = Callable[[Path, Mapping[str, str] | None, ExitStack, Path], dict[str, Column]]
"""From a path, declared columns, a stack that keeps files open, and a directory for scratch files to columns by meaning."""

ERRORS = (OSError, EOFError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError)
DAMAGED = (*ERRORS, AssertionError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pickle.UnpicklingError)
"""What the libraries are known to raise over files that are damaged or of another kind; ``make fuzz`` found most of it."""


@contextmanager
def _readable_as(what: str) -> Iterator[None]:
    """Tell it as a ``DataError`` when a file is not what it should be."""
    try:
        yield
    except DataError:
        raise
    except DAMAGED as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise DataError(f"is not {what}: {reason}") from None


# -- npz -------------------------------------------------------------------------------------------------------------


def open_npz(path: Path, declared: Mapping[str, str] | None, files: ExitStack, scratch: Path) -> dict[str, Column]:
    """Members of an archive: read if they are small, else unpacked to scratch files and mapped."""
    with _readable_as("a readable npz file"):
        archive = files.enter_context(zipfile.ZipFile(path))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        found = find_columns(list(members), declared)
        mapped = sum(members[name].file_size for name in found.values()) > IN_MEMORY_BYTES
        columns: dict[str, Column] = {}
        for meaning, name in found.items():
            with archive.open(members[name]) as stream:
                columns[meaning] = _read_member(stream, members[name], name, files, scratch if mapped else None)
    return columns


def _read_member(stream: IO[bytes], info: zipfile.ZipInfo, name: str, files: ExitStack, scratch: Path | None) -> Array:
    shape, fortran, dtype = _read_npy_header(stream, name)
    order: Any = "F" if fortran else "C"
    claimed, there = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
    claim = f"column {name} claims shape {shape} of {dtype}, {claimed:,} bytes, but only"
    if min(shape, default=0) < 0 or claimed > there:
        raise DataError(f"{claim} {there:,} bytes are there")
    if info.file_size > 1100 * info.compress_size + 2**20:  # more than deflate can pack
        raise DataError(f"{claim} {info.compress_size:,} packed bytes are there")
    if scratch is None or claimed == 0:
        return np.frombuffer(stream.read(), dtype, math.prod(shape)).reshape(shape, order=order)
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        unpacked = files.enter_context(tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115 - nameless: gone after a crash too
        shutil.copyfileobj(stream, unpacked, 2**20)  # to the end, where zipfile compares the checksum
        unpacked.flush()
    except OSError as error:
        raise DataError(f"cannot be unpacked to {scratch}: {error}; set cache_dir or $RL_TRAINING_CACHE") from None
    if unpacked.tell() < claimed:
        raise DataError(f"{claim} {unpacked.tell():,} bytes are there")
    return np.memmap(unpacked, dtype, "r", shape=shape, order=order)


def _read_npy_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(f"column {name} holds Python objects")
    if dtype.kind not in "fiub":
        raise DataError(f"column {name} must be numbers, got dtype {dtype}")
    return shape, fortran, dtype


# -- pt --------------------------------------------------------------------------------------------------------------


def open_pt(path: Path, declared: Mapping[str, str] | None, files: ExitStack, scratch: Path) -> dict[str, Column]:
    """A dictionary of tensors, mapped where the file is large."""
    with _readable_as("a file of plain tensors"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickle protocols; what is not plain tensors is refused below
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    if not named or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise DataError("must hold a dictionary of tensors")
    columns: dict[str, Column] = {}
    for meaning, name in find_columns(list(content), declared).items():
        with _readable_as(f"usable: column {name} holds no plain numbers"):
            column = content[name].detach().numpy()
        if column.ndim:  # an expanded tensor claims rows that it does not store
            require_plausible(name, column, stored=content[name].untyped_storage().nbytes(), file_size=path.stat().st_size)
        columns[meaning] = column
    return columns


def _can_be_mapped(path: Path) -> bool:
    """Large, of the zip format, and not packed."""
    if path.stat().st_size <= IN_MEMORY_BYTES or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())


# -- HDF5 ------------------------------------------------------------------------------------------------------------


class Hdf5Column:
    """A dataset of an open HDF5 file; numbers only, with rows that are really in this file."""

    def __init__(self, dataset: Any, name: str, *, file_size: int) -> None:
        self.dataset, self.name = dataset, name
        self.shape: tuple[int, ...] = dataset.shape or ()
        self.dtype: np.dtype[Any] = dataset.dtype
        if self.dtype.kind not in "fiub" or not self.shape:  # refused unread: object columns would be unpickled
            raise DataError(f"column {name} must be numbers, one row each, got {self.dtype} and shape {self.shape}")
        if dataset.is_virtual or dataset.external:
            raise DataError(f"column {name} is kept in other files; copy its rows into this one")
        require_plausible(name, self, stored=dataset.id.get_storage_size(), file_size=file_size)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Array:
        try:
            values: Array = self.dataset[rows]
        except ERRORS as error:
            raise DataError(f"column {self.name} cannot be read: {error}") from None
        return values


def open_hdf5(path: Path, declared: Mapping[str, str] | None, files: ExitStack, scratch: Path) -> dict[str, Column]:
    """Datasets of a file, at any depth."""
    h5py, file_size = import_optional("h5py"), path.stat().st_size
    with _readable_as("a readable HDF5 file"):
        file = files.enter_context(h5py.File(path, "r"))
        datasets: dict[str, Any] = {}
        file.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        found = find_columns([name for name in datasets if datasets[name].shape], declared)
        columns: dict[str, Column] = {
            meaning: Hdf5Column(datasets[name], name, file_size=file_size) for meaning, name in found.items()
        }
        if "discrete_action" in datasets and bool(datasets["discrete_action"][()]):
            columns["actions"] = in_memory(columns["actions"]).reshape(-1).astype(np.int64)
    return columns


# -- Minari ----------------------------------------------------------------------------------------------------------


def open_minari(path: Path, declared: Mapping[str, str] | None, files: ExitStack, scratch: Path) -> dict[str, Column]:
    """Episodes with one more observation than actions, in the order of their numbers; the columns have fixed names."""
    h5py, data = import_optional("h5py"), path / "data" / "main_data.hdf5"
    with _readable_as("a readable Minari dataset"):
        file, file_size = files.enter_context(h5py.File(data, "r")), data.stat().st_size
        episodes = sorted(file, key=lambda key: int(key.removeprefix("episode_")))
        if not episodes:
            raise DataError("has no episodes")

        def open_part(episode: str, name: str) -> Hdf5Column:
            part = file[episode][name]
            if not isinstance(part, h5py.Dataset):
                raise DataError(f"{name} are not flat vectors")
            return Hdf5Column(part, f"{episode}/{name}", file_size=file_size)

        def join(name: str) -> JoinedColumn:
            parts = [(part.shape, part.dtype) for part in (open_part(episode, name) for episode in episodes)]
            dtype = np.result_type(*{dtype for _, dtype in parts})
            return JoinedColumn(lambda index: open_part(episodes[index], name), [shape for shape, _ in parts], dtype)

        obs, actions = join("observations"), join("actions")
        lengths = np.diff(actions.ends, prepend=0)
        odd = np.flatnonzero(np.diff(obs.ends, prepend=0) != lengths + 1)
        if len(odd):
            raise DataError(f"{episodes[odd[0]]} does not have one observation more than actions")
        before, after = pick_trajectories(obs, lengths)
        light = {
            meaning: np.concatenate([in_memory(open_part(episode, name)).reshape(-1) for episode in episodes])
            for meaning, name in MINARI_COLUMNS.items()
        }
    return {"obs": before, "next_obs": after, "actions": actions, **light}


def find_minari_dataset(name: str) -> Path:
    """The directory of a local Minari dataset, by path or by id below ``MINARI_DATASETS_PATH`` (or Minari's default)."""
    root = Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))
    for directory in (Path(name), root / name):
        if (directory / "data" / "main_data.hdf5").is_file():
            return directory
    raise DataError(f"there is no Minari dataset {name!r}, neither as a directory nor below {root}")


def minari_metadata(name: str) -> dict[str, Any]:
    """The metadata file of a local Minari dataset."""
    path = find_minari_dataset(name) / "data" / "metadata.json"
    if not path.is_file():
        raise DataError(f"{path} is missing or no file")
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(LARGEST_METADATA))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content


def import_optional(module: str) -> Any:
    """A package of the ``offline`` extra, or the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise DataError(f'reading this needs {module}: pip install "rl-training[offline]"') from None


READERS: dict[str, Reader] = {"npz": open_npz, "pt": open_pt, "hdf5": open_hdf5, "minari": open_minari}
