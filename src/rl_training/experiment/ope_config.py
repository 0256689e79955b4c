"""The ``ope`` section of a configuration: off-policy evaluation, on the way through a run or of a finished agent."""

from __future__ import annotations

from pydantic import Field

from rl_training.algorithms.base import LayerSizes
from rl_training.validation import Settings

OPE_METRICS = (
    "ope/fqe_value",
    "ope/fqe_low",
    "ope/fqe_high",
    "ope/td_error",
    "ope/action_distance",
    "ope/near_share",
    "ope/unsupported_share",
)
"""What a run with an ``ope`` section logs, and can stop early by."""


class FittedQConfig(Settings):
    """How fitted Q evaluation fits its own critics to a policy."""

    updates: int = Field(10_000, ge=1, description="gradient steps of a fit")
    gamma: float | None = Field(None, ge=0, lt=1, description="discount per step; the agent's own if none")
    num_critics: int = Field(5, ge=1, le=1000, description="critics, each fitted to its own sample of the episodes")
    hidden_sizes: LayerSizes = Field((64, 64), description="width of each hidden layer of a critic")
    layer_norm: bool = Field(False, description="LayerNorm in the critics, after each ReLU")
    learning_rate: float = Field(1e-3, gt=0, description="step size of Adam at the start; it falls linearly to 0")
    batch_size: int = Field(128, ge=1, description="transitions per gradient step")
    tau: float = Field(0.05, gt=0, le=1, description="share of the critics in each target update")
    held_out_share: float = Field(0.1, gt=0, lt=1, description="share of the episodes kept for the TD error")


class OPEConfig(FittedQConfig):
    """Off-policy evaluation on the way: every ``interval`` steps, critics are fitted anew to the policy."""

    interval: int = Field(5_000, ge=1, description="steps between evaluations")
