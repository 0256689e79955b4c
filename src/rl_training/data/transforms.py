"""What a learner sees of rewards and observations, where that is not the raw data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-3  # added to every standard deviation, as in TD3+BC's code


@dataclass(frozen=True)
class RewardScaling:
    """``clip(scale * reward + shift, clip_min, clip_max)``."""

    scale: float = 1.0
    shift: float = 0.0
    clip_min: float | None = None
    clip_max: float | None = None

    def __call__(self, rewards: Tensor) -> Tensor:
        """Apply it."""
        rewards = rewards * self.scale + self.shift
        if self.clip_min is not None or self.clip_max is not None:
            rewards = rewards.clamp(self.clip_min, self.clip_max)
        return rewards


@dataclass(frozen=True)
class ObservationNormalizer:
    """``(obs - mean) / std``; part of the agent that was trained with it."""

    mean: Tensor
    std: Tensor

    def __call__(self, obs: Tensor) -> Tensor:
        """Apply it."""
        return (obs - self.mean) / self.std

    @classmethod
    def of(cls, observations: Tensor, *, chunk: int = 1_000_000) -> ObservationNormalizer:
        """From raw observations ``(rows, obs_dim)``, in pieces, so that a mapped file is never in memory as a whole."""
        size = observations.shape[1]
        chunk = min(chunk, max(1, 2**25 // max(1, size)))  # wide observations: 256 MB of float64 at most
        total, squares = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        for piece in observations.split(chunk):
            total += piece.double().sum(dim=0)
            squares += piece.double().square().sum(dim=0)
        mean = total / len(observations)
        variance = (squares / len(observations) - mean.square()).clamp_min(0.0)
        return cls(mean.float(), (variance.sqrt() + STD_FLOOR).float())
