"""What happens to files at rest: the newest checkpoint loses bytes, bits or whole files. And how to tell."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path


def checkpoint_steps(checkpoints: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(checkpoints.glob("step_*"))


def is_intact(checkpoint: Path) -> bool:
    """Whether every file is what the manifest says, and the manifest too; told without the package's own reader."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_bytes())
        checksum = manifest.pop("checksum")
        canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        contents = {name: (checkpoint / name).read_bytes() for name in manifest["files"]}
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    same = [hashlib.sha256(contents[name]).hexdigest() == entry["sha256"] for name, entry in manifest["files"].items()]
    return hashlib.sha256(canonical.encode()).hexdigest() == checksum and all(same)


def truncate(path: Path, rng: random.Random) -> None:
    """Cut a file short."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def flip_bit(path: Path, rng: random.Random) -> None:
    """Turn one bit round."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def remove(path: Path, rng: random.Random) -> None:
    """Lose a file."""
    path.unlink()


def damageable(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint, and the pointer to it."""
    return [*sorted(path for path in checkpoint.iterdir() if path.stat().st_size > 0), checkpoint.parent / "last"]


def still_says_the_same(path: Path, before: bytes) -> bool:
    """Whether damage to a JSON file changed nothing in it: one bit makes 1e-5 of 1E-5."""
    try:
        return path.suffix == ".json" and json.loads(path.read_bytes()) == json.loads(before)
    except (OSError, ValueError):
        return False
