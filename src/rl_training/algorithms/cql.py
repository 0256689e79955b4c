"""CQL(H) (Kumar et al., 2020, arXiv:2006.04779): SAC whose critics are pressed down wherever the data does not hold them up.

    critic       y = r + gamma (1 - d) min_i Q'_i(s', a'),                         a' ~ pi(s'), no entropy in the backup
                 minimise  sum_i mean (Q_i(s, a) - y)^2 + cql_alpha sum_i mean (L_i(s) - Q_i(s, a))
                 L_i(s) = log sum_k exp(Q_i(s, b_k) - log mu(b_k)),                b_k: num_cql_samples actions each from
                 the uniform distribution, pi(s) and pi(s'), every one of them evaluated at s
    actor        minimise  mean (alpha log pi(a|s) - min_i Q_i(s, a)),             a ~ pi(s), reparameterised
    temperature  minimise  -log(alpha) mean (log pi(a|s) + target_entropy)
    targets      Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

One update takes these steps in this order, with the alpha from before the temperature moves. mu is 0.5^dim for uniform
actions and the policy's density for its own. Samples and densities are constants: the penalty's gradient reaches the
critics, never the policy. Without ``importance_sampling`` mu is left out and the data's action is one of the b_k.

With ``lagrange`` the penalty is  alpha' cql_alpha sum_i (mean (L_i - Q_i) - target_action_gap): the threshold is compared
with the bare gap (as in CORL), not with cql_alpha times the gap (as in the authors' code). alpha' = exp(log alpha') in
[0, 1e6] starts at 1, moves at the critics' learning rate, and grows while the gap is above its target.

With ``calibrated`` (Cal-QL, Nakamoto et al., 2023, arXiv:2303.05479) Q_i(s, b_k) of the policy's actions counts as at least
the return that followed in the data (``returns_to_go``): critics are not pressed below what was really reached.

Deviations from the authors' code: critics before actor; CORL's 3 layers of 256, cql_alpha 10 and rate 3e-5 of actor and
temperature, but its critics start orthogonally, these as PyTorch's linear layers do; no first steps of cloning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    CriticHyperparameters,
    LayerSizes,
    Range,
    SearchSpace,
    UpdateResult,
)
from rl_training.algorithms.entropy import Temperature, TemperatureSettings, entropy_actor_loss
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.sac import build_model
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.squashed_gaussian import SampledActions
from rl_training.types import Batch, Metrics, Terms

ROWS_AT_ONCE = 1024


class CQLHyperparameters(TemperatureSettings, CriticHyperparameters):
    """What CQL can be told."""

    search_space: ClassVar[SearchSpace] = {
        "actor_learning_rate": Range(low=1e-5, high=1e-3, log=True),
        "cql_alpha": Range(low=0.1, high=20.0, log=True),
    }

    learning_rate: float = Field(3e-4, gt=0, description="step size of Adam for the critics")
    actor_learning_rate: float = Field(3e-5, gt=0, description="step size of Adam for the actor and the temperature")
    hidden_sizes: LayerSizes = Field((256, 256, 256), description="width of each hidden layer")
    cql_alpha: float = Field(10.0, ge=0, description="weight of the conservative penalty")
    num_cql_samples: int = Field(10, ge=1, description="actions of each of the three kinds in the penalty")
    importance_sampling: bool = Field(True, description="divide by the density an action was drawn from")
    lagrange: bool = Field(False, description="tune the penalty's weight to hold target_action_gap")
    target_action_gap: float = Field(5.0, gt=0, description="gap between L and Q of the data to hold; with lagrange only")
    calibrated: bool = Field(False, description="Cal-QL: do not press values below the returns of the data")


def conservative_value(
    *, data_q: Tensor, sampled_q: Tensor, log_densities: Tensor | None, floors: Tensor | None = None
) -> Tensor:
    """L(s), ``(batch,)``; ``data_q`` is ``(batch,)``, the others ``(samples, batch)``; densities: importance sampling.

    ``floors`` is what each sampled value counts as at least (Cal-QL); where it does, no gradient presses it down.
    """
    if floors is not None:
        sampled_q = torch.maximum(sampled_q, floors)
    if log_densities is None:
        return torch.cat((data_q.unsqueeze(0), sampled_q)).logsumexp(dim=0)
    if sampled_q.shape != log_densities.shape:
        raise ValueError(f"values {tuple(sampled_q.shape)} and densities {tuple(log_densities.shape)} differ in shape")
    return (sampled_q - log_densities).logsumexp(dim=0)


def cql_critic_loss(
    *,
    q1: Tensor,
    q2: Tensor,
    target_q: Tensor,
    ood_q1: Tensor,
    ood_q2: Tensor,
    cql_alpha: Tensor | float,
    target_action_gap: float = 0.0,
) -> Terms:
    """TD error and conservative penalty, summed over both critics; ``ood_q`` are the L_i; all tensors ``(batch,)``."""
    terms = twin_critic_loss(q1=q1, q2=q2, target_q=target_q)
    if not q1.shape == q2.shape == ood_q1.shape == ood_q2.shape:
        raise ValueError(f"values {tuple(q1.shape)} and L {tuple(ood_q1.shape)}, {tuple(ood_q2.shape)} differ in shape")
    td_loss = terms["critic_loss"]
    penalty = cql_alpha * ((ood_q1 - q1).mean() + (ood_q2 - q2).mean() - 2.0 * target_action_gap)
    return terms | {
        "critic_loss": td_loss + penalty,
        "td_loss": td_loss.detach(),
        "cql_penalty": penalty.detach(),
        "ood_q_mean": (ood_q1.detach() + ood_q2.detach()) * 0.5,
    }


def lagrange_loss(*, multiplier: Tensor, excess: Tensor) -> Terms:
    """-alpha' excess, scalars: alpha' grows while the mean gap is above its target."""
    return {"lagrange_loss": -multiplier * excess.detach(), "lagrange_multiplier": multiplier.detach()}


def cql_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``CQL.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = cql_critic_loss(
        q1=parts["q1_values"],
        q2=parts["q2_values"],
        target_q=parts["target_q_values"],
        ood_q1=parts["ood_q1_logsumexp"],
        ood_q2=parts["ood_q2_logsumexp"],
        cql_alpha=parts["cql_alpha"],
    )
    sampled_q = torch.minimum(parts["sampled_q1"], parts["sampled_q2"])
    actor = entropy_actor_loss(logprobs=parts["sampled_logprobs"], q_values=sampled_q, alpha=parts["alpha"])
    return as_floats(critic | actor)


class CQL(Algorithm):
    """Offline SAC with critics that are low on actions the data does not show."""

    state = (
        "model",
        "target_critics",
        "temperature",
        "log_multiplier",
        "critic_optimizer",
        "actor_optimizer",
        "alpha_optimizer",
        "multiplier_optimizer",
    )
    hp: CQLHyperparameters

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        self.hp = hp = CQLHyperparameters(**hyperparameters)
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.actor_learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.temperature = Temperature(hp, model.action_dim).to(self.target_values.device)
        self.alpha_optimizer = FlatAdam(self.temperature.parameters(), hp.actor_learning_rate)
        self.log_multiplier = nn.Parameter(torch.zeros((), device=self.target_values.device))
        self.multiplier_optimizer = FlatAdam([self.log_multiplier], hp.learning_rate)

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor, temperature and target step, in this order."""
        terms = self._update_critics(batch)
        obs, alpha = batch["obs"], self.temperature().detach()
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

    def _update_critics(self, batch: Batch) -> Terms:
        obs, next_obs, hp = batch["obs"], batch["next_obs"], self.hp
        with torch.no_grad():
            next_actions = self.model.sample_actions(next_obs, self.generator).actions
            target_q = td_target(batch, torch.minimum(*self.target_critics(next_obs, next_actions)), gamma=hp.gamma)
        sampled = self.penalised_actions(obs, next_obs)
        q1, q2 = self.values_of_many(obs, torch.cat((batch["actions"].unsqueeze(0), sampled.actions)))  # the data's first
        densities = sampled.logprobs if hp.importance_sampling else None
        floors = None
        if hp.calibrated:
            floors = batch["returns_to_go"].repeat(len(sampled.actions), 1)
            floors[: hp.num_cql_samples] = -math.inf  # of the policy's actions only
        multiplier = self.log_multiplier.exp().clamp(max=1e6)
        terms = cql_critic_loss(
            q1=q1[0],
            q2=q2[0],
            target_q=target_q,
            ood_q1=conservative_value(data_q=q1[0], sampled_q=q1[1:], log_densities=densities, floors=floors),
            ood_q2=conservative_value(data_q=q2[0], sampled_q=q2[1:], log_densities=densities, floors=floors),
            cql_alpha=hp.cql_alpha * multiplier.detach() if hp.lagrange else hp.cql_alpha,
            target_action_gap=hp.target_action_gap if hp.lagrange else 0.0,
        )
        self.critic_optimizer.minimize(terms["critic_loss"])
        if hp.lagrange:
            excess = (terms["ood_q_mean"] - terms["q_mean"]).mean() - hp.target_action_gap
            terms |= lagrange_loss(multiplier=multiplier, excess=hp.cql_alpha * excess)
            self.multiplier_optimizer.minimize(terms["lagrange_loss"])
        return terms

    def values_of_many(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Both critics at every s for several actions ``(samples, batch, action_dim)``, each ``(samples, batch)``.

        About a thousand rows at a time: activations that stay in a CPU's cache make this faster than one pass.
        """
        at_once = max(1, ROWS_AT_ONCE // len(obs))
        parts = [self.model.q_values(obs.repeat(len(some), 1), some.flatten(0, 1)) for some in actions.split(at_once)]
        q1, q2 = (torch.cat(values).view(actions.shape[:2]) for values in zip(*parts, strict=True))
        return q1, q2

    @torch.no_grad()
    def penalised_actions(self, obs: Tensor, next_obs: Tensor) -> SampledActions:
        """Uniform actions, then pi(s) and pi(s') in turn: ``(3 num_cql_samples, batch, action_dim)``, and log-densities."""
        count, batch, dim = self.hp.num_cql_samples, len(obs), self.model.action_dim
        uniform = torch.empty(count, batch, dim, device=obs.device).uniform_(-1.0, 1.0, generator=self.generator)
        policy = self.model.sample_actions(torch.cat((obs, next_obs)), self.generator, (count,))
        return SampledActions(
            torch.cat((uniform, policy.actions.view(2 * count, batch, dim))),
            torch.cat((uniform.new_full((count, batch), dim * math.log(0.5)), policy.logprobs.view(2 * count, batch))),
        )

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """tanh of the mean, or a sample."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


SPEC = AlgorithmSpec(
    name="cql",
    title="Conservative Q-Learning",
    loop="offline",
    actions="continuous",
    hyperparameters=CQLHyperparameters,
    build_model=build_model,
    learner=CQL,
    continues_as=("cql", "sac"),
)
