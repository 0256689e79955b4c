"""What the maximum-entropy methods (SAC, TQC, REDQ, CQL) share: the actor's loss and the learned temperature."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import ActorCriticHyperparameters, Hyperparameters
from rl_training.types import Terms


class TemperatureSettings(Hyperparameters):
    """The temperature's settings."""

    alpha: float = Field(1.0, gt=0, description="initial temperature; the fixed one when learn_alpha is false")
    learn_alpha: bool = Field(True, description="tune the temperature towards target_entropy")
    target_entropy: float | None = Field(None, description="entropy to hold; minus the number of action dimensions if none")


class EntropyHyperparameters(TemperatureSettings, ActorCriticHyperparameters):
    """What the online maximum-entropy methods share."""


def entropy_actor_loss(*, logprobs: Tensor, q_values: Tensor, alpha: Tensor) -> Terms:
    """mean (alpha log pi - Q); ``logprobs`` and ``q_values`` are ``(batch,)``."""
    if logprobs.shape != q_values.shape:
        raise ValueError(f"logprobs {tuple(logprobs.shape)} and q_values {tuple(q_values.shape)} differ in shape")
    entropy_term = (alpha * logprobs).mean()
    return {
        "actor_loss": entropy_term - q_values.mean(),
        "entropy_term": entropy_term.detach(),
        "entropy": -logprobs.detach(),
    }


class Temperature(nn.Module):
    """alpha = exp(log_alpha), moved so that the policy's entropy settles at ``target_entropy``.

    The loss is in log(alpha) and not, as in arXiv:1812.05905 equation 18, in alpha: the fixed point is the same, and the
    step does not shrink as alpha does.
    """

    def __init__(self, hp: TemperatureSettings, action_dim: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(hp.alpha)))
        self.target_entropy = -float(action_dim) if hp.target_entropy is None else hp.target_entropy

    def forward(self) -> Tensor:
        """alpha, a scalar."""
        return self.log_alpha.exp()

    def loss(self, logprobs: Tensor) -> Terms:
        """-log(alpha) mean (log pi + target entropy): alpha grows while the entropy is below its target."""
        return {"alpha_loss": -self.log_alpha * (logprobs.detach().mean() + self.target_entropy)}
