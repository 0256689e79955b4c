"""TD3+BC (Fujimoto & Gu, 2021, arXiv:2106.06860): TD3 on fixed data, its actor held near the data's actions.

    critic   y = r + gamma (1 - d) min_i Q'_i(s', clip(pi'(s') + eps, -1, 1)),   eps ~ clip(N(0, sigma), -c, c)
             minimise  sum_i mean (Q_i(s, a) - y)^2
    actor    every policy_delay-th update:  minimise  mean (pi(s) - a)^2 - lambda mean Q_1(s, pi(s)),
             lambda = bc_alpha / mean |Q_1(s, pi(s))|, a constant to the gradient; the first mean is over dimensions too
    targets  on actor updates only:  theta' <- (1 - tau) theta' + tau theta

Deviations from the authors' code: the first update takes an actor step (theirs takes the second), so that its metrics
are complete; mean |Q_1| is at least 1e-6. Observations are normalised by the data layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, AlgorithmSpec, Range, SearchSpace, UpdateResult
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    gaussian_exploration,
    polyak_update,
    smoothed,
    squared_error,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.td3 import TD3Settings, build_model
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.types import Batch, Metrics, Terms


class TD3BCHyperparameters(TD3Settings):
    """What TD3+BC can be told."""

    search_space: ClassVar[SearchSpace] = {"bc_alpha": Range(low=0.5, high=10.0, log=True)}

    bc_alpha: float = Field(2.5, gt=0, description="weight of the value against cloning the data's action")


def normalizing_weight(q_values: Tensor) -> Tensor:
    """1 / mean |Q|, a constant to the gradient: makes a value term indifferent to the scale of rewards."""
    return 1.0 / q_values.detach().abs().mean().clamp_min(1e-6)


def td3_bc_actor_loss(*, actor_q: Tensor, bc_loss: Tensor, bc_lambda: Tensor) -> Terms:
    """Cloning error minus weighted value; ``actor_q`` is ``(batch,)``, the others scalars."""
    return {"actor_loss": bc_loss - bc_lambda * actor_q.mean(), "bc_loss": bc_loss, "bc_lambda": bc_lambda}


def td3_bc_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``TD3BC.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = twin_critic_loss(q1=parts["q1_values"], q2=parts["q2_values"], target_q=parts["target_q_values"])
    actor = td3_bc_actor_loss(actor_q=parts["actor_q_values"], bc_loss=parts["bc_loss"], bc_lambda=parts["bc_lambda"])
    return as_floats(critic | actor)


class TD3BC(Algorithm):
    """Offline TD3 with a behaviour-cloning term in the actor's loss."""

    state = ("model", "target", "critic_optimizer", "actor_optimizer", "updates")
    hp: TD3BCHyperparameters

    def __init__(self, *, model: MLPTD3Model, **hyperparameters: Any) -> None:
        self.hp = hp = TD3BCHyperparameters(**hyperparameters)
        self.model, self.target = model, frozen_copy(model)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_critic_values = flatten_parameters(self.target.critics.parameters())
        self.target_actor_values = flatten_parameters(self.target.actor.parameters())
        self.updates = 0

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic step and, when it is due, one actor and target step."""
        obs, actions, next_obs, hp = batch["obs"], batch["actions"], batch["next_obs"], self.hp
        with torch.no_grad():
            next_actions = smoothed(self.target.actions(next_obs), hp.policy_noise, hp.noise_clip, self.generator)
            next_q = torch.minimum(*self.target.q_values(next_obs, next_actions))
            target_q = td_target(batch, next_q, gamma=hp.gamma)
        q1, q2 = self.model.q_values(obs, actions)
        terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        if self.updates % hp.policy_delay == 0:
            policy_actions = self.model.actions(obs)
            actor_q = self.model.critics.q1(torch.cat((obs, policy_actions), dim=-1))  # Q1 alone, as in TD3
            terms |= td3_bc_actor_loss(
                actor_q=actor_q,
                bc_loss=squared_error(policy_actions, actions),
                bc_lambda=hp.bc_alpha * normalizing_weight(actor_q),
            )
            self.actor_optimizer.minimize(terms["actor_loss"])
            polyak_update(self.target_critic_values, self.critic_optimizer.values, hp.tau)
            polyak_update(self.target_actor_values, self.actor_optimizer.values, hp.tau)
        self.updates += 1
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The policy's action, with exploration noise unless deterministic."""
        actions = self.model.actions(obs)
        return actions if deterministic else gaussian_exploration(actions, self.hp.exploration_noise, self.generator)


SPEC = AlgorithmSpec(
    name="td3_bc",
    title="TD3 with Behaviour Cloning",
    loop="offline",
    actions="continuous",
    hyperparameters=TD3BCHyperparameters,
    build_model=build_model,
    learner=TD3BC,
    continues_as=("td3_bc", "td3"),
)
