"""Deterministic actor of behaviour cloning."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.mlp import DeterministicActor


class MLPBCModel(nn.Module):
    """A deterministic actor and nothing else."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.actor = DeterministicActor(obs_dim, action_dim, hidden_sizes)

    def actions(self, obs: Tensor) -> Tensor:
        """The policy's actions in [-1, 1]."""
        actions: Tensor = self.actor(obs)
        return actions
