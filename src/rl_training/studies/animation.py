"""The best agents at play, as small animations; each filmed in a process of its own, so that a crash is only a note."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.runtime.drawing_process import draw_elsewhere
from rl_training.studies.evidence import Evidence
from rl_training.types import ConfigError

LARGEST_ANIMATION = 1_500_000
_PATIENCE = 180.0
_PLAYED_STEPS, _EVERY = 300, 3


class Animation(NamedTuple):
    """A short episode as a data URL, with a still of it; or why there is none."""

    title: str
    moving: str = ""
    still: str = ""
    problem: str | None = None


def animate_best(evidence: Evidence, *, most: int = 6) -> list[Animation]:
    """The best agent of each task (the run with the best evaluation, its checkpoint ``best``) playing for a few seconds."""
    animations = []
    tasks = [task for task in evidence.tasks if any(len(run.steps) for found in evidence.on(task) for run in found.group.runs)]
    for task in tasks[:most]:
        members = [(run, found.group.label) for found in evidence.on(task) for run in found.group.runs if len(run.steps)]
        run, label = max(members, key=lambda member: member[0].score("best") or -math.inf)
        title = f"{task}: {label}, seed {run.seed}"
        with tempfile.TemporaryDirectory() as folder:
            arguments = {
                "run": str(run.path.absolute()),
                "folder": folder,
                "limit": LARGEST_ANIMATION // max(len(tasks[:most]), 1),
            }
            facts = draw_elsewhere("rl_training.studies.animation:film", arguments, patience=_PATIENCE)
            if "problem" in facts:
                animations.append(Animation(title, problem=str(facts["problem"])))
                continue
            moving, still = ((Path(folder) / str(facts[key])).read_bytes() for key in ("moving", "still"))
        title += f", return {facts['return']:.1f}" if facts["ended"] else f", first {facts['steps']} steps"
        kind = "webp" if str(facts["moving"]).endswith("webp") else "gif"
        animations.append(Animation(title, _data_url(moving, kind), _data_url(still, "png")))
    return animations


def _data_url(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def film(run: str, folder: str, limit: int) -> dict[str, Any]:
    """Play the best agent of a run, and write ``moving.webp`` (or ``.gif``) of at most ``limit`` bytes and ``still.png``."""
    from PIL import Image

    from rl_training.experiment.checkpointing import find_checkpoint
    from rl_training.runtime.evaluation import evaluation_seeds
    from rl_training.runtime.filming import episode_frames, frames_per_second, make_film_env
    from rl_training.runtime.policy import load_policy
    from rl_training.runtime.workflows import config_of

    pointer = Path(run) / "checkpoints" / "best"
    checkpoint = find_checkpoint(pointer if pointer.exists() else run)
    config, policy = config_of(checkpoint), load_policy(checkpoint)
    if config.env_id is None:
        raise ConfigError("the agent was trained without an environment")
    env = make_film_env(config.env_id, config.env_kwargs)
    try:
        frames: list[Any] = []
        for frame in episode_frames(policy, env, seed=evaluation_seeds(config.seed, 1)[0], every=_EVERY):
            frames.append(Image.fromarray(frame.picture))
            if frame.step >= _PLAYED_STEPS:
                break
        rate = frames_per_second(env)
    finally:
        env.close()
    moving = _encode(frames, Path(folder), milliseconds=int(min(max(1000 * _EVERY / rate, 40), 150)), limit=limit)
    still = frames[len(frames) // 2].copy()
    still.thumbnail((240, 240))
    still.save(Path(folder) / "still.png", optimize=True)
    return {
        "moving": moving,
        "still": "still.png",
        "return": frame.episode_return,
        "steps": frame.step,
        "ended": frame.ended,
    }


def _encode(frames: Sequence[Any], folder: Path, *, milliseconds: int, limit: int) -> str:
    """Smaller and with fewer pictures until it fits."""
    from PIL import features

    kind = "webp" if features.check("webp") else "gif"
    path = folder / f"moving.{kind}"
    for width, skip in ((240, 1), (240, 2), (180, 2), (120, 3), (80, 5)):
        chosen = [frame.copy() for frame in frames[::skip]]
        for frame in chosen:
            frame.thumbnail((width, width))
        options = {"quality": 65, "method": 4} if kind == "webp" else {"optimize": True}
        chosen[0].save(path, save_all=True, append_images=chosen[1:], duration=milliseconds * skip, loop=0, **options)
        if path.stat().st_size <= limit:
            return path.name
    raise ConfigError(f"the animation could not be made smaller than {limit} bytes")
