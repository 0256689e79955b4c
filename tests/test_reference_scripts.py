"""The example scripts run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ALGORITHMS, REPOSITORY

SCRIPTS = sorted((REPOSITORY / "examples").glob("*_reference.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_reference_script(script: Path, tmp_path: Path) -> None:
    arguments = ["--total-timesteps", "150", "--eval-episodes", "1", "--output-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
    assert any(tmp_path.iterdir())


def test_every_algorithm_has_one() -> None:
    assert {script.stem.rsplit("_", 2)[0] for script in SCRIPTS} == set(ALGORITHMS)
