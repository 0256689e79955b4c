"""The best agents at play, as small animations; each filmed in a process of its own, so that a crash is only a note."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rl_training.studies.curves import (
    shorten,
)
from rl_training.studies.evidence import Evidence
from rl_training.types import ConfigError, UserError

if TYPE_CHECKING:
    pass


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
            facts = _film_elsewhere(run.path, Path(folder), LARGEST_ANIMATION // max(len(tasks[:most]), 1))
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


def _film_elsewhere(run: Path, folder: Path, limit: int) -> dict[str, Any]:
    """:func:`film` in a process of its own: drawing libraries may crash, hang, print, and look at variables only once."""
    code = "import sys; from rl_training.studies.animation import film_main; film_main(*sys.argv[1:])"
    search = os.pathsep.join([*(path for path in sys.path if path), os.getcwd()])
    facts: dict[str, Any] = {}
    for library in (None,) if "MUJOCO_GL" in os.environ else (None, "egl", "osmesa"):
        variables = {**os.environ, "PYTHONPATH": search, **({"MUJOCO_GL": library} if library else {})}
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(run.absolute()), str(folder), str(limit)],
                cwd=folder,  # where MuJoCo may leave its log
                env=variables,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
            facts = json.loads((done.stdout.splitlines() or ["{}"])[-1])
        except subprocess.TimeoutExpired:
            return {"problem": f"rendering took longer than {_PATIENCE:.0f} s"}
        except ValueError:
            facts = {}
        if not facts:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            facts = {"problem": f"rendering ended abruptly: {shorten(last, 200)}"}
        if "problem" not in facts or not re.search(r"OpenGL|EGL|GLFW|OSMesa|_gl\b", str(facts["problem"]), re.IGNORECASE):
            break
    return facts


def film_main(run: str, folder: str, limit: str) -> None:
    """Film, and print what came of it as JSON."""
    try:
        facts = film(Path(run), Path(folder), limit=int(limit))
    except UserError as error:
        facts = {"problem": str(error)}
    except Exception as error:  # an environment's or a drawing library's; the report only loses a picture
        facts = {"problem": f"{type(error).__name__}: {error}"}
    print(json.dumps(facts))


def film(run: Path, folder: Path, *, limit: int) -> dict[str, Any]:
    """Play the best agent of a run, and write ``moving.webp`` (or ``.gif``) of at most ``limit`` bytes and ``still.png``."""
    from PIL import Image

    from rl_training.envs.factory import make_env
    from rl_training.experiment.checkpointing import find_checkpoint
    from rl_training.runtime.evaluation import evaluation_seeds
    from rl_training.runtime.policy import load_policy
    from rl_training.runtime.workflows import config_of

    pointer = run / "checkpoints" / "best"
    checkpoint = find_checkpoint(pointer if pointer.exists() else run)
    config, policy = config_of(checkpoint), load_policy(checkpoint)
    if config.env_id is None:
        raise ConfigError("the agent was trained without an environment")
    env = make_env(config.env_id, {**config.env_kwargs, "render_mode": "rgb_array"})
    try:
        frames: list[Any] = []
        obs, _ = env.reset(seed=evaluation_seeds(config.seed, 1)[0])
        total, steps, ended = 0.0, 0, False
        while not ended and steps < _PLAYED_STEPS:
            if steps % _EVERY == 0:
                picture = np.asarray(env.render())
                if picture.ndim != 3 or picture.dtype != np.uint8:
                    raise ConfigError(f"{config.env_id} renders no picture")
                frames.append(Image.fromarray(picture[..., :3]))
            action = policy.act(np.asarray(obs, dtype=np.float32)[np.newaxis])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, steps, ended = total + float(reward), steps + 1, bool(terminated or truncated)
        rate = env.metadata.get("render_fps") or 30
    finally:
        env.close()
    moving = _encode(frames, folder, milliseconds=int(min(max(1000 * _EVERY / rate, 40), 150)), limit=limit)
    still = frames[len(frames) // 2].copy()
    still.thumbnail((240, 240))
    still.save(folder / "still.png", optimize=True)
    return {"moving": moving, "still": "still.png", "return": total, "steps": steps, "ended": ended}


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
