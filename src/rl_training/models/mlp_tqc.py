"""Squashed-Gaussian actor and several quantile critics, for TQC."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import MLP
from rl_training.models.squashed_gaussian import SampledActions, SquashedGaussianActor


class QuantileCritics(nn.Module):
    """``num_critics`` networks that each predict ``num_quantiles`` quantiles of the return.

    Separate networks: with TQC's wide layers, batching them is not faster.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int,
        num_quantiles: int,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            MLP(obs_dim + action_dim, hidden_sizes, num_quantiles, layer_norm=layer_norm) for _ in range(num_critics)
        )

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """``(batch, num_critics, num_quantiles)``."""
        obs_actions = torch.cat((obs, actions), dim=-1)
        return torch.stack([net(obs_actions) for net in self.nets], dim=1)


class MLPTQCModel(nn.Module):
    """SAC's actor and quantile critics."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        num_critics: int = 5,
        num_quantiles: int = 25,
        critic_hidden_sizes: Sequence[int] | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.num_critics, self.num_quantiles = num_critics, num_quantiles
        self.actor = SquashedGaussianActor(obs_dim, action_dim, hidden_sizes)
        self.critics = QuantileCritics(
            obs_dim, action_dim, critic_hidden_sizes or hidden_sizes, num_critics, num_quantiles, layer_norm
        )

    def sample_actions(self, obs: Tensor, generator: torch.Generator | None = None) -> SampledActions:
        """Reparameterised actions in [-1, 1] and their log-probabilities ``(batch,)``."""
        return self.actor.sample(obs, generator)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """Deterministic actions in [-1, 1]."""
        return self.actor.mean_actions(obs)

    def quantiles(self, obs: Tensor, actions: Tensor) -> Tensor:
        """``(batch, num_critics, num_quantiles)``."""
        quantiles: Tensor = self.critics(obs, actions)
        return quantiles

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Mean over quantiles, ``(batch, num_critics)``."""
        return self.quantiles(obs, actions).mean(dim=-1)
