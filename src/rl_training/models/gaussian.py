"""The plain Gaussian policy of the methods that regress on the data's actions (IQL, AWAC)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import MLP
from rl_training.models.squashed_gaussian import SampledActions


class GaussianActor(nn.Module):
    """a ~ N(mean(s), std): not squashed, with one learned log-std per action dimension, the same in every state.

    ``squash_mean`` passes the mean (never the sample) through tanh. Being a density over all numbers, it gives actions
    at the border of [-1, 1] a finite log-density as they are; no clipping is needed.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        squash_mean: bool,
        log_std_min: float,
        log_std_max: float,
    ) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, action_dim)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.squash_mean, self.log_std_min, self.log_std_max = squash_mean, log_std_min, log_std_max

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(batch, action_dim)`` and log-std ``(action_dim,)``."""
        mean: Tensor = self.net(obs)
        return torch.tanh(mean) if self.squash_mean else mean, self.log_std.clamp(self.log_std_min, self.log_std_max)

    def sample(
        self, obs: Tensor, generator: torch.Generator | None = None, sample_shape: tuple[int, ...] = ()
    ) -> SampledActions:
        """Actions clamped to [-1, 1]; the log-densities are those of the samples before clamping."""
        mean, log_std = self(obs)
        noise = torch.randn((*sample_shape, *mean.shape), generator=generator, device=mean.device, dtype=mean.dtype)
        return SampledActions((mean + log_std.exp() * noise).clamp(-1.0, 1.0), gaussian_logprobs(noise, log_std))

    def logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-density of given actions, ``(batch,)``."""
        mean, log_std = self(obs)
        if actions.shape != mean.shape:  # (batch,) against (batch, 1) would broadcast to (batch, batch)
            raise ValueError(f"actions must have the shape of the mean {tuple(mean.shape)}, got {tuple(actions.shape)}")
        return gaussian_logprobs((actions - mean) * (-log_std).exp(), log_std)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """The mean, clamped to [-1, 1]: the policy used for evaluation."""
        mean: Tensor = self(obs)[0]
        return mean.clamp(-1.0, 1.0)


def gaussian_logprobs(noise: Tensor, log_std: Tensor) -> Tensor:
    """log N(noise; 0, 1) - log std, summed over action dimensions."""
    return (-0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)
