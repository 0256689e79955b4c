"""Deterministic actor and single critic of DDPG."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import Critic, DeterministicActor


class MLPDDPGModel(nn.Module):
    """Deterministic actor and one critic; the action enters the critic's first layer."""

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
        self.actor = DeterministicActor(obs_dim, action_dim, hidden_sizes)
        self.critic = Critic(obs_dim, action_dim, critic_hidden_sizes or hidden_sizes, layer_norm=layer_norm)

    def actions(self, obs: Tensor) -> Tensor:
        """The policy's actions in [-1, 1]."""
        actions: Tensor = self.actor(obs)
        return actions

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """``(batch,)``."""
        values: Tensor = self.critic(torch.cat((obs, actions), dim=-1))
        return values
