"""A guard of speed that does not look at a clock: how many torch operators one update calls.

On small networks most of an update's time that is not matrix multiplication is the overhead of operators, so their number is
what creeps up when somebody is careless. A budget may be raised with a reason, and lowered with pleasure.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Algorithm
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import Batch, EnvSpec

CONTINUOUS = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
DISCRETE = EnvSpec("CartPole-v1", (4,), "discrete", (), "int64", num_actions=2)
UPDATES = 20  # whole rounds of delayed actors and of REDQ's actor
BUDGETS = {
    "awac": 320,
    "bc": 61,
    "cql": 457,
    "ddpg": 167,
    "dqn": 79,
    "iql": 329,
    "rebrac": 261,
    "redq": 116,
    "sac": 351,
    "td3": 198,
    "td3_bc": 208,
    "tqc": 709,
}  # three percent above what was counted with torch 2.13


class OperatorCount(TorchDispatchMode):
    """Counts the operators that reach the backend, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_per_update(learner: Algorithm, batch: Batch) -> float:
    """Mean over some updates, after one that fills caches."""
    learner.update(batch)
    with OperatorCount() as operators:
        for _ in range(UPDATES):
            learner.update(batch)
    return operators.count / UPDATES


def batch_for(task: EnvSpec, size: int = 32) -> Batch:
    """Random transitions."""
    torch.manual_seed(0)
    discrete = task.action_kind == "discrete"
    return {
        "obs": torch.randn(size, task.obs_dim),
        "actions": torch.randint(2, (size,)) if discrete else torch.rand(size, task.action_dim) * 2 - 1,
        "rewards": torch.randn(size),
        "dones": torch.zeros(size),
        "next_obs": torch.randn(size, task.obs_dim),
        "next_actions": torch.rand(size, task.action_dim) * 2 - 1,
        "next_action_mask": torch.ones(size),
    }


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_update_stays_within_its_budget_of_operators(name: str) -> None:
    if name not in BUDGETS:
        pytest.skip(f"{name} has no budget yet")
    spec = get_algorithm_spec(name)
    task = DISCRETE if spec.actions == "discrete" else CONTINUOUS
    learner = spec.build(task, spec.hyperparameters(hidden_sizes=(16, 16)))
    used = operators_per_update(learner, batch_for(task))
    assert used <= BUDGETS[name], f"{used:.0f} operators an update, {BUDGETS[name]} allowed"


def test_the_count_sees_an_additional_operator() -> None:
    spec = get_algorithm_spec("bc")
    learner, batch = spec.build(CONTINUOUS, spec.hyperparameters(hidden_sizes=(16, 16))), batch_for(CONTINUOUS)
    before, update = operators_per_update(learner, batch), learner.update

    def careless(batch: Batch, *, global_step: int = 0):  # type: ignore[no-untyped-def]
        torch.ones(3).sum()
        return update(batch, global_step=global_step)

    learner.update = careless  # type: ignore[method-assign]
    assert operators_per_update(learner, batch) == before + 2
