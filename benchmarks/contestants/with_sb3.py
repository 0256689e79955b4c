"""Stable-Baselines3, sb3-contrib and SBX as contestants; see gate.py."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import torch
from gate import Gate, gate_of, job
from stable_baselines3.common.callbacks import BaseCallback

FOREVER = 10**9
MODULES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib", "sbx": "sbx"}
NAMES = {"redq": "SAC"}


class Ticking(BaseCallback):
    """Ticks after every environment step."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def _on_step(self) -> bool:
        self.gate.tick()
        return True


def main() -> None:
    """Learn for ever, through the gate."""
    work: dict[str, Any] = job()
    torch.set_num_threads(work["threads"])
    algorithm = getattr(importlib.import_module(MODULES[work["library"]]), NAMES.get(work["algo"], work["algo"].upper()))
    model = algorithm("MlpPolicy", gym.make(work["env_id"]), device="cpu", verbose=0, seed=0, **work["settings"])
    model.learn(FOREVER, callback=Ticking(gate_of(work)))


if __name__ == "__main__":
    main()
