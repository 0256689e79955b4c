"""SAC with a learned temperature (Haarnoja et al., 2018, arXiv:1812.05905).

    critic       y = r + gamma (1 - d) (min_i Q'_i(s', a') - alpha log pi(a'|s')),    a' ~ pi(s')
                 minimise  sum_i mean (Q_i(s, a) - y)^2
    actor        minimise  mean (alpha log pi(a|s) - min_i Q_i(s, a)),                a ~ pi(s), reparameterised
    temperature  minimise  -log(alpha) mean (log pi(a|s) + target_entropy)
    targets      Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

One step uses one alpha, taken before the temperature moves. Deviations from the paper: none in the update; the
temperature's loss is in log(alpha), see ``entropy.py``. Target entropy is -dim(A) unless given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, AlgorithmSpec, CriticHyperparameters, UpdateResult
from rl_training.algorithms.entropy import EntropyHyperparameters, Temperature, entropy_actor_loss
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
from rl_training.types import Batch, EnvSpec, Metrics


class SACHyperparameters(EntropyHyperparameters):
    """What SAC can be told."""


def sac_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``SAC.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = twin_critic_loss(q1=parts["q1_values"], q2=parts["q2_values"], target_q=parts["target_q_values"])
    actor = entropy_actor_loss(
        logprobs=parts["sampled_logprobs"],
        q_values=torch.minimum(parts["sampled_q1"], parts["sampled_q2"]),
        alpha=parts["alpha"],
    )
    return as_floats(critic | actor)


class SAC(Algorithm):
    """Off-policy actor-critic that maximises return plus entropy."""

    state = ("model", "target_critics", "temperature", "critic_optimizer", "actor_optimizer", "alpha_optimizer")
    hp: SACHyperparameters

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        self.hp = hp = SACHyperparameters(**hyperparameters)
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.temperature = Temperature(hp, model.action_dim).to(self.target_values.device)
        self.alpha_optimizer = FlatAdam(self.temperature.parameters(), hp.learning_rate)

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor, temperature and target step."""
        obs, next_obs = batch["obs"], batch["next_obs"]
        with torch.no_grad():
            alpha = self.temperature()
            next_actions, next_logprobs = self.model.sample_actions(next_obs, self.generator)
            next_q = torch.minimum(*self.target_critics(next_obs, next_actions))
            target_q = td_target(batch, next_q - alpha * next_logprobs, gamma=self.hp.gamma)
        q1, q2 = self.model.q_values(obs, batch["actions"])
        terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        actions, logprobs = self.model.sample_actions(obs, self.generator)
        actor_q = torch.minimum(*self.model.q_values(obs, actions))
        terms |= entropy_actor_loss(logprobs=logprobs, q_values=actor_q, alpha=alpha)
        self.actor_optimizer.minimize(terms["actor_loss"])

        terms["alpha"] = alpha
        if self.hp.learn_alpha:
            terms |= self.temperature.loss(logprobs)
            self.alpha_optimizer.minimize(terms["alpha_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, self.hp.tau)
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """tanh of the mean, or a sample."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: CriticHyperparameters) -> MLPSACModel:
    """Networks for a task."""
    return MLPSACModel(env_spec.obs_dim, env_spec.action_dim, **hp.network_options)


SPEC = AlgorithmSpec(
    name="sac",
    title="Soft Actor-Critic",
    loop="online",
    actions="continuous",
    hyperparameters=SACHyperparameters,
    build_model=build_model,
    learner=SAC,
)
