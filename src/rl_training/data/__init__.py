"""Transitions: where they are kept and how batches are drawn from them."""

from rl_training.data.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
