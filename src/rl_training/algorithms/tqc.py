"""TQC (Kuznetsov et al., 2020, arXiv:2005.04269): SAC with quantile critics whose pooled top atoms are dropped.

    critic       pool the N x M quantiles of the target critics at (s', a'), sort, drop the top d x N, and let
                 y_k = r + gamma (1 - terminated) (z_(k) - alpha log pi(a'|s'))
                 minimise  the quantile Huber loss of each critic's M quantiles against all y_k, averaged over everything
    actor        minimise  mean (alpha log pi(a|s) - mean over all critics and quantiles)
    temperature  as in SAC
    targets      Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

Deviations from the authors' code: ``learning_starts`` steps are uniformly random, where theirs sample the untrained policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from rl_training.algorithms.base import Algorithm, AlgorithmSpec, LayerSizes, Range, SearchSpace, UpdateResult
from rl_training.algorithms.entropy import EntropyHyperparameters, Temperature, entropy_actor_loss
from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    quantile_huber_loss,
    quantile_td_target,
)
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_tqc import MLPTQCModel
from rl_training.types import Batch, ConfigError, EnvSpec, Metrics, Terms


class TQCHyperparameters(EntropyHyperparameters):
    """What TQC adds to SAC; the defaults are the paper's."""

    search_space: ClassVar[SearchSpace] = {"top_quantiles_to_drop_per_net": Range(low=0, high=5)}

    learning_starts: int = Field(256, ge=0, description="uniformly random environment steps before the first update")
    critic_hidden_sizes: LayerSizes | None = Field((512, 512, 512), description="critic layers; as hidden_sizes if none")
    num_critics: int = Field(5, ge=1, le=1000, description="critics in the ensemble")
    num_quantiles: int = Field(25, ge=1, description="quantiles each critic predicts")
    top_quantiles_to_drop_per_net: int = Field(2, ge=0, description="atoms dropped from the pooled target, times num_critics")
    kappa: float = Field(1.0, gt=0, description="where the Huber loss turns from square to linear")

    @model_validator(mode="after")
    def _some_atoms_are_left(self) -> Self:
        if self.top_quantiles_to_drop_per_net >= self.num_quantiles:
            given = self.top_quantiles_to_drop_per_net
            raise ValueError(f"top_quantiles_to_drop_per_net must be < num_quantiles ({self.num_quantiles}), got {given}")
        return self


def truncated_atoms(quantiles: Tensor, drop_per_net: int) -> Tensor:
    """Pool ``(batch, critics, quantiles)``, sort, and drop the top ``drop_per_net * critics``."""
    batch, num_critics, num_quantiles = quantiles.shape
    kept = num_critics * (num_quantiles - drop_per_net)
    return quantiles.reshape(batch, -1).sort(dim=-1).values[:, :kept]


def midpoint_taus(num_quantiles: int) -> Tensor:
    """(i + 1/2) / M."""
    return (torch.arange(num_quantiles, dtype=torch.float32) + 0.5) / num_quantiles


def tqc_critic_loss(*, quantiles: Tensor, target_atoms: Tensor, taus: Tensor, kappa: float) -> Terms:
    """Quantile Huber loss; shapes as in :func:`quantile_huber_loss`."""
    return {
        "critic_loss": quantile_huber_loss(quantiles=quantiles, target_atoms=target_atoms, taus=taus, kappa=kappa),
        "q_mean": quantiles.detach(),
        "target_q_mean": target_atoms,
    }


def tqc_loss(batch: Mapping[str, Tensor | float]) -> Metrics:
    """The named metrics of one step from its parts: the same functions that ``TQC.update`` minimises."""
    parts = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in batch.items()}
    critic = tqc_critic_loss(
        quantiles=parts["critic_quantiles"],
        target_atoms=parts["target_quantiles"],
        taus=parts["taus"],
        kappa=float(batch.get("kappa", 1.0)),
    )
    logprobs = parts["sampled_logprobs"]
    actor_q = parts["sampled_q_values"].reshape(len(logprobs), -1).mean(dim=1)
    return as_floats(critic | entropy_actor_loss(logprobs=logprobs, q_values=actor_q, alpha=parts["alpha"]))


class TQC(Algorithm):
    """SAC with truncated quantile critics."""

    state = ("model", "target_critics", "temperature", "critic_optimizer", "actor_optimizer", "alpha_optimizer")
    hp: TQCHyperparameters

    def __init__(self, *, model: MLPTQCModel, **hyperparameters: Any) -> None:
        sizes = {"num_critics": model.num_critics, "num_quantiles": model.num_quantiles}
        self.hp = hp = TQCHyperparameters(**{**sizes, **hyperparameters})
        if (hp.num_critics, hp.num_quantiles) != (model.num_critics, model.num_quantiles):
            raise ConfigError(f"the model has {sizes}, the hyper-parameters say {hp.num_critics} and {hp.num_quantiles}")
        self.model, self.target_critics = model, frozen_copy(model.critics)
        self.critic_optimizer = FlatAdam(model.critics.parameters(), hp.learning_rate)
        self.actor_optimizer = FlatAdam(model.actor.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())
        self.temperature = Temperature(hp, model.action_dim).to(self.target_values.device)
        self.alpha_optimizer = FlatAdam(self.temperature.parameters(), hp.learning_rate)
        self.taus = midpoint_taus(hp.num_quantiles).to(self.target_values.device)

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One critic, actor, temperature and target step."""
        obs, next_obs, hp = batch["obs"], batch["next_obs"], self.hp
        with torch.no_grad():
            alpha = self.temperature()
            next_actions, next_logprobs = self.model.sample_actions(next_obs, self.generator)
            atoms = truncated_atoms(self.target_critics(next_obs, next_actions), hp.top_quantiles_to_drop_per_net)
            target_atoms = quantile_td_target(batch, atoms - alpha * next_logprobs.unsqueeze(-1), gamma=hp.gamma)
        quantiles = self.model.quantiles(obs, batch["actions"])
        terms = tqc_critic_loss(quantiles=quantiles, target_atoms=target_atoms, taus=self.taus, kappa=hp.kappa)
        self.critic_optimizer.minimize(terms["critic_loss"])

        actions, logprobs = self.model.sample_actions(obs, self.generator)
        actor_q = self.model.quantiles(obs, actions).mean(dim=(1, 2))  # all of them: truncation is for targets only
        terms |= entropy_actor_loss(logprobs=logprobs, q_values=actor_q, alpha=alpha)
        self.actor_optimizer.minimize(terms["actor_loss"])

        terms["alpha"] = alpha
        if hp.learn_alpha:
            terms |= self.temperature.loss(logprobs)
            self.alpha_optimizer.minimize(terms["alpha_loss"])
        polyak_update(self.target_values, self.critic_optimizer.values, hp.tau)
        return UpdateResult(terms)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """tanh of the mean, or a sample."""
        return self.model.mean_actions(obs) if deterministic else self.model.sample_actions(obs, self.generator).actions


def build_model(env_spec: EnvSpec, hp: TQCHyperparameters) -> MLPTQCModel:
    """Networks for a task."""
    return MLPTQCModel(
        env_spec.obs_dim,
        env_spec.action_dim,
        num_critics=hp.num_critics,
        num_quantiles=hp.num_quantiles,
        **hp.network_options,
    )


SPEC = AlgorithmSpec(
    name="tqc",
    title="Truncated Quantile Critics",
    loop="online",
    actions="continuous",
    hyperparameters=TQCHyperparameters,
    build_model=build_model,
    learner=TQC,
)
