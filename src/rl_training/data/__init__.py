"""Transitions: where they are kept and how batches are drawn from them."""

from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset, compute_discounted_returns_to_go
from rl_training.data.offline_mixers import MixedDataset, mix_transition_datasets
from rl_training.data.replay_buffer import ReplayBuffer

__all__ = [
    "MixedDataset",
    "ReplayBuffer",
    "TransitionDataset",
    "compute_discounted_returns_to_go",
    "load_transition_dataset",
    "mix_transition_datasets",
]
