"""The loop of every method that learns from an environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rl_training.algorithms.base import OnlineHyperparameters
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import CollectResult
from rl_training.types import Batch


class Experience(Protocol):
    """What the loop needs of the environments and of what was collected from them."""

    def collect(self, global_step: int, *, limit: int) -> CollectResult:
        """One step of every environment, at most ``limit`` transitions of which count."""

    def batches(self, batch_size: int, count: int, *, global_step: int) -> Iterator[Batch]:
        """So many batches of transitions, or none as long as there are no transitions."""


def run_online(run: Run, experience: Experience, hp: OnlineHyperparameters) -> None:
    """Act, store, learn, account; until the budget is spent or a stop is asked for.

    Updates are counted against environment steps, so their ratio does not depend on how many environments step at once.
    """
    while not run.finished:
        before = run.step
        run.collected(experience.collect(before, limit=run.remaining))
        if run.step > hp.learning_starts:
            rounds = run.step // hp.train_frequency - max(before, hp.learning_starts) // hp.train_frequency
            updates = int(min(rounds * hp.gradient_updates_per_step, run.remaining_updates))
            if updates > 0:
                for batch in experience.batches(hp.batch_size, updates, global_step=run.step):
                    run.update(batch)
        run.do_due()
