"""Adding an algorithm takes three edits: they are made here, on a copy of the package, and everything works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import REPOSITORY


def test_three_edits_are_enough(tmp_path: Path) -> None:
    package = tmp_path / "rl_training"
    shutil.copytree(REPOSITORY / "src" / "rl_training", package, ignore=shutil.ignore_patterns("__pycache__"))

    # 1: the algorithm's file
    source = (package / "algorithms" / "sac.py").read_text()
    source = source.replace("class SAC(", "class Novel(").replace("learner=SAC,", "learner=Novel,")
    (package / "algorithms" / "novel.py").write_text(
        source.replace('name="sac"', 'name="novel"').replace("sac_loss", "novel_loss")
    )
    # 2: a line in the list
    listing = package / "algorithms" / "__init__.py"
    listing.write_text(listing.read_text().replace('    "sac": "SAC",\n', '    "sac": "SAC",\n    "novel": "Novel",\n'))
    # 3: a preset
    preset = (package / "assets" / "configs" / "sac" / "pendulum.yaml").read_text()
    (package / "assets" / "configs" / "novel").mkdir()
    (package / "assets" / "configs" / "novel" / "pendulum.yaml").write_text(preset.replace("algo: sac", "algo: novel"))

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    short = ["--total-timesteps", "130", "--set", "eval_episodes=1", "--json", "-q"]
    trained = json.loads(run("-m", "rl_training", "train", "novel/pendulum", *short).splitlines()[-1])
    assert Path(trained["run_dir"]).name.startswith("novel__Pendulum-v1")
    run("-m", "rl_training", "eval", trained["run_dir"], "-n", "1")
    run("-m", "rl_training", "resume", trained["run_dir"], "--total-timesteps", "140", "-q")
    run("-c", f"from rl_training import Novel; print(Novel.load({trained['run_dir']!r}).predict([0.0, 0.0, 0.0]))")
    assert "novel" in run("-m", "rl_training", "list")
