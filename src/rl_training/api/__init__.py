"""The managed Python API: one class per algorithm, imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api.algorithms import AWAC, BC, CQL, DDPG, DQN, IQL, REDQ, SAC, TD3, TD3BC, TQC, ManagedAlgorithm, ReBRAC
    from rl_training.experiment.config import TrainConfig

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
    "ManagedAlgorithm",
    "ReBRAC",
    "TrainConfig",
]


def __getattr__(name: str) -> Any:
    if name == "TrainConfig":
        return import_module("rl_training.experiment.config").TrainConfig
    agents = import_module("rl_training.api.algorithms")
    if name == "ManagedAlgorithm" or name in agents.AGENTS:
        return getattr(agents, name, None) or agents.AGENTS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
