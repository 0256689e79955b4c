"""Actor, twin critics and state value of IQL."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.gaussian import GaussianActor
from rl_training.models.mlp import MLP, TwinCritics
from rl_training.models.squashed_gaussian import SampledActions

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # as in the authors' code


class MLPIQLModel(nn.Module):
    """Gaussian actor with a tanh mean, two critics with separate networks, and a state value.

    ``critic_hidden_sizes`` defaults to ``hidden_sizes``; it and ``layer_norm`` apply to critics and state value.
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
        critic_sizes = critic_hidden_sizes or hidden_sizes
        self.actor = GaussianActor(
            obs_dim, action_dim, hidden_sizes, squash_mean=True, log_std_min=LOG_STD_MIN, log_std_max=LOG_STD_MAX
        )
        self.critics = TwinCritics(obs_dim, action_dim, critic_sizes, layer_norm=layer_norm)
        self.value = MLP(obs_dim, critic_sizes, 1, layer_norm=layer_norm)

    def sample_actions(self, obs: Tensor, generator: torch.Generator | None = None) -> SampledActions:
        """Actions in [-1, 1] and the log-probabilities ``(batch,)`` of the samples before clamping."""
        return self.actor.sample(obs, generator)

    def action_logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities ``(batch,)`` of given actions."""
        return self.actor.logprobs(obs, actions)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """Deterministic actions in [-1, 1]."""
        return self.actor.mean_actions(obs)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """``q1, q2``, each ``(batch,)``."""
        q1, q2 = self.critics(obs, actions)
        return q1, q2

    def values(self, obs: Tensor) -> Tensor:
        """V(s), ``(batch,)``."""
        values: Tensor = self.value(obs)
        return values.squeeze(-1)
