"""Environments that can, or cannot, be looked at; and what a drawing process may be asked for. Imports no torch."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np


class PaintedEnv(gym.Env[Any, Any]):
    """A square that moves to the right for twelve steps, each with a reward of 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.render_mode, self.t = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(2, self.t, dtype=np.float32), 1.0, False, self.t >= 12, {}

    def render(self) -> Any:
        picture = np.full((61, 81, 3), 255, dtype=np.uint8)  # odd sizes: an mp4 can only have even ones
        picture[30:50, 2 * self.t : 2 * self.t + 10] = (200, 30, 30)
        return picture


class UndrawableEnv(PaintedEnv):
    """What MuJoCo does where there is no OpenGL."""

    def render(self) -> Any:
        raise RuntimeError("no OpenGL backend could be imported")


def needs_osmesa(wanted: str) -> dict[str, Any]:
    if os.environ.get("MUJOCO_GL") != wanted:
        raise RuntimeError("no OpenGL here")
    return {"drawn_with": wanted}
