"""IQL (Kostrikov et al., 2021, arXiv:2110.06169): values of the best actions in the data, never of any other action.

    value    minimise  mean |expectile - 1(u < 0)| u^2,                u = min_i Q'_i(s, a) - V(s)
    actor    minimise  -mean w log pi(a|s),                            w = min(exp(beta u), max_advantage_weight)
    critic   y = r + gamma (1 - d) V(s');   minimise  sum_i mean (Q_i(s, a) - y)^2
    targets  Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

One update takes these four steps in this order; actor and critics use the V that the first step has just moved. The
actor's learning rate, and no other, falls to 0 along a cosine over the run. A learning-rate schedule of the run scales all
three optimisers; the actor's rate is then base rate * schedule * cosine.

The policy is a Gaussian with a tanh mean and a state-independent log-std in [-5, 2]. As it is not squashed, the data's
actions need no clipping before their log-probability is taken (the authors clip them to 1 - 1e-5 for their squashed
variant). Deviations from the authors' code: networks start as PyTorch's linear layers do, not orthogonally; no dropout in
the actor. Scaling rewards by the range of returns belongs to the data, not to this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from rl_training.algorithms.awac import advantage_weighted_loss
from rl_training.algorithms.base import Algorithm, AlgorithmSpec, CriticHyperparameters, Range, SearchSpace, UpdateResult
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class IQLHyperparameters(CriticHyperparameters):
    """What IQL can be told."""

    search_space: ClassVar[SearchSpace] = {
        "expectile": Range(low=0.5, high=0.95),
        "beta": Range(low=0.5, high=10.0, log=True),
    }

    expectile: float = Field(0.7, gt=0, lt=1, description="0.5 values the data's average action, towards 1 its best one")
    beta: float = Field(3.0, gt=0, description="inverse temperature of the actor's weights; 0 would clone the data")
    max_advantage_weight: float = Field(100.0, gt=0, description="bound of a weight")
    actor_cosine_decay: bool = Field(True, description="let the actor's learning rate fall to 0 along a cosine")
    actor_decay_steps: int | None = Field(
        None, ge=1, description="updates over which it falls; total_timesteps when a run is configured, else it stays"
    )

    def resolved_for(self, total_timesteps: int) -> Self:
        """Fix the length of the actor's decay, so that extending a run does not stretch it."""
        if self.actor_decay_steps is not None or not self.actor_cosine_decay:
            return self
        return self.model_copy(update={"actor_decay_steps": total_timesteps})

    def actor_decay(self, updates: int) -> float:
        """Factor of the actor's learning rate after so many updates."""
        if self.actor_decay_steps is None or not self.actor_cosine_decay:
            return 1.0
        return 0.5 * (1.0 + math.cos(math.pi * min(updates / self.actor_decay_steps, 1.0)))


def expectile_loss(*, values: Tensor, target_values: Tensor, expectile: float | Tensor) -> Terms:
    """mean |expectile - 1(u < 0)| u^2 with u = target - value; both ``(batch,)``."""
    if values.shape != target_values.shape:  # (batch,) against (batch, 1) would broadcast to (batch, batch)
        raise ValueError(f"values {tuple(values.shape)} and target {tuple(target_values.shape)} differ in shape")
    errors = target_values - values
    weights = (expectile - (errors.detach() < 0).float()).abs()
    return {"value_loss": (weights * errors.square()).mean(), "value_mean": values.detach()}


def iql_weights(*, advantages: Tensor, beta: float, max_advantage_weight: float) -> Tensor:
    """min(exp(beta A), max_advantage_weight), ``(batch,)`` like ``advantages``; not normalised over the batch."""
    return (beta * advantages).exp().clamp(max=max_advantage_weight)


def iql_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``IQL.update`` minimises.

    ``target_state_values`` are what V regresses to, min_i Q'_i(s, a); ``expectile`` may be given and is 0.7 if not.
    """
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    value = expectile_loss(
        values=parts["value_predictions"],
        target_values=parts["target_state_values"],
        expectile=parts.get("expectile", 0.7),
    )
    actor = advantage_weighted_loss(behavior_logprobs=parts["behavior_logprobs"], advantage_weights=parts["advantage_weights"])
    critic = twin_critic_loss(q1=parts["q1_values"], q2=parts["q2_values"], target_q=parts["target_q_values"])
    return as_floats(value | actor | critic)


class IQL(Algorithm):
    """Offline actor-critic that asks its critics about actions of the data only."""

    state = ("model", "target_critics", "critic_optimizer", "value_optimizer", "actor_optimizer", "updates")
    hp: IQLHyperparameters

    def __init__(self, *, model: MLPIQLModel, **hyperparameters: Any) -> None:
        self.hp = hp = IQLHyperparameters(**hyperparameters)
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.value_optimizer = FlatAdam(model.value.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.schedule_scale = 1.0  # not part of the state: a schedule sets it anew from the step of the run
        self.updates = 0

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One value, actor, critic and target step, in this order."""
        obs, actions, hp = batch["obs"], batch["actions"], self.hp
        with torch.no_grad():
            data_q = torch.minimum(*self.target_critics(obs, actions))
        terms = expectile_loss(values=self.model.values(obs), target_values=data_q, expectile=hp.expectile)
        self.value_optimizer.minimize(terms["value_loss"])

        with torch.no_grad():  # with the V that has just moved
            advantages = data_q - self.model.values(obs)
            weights = iql_weights(advantages=advantages, beta=hp.beta, max_advantage_weight=hp.max_advantage_weight)
            target_q = td_target(batch, self.model.values(batch["next_obs"]), gamma=hp.gamma)
        logprobs = self.model.action_logprobs(obs, actions)
        terms |= advantage_weighted_loss(behavior_logprobs=logprobs, advantage_weights=weights)
        self._set_actor_learning_rate()
        self.actor_optimizer.minimize(terms["actor_loss"])

        q1, q2 = self.model.q_values(obs, actions)
        terms |= twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, hp.tau)
        self.updates += 1
        return UpdateResult(terms)

    def scale_learning_rate(self, scale: float) -> None:
        """Follow a schedule; the actor's own decay stays a factor on top of it."""
        super().scale_learning_rate(scale)
        self.schedule_scale = scale
        self._set_actor_learning_rate()

    def _set_actor_learning_rate(self) -> None:
        self.actor_optimizer.scale_learning_rate(self.schedule_scale * self.hp.actor_decay(self.updates))

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The mean, or a sample, in [-1, 1]."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: IQLHyperparameters) -> MLPIQLModel:
    """Networks for a task."""
    return MLPIQLModel(env_spec.obs_dim, env_spec.action_dim, **hp.network_options)


SPEC = AlgorithmSpec(
    name="iql",
    title="Implicit Q-Learning",
    loop="offline",
    actions="continuous",
    hyperparameters=IQLHyperparameters,
    build_model=build_model,
    learner=IQL,
    continues_as=("iql",),
    when_finetuned={"actor_cosine_decay": False},
)
