"""Deep reinforcement learning, off-policy and offline: one surface, exact resume, fast on a CPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api import AWAC, BC, CQL, DDPG, DQN, IQL, REDQ, SAC, TD3, TD3BC, TQC, ReBRAC, TrainConfig

__version__ = "0.1.0"

__all__ = [
    "AWAC",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "IQL",
    "REDQ",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "ReBRAC",
    "TrainConfig",
    "__version__",
]


def __getattr__(name: str) -> Any:  # torch and gymnasium are imported when an agent is first asked for
    if name[:1].isupper():  # not a submodule that the import system is looking for
        return getattr(import_module("rl_training.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
