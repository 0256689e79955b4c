"""The methods, one file each, and the list of them.

A method is ``algorithms/<name>.py`` with a learner class and a ``SPEC``, a line in ``ALGORITHMS``, and a preset. The
learner classes can be imported from here under their own name and as ``<Name>Algorithm``; the agents that users build
from a configuration are in :mod:`rl_training.api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.algorithms.awac import AWAC
    from rl_training.algorithms.awac import AWAC as AWACAlgorithm
    from rl_training.algorithms.bc import BC
    from rl_training.algorithms.bc import BC as BCAlgorithm
    from rl_training.algorithms.cql import CQL
    from rl_training.algorithms.cql import CQL as CQLAlgorithm
    from rl_training.algorithms.ddpg import DDPG
    from rl_training.algorithms.ddpg import DDPG as DDPGAlgorithm
    from rl_training.algorithms.dqn import DQN
    from rl_training.algorithms.dqn import DQN as DQNAlgorithm
    from rl_training.algorithms.iql import IQL
    from rl_training.algorithms.iql import IQL as IQLAlgorithm
    from rl_training.algorithms.rebrac import ReBRAC
    from rl_training.algorithms.rebrac import ReBRAC as ReBRACAlgorithm
    from rl_training.algorithms.redq import REDQ
    from rl_training.algorithms.redq import REDQ as REDQAlgorithm
    from rl_training.algorithms.sac import SAC
    from rl_training.algorithms.sac import SAC as SACAlgorithm
    from rl_training.algorithms.td3 import TD3
    from rl_training.algorithms.td3 import TD3 as TD3Algorithm
    from rl_training.algorithms.td3_bc import TD3BC
    from rl_training.algorithms.td3_bc import TD3BC as TD3BCAlgorithm
    from rl_training.algorithms.tqc import TQC
    from rl_training.algorithms.tqc import TQC as TQCAlgorithm

ALGORITHMS = {
    "dqn": "DQN",
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
    "tqc": "TQC",
    "redq": "REDQ",
    "bc": "BC",
    "iql": "IQL",
    "cql": "CQL",
    "td3_bc": "TD3BC",
    "awac": "AWAC",
    "rebrac": "ReBRAC",
}
"""Module and class of every registered algorithm; imported when first asked for."""

__all__ = [
    "ALGORITHMS",
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
    "AWACAlgorithm",
    "BCAlgorithm",
    "CQLAlgorithm",
    "DDPGAlgorithm",
    "DQNAlgorithm",
    "IQLAlgorithm",
    "REDQAlgorithm",
    "ReBRAC",
    "ReBRACAlgorithm",
    "SACAlgorithm",
    "TD3Algorithm",
    "TD3BCAlgorithm",
    "TQCAlgorithm",
]

_CLASSES = {class_name: name for name, class_name in ALGORITHMS.items()}


def __getattr__(attribute: str) -> Any:
    class_name = attribute.removesuffix("Algorithm")
    if class_name in _CLASSES:
        return getattr(import_module(f"rl_training.algorithms.{_CLASSES[class_name]}"), class_name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
