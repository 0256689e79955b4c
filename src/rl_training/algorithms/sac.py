"""SAC with a learned temperature (Haarnoja et al., 2018, arXiv:1812.05905).

    critic       y = r + gamma (1 - d) (min_i Q'_i(s', a') - alpha log pi(a'|s')),    a' ~ pi(s')
                 minimise  sum_i mean (Q_i(s, a) - y)^2
    actor        minimise  mean (alpha log pi(a|s) - min_i Q_i(s, a)),                a ~ pi(s), reparameterised
    temperature  minimise  -log(alpha) mean (log pi(a|s) + target_entropy)
    targets      Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

One step uses one alpha, taken before the temperature moves. The temperature's loss is in log(alpha), not in alpha as
in the paper's equation 18: the fixed point is the same, and the step does not shrink as alpha does.
Deviations from the paper: none in the update. Target entropy is -dim(A) unless given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import ActorCriticHyperparameters, Algorithm, AlgorithmSpec, UpdateResult
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class SACHyperparameters(ActorCriticHyperparameters):
    """What SAC can be told."""

    alpha: float = Field(1.0, gt=0, description="initial temperature; the fixed one when learn_alpha is false")
    learn_alpha: bool = Field(True, description="tune the temperature towards target_entropy")
    target_entropy: float | None = Field(None, description="entropy to hold; minus the number of action dimensions if none")


def sac_actor_loss(*, logprobs: Tensor, q1: Tensor, q2: Tensor, alpha: Tensor) -> Terms:
    """mean (alpha log pi - min Q); all but ``alpha`` are ``(batch,)``."""
    entropy_term = (alpha * logprobs).mean()
    return {
        "actor_loss": entropy_term - torch.minimum(q1, q2).mean(),
        "entropy_term": entropy_term.detach(),
        "entropy": -logprobs.detach().mean(),
    }


def sac_temperature_loss(*, log_alpha: Tensor, logprobs: Tensor, target_entropy: float) -> Terms:
    """-log(alpha) mean (log pi + target entropy): alpha grows while the policy's entropy is below the target."""
    return {"alpha_loss": -log_alpha * (logprobs.detach().mean() + target_entropy)}


def sac_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``SAC.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = twin_critic_loss(q1=parts["q1_values"], q2=parts["q2_values"], target_q=parts["target_q_values"])
    actor = sac_actor_loss(
        logprobs=parts["sampled_logprobs"], q1=parts["sampled_q1"], q2=parts["sampled_q2"], alpha=parts["alpha"]
    )
    return as_floats(critic | actor)


class SAC(Algorithm):
    """Off-policy actor-critic that maximises return plus entropy."""

    state = ("model", "target_critics", "log_alpha", "critic_optimizer", "actor_optimizer", "alpha_optimizer")
    hp: SACHyperparameters

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        self.hp = hp = SACHyperparameters(**hyperparameters)
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.log_alpha = nn.Parameter(self.target_values.new_tensor(math.log(hp.alpha)))
        self.alpha_optimizer = FlatAdam([self.log_alpha], hp.learning_rate)
        self.target_entropy = -float(model.action_dim) if hp.target_entropy is None else hp.target_entropy

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor, temperature and target step."""
        obs, next_obs = batch["obs"], batch["next_obs"]
        with torch.no_grad():
            alpha = self.log_alpha.exp()
            next_actions, next_logprobs = self.model.sample_actions(next_obs, self.generator)
            next_q = torch.minimum(*self.target_critics(next_obs, next_actions))
            target_q = td_target(batch, next_q - alpha * next_logprobs, gamma=self.hp.gamma)
        q1, q2 = self.model.q_values(obs, batch["actions"])
        terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        actions, logprobs = self.model.sample_actions(obs, self.generator)
        q1, q2 = self.model.q_values(obs, actions)
        terms |= sac_actor_loss(logprobs=logprobs, q1=q1, q2=q2, alpha=alpha)
        self.actor_optimizer.minimize(terms["actor_loss"])

        terms["alpha"] = alpha
        if self.hp.learn_alpha:
            terms |= sac_temperature_loss(log_alpha=self.log_alpha, logprobs=logprobs, target_entropy=self.target_entropy)
            self.alpha_optimizer.minimize(terms["alpha_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, self.hp.tau)
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """tanh of the mean, or a sample."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: SACHyperparameters) -> MLPSACModel:
    """Networks for a task."""
    return MLPSACModel(
        env_spec.obs_dim,
        env_spec.action_dim,
        hp.hidden_sizes,
        critic_hidden_sizes=hp.critic_hidden_sizes,
        layer_norm=hp.layer_norm,
    )


SPEC = AlgorithmSpec(
    name="sac",
    title="Soft Actor-Critic",
    loop="online",
    actions="continuous",
    hyperparameters=SACHyperparameters,
    build_model=build_model,
    learner=SAC,
)
