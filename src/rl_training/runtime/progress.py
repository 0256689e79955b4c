"""Showing a run on a terminal: a bar where there is one, plain lines where there is not."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.types import Metrics

REFRESH_SECONDS = 0.2
LINE_SECONDS = 30.0


class ProgressDisplay(Callback):
    """A callback that shows step, returns, loss, speed and time left."""

    def __init__(self, *, console: Console) -> None:
        self._console = console
        self._shown = self._line = time.monotonic()
        self._shown_step = 0
        self._return: float | None = None
        self._score: float | None = None
        self._result: UpdateResult | None = None
        self._rate = 0.0
        self._bar: Progress | None = None

    def on_train_start(self, trainer: TrainerState) -> None:
        """Show where the run starts."""
        self._shown = self._line = time.monotonic()
        self._shown_step = trainer.global_step
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[info]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(
                trainer.algorithm, total=trainer.total_timesteps, completed=trainer.global_step, info=""
            )
            self._bar.start()

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Note finished episodes; refresh now and then."""
        self._return = result.metrics.get("episode_return_mean", self._return)
        self._refresh(trainer)

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Keep the last update, whose numbers are only read when shown."""
        self._result = result
        self._refresh(trainer)

    def on_eval_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """Tell every evaluation."""
        self._score = metrics["eval_return_mean"]
        mean, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
        self._console.print(f"step {trainer.global_step}: evaluation {mean:.1f} +/- {spread:.1f}", highlight=False)

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Leave the terminal as it was."""
        self._refresh(trainer, force=True)
        self.close()

    def close(self) -> None:
        """Stop the bar, also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _refresh(self, trainer: TrainerState, *, force: bool = False) -> None:
        now = time.monotonic()
        if now - self._shown < REFRESH_SECONDS and not force:
            return
        rate = (trainer.global_step - self._shown_step) / max(now - self._shown, 1e-9)
        self._rate = rate if self._rate == 0 else 0.9 * self._rate + 0.1 * rate
        self._shown, self._shown_step = now, trainer.global_step
        if self._bar is not None:
            self._bar.update(self._task, completed=trainer.global_step, info=self._info())
        elif now - self._line > LINE_SECONDS:
            self._line = now
            self._console.print(f"step {trainer.global_step}/{trainer.total_timesteps}: {self._info()}", highlight=False)

    def _info(self) -> str:
        parts = [f"{self._rate:.0f}/s"]
        if self._return is not None:
            parts.append(f"return {self._return:.1f}")
        if self._score is not None:
            parts.append(f"eval {self._score:.1f}")
        if self._result is not None:
            losses = {
                name: value for name, value in self._result.metrics.items() if name in ("critic_loss", "loss", "bc_loss")
            }
            parts += [f"{name} {value:.3g}" for name, value in losses.items()]
        return "  ".join(parts)
