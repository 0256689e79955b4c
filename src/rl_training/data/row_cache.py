"""Rows of a dataset in a file that is mapped instead of read: built once, found again as long as its source is the same."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from rl_training.data.offline_dataset import Layout, TransitionDataset
from rl_training.data.transition_rows import TransitionRows
from rl_training.types import DataError

logger = logging.getLogger("rl_training")

FORMAT = 1
ROWS, ENDS, RETURNS, META = "rows.f32", "episode_ends.npy", "returns_to_go.npy", "meta.json"
DAMAGED = (
    FileNotFoundError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    EOFError,
    MemoryError,
    BadZipFile,
)
"""What reading an entry raises when it is not as it was built."""
ABANDONED_SECONDS = 3600  # a build that has written nothing for so long was killed


def cache_root(cache_dir: str | Path | None) -> Path:
    """The given directory, else ``$RL_TRAINING_CACHE``, else ``~/.cache/rl_training``."""
    return Path(cache_dir or os.environ.get("RL_TRAINING_CACHE") or "~/.cache/rl_training").expanduser()


def available_memory() -> int | None:
    """Bytes that a process could still get, as far as the system tells."""
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        name = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in getattr(os, "sysconf_names", {})), None)
        return None if name is None else os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # a container's limit
    except (OSError, ValueError):
        return free


def wants_mapping(memory_map: bool | None, nbytes: int) -> bool:
    """As set; if it is not, whether rows of this size would take more than half of the memory there is now."""
    if memory_map is not None:
        return memory_map
    free = available_memory()
    return free is not None and nbytes > free // 2


def describe_source(kind: str, path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that a dataset's rows depend on: its files, by size and time of change, and how they are read."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return {
        "format": FORMAT,
        "kind": kind,
        "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        "settings": dict(settings),
    }


@dataclass(frozen=True)
class CacheEntry:
    """A directory of the cache, named by what its rows depend on."""

    root: Path
    source: dict[str, Any]

    @property
    def directory(self) -> Path:
        """Where the entry is, or would be."""
        key = hashlib.sha256(json.dumps(self.source, sort_keys=True).encode()).hexdigest()[:32]
        return self.root / "datasets" / key

    @property
    def nbytes(self) -> int:
        """Size of the rows, 0 where there are none yet."""
        try:
            return (self.directory / ROWS).stat().st_size
        except OSError:
            return 0

    def open(self, *, seed: int = 0) -> TransitionDataset | None:
        """The dataset over the mapped rows; nothing if there is none. One that is not as it was built is removed."""
        if not self.directory.exists():
            return None
        try:
            return self._load(seed)
        except DAMAGED as error:
            logger.warning("The cached rows in %s are damaged (%s) and will be built again", self.directory, error)
            with self._scratch() as aside, suppress(FileNotFoundError):  # another process may have removed it as well
                os.rename(self.directory, aside / "damaged")  # at once, so that nobody sees it half removed
            return None
        except OSError as error:
            raise self._unusable(error) from None

    def _load(self, seed: int) -> TransitionDataset:
        meta = json.loads((self.directory / META).read_text(encoding="utf-8"))
        for name, size in meta["sizes"].items():
            if (found := (self.directory / name).stat().st_size) != size:
                raise ValueError(f"{name} has {found:,} bytes instead of {size:,}")
        layout = Layout(**meta["layout"])
        return TransitionDataset.from_rows(
            map_rows(self.directory / ROWS, meta["rows"], layout.width),
            layout,
            episode_ends=np.load(self.directory / ENDS, allow_pickle=False),
            returns_to_go=np.load(self.directory / RETURNS, allow_pickle=False) if RETURNS in meta["sizes"] else None,
            seed=seed,
        )

    def build(self, rows: TransitionRows) -> None:
        """Write the rows under another name, and give them theirs when they are complete."""
        with self._scratch() as temporary:
            free = shutil.disk_usage(temporary).free
            if rows.nbytes > free:
                raise DataError(f"its rows take {rows.nbytes:,} bytes and {self.root} has {free:,} free; set cache_dir")
            logger.info("Building mapped rows, %.2f GB, in %s", rows.nbytes / 1e9, self.directory)
            self._write(rows, temporary / "whole")
            self._publish(temporary / "whole")

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A directory beside the entry for as long as it is needed; what killed processes left is removed as well."""
        try:
            parent = self.directory.parent
            parent.mkdir(parents=True, exist_ok=True)
            for leftover in filter(_is_abandoned, parent.glob(".*")):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".{self.directory.name}.", dir=parent) as name:
                yield Path(name)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> DataError:
        return DataError(f"the cache directory {self.root} cannot be used: {error}; set cache_dir")

    def _write(self, rows: TransitionRows, directory: Path) -> None:
        directory.mkdir()
        with open(directory / ROWS, "wb") as file:
            for block in rows.blocks():
                file.write(block.data)
        np.save(directory / ENDS, rows.episode_ends)
        if rows.returns_to_go is not None:
            np.save(directory / RETURNS, rows.returns_to_go)
        sizes = {file.name: file.stat().st_size for file in directory.iterdir()}
        meta = {"rows": rows.count, "layout": asdict(rows.layout), "sizes": sizes, "source": self.source}
        (directory / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        for file_name in (*sizes, META):  # on the disk before the directory gets its name, also if the power fails
            with open(directory / file_name, "rb+") as written:
                os.fsync(written.fileno())

    def _publish(self, whole: Path) -> None:
        try:
            os.rename(whole, self.directory)
        except OSError:
            if not self.directory.exists():
                raise  # otherwise another process was quicker, with the same rows


def _is_abandoned(scratch: Path) -> bool:
    try:
        last_written = max(path.stat().st_mtime for path in (scratch, *scratch.rglob("*")))
    except FileNotFoundError:  # its owner is finishing
        return False
    return time.time() - last_written > ABANDONED_SECONDS


def map_rows(path: Path, count: int, width: int) -> Tensor:
    """A matrix over a file. Read-only: the system can drop its pages at will, and writing to it is a fault.

    A writable private mapping would be counted against memory as a whole, and be refused when it is larger.
    """
    if count == 0:
        return torch.empty((0, width))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.memmap(path, np.float32, "r", shape=(count, width)))
