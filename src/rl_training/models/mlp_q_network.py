"""Action values of a discrete task."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.mlp import MLP


class MLPQNetwork(nn.Module):
    """Q(s, .) for every action at once."""

    def __init__(self, obs_dim: int, num_actions: int, hidden_sizes: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.obs_dim, self.num_actions = obs_dim, num_actions
        self.net = MLP(obs_dim, hidden_sizes, num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        """``(batch, obs_dim) -> (batch, num_actions)``."""
        values: Tensor = self.net(obs)
        return values
