"""Episodes as pictures: playing an environment that draws itself, writing into each picture how it goes, and films of them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.factory import EnvFactory, make_env
from rl_training.experiment.files import delete, writing
from rl_training.runtime.policy import Policy
from rl_training.types import ConfigError

logger = logging.getLogger("rl_training")

Picture: TypeAlias = npt.NDArray[np.uint8]

DEFAULT_FPS = 30.0
FILM_KINDS = (".mp4", ".gif")
_GIF_FPS = 50.0  # browsers slow a GIF down that asks for more


class Frame(NamedTuple):
    """The environment after ``step`` steps of an episode, and the return so far."""

    picture: Picture
    step: int
    episode_return: float
    ended: bool


def make_film_env(source: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """The environment, drawing into arrays instead of a window."""
    return make_env(source, {**(env_kwargs or {}), "render_mode": "rgb_array"})


def frames_per_second(env: gym.Env[Any, Any]) -> float:
    """How many of the environment's steps make a second."""
    return float(env.metadata.get("render_fps") or DEFAULT_FPS)


def episode_frames(policy: Policy, env: gym.Env[Any, Any], *, seed: int, every: int = 1) -> Iterator[Frame]:
    """Play one episode with the deterministic policy: the first frame, every so many steps another, and the last one."""
    obs, _ = env.reset(seed=seed)
    yield Frame(_picture(env), 0, 0.0, False)
    total, step, ended = 0.0, 0, False
    while not ended:
        action = policy.act(np.asarray(obs, dtype=np.float32)[np.newaxis])[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, step, ended = total + float(reward), step + 1, bool(terminated or truncated)
        if ended or step % every == 0:
            yield Frame(_picture(env), step, total, ended)


def _picture(env: gym.Env[Any, Any]) -> Picture:
    picture = np.asarray(env.render())
    if picture.ndim != 3 or picture.dtype != np.uint8:
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        raise ConfigError(f"{name} renders no picture: it has no render mode 'rgb_array' that gives one")
    return picture[..., :3]


def captioned(picture: Picture, text: str) -> Picture:
    """The picture with a line of text in its upper left corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=max(10, image.height // 24))
    corner = (image.height // 60, image.height // 60)
    draw.rectangle(draw.textbbox(corner, text, font=font), fill=(0, 0, 0))
    draw.text(corner, text, font=font, fill=(255, 255, 255))
    return np.asarray(image)


@contextlib.contextmanager
def writing_film(path: Path, *, fps: float) -> Iterator[Callable[[Picture], None]]:
    """Takes pictures one by one; the film is at ``path`` when all are there, or not at all."""
    import imageio.v2 as imageio

    options: dict[str, Any] = {"loop": 0, "duration": 1000 / fps}
    if path.suffix == ".mp4":
        options = {"fps": fps, "codec": "libx264", "macro_block_size": 2, "ffmpeg_log_level": "error"}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
        try:
            film: Any = imageio.get_writer(temporary, mode="I", **options)
            with film:
                yield film.append_data
            os.replace(temporary, path)
        finally:
            delete(temporary)


def spacing(path: Path, fps: float) -> int:
    """Show every so many steps: each in an mp4, fewer in a GIF, which cannot be as fast."""
    return max(1, math.ceil(fps / _GIF_FPS)) if path.suffix == ".gif" else 1


def require_film_packages(path: Path) -> None:
    """Refuse a kind of file that cannot be written, or not without a package."""
    if path.suffix not in FILM_KINDS:
        raise ConfigError(f"{path}: a video is an .mp4 or a .gif file")
    needed = {"imageio": "imageio", "PIL": "pillow"} | ({"imageio_ffmpeg": "imageio-ffmpeg"} if path.suffix == ".mp4" else {})
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f'an {path.suffix} file needs {" and ".join(missing)}: pip install "rl-training[video]"')


class EvaluationFilms:
    """``videos/step_<n>.mp4`` (or ``.gif``, without ffmpeg): an episode of each evaluation of a run.

    It has its own environment and the deterministic policy, so it draws from no generator of the run. What goes wrong is
    told once; the run goes on without films.
    """

    def __init__(self, directory: Path, make: Callable[[], gym.Env[Any, Any]]) -> None:
        self._directory, self._make = directory, make
        self._env: gym.Env[Any, Any] | None = None
        self._works = True

    def record(self, policy: Policy, *, step: int, seed: int, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Film one episode; nothing is kept if interrupted."""
        if not self._works:
            return
        try:
            self._record(policy, step=step, seed=seed, interrupted=interrupted)
        except _InterruptedFilm:
            pass
        except Exception as error:  # an environment's, a drawing library's, or a full disk
            self._works = False
            logger.warning("The evaluation could not be filmed (%s); the run goes on without videos", error)

    def _record(self, policy: Policy, *, step: int, seed: int, interrupted: Callable[[], bool]) -> None:
        path = self._directory / f"step_{step:09d}{'.gif' if find_spec('imageio_ffmpeg') is None else '.mp4'}"
        require_film_packages(path)
        if self._env is None:
            self._env = self._make()
        fps = frames_per_second(self._env)
        every = spacing(path, fps)
        with writing_film(path, fps=fps / every) as add:
            for frame in episode_frames(policy, self._env, seed=seed, every=every):
                if interrupted():
                    raise _InterruptedFilm
                add(captioned(frame.picture, f"step {frame.step}  return {frame.episode_return:.1f}"))

    def close(self) -> None:
        """Let go of the environment."""
        if self._env is not None:
            with contextlib.suppress(Exception):  # a drawing library's; there is nothing left to save here
                self._env.close()


class _InterruptedFilm(Exception):
    """The run was asked to stop while an episode was filmed."""
