"""Behaviour cloning (Pomerleau, 1989): supervised learning of the data's actions, the floor of every offline method.

    actor    minimise  mean (pi(s) - a)^2,   pi(s) = tanh(net(s)); the mean is over the batch and the action's dimensions

Rewards, next observations and ``gamma`` are not used. Deviations from the baseline of the published offline tables
(a deterministic actor of 256-256 on the squared error): none. Observations are normalised by the data layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rl_training.algorithms.base import Algorithm, AlgorithmSpec, Hyperparameters, SearchSpace, UpdateResult
from rl_training.algorithms.functional import as_floats, squared_error
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class BCHyperparameters(Hyperparameters):
    """What BC can be told; ``gamma`` is there because every method has it, and is not used."""

    search_space: ClassVar[SearchSpace] = {"gamma": None}


def cloning_loss(*, policy_actions: Tensor, actions: Tensor) -> Terms:
    """Mean squared error of the policy's actions; both ``(batch, action_dim)``."""
    return {
        "bc_loss": squared_error(policy_actions, actions),
        "action_abs_mean": policy_actions.detach().abs(),
    }


def bc_loss(batch: Mapping[str, Tensor]) -> Metrics:
    """The named metrics of one step from its parts: the same function that ``BC.update`` minimises."""
    return as_floats(cloning_loss(policy_actions=batch["policy_actions"], actions=batch["actions"]))


class BC(Algorithm):
    """A deterministic policy that imitates the data."""

    state = ("model", "optimizer")
    hp: BCHyperparameters

    def __init__(self, *, model: MLPBCModel, **hyperparameters: Any) -> None:
        self.hp = hp = BCHyperparameters(**hyperparameters)
        self.model = model
        self.optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One step of regression."""
        terms = cloning_loss(policy_actions=self.model.actions(batch["obs"]), actions=batch["actions"])
        self.optimizer.minimize(terms["bc_loss"])
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The policy's action; it has no other, so ``deterministic`` makes no difference."""
        return self.model.actions(obs)


def build_model(env_spec: EnvSpec, hp: BCHyperparameters) -> MLPBCModel:
    """Networks for a task."""
    return MLPBCModel(env_spec.obs_dim, env_spec.action_dim, hp.hidden_sizes)


SPEC = AlgorithmSpec(
    name="bc",
    title="Behaviour Cloning",
    loop="offline",
    actions="continuous",
    hyperparameters=BCHyperparameters,
    build_model=build_model,
    learner=BC,
)
