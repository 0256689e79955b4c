"""Data larger than memory: read in blocks, kept in a mapped file, and the same to the bit as data in memory."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from support import REPOSITORY, assert_same_run, tiny_config

from rl_training.cli import main
from rl_training.data import TransitionDataset, file_readers, lazy_columns, load_transition_dataset, row_cache
from rl_training.data.dataset_loaders import open_transitions, read_transitions
from rl_training.data.dataset_writers import save_transitions
from rl_training.data.inspection import describe_transitions
from rl_training.data.row_cache import CacheEntry
from rl_training.data.transition_rows import TransitionRows
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.types import ConfigError, DataError

REAL = Path(os.environ.get("RL_TRAINING_REAL_DATA", REPOSITORY.parent / "shared" / "data"))
LENGTHS = (5, 9, 1, 7, 14, 3)  # with blocks of 7: ends inside, at the edge and across blocks


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows a block, and no file is small enough to be read at once."""
    monkeypatch.setattr(lazy_columns, "BLOCK_ROWS", 7)
    monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def columns(lengths: tuple[int, ...] = LENGTHS, *, dims: int = 3, seed: int = 0) -> dict[str, Any]:
    """Episodes of random numbers in D4RL's layout; every second one terminates."""
    rng, rows = np.random.default_rng(seed), sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    terminals[last[::2]], timeouts[last[1::2]] = True, True
    return {
        "observations": rng.normal(size=(rows, dims)),
        "actions": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def with_next(data: dict[str, Any], *, leaking: bool) -> dict[str, Any]:
    """Next observations: the following row's, or (not leaking) one of its own where an episode ends."""
    following = np.concatenate((data["observations"][1:], data["observations"][:1]))
    ends = (data["terminals"] | data["timeouts"])[:, None]
    return {**data, "next_observations": following if leaking else np.where(ends, following + 1, following)}


def write(path: Path, data: dict[str, Any], **settings: Any) -> Path:
    if path.suffix == ".npz":
        (np.savez_compressed if path.stem == "packed" else np.savez)(path, **data)
    elif path.suffix == ".pt":
        torch.save({name: torch.from_numpy(value) for name, value in data.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for name, value in data.items():
                file.create_dataset(name, data=value, **(settings if np.ndim(value) else {}))
    return path


def made(kind: str, directory: Path) -> Path:
    """A file of each kind and layout that can be read."""
    data = columns()
    if kind == "trajectories.npz":
        lengths = np.array(LENGTHS)
        flags = {"indices": np.cumsum(lengths)[:-1], "terminal": np.arange(len(lengths)) % 2 == 0}
        obs = np.random.default_rng(1).normal(size=(sum(LENGTHS) + len(LENGTHS), 3))
        return write(directory / kind, {"obs": obs, "acts": data["actions"], "rews": data["rewards"], **flags})
    if kind == "d3rlpy.h5":
        ends = data["terminals"] | data.pop("timeouts")
        discrete = {"actions": np.arange(len(ends))[:, None] % 2, "discrete_action": np.array(True)}
        return write(directory / kind, {**data, "episode_terminals": ends.astype(np.float32), **discrete})
    if kind == "given.hdf5":
        more = {"next_actions": data["actions"][::-1].copy(), "mc_returns": np.arange(len(data["rewards"]), dtype=np.float64)}
        return write(directory / kind, with_next(data, leaking=False) | more, chunks=True, compression="gzip")
    if kind == "leaking.npz":
        return write(directory / kind, with_next(data, leaking=True))
    if kind == "minari":
        with h5py.File(_minari_file(directory), "w") as file:
            starts = np.cumsum((0, *LENGTHS))
            for number, (start, end) in enumerate(pairwise(starts)):
                rows, group = slice(start, end), file.create_group(f"episode_{number}")
                group["observations"] = np.concatenate((data["observations"][rows], np.full((1, 3), number)))
                for name, source in {"actions": "actions", "rewards": "rewards", "terminations": "terminals"}.items():
                    group[name] = data[source][rows]
                group["truncations"] = data["timeouts"][rows]
        return directory / "minari"
    return write(directory / kind, data)


def _minari_file(directory: Path) -> Path:
    (directory / "minari" / "data").mkdir(parents=True)
    return directory / "minari" / "data" / "main_data.hdf5"


KINDS = [
    "stored.npz",
    "packed.npz",
    "leaking.npz",
    "trajectories.npz",
    "x.pt",
    "d4rl.hdf5",
    "given.hdf5",
    "d3rlpy.h5",
    "minari",
]


def assert_same_data(one: TransitionDataset, two: TransitionDataset) -> None:
    assert torch.equal(one.rows, two.rows)
    assert one.layout == two.layout
    assert one.fingerprint() == two.fingerprint()
    assert one.episode_ends is not None
    assert one.episode_ends.tolist() == two.episode_ends.tolist()  # type: ignore[union-attr]
    assert (one.returns_to_go is None) == (two.returns_to_go is None)
    for _ in range(3):
        left, right = one.sample(16), two.sample(16)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
    ours, theirs = (dataset.with_normalized_observations().normalizer for dataset in (one, two))
    assert torch.equal(ours.mean, theirs.mean)  # type: ignore[union-attr]
    assert torch.equal(ours.std, theirs.std)  # type: ignore[union-attr]


# -- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_mapped_files_and_the_cache_change_nothing(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = made(kind, tmp_path)
    whole, raw = load_transition_dataset(dataset_path=path, memory_map=False), read_transitions(dataset_path=path)
    facts = describe_transitions(raw)
    request.getfixturevalue("tiny_blocks")
    assert_same_data(load_transition_dataset(dataset_path=path, memory_map=False), whole)
    for _ in ("built", "opened again"):
        mapped = load_transition_dataset(dataset_path=path, memory_map=True)
        whole = whole.with_seed(0)
        assert_same_data(mapped, whole)
    with open_transitions(dataset_path=path) as lazy:
        assert describe_transitions(lazy) == facts
        assert lazy.warnings == raw.warnings
        for name in ("obs", "actions", "next_obs", "next_actions"):
            column, array = getattr(lazy, name), getattr(raw, name)
            assert (column is None) == (array is None)
            if column is not None:
                assert (tuple(column.shape), column.dtype) == (array.shape, array.dtype)
                for rows in (slice(0, len(array)), slice(4, 6), slice(13, 30), slice(38, 39), slice(39, 39)):
                    assert np.array_equal(column[rows], array[rows])


def expected_rows(data: dict[str, Any]) -> list[list[float]]:
    """A transition after the other, by the rules in the documentation and not by blocks."""
    rows, count = [], len(data["rewards"])
    obs, actions, given = data["observations"], data["actions"], data.get("next_observations")
    ends = data["terminals"] | data["timeouts"]
    ends[-1] = True
    cut = [t for t in range(count) if ends[t] and not data["terminals"][t]]
    leaks = [t for t in cut if given is not None and t + 1 < count and (given[t] == obs[t + 1]).all()]
    if given is not None and cut[-1:] == [count - 1] and len(cut) > 1 and leaks == cut[:-1]:
        leaks.append(count - 1)
    for t in range(count):
        if t in (cut if given is None else leaks):
            continue
        next_obs = given[t] if given is not None else obs[min(t + 1, count - 1)]
        next_action = np.zeros_like(actions[t]) if ends[t] else actions[t + 1]
        rows.append([*obs[t], *actions[t], data["rewards"][t], data["terminals"][t], *next_obs, *next_action, not ends[t]])
    return rows


@pytest.mark.parametrize("block", [1, 2, 3, 7, 13, 39, 40])
@pytest.mark.parametrize("next_obs", ["none", "own", "leaking"])
def test_rows_do_not_depend_on_where_blocks_end(
    block: int, next_obs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_columns, "BLOCK_ROWS", block)
    for seed in range(4):
        lengths = tuple(np.random.default_rng(seed).integers(1, 12, size=6).tolist())
        data = columns(lengths, seed=seed)
        if seed % 2:
            data["timeouts"][-1] = False  # the last episode is not finished
        if next_obs != "none":
            data = with_next(data, leaking=next_obs == "leaking")
        dataset = load_transition_dataset(dataset_path=write(tmp_path / f"{seed}.hdf5", data))
        assert np.array_equal(dataset.rows.numpy(), np.array(expected_rows(data), dtype=np.float32))


def test_wide_rows_make_small_blocks() -> None:
    images = np.zeros((5, 2**12, 2**12), dtype=np.uint8)  # 16 MB each
    assert list(lazy_columns.row_blocks(images)) == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.usefixtures("tiny_blocks")
def test_bad_rows_are_counted_over_all_blocks(tmp_path: Path) -> None:
    data = columns((20, 20))
    data["observations"][[9, 30, 31]] = np.nan
    path = write(tmp_path / "x.hdf5", data)
    for settings in ({}, {"memory_map": True}):
        # row 9 is its own observation and the next one of row 8; row 19 ended, terminated
        with pytest.raises(DataError, match=r"x.hdf5: 5 of 39 transitions are not finite; the first is row 8 \(next_obs\)"):
            load_transition_dataset(dataset_path=path, **settings)
    data = columns((20, 20))
    data["actions"][[3, 33]] = 5
    with pytest.raises(DataError, match=r"2 of 40 actions are outside the action bounds, from -[0-9.]+ to 5;"):
        load_transition_dataset(dataset_path=write(tmp_path / "y.hdf5", data))


@pytest.mark.parametrize("target", ["y.npz", "y.hdf5"])
@pytest.mark.usefixtures("tiny_blocks")
def test_conversion_goes_block_by_block(target: str, tmp_path: Path) -> None:
    for kind in ("given.hdf5", "minari"):
        source = made(kind, tmp_path)
        assert main(["data", "convert", str(source), str(tmp_path / f"{kind}.{target}")]) == 0
        one = load_transition_dataset(dataset_path=source, memory_map=False)
        assert_same_data(load_transition_dataset(dataset_path=tmp_path / f"{kind}.{target}", memory_map=False), one)


# -- memory ----------------------------------------------------------------------------------------------------------


def peak_of(work: Any) -> float:
    """Most memory that arrays took at a time, in MB."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["x.hdf5", "stored.npz", "packed.npz", "x.pt"])
def test_memory_is_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = columns((1000,) * 50, dims=60)  # 23 MB of observations, and as much of next ones
    if name == "packed.npz":
        data["observations"] = np.round(data["observations"], 1)  # quicker to pack
    path = write(tmp_path / name, with_next(data, leaking=False))
    monkeypatch.setattr(lazy_columns, "BLOCK_ROWS", 1024)
    monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)
    opened: list[TransitionDataset] = []

    def inspect() -> None:
        with open_transitions(dataset_path=path) as raw:
            describe_transitions(raw)

    def convert() -> None:
        with open_transitions(dataset_path=path) as raw:
            save_transitions(raw, str(tmp_path / "y.hdf5"))

    assert peak_of(inspect) < 8
    assert peak_of(convert) < 8
    assert peak_of(lambda: opened.append(load_transition_dataset(dataset_path=path, memory_map=True))) < 8
    assert opened[0].rows.nbytes > 20 * 2**20
    assert peak_of(lambda: opened[0].fingerprint()) < 8
    in_memory = peak_of(lambda: opened.append(load_transition_dataset(dataset_path=path, memory_map=False)))
    assert in_memory < 8 + opened[0].rows.nbytes / 2**20  # the matrix and a few blocks, not the columns as well
    assert_same_data(*opened)


def test_mapping_is_chosen_by_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    size = load_transition_dataset(dataset_path=path).rows.nbytes
    assert not own_cache.exists()
    monkeypatch.setattr(row_cache, "available_memory", lambda: 2 * size)
    load_transition_dataset(dataset_path=path)
    assert not own_cache.exists()
    monkeypatch.setattr(row_cache, "available_memory", lambda: 2 * size - 2)
    load_transition_dataset(dataset_path=path)
    assert own_cache.exists()
    shutil.rmtree(own_cache)
    monkeypatch.setattr(row_cache, "available_memory", lambda: None)  # a system that does not tell
    load_transition_dataset(dataset_path=path)
    assert not own_cache.exists()


def test_available_memory() -> None:
    free = row_cache.available_memory()
    assert free is None or 2**20 < free < 2**50


# -- the cache -------------------------------------------------------------------------------------------------------


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("datasets/*"))  # also finds names that begin with a dot


def open_mapped(path: Path, **settings: Any) -> TransitionDataset:
    return load_transition_dataset(dataset_path=path, memory_map=True, **settings)


def test_an_entry_is_used_again_and_replaced_when_something_changed(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    first = open_mapped(path)
    (entry,) = entries(own_cache)
    assert {file.name for file in entry.iterdir()} == {"rows.f32", "episode_ends.npy", "meta.json"}
    before = (entry / "rows.f32").stat()
    assert_same_data(first, open_mapped(path))
    assert (entry / "rows.f32").stat() == before
    for settings in (
        {"time_limit": 9},
        {"action_low": -2.0, "action_high": 2.0},
        {"clip_actions": True},
        {"cache_dir": tmp_path},
    ):
        assert_same_data(open_mapped(path, **settings), load_transition_dataset(dataset_path=path, **settings))
    assert len(entries(own_cache)) == 4
    assert len(entries(tmp_path)) == 1
    write(path, columns(seed=1))
    os.utime(path, ns=(0, 1))  # the size is the same, the time of change is not
    changed = open_mapped(path)
    assert_same_data(changed, load_transition_dataset(dataset_path=path))
    assert not torch.equal(changed.rows, first.rows)


def test_a_minari_dataset_is_known_by_its_files(tmp_path: Path, own_cache: Path) -> None:
    path = made("minari", tmp_path)
    open_mapped(path)
    open_mapped(path)
    assert len(entries(own_cache)) == 1
    os.utime(path / "data" / "main_data.hdf5", ns=(0, 1))
    open_mapped(path)
    assert len(entries(own_cache)) == 2


@pytest.mark.parametrize("damage", ["short rows", "no rows", "no ends", "broken meta", "meta of another kind", "other layout"])
def test_a_damaged_entry_is_built_again(
    damage: str, tmp_path: Path, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    expected = open_mapped(path).rows.clone()
    (entry,) = entries(own_cache)
    meta = json.loads((entry / "meta.json").read_text())
    if damage == "short rows":
        os.truncate(entry / "rows.f32", 100)
    elif damage == "no rows":
        (entry / "rows.f32").unlink()
    elif damage == "no ends":
        (entry / "episode_ends.npy").unlink()
    else:
        content = {"broken meta": "{", "meta of another kind": "[]"}.get(damage, json.dumps({**meta, "layout": {"x": 1}}))
        (entry / "meta.json").write_text(content)
    assert torch.equal(open_mapped(path).rows, expected)
    assert "are damaged" in caplog.text
    assert entries(own_cache) == [entry]
    caplog.clear()
    open_mapped(path)
    assert caplog.text == ""


def test_a_build_that_dies_leaves_nothing(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    whole = TransitionRows.blocks

    def interrupted(self: TransitionRows) -> Any:
        yield next(whole(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(TransitionRows, "blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_mapped(path)
    assert entries(own_cache) == []
    monkeypatch.undo()
    monkeypatch.setenv("RL_TRAINING_CACHE", str(own_cache))
    open_mapped(path)
    (entry,) = entries(own_cache)
    killed, running = (entry.with_name(f".{entry.name}.{name}") for name in ("killed", "running"))
    for directory, age in ((killed, 10_000), (running, 0)):
        directory.mkdir()
        (directory / "rows.f32").touch()
        for written in (directory / "rows.f32", directory):
            os.utime(written, (time.time() - age,) * 2)
    (entry / "meta.json").unlink()
    open_mapped(path)
    assert entries(own_cache) == sorted([entry, running])


def test_two_builders_do_not_harm_each_other(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    alone, nested = CacheEntry._write, []

    def write_late(self: CacheEntry, rows: TransitionRows, directory: Path) -> None:
        if not nested:  # another process builds the same entry from beginning to end meanwhile
            nested.append(None)
            nested[0] = open_mapped(path)
        alone(self, rows, directory)

    monkeypatch.setattr(CacheEntry, "_write", write_late)
    late = open_mapped(path)
    assert_same_data(nested[0], late)
    assert len(entries(own_cache)) == 1


def test_processes_at_the_same_time(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns((50,) * 40))
    code = (
        "from rl_training.data import load_transition_dataset\n"
        f"print(load_transition_dataset(dataset_path={str(path)!r}, memory_map=True).fingerprint())"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    prints = {process.communicate()[0].strip() for process in running}
    assert prints == {load_transition_dataset(dataset_path=path, memory_map=False).fingerprint()}
    assert len(entries(own_cache)) == 1


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    alone = CacheEntry._write

    def meanwhile(self: CacheEntry, rows: TransitionRows, directory: Path) -> None:
        alone(self, rows, directory)
        os.utime(path, ns=(0, 1))

    monkeypatch.setattr(CacheEntry, "_write", meanwhile)
    with pytest.raises(DataError, match=r"x.hdf5: changed while it was read"):
        open_mapped(path)


def test_a_dataset_without_usable_rows(tmp_path: Path) -> None:
    data = columns((1,))
    data["terminals"], data["timeouts"] = data["timeouts"], data["terminals"]
    path = write(tmp_path / "x.hdf5", data)
    for _ in range(2):
        assert len(open_mapped(path)) == 0


def test_returns_to_go_are_kept(tmp_path: Path, own_cache: Path) -> None:
    path = made("given.hdf5", tmp_path)
    for _ in range(2):
        returns = open_mapped(path).returns_to_go
        assert returns is not None
        assert torch.equal(returns, torch.arange(39.0))
    assert (entries(own_cache)[0] / "returns_to_go.npy").is_file()


# -- claims ----------------------------------------------------------------------------------------------------------


def with_npy_claim(path: Path, shape: tuple[int, ...]) -> Path:
    """An npz whose observations' header claims another shape than is there."""
    write(path.with_name("stored.npz"), columns())
    with zipfile.ZipFile(path.with_name("stored.npz")) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if info.filename == "observations.npy":
                with target.open(info.filename, "w") as member:
                    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": shape})
                    member.write(content[128:])
            else:
                target.writestr(info.filename, content)
    return path


def with_hdf5_claim(path: Path, **settings: Any) -> Path:
    with h5py.File(write(path, columns()), "a") as file:
        for name in list(file):
            shape, dtype = (10**12, *file[name].shape[1:]), file[name].dtype
            del file[name]
            file.create_dataset(name, shape=shape, dtype=dtype, **settings)
    return path


def with_pt_claim(path: Path) -> Path:
    tensors = {name: torch.from_numpy(value[:1]) for name, value in columns().items()}
    torch.save({name: value.expand(10**12, *value.shape[1:]) for name, value in tensors.items()}, path)
    return path


def with_zip_claim(path: Path) -> Path:
    """The archive's directory backs the false header."""
    content = bytearray(with_npy_claim(path, (10**8, 3)).read_bytes())
    with zipfile.ZipFile(path) as archive:
        real = archive.getinfo("observations.npy").file_size.to_bytes(4, "little")
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(b"observations.npy"))
    assert content[at + 24 : at + 28] == real
    content[at + 24 : at + 28] = (24 * 10**8 + 128).to_bytes(4, "little")
    path.write_bytes(content)
    return path


CLAIMS: dict[str, Any] = {
    "x.npz": lambda path: with_npy_claim(path, (10**12, 17)),
    "negative.npz": lambda path: with_npy_claim(path, (-40, -3)),
    "zip.npz": with_zip_claim,
    "contiguous.hdf5": with_hdf5_claim,
    "chunked.hdf5": lambda path: with_hdf5_claim(path, chunks=True, compression="gzip"),
    "x.pt": with_pt_claim,
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_of_a_header_are_checked(
    name: str, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if mapped:
        monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)
    path = CLAIMS[name](tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: column \w+ claims shape .* but only [0-9,]+ (packed )?bytes are there"):
        load_transition_dataset(dataset_path=path, memory_map=mapped)
    assert main(["data", "inspect", str(path)]) == 2
    assert "claims shape" in capsys.readouterr().err


def test_columns_that_were_never_written_may_be_all_zero(tmp_path: Path) -> None:
    data = columns((1000,) * 1500, dims=2)
    flags = data.pop("timeouts")
    with h5py.File(write(tmp_path / "x.hdf5", data), "a") as file:
        file.create_dataset("timeouts", shape=flags.shape, dtype=bool, chunks=True)  # 1.5 MB that are not there
    with open_transitions(dataset_path=tmp_path / "x.hdf5") as raw:
        assert raw.ended.sum() == 751  # 750 terminations, and the end of the data


def test_rows_in_other_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns())
    with h5py.File(tmp_path / "y.hdf5", "w") as file, h5py.File(path) as source:
        for name, dataset in source.items():
            layout = h5py.VirtualLayout(shape=dataset.shape, dtype=dataset.dtype)
            layout[:] = h5py.VirtualSource(dataset)
            file.create_virtual_dataset(name, layout)
    with pytest.raises(DataError, match="is kept in other files"):
        load_transition_dataset(dataset_path=tmp_path / "y.hdf5")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", ["stored.npz", "packed.npz"])
def test_checksums_of_npz_files_are_compared(name: str, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mapped:
        monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)
    path = write(tmp_path / name, columns((200,) * 5))
    content = bytearray(path.read_bytes())
    content[3000] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a readable npz file"):
        load_transition_dataset(dataset_path=path)


def test_episodes_of_minari_that_do_not_fit(tmp_path: Path) -> None:
    path = made("minari", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/observations"]
        file["episode_2/observations"] = np.zeros((9, 3))
    with pytest.raises(DataError, match="episode_2 does not have one observation more than actions"):
        load_transition_dataset(dataset_path=path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/observations"]
        file["episode_2/observations"] = np.zeros((2, 4))
    with pytest.raises(DataError, match="rows of one shape"):
        load_transition_dataset(dataset_path=path)


# -- runs ------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for the process dying."""


class CrashAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, result: object) -> None:
        self.run_dir = trainer.run_dir
        if trainer.global_step >= self.step:
            raise Crash


def test_a_run_from_mapped_rows_is_the_run_from_memory(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns((40,) * 8))

    def settings(memory_map: bool) -> TrainConfig:
        data = {"kind": "hdf5", "path": str(path), "memory_map": memory_map, "action_low": -1, "action_high": 1}
        return tiny_config("td3_bc", tmp_path / str(memory_map), dataset={**data, "normalize_observations": True})

    in_memory = train(settings(False))
    assert not own_cache.exists()
    mapped = train(settings(True))
    assert len(entries(own_cache)) == 1
    assert_same_run(in_memory.run_dir, mapped.run_dir)
    crash = CrashAt(61)
    with pytest.raises(Crash):
        train(settings(True), callbacks=[crash])
    assert_same_run(in_memory.run_dir, resume_training(crash.run_dir).run_dir)


def test_parts_of_a_mixture_can_be_mapped(tmp_path: Path) -> None:
    path = write(tmp_path / "x.hdf5", columns((40,) * 8))

    def settings(name: str, **part: Any) -> TrainConfig:
        parts = [{"kind": "random", "size": 100}, {"kind": "hdf5", "path": str(path), **part}]
        return tiny_config("bc", tmp_path / name, dataset={"kind": "mix", "parts": parts})

    mapped = train(settings("mapped", memory_map=True, cache_dir=str(tmp_path / "here")))
    assert len(entries(tmp_path / "here")) == 1
    assert_same_run(mapped.run_dir, train(settings("memory", memory_map=False)).run_dir)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"kind": "npz", "path": "x", "memory_map": "perhaps"}, "dataset.memory_map must be true or false, got 'perhaps'"),
        ({"kind": "npz", "path": "x", "cache_dir": 3}, "dataset.cache_dir must be text, got 3"),
        ({"kind": "random", "memory_map": True}, "memory_map and cache_dir are of files"),
        ({"kind": "random", "cache_dir": "x"}, "memory_map and cache_dir are of files"),
        ({"kind": "mix", "parts": [{"kind": "random"}], "memory_map": True}, "are set in its parts"),
        ({"kind": "mix", "parts": [{"kind": "random", "memory_map": False}]}, "memory_map and cache_dir are of files"),
        ({"kind": "npz", "path": "x", "memorymap": True}, "dataset.memorymap is not a known key; did you mean 'memory_map'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(algo="bc", env_id="Pendulum-v1", total_timesteps=8, dataset=dataset)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "packed.npz", columns())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"packed.npz: the cache directory .*file cannot be used: .*; set cache_dir"):
        open_mapped(path, cache_dir=tmp_path / "file")
    usage = type("Usage", (), {"free": 1000})
    with monkeypatch.context() as patched:
        patched.setattr(row_cache.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(DataError, match=r"take [0-9,]+ bytes and .* has 1,000 free"):
            open_mapped(path)
    monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)
    with pytest.raises(DataError, match=r"packed.npz: cannot be unpacked to .*file: .*; set cache_dir or \$RL_TRAINING_CACHE"):
        load_transition_dataset(dataset_path=path, cache_dir=tmp_path / "file")


# -- figures ---------------------------------------------------------------------------------------------------------


def test_the_benchmark_runs_small(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("large_data", REPOSITORY / "benchmarks" / "large_data.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    path, cache = tmp_path / "large.hdf5", tmp_path / "rows"
    benchmark.write_file(path, 5_000)
    results = {step: benchmark.measure(step, path, cache) for step in benchmark.STEPS}
    assert results["first_open"]["rows"] == results["inspect"]["rows"] == 5_000
    assert list(results["sample"]["batch_microseconds"]) == ["50", "500", "5000"]
    text = benchmark.table({**results, "rows": 5_000, "file_mb": 1.0, "cache_mb": 1.0})
    assert text.count("\n|") == 10


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real datasets at {REAL}")
@pytest.mark.parametrize(
    "name", ["npz/pendulum_expert_imitation.npz", "d3rlpy_hdf5/cartpole_v1.1.0.h5", "minari/D4RL/door/human-v2"]
)
def test_real_files_are_the_same_mapped(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    kind = "minari" if name.startswith("minari") else None
    settings = {"dataset_path": REAL / name, "clip_actions": True, "time_limit": 200}
    whole = load_transition_dataset(kind, **settings, memory_map=False)
    monkeypatch.setattr(lazy_columns, "BLOCK_ROWS", 1013)
    monkeypatch.setattr(file_readers, "IN_MEMORY_BYTES", 0)
    with caplog.at_level(logging.INFO):
        assert_same_data(whole, load_transition_dataset(kind, **settings, memory_map=True))
    assert "Building mapped rows" in caplog.text
