"""The tanh-squashed Gaussian policy shared by the SAC family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.mlp import MLP

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
ACTION_LIMIT = 1.0 - 1e-6  # data actions are pulled this far inside (-1, 1), where atanh is finite


class SampledActions(NamedTuple):
    """Actions in [-1, 1], ``(batch, action_dim)``, and their log-densities, ``(batch,)``."""

    actions: Tensor
    logprobs: Tensor


class SquashedGaussianActor(nn.Module):
    """a = tanh(u), u ~ N(mean(s), std(s)), with log-std clamped to [-20, 2] (arXiv:1812.05905, appendix C)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, 2 * action_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std of the Gaussian before squashing, each ``(batch, action_dim)``."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(
        self, obs: Tensor, generator: torch.Generator | None = None, sample_shape: tuple[int, ...] = ()
    ) -> SampledActions:
        """Reparameterised actions with their log-densities; ``sample_shape`` of them for every observation."""
        mean, log_std = self(obs)
        noise = torch.randn((*sample_shape, *mean.shape), generator=generator, device=mean.device, dtype=mean.dtype)
        pre_tanh = mean + log_std.exp() * noise
        return SampledActions(torch.tanh(pre_tanh), squashed_logprobs(noise, log_std, pre_tanh))

    def logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-density of given actions, ``(batch,)``."""
        mean, log_std = self(obs)
        pre_tanh = torch.atanh(actions.clamp(-ACTION_LIMIT, ACTION_LIMIT))
        return squashed_logprobs((pre_tanh - mean) * (-log_std).exp(), log_std, pre_tanh)

    def mean_actions(self, obs: Tensor) -> Tensor:
        """tanh of the mean: the policy used for evaluation."""
        mean, _ = self(obs)
        return torch.tanh(mean)


def squashed_from_plain(plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a :class:`SquashedGaussianActor` that has the layers, mean and log-std of a plain Gaussian one.

    What the plain policy takes as its mean is squashed by the new one: tanh(mean), about the same where it is small.
    """
    squashed = {name: tensor for name, tensor in plain.items() if name != "log_std"}
    last = max(int(name.split(".")[2]) for name in squashed)
    weight, bias = (squashed[f"net.layers.{last}.{kind}"] for kind in ("weight", "bias"))
    squashed[f"net.layers.{last}.weight"] = torch.cat((weight, torch.zeros_like(weight)))
    squashed[f"net.layers.{last}.bias"] = torch.cat((bias, plain["log_std"]))
    return squashed


def squashed_logprobs(noise: Tensor, log_std: Tensor, pre_tanh: Tensor) -> Tensor:
    """log N(noise; 0, 1) - log std - log(1 - tanh(u)^2), summed over action dimensions.

    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays finite where 1 - tanh(u)^2 underflows.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    correction = 2.0 * (math.log(2.0) - pre_tanh - F.softplus(-2.0 * pre_tanh))
    return (gaussian - correction).sum(dim=-1)
