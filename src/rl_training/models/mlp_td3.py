"""Deterministic actor and twin critics of TD3; TD3+BC and ReBRAC use the same model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.mlp import DeterministicActor, TwinCritics


class MLPTD3Model(nn.Module):
    """Deterministic actor and two critics with separate networks.

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
        self.actor = DeterministicActor(obs_dim, action_dim, hidden_sizes)
        self.critics = TwinCritics(obs_dim, action_dim, critic_hidden_sizes or hidden_sizes, layer_norm=layer_norm)

    def actions(self, obs: Tensor) -> Tensor:
        """The policy's actions in [-1, 1]."""
        actions: Tensor = self.actor(obs)
        return actions

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """``q1, q2``, each ``(batch,)``."""
        q1, q2 = self.critics(obs, actions)
        return q1, q2
