"""Words shared by every layer: batches, metrics, the shape of a task, and the errors a user may see.

Nothing here imports torch at run time, so that importing the package stays cheap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

Batch: TypeAlias = "Mapping[str, torch.Tensor]"
"""Tensors by name: ``obs, actions, rewards, next_obs, dones`` (terminated only), rows aligned."""

Terms: TypeAlias = "dict[str, torch.Tensor]"
"""Named scalar tensors that a loss function returns."""

Metrics: TypeAlias = dict[str, float]
"""Named plain numbers, ready for a log."""

ActionKind: TypeAlias = Literal["continuous", "discrete"]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with some input: where it is and what is wrong with it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}".strip()

    def under(self, prefix: str) -> Problem:
        """The same problem seen from a section that contains it."""
        return Problem(".".join(part for part in (prefix, self.path) if part), self.message)


class UserError(Exception):
    """A mistake in what the user gave: shown as one message, without a traceback, exit code 2."""


class ConfigError(UserError, ValueError):
    """A configuration, hyper-parameter or environment that cannot be used; lists every problem found."""

    def __init__(self, problems: str | list[Problem], *, source: str | None = None) -> None:
        self.problems = [Problem("", problems)] if isinstance(problems, str) else problems
        self.source = source
        lines = [str(problem) for problem in self.problems]
        if source is None and len(lines) == 1:
            super().__init__(lines[0])
        else:
            count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
            super().__init__("\n".join([f"{source or 'configuration'}: {count}", *(f"  - {line}" for line in lines)]))


class DataError(UserError, ValueError):
    """A dataset or a transition that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or belongs to something else."""


class NumericsError(UserError):
    """A loss became NaN or infinite; the message names the tensor, the step and the saved batch."""


@dataclass(frozen=True)
class EnvSpec:
    """What an agent must know of a task to be built, to predict and to be loaded without its environment.

    ``action_low`` and ``action_high`` are the bounds of each action dimension (empty for discrete actions),
    ``num_actions`` and ``action_start`` describe a discrete space (0 for continuous ones).
    """

    env_id: str
    obs_shape: tuple[int, ...]
    action_kind: ActionKind
    action_shape: tuple[int, ...]
    action_dtype: str
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    num_actions: int = 0
    action_start: int = 0

    @property
    def obs_dim(self) -> int:
        """Length of the flat observation."""
        size = 1
        for length in self.obs_shape:
            size *= length
        return size

    @property
    def action_dim(self) -> int:
        """Length of the flat action: its dimensions, or 1 for the index of a discrete action."""
        return len(self.action_low) if self.action_kind == "continuous" else 1

    def to_dict(self) -> dict[str, Any]:
        """A plain mapping for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSpec:
        """The reverse of :meth:`to_dict`, also after a walk through JSON (lists become tuples)."""
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        spec = cls(**fields)
        spec._require_sense()
        return spec

    def _require_sense(self) -> None:
        """Raise ``ValueError`` where parts contradict each other; for specs that come from a file."""
        sizes = (*self.obs_shape, *self.action_shape, self.num_actions)
        bounds = (*self.action_low, *self.action_high)
        if not all(type(size) is int and size >= 0 for size in sizes) or type(self.action_start) is not int:
            raise ValueError(f"sizes of spaces must be whole numbers, got {sizes}")
        if not all(isinstance(bound, int | float) and abs(bound) < float("inf") for bound in bounds):
            raise ValueError("bounds of actions must be finite numbers")
        if self.action_dtype.rstrip("0123456789") not in ("float", "int", "uint"):
            raise ValueError(f"actions cannot have the type {self.action_dtype!r}")
        if self.action_kind == "continuous":
            fits = len(self.action_low) == len(self.action_high) == math.prod(self.action_shape) > 0
        else:
            fits = self.action_kind == "discrete" and self.num_actions > 0 and not bounds and not self.action_shape
        if not fits or self.obs_dim < 1 or not isinstance(self.env_id, str):
            raise ValueError(f"a task whose parts contradict each other: {self}")
