"""Damage to bytes, decided by a seeded generator."""

from __future__ import annotations

import random

INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff" * 8, b"\x00" * 8)


def flip(data: bytes, rng: random.Random) -> bytes:
    """One to sixteen bits turned over."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16)) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def overwrite(data: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced with ones that often mean something: zeros, all ones, signs."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 2, 4)) if damaged else 0):
        at, piece = rng.randrange(len(damaged)), rng.choice(INTERESTING)
        damaged[at : at + len(piece)] = piece
    return bytes(damaged[: len(data)])


def truncate(data: bytes, rng: random.Random) -> bytes:
    """Cut anywhere; also to nothing."""
    return data[: rng.choice((0, rng.randrange(len(data) + 1), max(0, len(data) - rng.randrange(1, 64))))]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Bytes put in, so that everything behind them moves."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 100))) + data[at:]


def delete(data: bytes, rng: random.Random) -> bytes:
    """Bytes taken out."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 8, 100)) :]


def duplicate(data: bytes, rng: random.Random) -> bytes:
    """A stretch that appears twice."""
    start, length = rng.randrange(len(data) + 1), rng.choice((4, 32, 500))
    return data[: start + length] + data[start:]


def append(data: bytes, rng: random.Random) -> bytes:
    """Something behind the end."""
    return data + rng.choice((b"\x00", b"\n", rng.randbytes(100), data[:1000]))


def replace(data: bytes, rng: random.Random) -> bytes:
    """Something else altogether."""
    return rng.choice((b"", b"\x00" * 100, b"\x80\x04K\x01.", b"PK\x05\x06" + b"\x00" * 18, b"{}", rng.randbytes(200)))


MUTATIONS = (flip, overwrite, truncate, insert, delete, duplicate, append, replace)


def damage(data: bytes, rng: random.Random) -> bytes:
    """One of the above; flips most often, because they pass the most checks."""
    return rng.choice((flip, flip, flip, overwrite, overwrite, *MUTATIONS))(data, rng)
