"""The loop of every method that learns from a fixed dataset."""

from __future__ import annotations

from typing import Protocol

from rl_training.runtime.run import Run
from rl_training.types import Batch


class Sampler(Protocol):
    """What the loop needs of a dataset."""

    def sample(self, batch_size: int) -> Batch:
        """One batch of transitions."""


def run_offline(run: Run, dataset: Sampler, batch_size: int) -> None:
    """Sample, learn, account; one step of the run is one gradient step."""
    while not run.finished:
        run.update(dataset.sample(batch_size))
        run.advance(1)
        run.do_due()
