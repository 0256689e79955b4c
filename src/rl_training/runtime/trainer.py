"""What callbacks and callers see of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.types import ConfigError, Metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run before its time; its scores are then older than its weights."""
        return (self.stop_reason or "").startswith("interrupted")

    def __str__(self) -> str:
        """The result in words: score, steps, where it lies."""
        metrics, lines = self.metrics, []
        if "eval_return_mean" in metrics and not self.interrupted:
            spread, episodes = metrics["eval_return_std"], int(metrics["eval_episodes"])
            lines.append(
                f"score       {metrics['eval_return_mean']:.1f} +/- {spread:.1f} ({episodes} episodes, deterministic)"
            )
        if "start_eval_return_mean" in metrics:
            lines.append(f"at start    {metrics['start_eval_return_mean']:.1f} (before the first update)")
        lines.append(f"steps       {metrics['global_step']:.0f}" + (f" ({self.stop_reason})" if self.stop_reason else ""))
        return "\n".join([*lines, f"run         {self.run_dir}"])

    def to_dict(self) -> dict[str, object]:
        """Plain data, as ``--json`` prints it."""
        return {
            "run_dir": str(self.run_dir),
            "checkpoint_path": str(self.checkpoint_path) if self.checkpoint_path else None,
            "metrics": self.metrics,
            "stop_reason": self.stop_reason,
        }

    def curve(self, metric: str = "eval/mean_reward") -> list[tuple[int, float]]:
        """(step, value) of a metric in the run's log; a ``ConfigError`` lists what there is if it has no such metric."""
        rows = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
        if not points:
            known = sorted({name for row in rows for name in row} - {"step"})
            raise ConfigError(f"the run has not logged {metric!r}; it has {', '.join(known) or 'nothing'}")
        return points

    def plot(self, metric: str = "eval/mean_reward", *, ax: Axes | None = None) -> Axes:
        """Draw a metric over the run's steps, into ``ax`` or a figure of its own, and return the axes."""
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError:
            raise ConfigError('plot needs matplotlib: pip install "rl-training[report]"') from None
        axes = plt.subplots(layout="constrained")[1] if ax is None else ax
        axes.plot(*zip(*self.curve(metric), strict=True), label=self.run_dir.name)
        axes.set(xlabel="steps", ylabel=metric)
        return axes
