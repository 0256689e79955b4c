"""The data of an offline run: made, loaded or mixed as configured, and drawn from by the loop."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import Hyperparameters
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.file_readers import minari_metadata
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import MixedDataset, mix_transition_datasets
from rl_training.data.transforms import RewardScaling
from rl_training.data.transition_rows import build_dataset
from rl_training.envs.factory import EnvFactory, make_env
from rl_training.envs.spec import ActionScaler
from rl_training.experiment.config import DatasetConfig, DatasetSource, TrainConfig
from rl_training.experiment.reference_scores import ReferenceReturns, reference_returns
from rl_training.runtime.recording import record_transitions
from rl_training.seeding import stream_seed
from rl_training.types import ConfigError, DataError, EnvSpec, Metrics

logger = logging.getLogger("rl_training")

Dataset = TransitionDataset | MixedDataset
RANDOM_SIZE = 20_000


def load_dataset(config: TrainConfig, env_spec: EnvSpec | None, env: str | EnvFactory | None) -> Dataset:
    """The dataset that a configuration asks for, transformed as it asks, drawn from by a stream of the run's seed."""
    settings = config.dataset or DatasetConfig()
    seed = stream_seed(config.seed, "sample")
    if settings.kind != "mix":
        dataset = load_source(settings, env_spec, env, config.env_kwargs)
    else:
        parts = [load_source(part, env_spec, env, config.env_kwargs) for part in settings.parts]
        weights = [part.weight for part in settings.parts]
        if settings.size is None:
            own = [_transformed(part, config).with_seed(seed + 1 + index) for index, part in enumerate(parts)]
            return MixedDataset(own, weights, seed=seed)
        dataset = mix_transition_datasets(parts, weights=weights, total_size=settings.size, seed=settings.seed or 0)
    dataset = _transformed(dataset, config)
    if settings.normalize_observations:
        dataset = dataset.with_normalized_observations()
    return dataset.with_seed(seed)


def _transformed(dataset: TransitionDataset, config: TrainConfig) -> TransitionDataset:
    scaling = reward_scaling(dataset, config)
    return dataset.with_reward_transform(scaling.scale, scaling.shift, scaling.clip_min, scaling.clip_max)


def reward_scaling(dataset: TransitionDataset, config: TrainConfig) -> RewardScaling:
    """What a run's learner sees of the rewards of a dataset."""
    reward, factor = config.reward, 1.0
    if config.dataset is not None and config.dataset.normalize_rewards:
        factor = 1000.0 / return_range(dataset)
    return RewardScaling(factor * reward.scale, reward.shift, reward.clip_min, reward.clip_max)


def return_range(dataset: TransitionDataset) -> float:
    """Largest minus smallest return of an episode, the measure by which IQL's authors scale rewards (arXiv:2110.06169)."""
    if dataset.episode_ends is None or len(dataset.episode_ends) < 2:
        raise DataError("normalize_rewards compares episodes, and the data has fewer than two that are known")
    starts = np.concatenate(([0], dataset.episode_ends[:-1]))
    returns = np.add.reduceat(dataset.rewards.numpy().astype(np.float64), starts)
    if returns.max() == returns.min():
        raise DataError("normalize_rewards: every episode has the same return, there is nothing to scale by")
    return float(returns.max() - returns.min())


def load_source(
    source: DatasetSource, env_spec: EnvSpec | None, env: str | EnvFactory | None, env_kwargs: dict[str, Any]
) -> TransitionDataset:
    """One source of transitions as it was recorded, but for actions, which are scaled to [-1, 1]."""
    if source.kind == "random":
        if env is None or env_spec is None:
            raise ConfigError("dataset.kind random plays an environment: set env_id")
        return collect_random_dataset(
            make_env(env, env_kwargs), env_spec, size=source.size or RANDOM_SIZE, seed=source.seed or 0
        )
    low: Any = source.action_low
    high: Any = source.action_high
    if low is None and env_spec is not None and env_spec.action_kind == "continuous":
        low, high = env_spec.action_low, env_spec.action_high
    return load_transition_dataset(
        source.kind,
        dataset_path=source.path or "",
        columns=source.columns,
        time_limit=source.time_limit,
        action_low=None if low is None else np.asarray(low),
        action_high=None if high is None else np.asarray(high),
        clip_actions=source.clip_actions,
        memory_map=source.memory_map,
        cache_dir=source.cache_dir,
    )


def collect_random_dataset(env: gym.Env[Any, Any], env_spec: EnvSpec, *, size: int, seed: int) -> TransitionDataset:
    """``size`` steps of a uniformly random policy, in order; the same for the same seed."""
    scaler = ActionScaler(env_spec)
    raw = record_transitions(env, random_choice(env_spec, seed), steps=size, seed=seed)
    env.close()
    return build_dataset(raw, scaler.from_env(np.asarray(raw.actions)))


def random_choice(env_spec: EnvSpec, seed: int) -> Callable[[Any], Any]:
    """A uniformly random policy in the environment's units."""
    scaler, rng = ActionScaler(env_spec), np.random.default_rng(stream_seed(seed, "data"))

    def choose(obs: Any) -> Any:
        if env_spec.action_kind == "discrete":
            return scaler.to_env(rng.integers(env_spec.num_actions, size=1))[0]
        return scaler.to_env(rng.uniform(-1, 1, (1, env_spec.action_dim)))[0]

    return choose


def spec_of_data(dataset: Dataset, settings: DatasetConfig | None) -> EnvSpec:
    """The task as the data shows it, for runs without an environment."""
    layout = (dataset.parts[0] if isinstance(dataset, MixedDataset) else dataset).layout
    if layout.action_kind == "discrete":
        raise DataError("the data has discrete actions; the offline algorithms take continuous ones")
    low, high = (-1.0, 1.0) if settings is None or settings.action_low is None else (settings.action_low, settings.action_high)

    def bounds(value: Any) -> tuple[float, ...]:
        return tuple(float(x) for x in np.broadcast_to(np.asarray(value, dtype=np.float64), (layout.action_dim,)))

    return EnvSpec(
        env_id="",
        obs_shape=(layout.obs_dim,),
        action_kind="continuous",
        action_shape=(layout.action_dim,),
        action_dtype="float32",
        action_low=bounds(low),
        action_high=bounds(high),
    )


def require_fit(dataset: Dataset, env_spec: EnvSpec, hp: Hyperparameters) -> None:
    """Refuse data of another task, and say when a method will miss something in it."""
    for part in dataset.parts if isinstance(dataset, MixedDataset) else [dataset]:
        layout = part.layout
        if len(part) == 0:
            raise DataError("the data has no row with a next observation of its own: there is nothing to learn from")
        if (layout.obs_dim, layout.action_dim, layout.action_kind) != (
            env_spec.obs_dim,
            env_spec.action_dim,
            env_spec.action_kind,
        ):
            raise DataError(
                f"the data has {layout.obs_dim} observation and {layout.action_dim} {layout.action_kind} action dimensions, "
                f"{env_spec.env_id} has {env_spec.obs_dim} and {env_spec.action_dim} {env_spec.action_kind}"
            )
        if getattr(hp, "critic_bc_weight", 0) > 0 and not layout.has_next_actions:
            logger.warning("The data has no next actions: the critic's penalty (critic_bc_weight) is left out")


def score_reference(config: TrainConfig) -> ReferenceReturns | None:
    """What 0 and 100 percent stand for: the Minari dataset's own scores, else D4RL's for the environment."""
    if config.dataset is not None and config.dataset.kind == "minari" and config.dataset.path:
        metadata = minari_metadata(config.dataset.path)
        low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
        if low is not None and high is not None:
            if not all(_is_real(score) for score in (low, high)) or low == high:
                raise DataError(
                    f"metadata.json of {config.dataset.path}: ref_min_score and ref_max_score must be two finite numbers, "
                    f"got {low!r:.80} and {high!r:.80}"
                )
            return ReferenceReturns(float(low), float(high))
    return reference_returns(config.env_id) if config.spec.loop == "offline" or config.finetune else None


def _is_real(value: object) -> bool:
    """Whether a value from a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class OfflineSource:
    """A dataset as a run's source of batches."""

    def __init__(self, dataset: Dataset, *, device: str) -> None:
        self.dataset, self.device = dataset, device

    def sample(self, batch_size: int) -> Any:
        """One batch on the run's device."""
        return self.dataset.sample(batch_size, self.device)

    def metrics(self) -> Metrics:
        """Size of the data, and for a mixture how many transitions each part has given."""
        row = {"data/dataset_size": float(len(self.dataset))}
        if isinstance(self.dataset, MixedDataset):
            row |= {f"data/drawn_from_{index}": float(count) for index, count in enumerate(self.dataset.counts)}
        return row

    def state_dict(self) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
        """The data's fingerprint and the sampler's state; the data itself is not copied into checkpoints."""
        return {"fingerprint": self.dataset.fingerprint()}, {"replay": self.dataset.state_dict()}

    def load_state_dict(self, data: dict[str, Any], parts: dict[str, dict[str, torch.Tensor]]) -> bool:
        """Continue drawing where a checkpoint stood, from the same data."""
        if data["fingerprint"] != self.dataset.fingerprint():
            raise ValueError("the dataset is not the one that the checkpoint was trained on")
        self.dataset.load_state_dict(parts["replay"])
        return True
