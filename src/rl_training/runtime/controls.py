"""Controls that work the same for every algorithm: when to stop, and the budgets."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config import EarlyStoppingConfig, TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.types import ConfigError, Metrics
from rl_training.validation import suggest

__all__ = ["EarlyStoppingCallback", "EarlyStoppingConfig", "build_control_callbacks", "crossed"]


def crossed(interval: int | None, before: int, now: int) -> bool:
    """Whether a multiple of ``interval`` lies in ``(before, now]``: right also when steps come several at a time."""
    return interval is not None and now // interval > before // interval


class EarlyStoppingCallback(Callback):
    """Stops a run at a target value, or after more than ``patience`` evaluations without improvement."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: float | None = None
        self.evaluations_since_best = 0

    def on_eval_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """Judge one evaluation, if this looks at evaluations by playing."""
        if not self.config.metric.startswith("ope/"):
            self._judge(trainer, metrics)

    def on_ope_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """Judge one off-policy evaluation, if this looks at those."""
        if self.config.metric.startswith("ope/"):
            self._judge(trainer, metrics)

    def _judge(self, trainer: TrainerState, metrics: Metrics) -> None:
        config = self.config
        if config.metric not in metrics:
            raise ConfigError(
                f"early_stopping.metric {config.metric!r} is not measured{suggest(config.metric, metrics)} "
                f"(measured: {', '.join(sorted(metrics))})"
            )
        value = metrics[config.metric]
        sign = 1.0 if config.mode == "max" else -1.0
        if self.best is None or sign * (value - self.best) > config.min_delta:
            self.best, self.evaluations_since_best = value, 0
        else:
            self.evaluations_since_best += 1
        if config.target_value is not None and sign * (value - config.target_value) >= 0:
            self._stop(trainer, f"{config.metric} reached {value:.6g} (target {config.target_value:.6g})")
        elif self.evaluations_since_best > config.patience:
            count = self.evaluations_since_best
            self._stop(trainer, f"{config.metric} has not improved on {self.best:.6g} for {count} evaluations")

    @staticmethod
    def _stop(trainer: TrainerState, reason: str) -> None:
        trainer.should_stop = True
        trainer.stop_reason = f"early stopping: {reason}"

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {"best": self.best, "evaluations_since_best": self.evaluations_since_best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.best = None if state["best"] is None else float(state["best"])
        self.evaluations_since_best = int(state["evaluations_since_best"])


def build_control_callbacks(config: TrainConfig) -> list[Callback]:
    """The callbacks that a configuration asks for; the same for every algorithm."""
    return [EarlyStoppingCallback(config.early_stopping)] if config.early_stopping is not None else []
