"""AWAC (Nair et al., 2020, arXiv:2006.09359): the policy is cloned from the data, each action weighed by its advantage.

    critic   y = r + gamma (1 - d) min_i Q'_i(s', a'),                              a' ~ pi(s'), no entropy
             minimise  sum_i mean (Q_i(s, a) - y)^2
    actor    A = min_i Q_i(s, a) - min_i Q_i(s, b),                                 b ~ pi(s)
             minimise  -mean w(A) log pi(a|s),   w = min(exp(A / lambda), max_advantage_weight)
                                                 or, with ``weighting: softmax``, batch size * softmax(A / lambda)
    targets  Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

One update moves the critics, then the actor with the moved critics, then the targets. No gradient passes the weights. The
policy is a Gaussian that is not squashed, with a state-independent log-std; its samples are clamped to [-1, 1] before a
critic sees them. Both weightings are in use: the authors' code takes the softmax over the batch; the clipped exponential
is the form with published D4RL v2 scores (CORL), and the default.

Deviations from the authors' code: 3 layers of 256 for all networks and batches of 256 as in CORL, no weight decay on the
actor, no critic-only steps before the first actor step, log-std in [-6, 2] instead of [-6, 0] (see ``mlp_sac.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    CriticHyperparameters,
    LayerSizes,
    Range,
    SearchSpace,
    UpdateResult,
)
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

Weighting = Literal["clip", "softmax"]


class AWACHyperparameters(CriticHyperparameters):
    """What AWAC can be told."""

    search_space: ClassVar[SearchSpace] = {"awac_lambda": Range(low=0.1, high=3.0, log=True)}

    hidden_sizes: LayerSizes = Field((256, 256, 256), description="width of each hidden layer")
    awac_lambda: float = Field(0.3333, gt=0, description="temperature of the weights: smaller trusts advantages more")
    weighting: Weighting = Field("clip", description="bounded exponential of each advantage, or softmax over the batch")
    max_advantage_weight: float = Field(100.0, gt=0, description="bound of a weight; softmax needs none and ignores it")


def advantage_weights(
    *, advantages: Tensor, awac_lambda: float, max_advantage_weight: float, weighting: Weighting = "clip"
) -> Tensor:
    """How much to clone each action, ``(batch,)`` like ``advantages``; softmax weights have mean 1."""
    scaled = advantages / awac_lambda
    if weighting == "softmax":
        return scaled.softmax(dim=0) * len(scaled)
    return scaled.exp().clamp(max=max_advantage_weight)


def advantage_weighted_loss(*, behavior_logprobs: Tensor, advantage_weights: Tensor) -> Terms:
    """-mean w log pi(a|s) over the data's actions; both ``(batch,)``, the weights are constants."""
    if behavior_logprobs.shape != advantage_weights.shape:
        raise ValueError(
            f"behavior_logprobs {tuple(behavior_logprobs.shape)} and advantage_weights "
            f"{tuple(advantage_weights.shape)} differ in shape"
        )
    weights = advantage_weights.detach()
    return {
        "actor_loss": -(weights * behavior_logprobs).mean(),
        "advantage_weight_mean": weights,
        "behavior_logprob_mean": behavior_logprobs.detach(),
    }


def awac_loss(batch: Mapping[str, Tensor]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``AWAC.update`` minimises."""
    critic = twin_critic_loss(q1=batch["q1_values"], q2=batch["q2_values"], target_q=batch["target_q_values"])
    actor = advantage_weighted_loss(behavior_logprobs=batch["behavior_logprobs"], advantage_weights=batch["advantage_weights"])
    return as_floats(critic | actor | {"advantage_mean": batch["advantages"]})


class AWAC(Algorithm):
    """Offline actor-critic whose actor is advantage-weighted regression on the data's actions."""

    state = ("model", "target_critics", "critic_optimizer", "actor_optimizer")
    hp: AWACHyperparameters

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        self.hp = hp = AWACHyperparameters(**hyperparameters)
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor and target step, in this order."""
        obs, actions, next_obs, hp = batch["obs"], batch["actions"], batch["next_obs"], self.hp
        with torch.no_grad():
            next_actions = self.model.sample_actions(next_obs, self.generator).actions
            next_q = torch.minimum(*self.target_critics(next_obs, next_actions))
            target_q = td_target(batch, next_q, gamma=hp.gamma)
        q1, q2 = self.model.q_values(obs, actions)
        terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
        self.critic_optimizer.minimize(terms["critic_loss"])

        with torch.no_grad():
            policy_actions = self.model.sample_actions(obs, self.generator).actions
            state_values = torch.minimum(*self.model.q_values(obs, policy_actions))
            advantages = torch.minimum(*self.model.q_values(obs, actions)) - state_values
            weights = advantage_weights(
                advantages=advantages,
                awac_lambda=hp.awac_lambda,
                max_advantage_weight=hp.max_advantage_weight,
                weighting=hp.weighting,
            )
        logprobs = self.model.action_logprobs(obs, actions)
        terms |= advantage_weighted_loss(behavior_logprobs=logprobs, advantage_weights=weights)
        terms["advantage_mean"] = advantages
        self.actor_optimizer.minimize(terms["actor_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, hp.tau)
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The mean, or a sample, in [-1, 1]."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: AWACHyperparameters) -> MLPSACModel:
    """Networks for a task."""
    return MLPSACModel(env_spec.obs_dim, env_spec.action_dim, policy="gaussian", **hp.network_options)


SPEC = AlgorithmSpec(
    name="awac",
    title="Advantage-Weighted Actor-Critic",
    loop="offline",
    actions="continuous",
    hyperparameters=AWACHyperparameters,
    build_model=build_model,
    learner=AWAC,
    continues_as=("awac", "sac"),
)
