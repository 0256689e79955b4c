"""Films of agents: headless, with the score on each picture; and in training, without a trace in the run itself."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs
from PIL import Image
from safetensors.torch import load_file
from support import assert_same_run, newest_checkpoint, tiny_config

from rl_training.cli import main
from rl_training.runtime import filming
from rl_training.runtime.drawing_process import draw_elsewhere
from rl_training.runtime.filming import captioned, spacing
from rl_training.runtime.training import train
from rl_training.runtime.video import film_checkpoint, film_here
from rl_training.runtime.workflows import resume_training
from rl_training.types import ConfigError


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("sac", tmp_path_factory.mktemp("runs"), env_id="painted:PaintedEnv")).run_dir


def test_the_command_films_episodes(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "film.mp4"
    assert main(["video", str(run_dir), "-o", str(target), "--episodes", "2", "--json"]) == 0
    film = json.loads(capsys.readouterr().out)
    assert [(episode["return"], episode["length"]) for episode in film["episodes"]] == [(12.0, 12)] * 2
    assert (film["frames"], film["fps"], film["path"]) == (26, 10.0, str(target))
    assert count_frames_and_secs(str(target)) == (26, pytest.approx(2.6))
    assert [path.name for path in target.parent.iterdir()] == ["film.mp4"]


def test_a_gif(run_dir: Path, tmp_path: Path) -> None:
    film = film_here(str(run_dir), str(tmp_path / "film.gif"), seeds=[1], fps=20.0)
    assert (film["frames"], film["fps"]) == (13, 20.0)
    with Image.open(tmp_path / "film.gif") as picture:
        assert (picture.n_frames, picture.info["duration"], picture.info["loop"]) == (13, 50, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_the_score_is_written_on_the_picture() -> None:
    blank = np.full((120, 200, 3), 255, dtype=np.uint8)
    written = captioned(blank, "step 7  return 3.5")
    assert written.shape == blank.shape
    assert (written[:20, :60] == 0).any()
    assert (written[60:] == 255).all()
    assert not np.array_equal(written, captioned(blank, "step 8  return 3.5"))


def test_a_gif_shows_fewer_pictures_of_a_fast_environment() -> None:
    assert [spacing(Path("x.gif"), fps) for fps in (10, 50, 125)] == [1, 1, 3]
    assert spacing(Path("x.mp4"), 125) == 1


def test_what_cannot_be_filmed(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(run_dir), "--no-user-code"], "user code is switched off"),
        ([str(run_dir), "-o", str(tmp_path / "film.avi")], "a video is an .mp4 or a .gif file"),
        ([str(run_dir), "--episodes", "0"], "episodes must be >= 1"),
        ([str(run_dir), "--fps", "0"], "fps must be > 0"),
        ([str(tmp_path / "nowhere")], "does not exist"),
    ):
        assert main(["video", "-o", str(tmp_path / "film.gif"), *arguments]) == 2
        assert message in capsys.readouterr().err
    other = train(tiny_config("sac", tmp_path, env_id="support:CountingEnv", total_timesteps=40)).run_dir
    with pytest.raises(ConfigError, match="does not take env_kwargs"):  # render_mode
        film_here(str(other), str(tmp_path / "film.gif"), seeds=[1], fps=None)
    assert not list(tmp_path.glob("*.gif"))


def test_other_graphics_libraries_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    facts = draw_elsewhere("painted:needs_osmesa", {"wanted": "osmesa"})
    assert facts == {"drawn_with": "osmesa"}
    monkeypatch.setenv("MUJOCO_GL", "egl")  # the user's choice is kept
    assert "no OpenGL" in draw_elsewhere("painted:needs_osmesa", {"wanted": "osmesa"})["problem"]


def test_a_crash_is_a_message(run_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "ended abruptly" in draw_elsewhere("os:abort", {})["problem"]
    monkeypatch.setattr("rl_training.runtime.video.draw_elsewhere", lambda *_, **__: {"problem": "no OpenGL"})
    with pytest.raises(ConfigError, match="cannot be filmed: no OpenGL"):
        film_checkpoint(run_dir, tmp_path / "film.gif")


# -- in training ---------------------------------------------------------------------------------------------------------


def test_each_evaluation_is_filmed_and_the_run_stays_the_same(run_dir: Path, tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, env_id="painted:PaintedEnv", record_video=True)
    recorded = train(config).run_dir
    assert sorted(path.name for path in (recorded / "videos").iterdir()) == [f"step_{step:09d}.mp4" for step in (40, 80, 96)]
    assert_same_run(run_dir, recorded)
    cut = train(config.replace(total_timesteps=60)).run_dir
    resume_training(cut, 96)
    assert_same_run_but_for_the_cut(run_dir, cut)
    assert (cut / "videos" / "step_000000080.mp4").is_file()


def assert_same_run_but_for_the_cut(whole: Path, cut: Path) -> None:
    """The evaluation that ends a shorter run is in its log; the agent is the same."""
    left, right = (load_file(newest_checkpoint(path) / "weights.safetensors") for path in (whole, cut))
    assert left.keys() == right.keys()
    assert all((left[name] == right[name]).all() for name in left)


def test_a_failure_to_draw_is_told_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = train(tiny_config("sac", tmp_path, env_id="painted:UndrawableEnv", record_video=True))
    assert result.metrics["global_step"] == 96
    assert [r.getMessage() for r in caplog.records if "filmed" in r.getMessage()] == [
        "The evaluation could not be filmed (no OpenGL backend could be imported); the run goes on without videos"
    ]
    assert not list((result.run_dir / "videos").iterdir())


def test_without_ffmpeg_it_is_a_gif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = filming.find_spec
    monkeypatch.setattr(filming, "find_spec", lambda name: None if name == "imageio_ffmpeg" else found(name))
    config = tiny_config("sac", tmp_path, env_id="painted:PaintedEnv", record_video=True, eval_interval=None)
    assert [path.name for path in (train(config).run_dir / "videos").iterdir()] == ["step_000000096.gif"]
    with pytest.raises(ConfigError, match=r'pip install "rl-training\[video\]"'):
        filming.require_film_packages(Path("film.mp4"))


def test_the_option_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    for option, expected in (([], False), (["--record"], True)):
        assert main(["train", "sac/pendulum", "--dry-run", "--json", *option]) == 0
        assert json.loads(capsys.readouterr().out)["record_video"] is expected
