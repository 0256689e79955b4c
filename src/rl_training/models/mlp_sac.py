"""Actor and twin critics of SAC; CQL and AWAC use the same model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import TwinCritics
from rl_training.models.squashed_gaussian import SampledActions, SquashedGaussianActor


class MLPSACModel(nn.Module):
    """Squashed-Gaussian actor and two critics with separate networks.

    ``critic_hidden_sizes`` defaults to ``hidden_sizes``; ``layer_norm`` applies to the critics only.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.actor = SquashedGaussianActor(obs_dim, action_dim, hidden_sizes)
        self.critics = TwinCritics(obs_dim, action_dim, critic_hidden_sizes or hidden_sizes, layer_norm=layer_norm)

    def sample_actions(self, obs: Tensor, generator: torch.Generator | None = None) -> SampledActions:
        """Reparameterised actions in [-1, 1] and their log-probabilities ``(batch,)``."""
        return self.actor.sample(obs, generator)

    def action_logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities ``(batch,)`` of given actions; actions at the border are pulled just inside it."""
        return self.actor.logprobs(obs, actions)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """Deterministic actions in [-1, 1]."""
        return self.actor.mean_actions(obs)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """``q1, q2``, each ``(batch,)``."""
        q1, q2 = self.critics(obs, actions)
        return q1, q2
