"""Small honest datasets as columns, and what can be wrong with columns whatever the file they are in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

Columns = dict[str, Any]
LENGTHS = (4, 5, 3)
"""Of the episodes of every honest dataset."""


def honest(flavour: str) -> Columns:
    """Three episodes, under the names that one family of files uses."""
    rng, rows = np.random.default_rng(1), sum(LENGTHS)
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    ends = np.zeros(rows, dtype=bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    data: Columns = {
        "observations": obs,
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows),
    }
    if flavour == "d4rl":
        return {**data, "terminals": np.zeros(rows, dtype=bool), "timeouts": ends}
    if flavour == "d3rlpy":
        return {**data, "terminals": ends.astype(np.float32), "episode_terminals": ends}
    if flavour == "ids":
        return {**data, "dones": ends, "eps_id": np.repeat(np.arange(3), LENGTHS), "next_observations": obs + 0.5}
    if flavour == "discrete":
        return {**data, "actions": rng.integers(0, 4, rows), "terminated": ends, "truncated": ~ends & False}
    if flavour == "rich":
        more = {"next_obs": obs + 0.5, "next_actions": data["actions"][::-1].copy(), "returns_to_go": np.ones(rows)}
        return {**data, **more, "terminations": ends, "truncations": ~ends & False}
    starts = np.cumsum(LENGTHS)[:-1]
    return {**data, "observations": rng.normal(size=(rows + 3, 3)), "terminals": np.ones(3, dtype=bool), "indices": starts}


FLAVOURS = ("d4rl", "d3rlpy", "ids", "discrete", "rich", "trajectories")

NAMES = (
    "obs",
    "state",
    "acts",
    "done",
    "dones",
    "terminal",
    "truncated",
    "timeouts",
    "indices",
    "episode_ids",
    "next_obs",
    "x",
    "é",
    "a/b",
    "",
)
TYPES = (
    "c8",
    "f2",
    "f4",
    "f8",
    "u1",
    "u8",
    "i1",
    "i8",
    "?",
    "U3",
    "S2",
    "M8[s]",
    "m8[s]",
    "O",
    "g",
    ">f4",
    ">i8",
    "V4",
    "f4,i4",
)


def _retype(array: Any, rng: random.Random) -> Any:
    dtype = np.dtype(rng.choice(TYPES))
    try:
        with np.errstate(all="ignore"):
            return np.asarray(array).astype(dtype)
    except (TypeError, ValueError, RuntimeError):  # the last one: dates that do not fit into two characters
        return np.zeros(np.shape(array), dtype)


def _reshape(array: Any, rng: random.Random) -> Any:
    array = np.asarray(array)
    return rng.choice(
        (array[None], array[..., None], array.reshape(-1), array.reshape(-1)[:1].reshape(()), array[:, None, ...])
    )


def _resize(array: Any, rng: random.Random) -> Any:
    array = np.asarray(array)
    return rng.choice(
        (array[:-1], array[:0], array[:1], np.concatenate((array, array)), array[::2], array.reshape(len(array), -1)[:, :0])
    )


def _spoil(array: Any, rng: random.Random) -> Any:
    """A number that does not belong there."""
    array = np.array(array)
    if array.size and array.dtype.kind in "fiub":
        number = rng.choice((np.nan, np.inf, -np.inf, 1e308, -1e39, 2.0**63, 7, -1, 0.5))
        array = array.astype(np.float64) if rng.random() < 0.8 else array
        with np.errstate(all="ignore"):
            array.flat[rng.randrange(array.size)] = number if array.dtype.kind == "f" else 2
    return array


CHANGES: tuple[Callable[[Any, random.Random], Any], ...] = (_retype, _retype, _reshape, _resize, _spoil, _spoil)


def worsen(data: Columns, rng: random.Random) -> None:
    """One change for the worse: a column removed, renamed, doubled, exchanged, or with other content."""
    if not data:
        return
    name = rng.choice(sorted(data))
    choice = rng.choice(("remove", "rename", "double", "exchange", "constant", "change", "change", "change"))
    if choice == "remove":
        del data[name]
    elif choice == "rename":
        data[rng.choice(NAMES)] = data.pop(name)
    elif choice == "double":
        data[rng.choice(NAMES)] = data[name]
    elif choice == "exchange":
        other = rng.choice(sorted(data))
        data[name], data[other] = data[other], data[name]
    elif choice == "constant":
        data[name] = (
            np.full_like(data[name], rng.choice((0, 1))) if np.asarray(data[name]).dtype.kind in "fiub" else data[name]
        )
    else:
        data[name] = rng.choice(CHANGES)(data[name], rng) if np.ndim(data[name]) else data[name]


def mutated(flavour: str, rng: random.Random) -> Columns:
    """An honest dataset after none to three such changes."""
    data = honest(flavour)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        worsen(data, rng)
    return data
