"""The ``finetune`` section of a configuration: an offline agent goes on online, its data still in every batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import AlgorithmSpec
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import Problem
from rl_training.validation import Settings, shown


class OfflineShare(Settings):
    """Share of the dataset's rows in each batch: constant, or moving linearly over environment steps."""

    initial: float = Field(0.5, ge=0, le=1, description="share at the first environment step")
    final: float | None = Field(None, ge=0, le=1, description="share after so many steps and from then on; initial if none")
    steps: int | None = Field(
        None, ge=1, description="environment steps on the way; total_timesteps of the first start if none"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_number_is_constant(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"initial": data}
        if not isinstance(data, Mapping | OfflineShare):
            raise ValueError(f"must be a share in [0, 1] or {{initial, final, steps}}, got {shown(data)}")
        return data

    def at(self, step: int) -> float:
        """The share at an environment step."""
        if self.final is None or self.steps is None:
            return self.initial
        return self.initial + (self.final - self.initial) * min(step / self.steps, 1.0)

    def resolved_for(self, total_timesteps: int) -> OfflineShare:
        """The same with its length fixed, so that extending a run does not stretch it."""
        return self if self.steps is not None else self.model_copy(update={"steps": total_timesteps})


class FinetuneConfig(Settings):
    """Where a fine-tuning run starts, and how its batches are made."""

    checkpoint: str = Field(min_length=1, description="run or checkpoint of the offline agent")
    offline_share: OfflineShare = Field(
        default_factory=OfflineShare,
        description="share of the dataset's rows in each batch: a number, or {initial, final, steps}",
    )
    buffer_capacity: int = Field(1_000_000, ge=1, description="transitions of the environment that are kept")
    updates_per_step: int = Field(1, ge=1, description="gradient steps per environment step")

    @property
    def loop_settings(self) -> dict[str, int]:
        """What the online loop goes by, in its own words: every step is learnt from, none is random."""
        return {
            "buffer_capacity": self.buffer_capacity,
            "learning_starts": 0,
            "train_frequency": 1,
            "gradient_updates_per_step": self.updates_per_step,
        }


def finetune_problems(data: Mapping[str, Any], spec: AlgorithmSpec) -> list[Problem]:
    """What a configuration with a ``finetune`` section must and must not have."""
    problems = [] if data.get("env_id") is not None else [Problem("env_id", "is required to fine-tune")]
    if data.get("max_epochs") is not None:
        problems.append(Problem("max_epochs", "is for offline runs; fine-tuning counts environment steps"))
    if not any(spec.name in get_algorithm_spec(name).continues_as for name in ALGORITHMS):
        problems.append(Problem("algo", f"{spec.name} cannot go on from offline data: {possible_continuations()}"))
    return problems


def possible_continuations() -> str:
    """Which agents can be fine-tuned as what, in words."""
    pairs = {name: get_algorithm_spec(name).continues_as for name in ALGORITHMS}
    return "possible are " + ", ".join(f"{name} as {' or '.join(targets)}" for name, targets in pairs.items() if targets)
