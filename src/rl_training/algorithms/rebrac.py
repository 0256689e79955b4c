"""ReBRAC (Tarasov et al., 2023, arXiv:2305.09836): TD3+BC with a penalty of its own in the actor and in the critic.

    critic   a' = clip(pi'(s') + eps, -1, 1),   eps ~ clip(N(0, sigma), -c, c)
             y = r + gamma (1 - d) (min_i Q'_i(s', a') - critic_bc_weight sum_d (a' - next_action)^2)
             minimise  sum_i mean (Q_i(s, a) - y)^2
    actor    every policy_delay-th update, with Q = min_i Q_i(s, pi(s)) and lambda = 1 / mean |Q| constant:
             minimise  mean (actor_bc_weight sum_d (pi(s) - a)^2 - actor_q_weight lambda Q)
             actor_bc_weight may fall linearly to actor_bc_final times itself, as the paper has it when fine-tuning online
    targets  on actor updates only:  theta' <- (1 - tau) theta' + tau theta

``next_action`` is the data's. Rows whose ``next_action_mask`` is 0 (cut by a time limit, so the data has none) have no
penalty in their target; nor has any row of a batch without ``next_actions``, whose ``critic_bc_penalty`` is then 0.

Deviations from the authors' code: the first update takes an actor step, so that its metrics are complete; targets follow
the actor of after that step (theirs, of before); mean |Q| is at least 1e-6; ``actor_q_weight`` is ours, and 1 is theirs.
Networks built for a task start as theirs do, see ``initialize``; a model given to the learner is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms import td3
from rl_training.algorithms.base import Algorithm, AlgorithmSpec, Choice, LayerSizes, Range, SearchSpace, UpdateResult
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
from rl_training.algorithms.td3 import TD3Settings
from rl_training.algorithms.td3_bc import normalizing_weight
from rl_training.models.mlp import MLP
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.types import Batch, EnvSpec, Metrics, Terms

WEIGHTS = ("actor_bc_weight", "critic_bc_weight", "actor_q_weight")


class ReBRACHyperparameters(TD3Settings):
    """What ReBRAC can be told."""

    search_space: ClassVar[SearchSpace] = {
        "batch_size": Choice(values=(256, 512, 1024)),
        "actor_bc_weight": Range(low=1e-3, high=1.0, log=True),
        "critic_bc_weight": Range(low=1e-3, high=0.5, log=True),
    }

    learning_rate: float = Field(1e-3, gt=0, description="step size of Adam for every network")
    batch_size: int = Field(1024, ge=1, description="transitions per gradient step")
    hidden_sizes: LayerSizes = Field((256, 256, 256), description="width of each hidden layer")
    layer_norm: bool = Field(True, description="LayerNorm in the critics, after each ReLU")
    actor_bc_weight: float = Field(0.01, gt=0, description="weight of the policy's squared distance to the data's action")
    critic_bc_weight: float = Field(0.01, ge=0, description="the same for the next action, in the critic's target")
    actor_q_weight: float = Field(1.0, gt=0, description="weight of the normalised value in the actor's loss")
    actor_bc_final: float = Field(1.0, ge=0, le=1, description="share of actor_bc_weight that is left when it has decayed")
    actor_bc_decay_steps: int | None = Field(
        None, ge=1, description="updates over which it decays; those of the budget when a run is configured, else it stays"
    )

    def resolved_for(self, total_timesteps: int) -> Self:
        """Fix the length of the decay, so that extending a run does not stretch it."""
        if self.actor_bc_decay_steps is not None or self.actor_bc_final == 1.0:
            return self
        return self.model_copy(update={"actor_bc_decay_steps": total_timesteps})

    def actor_bc_weight_after(self, updates: int) -> float:
        """The actor's weight after so many updates."""
        progress = 0.0 if self.actor_bc_decay_steps is None else min(updates / self.actor_bc_decay_steps, 1.0)
        return self.actor_bc_weight * (1.0 + (self.actor_bc_final - 1.0) * progress)


def squared_distance(*, policy_actions: Tensor, actions: Tensor) -> Tensor:
    """Squared error summed over the action's dimensions, ``(batch, action_dim) -> (batch,)``; TD3+BC averages instead."""
    if policy_actions.shape != actions.shape:
        raise ValueError(f"policy_actions {tuple(policy_actions.shape)} and actions {tuple(actions.shape)} differ in shape")
    return (policy_actions - actions).square().sum(dim=-1)


def next_action_penalty(batch: Batch, policy_actions: Tensor) -> Tensor:
    """Squared distance to the data's next actions where it has them, else 0, ``(batch,)``; not weighted."""
    if "next_actions" not in batch:
        return torch.zeros_like(batch["rewards"])
    penalty = squared_distance(policy_actions=policy_actions, actions=batch["next_actions"])
    return penalty * batch["next_action_mask"] if "next_action_mask" in batch else penalty


def rebrac_critic_loss(*, q1: Tensor, q2: Tensor, target_q: Tensor, critic_bc_penalty: Tensor) -> Terms:
    """TD error of both critics; ``critic_bc_penalty`` is already in ``target_q`` and only reported."""
    return twin_critic_loss(q1=q1, q2=q2, target_q=target_q) | {"critic_bc_penalty": critic_bc_penalty}


def rebrac_actor_loss(
    *, actor_q: Tensor, actor_bc_loss: Tensor, actor_bc_weight: Tensor | float, actor_q_weight: Tensor | float
) -> Terms:
    """Weighted cloning error minus weighted, normalised value; ``actor_q`` is ``(batch,)``, the others scalars."""
    value = normalizing_weight(actor_q) * actor_q.mean()
    return {
        "actor_loss": actor_bc_weight * actor_bc_loss - actor_q_weight * value,
        "actor_bc_loss": actor_bc_loss,
        "actor_q_mean": actor_q.detach(),
    }


def rebrac_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``ReBRAC.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = rebrac_critic_loss(
        q1=parts["q1_values"],
        q2=parts["q2_values"],
        target_q=parts["target_q_values"],
        critic_bc_penalty=parts["critic_bc_penalty"],
    )
    actor = rebrac_actor_loss(
        actor_q=parts["actor_q_values"],
        actor_bc_loss=parts["actor_bc_loss"],
        actor_bc_weight=parts["actor_bc_weight"],
        actor_q_weight=parts["actor_q_weight"],
    )
    return as_floats(critic | actor | {name: parts[name] for name in WEIGHTS})


class ReBRAC(Algorithm):
    """Offline TD3 with behaviour penalties in the actor's loss and in the critic's target."""

    state = ("model", "target", "critic_optimizer", "actor_optimizer", "updates")
    hp: ReBRACHyperparameters

    def __init__(self, *, model: MLPTD3Model, **hyperparameters: Any) -> None:
        self.hp = hp = ReBRACHyperparameters(**hyperparameters)
        self.model, self.target = model, frozen_copy(model)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_critic_values = flatten_parameters(self.target.critics.parameters())
        self.target_actor_values = flatten_parameters(self.target.actor.parameters())
        self.updates = 0

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic step and, when it is due, one actor and target step."""
        obs, actions, next_obs, hp = batch["obs"], batch["actions"], batch["next_obs"], self.hp
        weights = {name: getattr(hp, name) for name in WEIGHTS} | {"actor_bc_weight": hp.actor_bc_weight_after(self.updates)}
        with torch.no_grad():
            next_actions = smoothed(self.target.actions(next_obs), hp.policy_noise, hp.noise_clip, self.generator)
            next_q = torch.minimum(*self.target.q_values(next_obs, next_actions))
            penalty = next_action_penalty(batch, next_actions)
            target_q = td_target(batch, next_q - hp.critic_bc_weight * penalty, gamma=hp.gamma)
        q1, q2 = self.model.q_values(obs, actions)
        terms = rebrac_critic_loss(q1=q1, q2=q2, target_q=target_q, critic_bc_penalty=penalty.mean())
        self.critic_optimizer.minimize(terms["critic_loss"])

        if self.updates % hp.policy_delay == 0:
            policy_actions = self.model.actions(obs)
            terms |= rebrac_actor_loss(
                actor_q=torch.minimum(*self.model.q_values(obs, policy_actions)),
                actor_bc_loss=squared_distance(policy_actions=policy_actions, actions=actions).mean(),
                actor_bc_weight=weights["actor_bc_weight"],
                actor_q_weight=hp.actor_q_weight,
            )
            self.actor_optimizer.minimize(terms["actor_loss"])
            polyak_update(self.target_critic_values, self.critic_optimizer.values, hp.tau)
            polyak_update(self.target_actor_values, self.actor_optimizer.values, hp.tau)
        self.updates += 1
        return UpdateResult({**terms, **weights})

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The policy's action, with exploration noise unless deterministic."""
        actions = self.model.actions(obs)
        return actions if deterministic else gaussian_exploration(actions, self.hp.exploration_noise, self.generator)


def initialize(net: MLP, last_layer_bound: float) -> None:
    """The authors' start: hidden weights as PyTorch draws them, hidden biases 0.1, a small uniform last layer."""
    *hidden, last = net.layers
    for layer in hidden:
        nn.init.constant_(layer.get_parameter("bias"), 0.1)
    for parameter in last.parameters():
        nn.init.uniform_(parameter, -last_layer_bound, last_layer_bound)


def build_model(env_spec: EnvSpec, hp: ReBRACHyperparameters) -> MLPTD3Model:
    """Networks for a task."""
    model = td3.build_model(env_spec, hp)
    initialize(model.actor.net, 1e-3)
    for critic in (model.critics.q1, model.critics.q2):
        initialize(critic.net, 3e-3)
    return model


SPEC = AlgorithmSpec(
    name="rebrac",
    title="Revisited Behaviour-Regularised Actor-Critic",
    loop="offline",
    actions="continuous",
    hyperparameters=ReBRACHyperparameters,
    build_model=build_model,
    learner=ReBRAC,
    continues_as=("rebrac", "td3"),
    when_finetuned={"critic_bc_weight": 0.0, "actor_bc_final": 0.5},
)
