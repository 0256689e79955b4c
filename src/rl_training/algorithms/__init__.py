"""The methods, one file each, and the list of them.

A method is ``algorithms/<name>.py`` with a learner class and a ``SPEC``, a line in ``ALGORITHMS``, and a preset. The
learner classes can be imported from here under their own name and as ``<Name>Algorithm``; the agents that users build
from a configuration are in :mod:`rl_training.api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.algorithms.sac import SAC
    from rl_training.algorithms.sac import SAC as SACAlgorithm

ALGORITHMS = {
    "sac": "SAC",
}
"""Module and class of every registered algorithm; imported when first asked for."""

__all__ = ["ALGORITHMS", "SAC", "SACAlgorithm"]

_CLASSES = {class_name: name for name, class_name in ALGORITHMS.items()}


def __getattr__(attribute: str) -> Any:
    class_name = attribute.removesuffix("Algorithm")
    if class_name in _CLASSES:
        return getattr(import_module(f"rl_training.algorithms.{_CLASSES[class_name]}"), class_name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
