"""The experiment manager: a configuration, or a checkpoint, becomes a trainer that can be started."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training


@dataclass(frozen=True)
class ManagedTrainer:
    """A run that is ready to start."""

    start: Callable[..., TrainResult]

    def train(self, callbacks: Iterable[object] = ()) -> TrainResult:
        """Run to the end."""
        return self.start(callbacks=callbacks)


class DefaultExperimentManager:
    """Runs experiments in this process."""

    def setup(self, config: TrainConfig, *, run_suffix: str | None = None) -> ManagedTrainer:
        """A new run."""
        return ManagedTrainer(partial(train, config, run_suffix=run_suffix))

    def resume(
        self,
        checkpoint: str | Path,
        *,
        total_timesteps: int | None = None,
        run_suffix: str | None = None,
        ignore_stop: bool = False,
    ) -> ManagedTrainer:
        """An earlier run, continued exactly, in its own directory or (``run_suffix``) in a new one."""
        return ManagedTrainer(
            partial(
                resume_training,
                checkpoint,
                total_timesteps=total_timesteps,
                run_suffix=run_suffix,
                ignore_stop=ignore_stop,
            )
        )
