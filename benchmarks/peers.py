"""Virtual environments of the libraries that this package is measured against, made at the first use and kept apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "benchmarks" / ".peers"
PACKAGES = {
    "sb3": ["torch==2.13.0", "stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "sbx-rl==0.28.0", "gymnasium[mujoco]==1.4.0"],
    "d3rlpy": ["torch==2.13.0", "d3rlpy==2.8.1"],  # wants an older Gymnasium, hence an environment of its own
}


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment."""
    interpreter = HOME / peer / "bin" / "python"
    if not (HOME / peer / "complete").exists():
        print(f"making the environment of {peer} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(HOME / peer)], check=True)
        # torch is pinned: a looser request would bring builds for accelerators; the rest the peers choose themselves
        subprocess.run([str(interpreter), "-m", "pip", "install", "--quiet", *PACKAGES[peer]], check=True)
        (HOME / peer / "complete").touch()
    return str(interpreter)


if __name__ == "__main__":
    for name in sys.argv[1:] or PACKAGES:
        print(name, python_of(name))
