"""TD3 (Fujimoto et al., 2018, arXiv:1802.09477): DDPG with twin critics, smoothed targets and a delayed actor.

    critic   y = r + gamma (1 - d) min_i Q'_i(s', clip(pi'(s') + eps, -1, 1)),   eps ~ clip(N(0, sigma), -c, c)
             minimise  sum_i mean (Q_i(s, a) - y)^2
    actor    every policy_delay-th update:  maximise  mean Q_1(s, pi(s))
    targets  on actor updates only:  theta' <- (1 - tau) theta' + tau theta

Deviations from the authors' code: the first update takes an actor step (theirs takes the second), so that its metrics
are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    ActorCriticHyperparameters,
    Algorithm,
    AlgorithmSpec,
    Choice,
    CriticHyperparameters,
    Range,
    SearchSpace,
    UpdateResult,
)
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    gaussian_exploration,
    polyak_update,
    smoothed,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class TD3Settings(CriticHyperparameters):
    """What TD3 and the methods built on it (TD3+BC, ReBRAC) share."""

    search_space: ClassVar[SearchSpace] = {
        "policy_noise": Range(low=0.1, high=0.4),
        "policy_delay": Choice(values=(1, 2, 4)),
    }

    policy_noise: float = Field(0.2, ge=0, description="std of the noise on target actions, in half ranges of the action")
    noise_clip: float = Field(0.5, ge=0, description="bound of that noise")
    policy_delay: int = Field(2, ge=1, description="critic updates per actor and target update")
    exploration_noise: float = Field(0.1, ge=0, description="std of the noise on actions that are not deterministic")


class TD3Hyperparameters(TD3Settings, ActorCriticHyperparameters):
    """What TD3 can be told."""

    search_space: ClassVar[SearchSpace] = {"exploration_noise": Range(low=0.05, high=0.5)}

    learning_starts: int = Field(25_000, ge=0, description="uniformly random environment steps before the first update")


def deterministic_actor_loss(*, actor_q: Tensor) -> Terms:
    """-mean Q(s, pi(s)); ``actor_q`` is ``(batch,)``."""
    return {"actor_loss": -actor_q.mean()}


def td3_loss(batch: Mapping[str, Tensor]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``TD3.update`` minimises."""
    critic = twin_critic_loss(q1=batch["q1_values"], q2=batch["q2_values"], target_q=batch["target_q_values"])
    return as_floats(critic | deterministic_actor_loss(actor_q=batch["actor_q_values"]))


class TD3(Algorithm):
    """Off-policy actor-critic with a deterministic policy."""

    state = ("model", "target", "critic_optimizer", "actor_optimizer", "updates")
    hp: TD3Hyperparameters

    def __init__(self, *, model: MLPTD3Model, **hyperparameters: Any) -> None:
        self.hp = hp = TD3Hyperparameters(**hyperparameters)
        self.model, self.target = model, frozen_copy(model)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_critic_values = flatten_parameters(self.target.critics.parameters())
        self.target_actor_values = flatten_parameters(self.target.actor.parameters())
        self.updates = 0

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic step and, when it is due, one actor and target step."""
        obs, next_obs, hp = batch["obs"], batch["next_obs"], self.hp
        with torch.no_grad():
            next_actions = smoothed(self.target.actions(next_obs), hp.policy_noise, hp.noise_clip, self.generator)
            next_q = torch.minimum(*self.target.q_values(next_obs, next_actions))
            target_q = td_target(batch, next_q, gamma=hp.gamma)
        q1, q2 = self.model.q_values(obs, batch["actions"])
        terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        if self.updates % hp.policy_delay == 0:
            actor_q = self.model.critics.q1(torch.cat((obs, self.model.actions(obs)), dim=-1))  # Q1 alone, as in the paper
            terms |= deterministic_actor_loss(actor_q=actor_q)
            self.actor_optimizer.minimize(terms["actor_loss"])
            polyak_update(self.target_critic_values, self.critic_optimizer.values, hp.tau)
            polyak_update(self.target_actor_values, self.actor_optimizer.values, hp.tau)
        self.updates += 1
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The policy's action, with exploration noise unless deterministic."""
        actions = self.model.actions(obs)
        return actions if deterministic else gaussian_exploration(actions, self.hp.exploration_noise, self.generator)


def build_model(env_spec: EnvSpec, hp: CriticHyperparameters) -> MLPTD3Model:
    """Networks for a task."""
    return MLPTD3Model(env_spec.obs_dim, env_spec.action_dim, **hp.network_options)


SPEC = AlgorithmSpec(
    name="td3",
    title="Twin Delayed DDPG",
    loop="online",
    actions="continuous",
    hyperparameters=TD3Hyperparameters,
    build_model=build_model,
    learner=TD3,
)
