"""Dataset files of every kind: wrong columns in sound files, sound columns in odd files, and damaged bytes."""

from __future__ import annotations

import contextlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from hypothesis import strategies as st

from rl_training.data import load_transition_dataset
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.training import train
from rl_training.types import ConfigError, DataError

from . import byte_mutations
from .columns import FLAVOURS, Columns, mutated
from .command_line import RefusedByCli, run_cli
from .kinds import Kind, Recipe

HUGE = 10**12

# -- npz ---------------------------------------------------------------------------------------------------------------


def write_npz(path: Path, data: Columns, rng: random.Random) -> None:
    names = {name or "empty": value for name, value in data.items()}
    rng.choice((np.savez, np.savez, np.savez_compressed))(path, allow_pickle=True, **names)
    if rng.random() < 0.3:
        _oddify_npz(path, rng)


def npy(descr: Any, shape: Any, body: bytes, *, version: tuple[int, int] = (1, 0), fortran: Any = False) -> bytes:
    """An array file whose header says anything."""
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape!r}, }}".encode() + b"\n"
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header + body


def _oddify_npz(path: Path, rng: random.Random) -> None:
    """Headers that promise too much, members that are no arrays, archives that contradict themselves."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(sorted(members)) if members else "x.npy"
    shape = rng.choice(((HUGE,), (HUGE, HUGE), (2**62, 4), (-1,), (0, HUGE), (12, -3), (12,) * 40, "x", (1.5,), None, (True,)))
    body = rng.choice((b"", b"\x00" * 96))
    odd = (
        npy(rng.choice(("<f4", "<f8", "|O", "<U9", "<M8[s]", "|V0", "<f99", [("a", "<f4")], "", 7)), shape, body),
        npy("<f4", (12, 2), body, version=rng.choice(((1, 0), (2, 0), (3, 0), (9, 9))), fortran=rng.choice((True, None, "x"))),
        b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"(" * 65535,
        b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\x7f{",
        b"",
        b"not an array",
    )
    members[name] = rng.choice(odd)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        if rng.random() < 0.2:
            archive.writestr("../outside.npy", b"x")
            archive.writestr("folder/", b"")
    path.write_bytes(buffer.getvalue())


# -- pt ----------------------------------------------------------------------------------------------------------------


def _tensor(value: Any, rng: random.Random) -> Any:
    try:
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError):
        return rng.choice((str(value)[:20], [1, 2], None, 1.5))


def write_pt(path: Path, data: Columns, rng: random.Random) -> None:
    content: Any = {name: _tensor(value, rng) for name, value in data.items()}
    if rng.random() < 0.3:
        content = _oddify_tensors(content, rng)
    torch.save(content, path, _use_new_zipfile_serialization=rng.random() < 0.8)


def _oddify_tensors(content: dict[str, Any], rng: random.Random) -> Any:
    """Tensors that are no plain numbers in rows, and things that are no dictionary of tensors."""
    name = rng.choice(sorted(content)) if content else "obs"
    dense = torch.ones(12, 2)
    odd: tuple[Any, ...] = (
        *(
            dense.to_sparse(),
            dense.requires_grad_(True),
            torch.nn.Parameter(dense),
            dense.to(torch.bfloat16),
            dense.to(torch.complex64),
        ),
        *(
            torch.ones(1, 1).expand(10**9, 10**3),
            torch.ones(1).expand(12),
            torch.empty(0),
            torch.tensor(1.0),
            torch.empty(2, device="meta"),
        ),
        *(
            dense.to(torch.float8_e4m3fn),
            torch.quantize_per_tensor(dense, 0.1, 0, torch.quint8),
            dense.conj(),
            dense.t(),
            "text",
            None,
        ),
    )
    changed: dict[Any, Any] = {**content, name: rng.choice(odd)}
    return rng.choice(
        (changed, changed, changed, changed, [content], dense, {"a": content}, {1: dense}, 7, None, "x", {**content, 1: dense})
    )


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def write_hdf5(path: Path, data: Columns, rng: random.Random) -> None:
    with h5py.File(path, "w") as file:
        _fill(file, data, rng)
        if rng.random() < 0.3:
            _oddify_hdf5(file, rng)


def _fill(group: Any, data: Columns, rng: random.Random) -> None:
    for name, value in data.items():
        array = np.asarray(value)
        options = rng.choice(({}, {}, {"chunks": True, "compression": "gzip"}, {"chunks": True, "fletcher32": True}))
        try:
            group.create_dataset(name or "empty", data=array, **(options if array.ndim and array.size else {}))
        except (TypeError, ValueError):  # h5py has no such type: keep the column, as something else
            group[f"{name}_as_text"] = str(array)[:50]


def _oddify_hdf5(file: Any, rng: random.Random) -> None:
    """Datasets that claim rows they do not have, lie elsewhere, or hold something else; links in circles."""
    name = rng.choice([*file, "observations"])
    if name in file:
        del file[name]
    layout = h5py.VirtualLayout((12, 3), "f4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (12, 3))
    makers: tuple[Callable[[], Any], ...] = (
        lambda: file.create_dataset(name, shape=(HUGE,), dtype="f4", chunks=(1000,)),
        lambda: file.create_dataset(name, shape=(HUGE, 3), dtype="f8", chunks=(1000, 3), compression="gzip", fillvalue=1.0),
        lambda: file.create_dataset(name, shape=(12, HUGE), dtype="f4", chunks=(1, 1000)),
        lambda: file.create_dataset(name, shape=(0, HUGE), dtype="f4", chunks=(1, 10), maxshape=(None, None)),
        lambda: file.create_dataset(name, data=["a", "b"] * 6, dtype=h5py.string_dtype()),
        lambda: file.create_dataset(name, shape=(12,), dtype=h5py.vlen_dtype(np.float32)),
        lambda: file.create_dataset(name, shape=(12,), dtype=h5py.ref_dtype),
        lambda: file.create_dataset(name, shape=(12,), dtype=h5py.enum_dtype({"a": 0, "b": 1})),
        lambda: file.create_dataset(name, data=np.zeros(12, dtype=[("a", "f4"), ("b", "i4")])),
        lambda: file.create_dataset(name, data=np.void(b"\x80\x04K\x01.")),
        lambda: file.create_dataset(name, data=h5py.Empty("f4")),
        lambda: file.create_dataset(name, shape=(12, 3), dtype="f4", external=[("/etc/passwd", 0, 144)]),
        lambda: file.create_virtual_dataset(name, layout),
        lambda: file.create_group(name),
        lambda: file.__setitem__(name, h5py.SoftLink("/nowhere")),
        lambda: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
        lambda: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x")),
        lambda: file.create_group("circle").__setitem__("back", file),
        lambda: file.__setitem__("discrete_action", rng.choice((True, 1.5, "x", [1, 2]))),
        lambda: file.attrs.__setitem__("obs", np.void(b"x" * 100)),
    )
    rng.choice(makers)()


# -- Minari ------------------------------------------------------------------------------------------------------------


def write_minari(path: Path, data: Columns, rng: random.Random) -> None:
    """A directory with episodes cut from the columns, and a metadata file."""
    (path / "data").mkdir(parents=True)
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for number in range(rng.choice((3, 3, 3, 0, 1))):
            group = file.create_group(rng.choice((f"episode_{number}",) * 6 + (f"episode_{number}x", f"part_{number}")))
            _fill(group, _episode(data, number), rng)
            if rng.random() < 0.1:
                _oddify_hdf5(group, rng)
    (path / "data" / "metadata.json").write_text(_metadata(rng))
    if rng.random() < 0.1:
        target = path / "data" / rng.choice(("metadata.json", "main_data.hdf5"))
        target.unlink()
        if rng.random() < 0.5:
            target.mkdir()


def _episode(data: Columns, number: int) -> Columns:
    rows, renamed = slice(4 * number, 4 * number + 4), {}
    meanings = {"dones": "terminations", "terminals": "terminations", "terminated": "terminations", "timeouts": "truncations"}
    meanings |= {
        "truncated": "truncations",
        "episode_terminals": "truncations",
        "eps_id": "truncations",
        "indices": "truncations",
    }
    for name, value in data.items():
        cut = slice(rows.start, rows.stop + 1) if name == "observations" else rows
        renamed[meanings.get(name, name)] = np.asarray(value)[cut] if np.ndim(value) else value
    if "observations" in renamed and np.shape(renamed["observations"])[:1] == (4,):  # the last episode has no row behind it
        renamed["observations"] = np.concatenate((renamed["observations"], renamed["observations"][-1:]))
    if renamed.get("terminations") is not None:
        renamed.setdefault("truncations", np.zeros(4, dtype=bool))
    return renamed


def _metadata(rng: random.Random) -> str:
    scores: Any = rng.choice((0, 100.0, "x", None, [], {}, float("nan"), "12", True, 10**400))
    texts = (
        "",
        "[]",
        "null",
        "{",
        "[" * 10**5,
        json.dumps({"ref_min_score": scores, "ref_max_score": 100}),
        "\x00",
        "9" * 5000,
    )
    return rng.choice((json.dumps({"ref_min_score": 0, "ref_max_score": scores}), "{}", "{}", *texts))


# -- cases -------------------------------------------------------------------------------------------------------------

WRITERS: dict[str, tuple[str, Callable[[Path, Columns, random.Random], None]]] = {
    "npz": ("data.npz", write_npz),
    "pt": ("data.pt", write_pt),
    "hdf5": ("data.hdf5", write_hdf5),
    "minari": ("dataset-v0", write_minari),
}


def prepare(recipe: Recipe, bases: Path, scratch: Path) -> None:
    rng = random.Random(recipe["seed"])
    name, write = WRITERS[recipe["kind"]]
    write(scratch / name, mutated(recipe["flavour"], rng), rng)
    if recipe["damaged"]:
        file = scratch / name / "data" / "main_data.hdf5" if recipe["kind"] == "minari" else scratch / name
        if file.is_file():
            file.write_bytes(byte_mutations.damage(file.read_bytes(), rng))
    (scratch / "output").mkdir()
    (scratch / "cache").mkdir()


def _options(recipe: Recipe) -> dict[str, Any]:
    rng = random.Random(recipe["seed"] + 1)
    options: tuple[dict[str, Any], ...] = (
        {},
        {},
        {},
        {"clip_actions": True},
        {"time_limit": 4},
        {"action_low": -2.0, "action_high": 2.0},
    )
    options += (
        {"columns": {"obs": "observations"}},
        {"columns": {"rewards": "x"}},
        {"action_low": [1.0] * 3, "action_high": [2.0] * 3},
    )
    return rng.choice(options)


def load(recipe: Recipe, scratch: Path) -> None:
    name, _ = WRITERS[recipe["kind"]]
    mapped = {"memory_map": recipe["seed"] % 3 == 0, "cache_dir": scratch / "cache"}
    dataset = load_transition_dataset(recipe["kind"], dataset_path=scratch / name, **_options(recipe), **mapped)
    batch = dataset.sample(8)
    assert all(bool(torch.isfinite(column).all()) and len(column) == 8 for column in batch.values()), "a batch is not finite"
    dataset.with_normalized_observations().sample(2)
    dataset.fingerprint()
    repr(dataset)


def inspect(recipe: Recipe, scratch: Path) -> None:
    run_cli("data", "inspect", str(scratch / WRITERS[recipe["kind"]][0]), *(["--json"] if recipe["seed"] % 2 else []))


def convert(recipe: Recipe, scratch: Path) -> None:
    target = scratch / "output" / f"converted.{'npz' if recipe['seed'] % 2 else 'hdf5'}"
    run_cli("data", "convert", str(scratch / WRITERS[recipe["kind"]][0]), str(target))
    with contextlib.suppress(DataError):  # what was written can be read, or is refused as the original would be
        load_transition_dataset(dataset_path=target, clip_actions=True)


def learn(recipe: Recipe, scratch: Path) -> None:
    """A few steps of behaviour cloning without an environment."""
    options = {**_options(recipe), "normalize_observations": recipe["seed"] % 2 == 0, "memory_map": False}
    config = TrainConfig(
        algo="bc",
        total_timesteps=2,
        tensorboard=False,
        output_dir=scratch / "output",
        dataset={"kind": recipe["kind"], "path": str(scratch / WRITERS[recipe["kind"]][0]), **options},
        algo_kwargs={"batch_size": 4, "hidden_sizes": [4]},
    )
    train(config)


def map_again(recipe: Recipe, scratch: Path) -> None:
    """Load with mapped rows, damage what was cached, and load again: built anew, or as it was."""
    rng = random.Random(recipe["seed"] + 2)
    options = {**_options(recipe), "memory_map": True, "cache_dir": scratch / "cache"}
    for _ in range(2):
        load_transition_dataset(recipe["kind"], dataset_path=scratch / WRITERS[recipe["kind"]][0], **options).sample(4)
        cached = sorted(path for path in (scratch / "cache").rglob("*") if path.is_file())
        file = rng.choice([path for path in cached if path.name != "rows.f32"])  # rows have no checksum: any bits are numbers
        damaged = rng.choice((byte_mutations.damage(file.read_bytes(), rng), b"[" * 10**5, b"{}", b"PK\x03\x04", b""))
        file.unlink()
        if rng.random() < 0.8:
            file.write_bytes(damaged)


OPERATIONS = {"load": load, "inspect": inspect, "convert": convert, "learn": learn, "map_again": map_again}


def run(recipe: Recipe, scratch: Path) -> None:
    OPERATIONS[recipe["operation"]](recipe, scratch)


def _kind(name: str, share: int) -> Kind:
    recipes = st.fixed_dictionaries(
        {
            "kind": st.just(name),
            "flavour": st.sampled_from(FLAVOURS),
            "damaged": st.booleans(),
            "seed": st.integers(0, 2**32 - 1),
            "operation": st.sampled_from(("load", "load", "load", "inspect", "convert", "learn", "map_again")),
        }
    )
    return Kind(
        *(name, recipes, run, prepare),
        allowed=(ConfigError, DataError, RefusedByCli),
        share=share,
        may_stay=lambda path: path.startswith("cache/datasets") and "/." not in path,  # whole entries of the cache
    )


KINDS = (_kind("npz", 12), _kind("pt", 10), _kind("hdf5", 14), _kind("minari", 10))
