"""Films of a stored agent at play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.runtime.drawing_process import draw_elsewhere
from rl_training.runtime.evaluation import evaluation_seeds
from rl_training.runtime.filming import (
    captioned,
    episode_frames,
    frames_per_second,
    make_film_env,
    require_film_packages,
    spacing,
    writing_film,
)
from rl_training.runtime.policy import load_policy
from rl_training.runtime.workflows import config_of
from rl_training.types import ConfigError


def film_checkpoint(
    checkpoint: str | Path,
    path: str | Path = "video.mp4",
    *,
    episodes: int = 1,
    seed: int | None = None,
    fps: float | None = None,
) -> dict[str, Any]:
    """Film a stored agent: step and return on each picture, one episode after the other. Returns what is on the film.

    Without ``seed``, the episodes are those of the run's own evaluations; without ``fps``, time is the environment's. It is
    done in a process of its own, so that a drawing library that crashes is only a :class:`ConfigError`.
    """
    target = Path(path)
    require_film_packages(target)
    if target.is_dir():
        raise ConfigError(f"{target} is a directory: name the file to write, e.g. {target / 'video.mp4'}")
    if episodes < 1:
        raise ConfigError(f"episodes must be >= 1, got {episodes}")
    if fps is not None and not 0 < fps <= 1000:
        raise ConfigError(f"fps must be > 0 and <= 1000, got {fps}")
    opened = find_checkpoint(checkpoint)
    config = config_of(opened)
    load_policy(opened)  # what is wrong with the checkpoint is told here, by its own kind of error
    if config.env_id is None or config.env_id.startswith("python:"):
        raise ConfigError(f"{opened.path} was trained without an environment that can be made again: there is nothing to film")
    arguments = {
        "checkpoint": str(opened.path.absolute()),
        "path": str(target.absolute()),
        "seeds": evaluation_seeds(config.seed if seed is None else seed, episodes),
        "fps": fps,
    }
    facts = draw_elsewhere("rl_training.runtime.video:film_here", arguments)
    if "problem" in facts:
        raise ConfigError(f"{config.env_id} cannot be filmed: {facts['problem']}")
    return {"path": str(target), **facts}


def film_here(checkpoint: str, path: str, seeds: list[int], fps: float | None) -> dict[str, Any]:
    """:func:`film_checkpoint` in this process, its arguments checked."""
    opened = find_checkpoint(checkpoint)
    config, policy = config_of(opened), load_policy(opened)
    assert config.env_id is not None  # film_checkpoint has looked
    env = make_film_env(config.env_id, config.env_kwargs)
    played, shown = [], 0
    try:
        rate = fps or frames_per_second(env)
        every = spacing(Path(path), rate)
        with writing_film(Path(path), fps=rate / every) as add:
            for number, seed in enumerate(seeds, start=1):
                title = f"episode {number}  " if len(seeds) > 1 else ""
                for frame in episode_frames(policy, env, seed=seed, every=every):
                    add(captioned(frame.picture, f"{title}step {frame.step}  return {frame.episode_return:.1f}"))
                    shown += 1
                played.append({"seed": seed, "return": frame.episode_return, "length": frame.step})
    finally:
        env.close()
    return {"episodes": played, "frames": shown, "fps": rate / every}
