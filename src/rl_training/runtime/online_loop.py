"""The loop of every method that learns from an environment."""

from __future__ import annotations

from rl_training.algorithms.base import OnlineHyperparameters
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run


def run_online(run: Run, collector: Collector, hp: OnlineHyperparameters) -> None:
    """Act, store, learn, account; until the budget is spent or a stop is asked for.

    Updates are counted against environment steps, so their ratio does not depend on how many environments step at once.
    """
    while not run.finished:
        before = run.step
        run.collected(collector.collect(before, limit=run.remaining))
        if run.step > hp.learning_starts:
            rounds = run.step // hp.train_frequency - max(before, hp.learning_starts) // hp.train_frequency
            updates = int(min(rounds * hp.gradient_updates_per_step, run.remaining_updates))
            if updates > 0 and len(collector.buffer) > 0:  # n-step transitions arrive a few steps late
                for batch in collector.buffer.sample_batches(hp.batch_size, updates):
                    run.update(batch)
        run.do_due()
