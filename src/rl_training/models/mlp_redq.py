"""Squashed-Gaussian actor and an ensemble of scalar critics, for REDQ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import EnsembleMLP
from rl_training.models.squashed_gaussian import SampledActions, SquashedGaussianActor


class MLPREDQModel(nn.Module):
    """SAC's actor and ``num_critics`` critics that are evaluated as one batched network."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        num_critics: int = 10,
        critic_hidden_sizes: Sequence[int] | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim, self.num_critics = obs_dim, action_dim, num_critics
        self.actor = SquashedGaussianActor(obs_dim, action_dim, hidden_sizes)
        self.critics = EnsembleMLP(
            num_critics, obs_dim + action_dim, critic_hidden_sizes or hidden_sizes, 1, layer_norm=layer_norm
        )

    def sample_actions(self, obs: Tensor, generator: torch.Generator | None = None) -> SampledActions:
        """Reparameterised actions in [-1, 1] and their log-probabilities ``(batch,)``."""
        return self.actor.sample(obs, generator)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """Deterministic actions in [-1, 1]."""
        return self.actor.mean_actions(obs)

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """``(batch, num_critics)``; ``(num_critics,)`` for one observation and action without a batch dimension."""
        obs_actions = torch.cat((obs, actions), dim=-1)
        values = ensemble_q_values(self.critics, obs_actions.reshape(-1, obs_actions.shape[-1]))
        return values[0] if obs.ndim == 1 else values


def ensemble_q_values(critics: EnsembleMLP, obs_actions: Tensor, members: Tensor | None = None) -> Tensor:
    """Values of all critics, or of some, ``(batch, members)``."""
    values: Tensor = critics(obs_actions, members)
    return values.squeeze(-1).transpose(0, 1)
