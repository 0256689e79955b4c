"""What callbacks and callers see of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rl_training.types import Metrics


@dataclass
class TrainerState:
    """Where a run stands. A callback ends it by setting ``should_stop`` and, for the record, ``stop_reason``."""

    algorithm: str
    run_dir: Path
    global_step: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    total_timesteps: int = 0


@dataclass(frozen=True)
class CollectResult:
    """What one step of the environments brought. ``metrics`` holds the mean return of episodes that ended in it."""

    num_env_steps: int
    num_episodes: int = 0
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    checkpoint_path: Path | None
    metrics: Metrics
    stop_reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain data, as ``--json`` prints it."""
        return {
            "run_dir": str(self.run_dir),
            "checkpoint_path": str(self.checkpoint_path) if self.checkpoint_path else None,
            "metrics": self.metrics,
            "stop_reason": self.stop_reason,
        }
