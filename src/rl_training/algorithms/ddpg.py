"""DDPG (Lillicrap et al., 2015, arXiv:1509.02971), in the form of the TD3 paper's "OurDDPG".

    critic   y = r + gamma (1 - d) Q'(s', pi'(s')),   minimise  mean (Q(s, a) - y)^2
    actor    maximise  mean Q(s, pi(s))
    targets  theta' <- (1 - tau) theta' + tau theta after every update

Deviations from the 2015 paper, as in every modern table: 256-256 networks with the action in the critic's first layer,
one learning rate, no weight decay, tau 0.005, Gaussian exploration noise instead of an Ornstein-Uhlenbeck process. With
the 2015 settings HalfCheetah scores about a third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import ActorCriticHyperparameters, Algorithm, AlgorithmSpec, Range, SearchSpace, UpdateResult
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    gaussian_exploration,
    polyak_update,
    squared_error,
    td_target,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.td3 import deterministic_actor_loss
from rl_training.models.mlp_ddpg import MLPDDPGModel
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class DDPGHyperparameters(ActorCriticHyperparameters):
    """What DDPG can be told."""

    search_space: ClassVar[SearchSpace] = {"exploration_noise": Range(low=0.05, high=0.5)}

    learning_starts: int = Field(25_000, ge=0, description="uniformly random environment steps before the first update")
    exploration_noise: float = Field(0.1, ge=0, description="std of the noise on actions while collecting")


def ddpg_critic_loss(*, q_values: Tensor, target_q: Tensor) -> Terms:
    """Mean squared TD error; both ``(batch,)``."""
    return {
        "critic_loss": squared_error(q_values, target_q),
        "q_mean": q_values.detach(),
        "target_q_mean": target_q,
    }


def ddpg_loss(batch: Mapping[str, Tensor]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``DDPG.update`` minimises."""
    critic = ddpg_critic_loss(q_values=batch["q_values"], target_q=batch["target_q_values"])
    return as_floats(critic | deterministic_actor_loss(actor_q=batch["actor_q_values"]))


class DDPG(Algorithm):
    """Deterministic actor and one critic."""

    state = ("model", "target", "critic_optimizer", "actor_optimizer")
    hp: DDPGHyperparameters

    def __init__(self, *, model: MLPDDPGModel, **hyperparameters: Any) -> None:
        self.hp = hp = DDPGHyperparameters(**hyperparameters)
        self.model, self.target = model, frozen_copy(model)
        self.critic_optimizer = FlatAdam(model.critic.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_critic_values = flatten_parameters(self.target.critic.parameters())
        self.target_actor_values = flatten_parameters(self.target.actor.parameters())

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor and target step."""
        obs, next_obs, hp = batch["obs"], batch["next_obs"], self.hp
        with torch.no_grad():
            next_q = self.target.q_values(next_obs, self.target.actions(next_obs))
            target_q = td_target(batch, next_q, gamma=hp.gamma)
        terms = ddpg_critic_loss(q_values=self.model.q_values(obs, batch["actions"]), target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        terms |= deterministic_actor_loss(actor_q=self.model.q_values(obs, self.model.actions(obs)))
        self.actor_optimizer.minimize(terms["actor_loss"])
        polyak_update(self.target_critic_values, self.critic_optimizer.values, hp.tau)
        polyak_update(self.target_actor_values, self.actor_optimizer.values, hp.tau)
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The policy's action, with exploration noise unless deterministic."""
        actions = self.model.actions(obs)
        return actions if deterministic else gaussian_exploration(actions, self.hp.exploration_noise, self.generator)


def build_model(env_spec: EnvSpec, hp: DDPGHyperparameters) -> MLPDDPGModel:
    """Networks for a task."""
    return MLPDDPGModel(env_spec.obs_dim, env_spec.action_dim, **hp.network_options)


SPEC = AlgorithmSpec(
    name="ddpg",
    title="Deep Deterministic Policy Gradient",
    loop="online",
    actions="continuous",
    hyperparameters=DDPGHyperparameters,
    build_model=build_model,
    learner=DDPG,
)
