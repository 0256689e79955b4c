"""REDQ (Chen et al., 2021, arXiv:2101.05982): SAC with many critics, random subset targets and many updates per step.

    critic       y = r + gamma (1 - d) (min over a random subset of M targets Q'_i(s', a') - alpha log pi(a'|s'))
                 minimise  sum over all N critics of mean (Q_i(s, a) - y)^2;  a fresh subset for every update
    actor        once per environment step:  minimise  mean (alpha log pi(a|s) - mean over all N critics Q_i(s, a))
    temperature  with the actor, as in SAC
    targets      all Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

Only the sampled targets are evaluated. Deviations from the authors' code: the actor step comes with the first of the G
updates of a step, not the last; target entropy is -dim(A) unless given (the paper's values, from MBPO, are in the
presets); networks start as PyTorch's linear layers do, not Xavier-uniform; alpha starts at its initial value also in the
very first targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from rl_training.algorithms.base import Algorithm, AlgorithmSpec, Choice, SearchSpace, UpdateResult
from rl_training.algorithms.entropy import EntropyHyperparameters, Temperature, entropy_actor_loss
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    sample_critic_subset,
    squared_error,
    td_target,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_redq import MLPREDQModel, ensemble_q_values
from rl_training.types import Batch, ConfigError, EnvSpec, Metrics, Terms


class REDQHyperparameters(EntropyHyperparameters):
    """What REDQ adds to SAC; the defaults are the paper's."""

    search_space: ClassVar[SearchSpace] = {
        "gradient_updates_per_step": Choice(values=(5, 10, 20)),
        "num_critics": Choice(values=(5, 10)),
    }

    learning_starts: int = Field(5_000, ge=0, description="uniformly random environment steps before the first update")
    gradient_updates_per_step: int = Field(20, ge=1, description="updates in a round")
    num_critics: int = Field(10, ge=1, le=1000, description="critics in the ensemble")
    subset_size: int = Field(2, ge=1, description="target critics drawn for each update")
    policy_delay: int | None = Field(
        None, ge=1, description="critic updates per actor update; gradient_updates_per_step if none"
    )

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.subset_size > self.num_critics:
            raise ValueError(f"subset_size must be <= num_critics ({self.num_critics}), got {self.subset_size}")
        return self


def redq_critic_loss(*, q_values: Tensor, target_q: Tensor) -> Terms:
    """Sum over critics of the mean squared TD error; ``q_values`` is ``(batch, critics)``, ``target_q`` ``(batch,)``."""
    num_critics = q_values.shape[1]
    return {
        "critic_loss": squared_error(q_values, target_q.unsqueeze(-1).expand_as(q_values)) * num_critics,
        "q_mean": q_values.detach(),
        "target_q_mean": target_q,
    }


def redq_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``REDQ.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = redq_critic_loss(q_values=parts["critic_q_values"], target_q=parts["target_q_values"])
    logprobs = parts["sampled_logprobs"]
    actor_q = parts["sampled_q_values"].reshape(len(logprobs), -1).mean(dim=1)
    return as_floats(critic | entropy_actor_loss(logprobs=logprobs, q_values=actor_q, alpha=parts["alpha"]))


class REDQ(Algorithm):
    """SAC with a randomised ensemble of critics."""

    state = ("model", "target_critics", "temperature", "critic_optimizer", "actor_optimizer", "alpha_optimizer", "updates")
    hp: REDQHyperparameters

    def __init__(self, *, model: MLPREDQModel, **hyperparameters: Any) -> None:
        self.hp = hp = REDQHyperparameters(**{"num_critics": model.num_critics, **hyperparameters})
        if hp.num_critics != model.num_critics:
            raise ConfigError(f"the model has {model.num_critics} critics, num_critics says {hp.num_critics}")
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.temperature = Temperature(hp, model.action_dim).to(self.target_values.device)
        self.alpha_optimizer = FlatAdam(self.temperature.parameters(), hp.learning_rate)
        self.policy_delay = hp.policy_delay or hp.gradient_updates_per_step
        self.updates = 0

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic and target step and, when it is due, one actor and temperature step."""
        obs, next_obs, hp = batch["obs"], batch["next_obs"], self.hp
        with torch.no_grad():
            alpha = self.temperature()
            next_actions, next_logprobs = self.model.sample_actions(next_obs, self.generator)
            subset = sample_critic_subset(hp.num_critics, hp.subset_size, self.generator)
            next_q = ensemble_q_values(self.target_critics, torch.cat((next_obs, next_actions), dim=-1), subset).amin(dim=1)
            target_q = td_target(batch, next_q - alpha * next_logprobs, gamma=hp.gamma)
        terms = redq_critic_loss(q_values=self.model.q_values(obs, batch["actions"]), target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        if self.updates % self.policy_delay == 0:
            actions, logprobs = self.model.sample_actions(obs, self.generator)
            actor_q = self.model.q_values(obs, actions).mean(dim=1)  # all critics
            terms |= entropy_actor_loss(logprobs=logprobs, q_values=actor_q, alpha=alpha)
            self.actor_optimizer.minimize(terms["actor_loss"])
            terms["alpha"] = alpha
            if hp.learn_alpha:
                terms |= self.temperature.loss(logprobs)
                self.alpha_optimizer.minimize(terms["alpha_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, hp.tau)
        self.updates += 1
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """tanh of the mean, or a sample."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: REDQHyperparameters) -> MLPREDQModel:
    """Networks for a task."""
    return MLPREDQModel(env_spec.obs_dim, env_spec.action_dim, num_critics=hp.num_critics, **hp.network_options)


SPEC = AlgorithmSpec(
    name="redq",
    title="Randomized Ensembled Double Q-learning",
    loop="online",
    actions="continuous",
    hyperparameters=REDQHyperparameters,
    build_model=build_model,
    learner=REDQ,
)
