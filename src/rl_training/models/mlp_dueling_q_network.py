"""Action values as a state value plus advantages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import MLP


class MLPDuelingQNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean_b A(s, b) (arXiv:1511.06581, equation 9), split after a shared trunk."""

    def __init__(self, obs_dim: int, num_actions: int, hidden_sizes: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.obs_dim, self.num_actions = obs_dim, num_actions
        *trunk, width = hidden_sizes
        self.trunk = MLP(obs_dim, trunk, width)
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        """``(batch, obs_dim) -> (batch, num_actions)``."""
        features = torch.relu_(self.trunk(obs))
        return dueling_values(self.value(features), self.advantage(features))


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """V + A - mean A: the mean, not the maximum, is taken off."""
    return value + advantages - advantages.mean(dim=-1, keepdim=True)
