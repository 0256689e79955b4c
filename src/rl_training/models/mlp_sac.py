"""Actor and twin critics of SAC; CQL and AWAC use the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.models.gaussian import GaussianActor
from rl_training.models.mlp import TwinCritics
from rl_training.models.squashed_gaussian import SampledActions, SquashedGaussianActor

# The plain Gaussian's floor is that of AWAC's authors: it keeps a policy that fits few actions from collapsing. Their
# ceiling of 0 would be where this log-std starts, and a clamped parameter that steps over its bound gets no gradient to
# come back by; hence 2, as in CORL.
LOG_STD_MIN, LOG_STD_MAX = -6.0, 2.0


class MLPSACModel(nn.Module):
    """Squashed-Gaussian actor and two critics with separate networks.

    ``critic_hidden_sizes`` defaults to ``hidden_sizes``; ``layer_norm`` applies to the critics only. ``policy`` may be
    ``"gaussian"`` for an actor that is not squashed and has a state-independent log-std, as in AWAC.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        layer_norm: bool = False,
        policy: Literal["squashed", "gaussian"] = "squashed",
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.actor: SquashedGaussianActor | GaussianActor
        if policy == "squashed":
            self.actor = SquashedGaussianActor(obs_dim, action_dim, hidden_sizes)
        elif policy == "gaussian":
            self.actor = GaussianActor(
                obs_dim, action_dim, hidden_sizes, squash_mean=False, log_std_min=LOG_STD_MIN, log_std_max=LOG_STD_MAX
            )
        else:
            raise ValueError(f"policy must be 'squashed' or 'gaussian', got {policy!r}")
        self.critics = TwinCritics(obs_dim, action_dim, critic_hidden_sizes or hidden_sizes, layer_norm=layer_norm)

    def sample_actions(
        self, obs: Tensor, generator: torch.Generator | None = None, sample_shape: tuple[int, ...] = ()
    ) -> SampledActions:
        """Reparameterised actions in [-1, 1] and their log-probabilities ``(*sample_shape, batch)``."""
        return self.actor.sample(obs, generator, sample_shape)

    def action_logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities ``(batch,)`` of given actions; a squashed policy pulls those at the border just inside it."""
        return self.actor.logprobs(obs, actions)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """Deterministic actions in [-1, 1]."""
        return self.actor.mean_actions(obs)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """``q1, q2``, each ``(batch,)``."""
        q1, q2 = self.critics(obs, actions)
        return q1, q2
