"""The data of a fine-tuning run: seen by the agent as in its offline training, and so are the transitions that join them."""

from __future__ import annotations

import numpy as np

from rl_training.algorithms.base import Hyperparameters
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import MixedDataset
from rl_training.data.return_bounds import RunningReturns, worst_return
from rl_training.data.transforms import ObservationNormalizer, RewardScaling
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.offline_data import Dataset, load_dataset
from rl_training.types import ConfigError, DataError, EnvSpec


def load_finetuning_data(
    config: TrainConfig,
    env_spec: EnvSpec,
    env: str | EnvFactory,
    given: Dataset | None,
    agent: Checkpoint,
    normalizer: ObservationNormalizer | None,
) -> tuple[Dataset, RewardScaling]:
    """The data with observations normalised as the agent's are, and the scaling that rewards of the environment need."""
    if config.dataset is not None and config.dataset.normalize_observations and normalizer is None:
        raise ConfigError("dataset.normalize_observations must be false: the agent was trained on observations as they are")
    dataset = load_dataset(config, env_spec, env) if given is None else given
    if given is None and agent.manifest["config"].get("dataset") == config.to_dict()["dataset"]:
        _require_data_of(agent, dataset)
    if isinstance(dataset, MixedDataset):
        mixture = dataset.map(lambda part: part.with_normalizer(normalizer))
        return mixture, mixture.parts[0].reward_scaling  # one reward transform for all parts
    return dataset.with_normalizer(normalizer), dataset.reward_scaling


def _require_data_of(agent: Checkpoint, dataset: Dataset) -> None:
    """What the checkpoint's configuration leads to must be what the agent learnt from."""
    trained_on = agent.manifest["source"].get("fingerprint")
    if trained_on != dataset.fingerprint():
        raise DataError(
            f"{agent.path} was trained on other data than its configuration leads to here (a file that has changed, another "
            "environment for the random recipe, or transitions given in Python): name the data with --dataset or dataset="
        )


def with_needed_returns(dataset: Dataset, hp: Hyperparameters) -> Dataset:
    """The data with bounds of their returns, for a method that compares values with them (Cal-QL)."""
    if not getattr(hp, "calibrated", False):
        return dataset
    if isinstance(dataset, MixedDataset):
        return dataset.map(lambda part: part.with_return_bounds(hp.gamma))
    return dataset.with_return_bounds(hp.gamma)


def running_returns_for(dataset: Dataset, hp: Hyperparameters, num_envs: int, capacity: int) -> RunningReturns | None:
    """The books that transitions of the environment need to have returns too; their worst reward is the data's."""
    if not getattr(hp, "calibrated", False):
        return None
    parts: list[TransitionDataset] = dataset.parts if isinstance(dataset, MixedDataset) else [dataset]
    rewards = np.array([float(part.rewards.min()) for part in parts], dtype=np.float32)
    return RunningReturns(num_envs=num_envs, capacity=capacity, gamma=hp.gamma, worst=worst_return(rewards, hp.gamma))
