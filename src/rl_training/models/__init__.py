"""Networks: tensors in, tensors out. No optimiser, no target copy, no numpy."""

from rl_training.models.mlp_sac import MLPSACModel

__all__ = ["MLPSACModel"]
