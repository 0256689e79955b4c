"""Off-policy evaluation of stored agents: ``rl-training ope`` and ``agent.ope()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rl_training.data.dataset_loaders import find_source
from rl_training.data.inspection import dataset_kind
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import DatasetConfig, TrainConfig
from rl_training.experiment.ope_config import FittedQConfig
from rl_training.runtime.offline_data import load_source, reward_scaling
from rl_training.runtime.ope.evaluation import discount_of, evaluate_policy_off_policy
from rl_training.runtime.ope.result import OPEResult
from rl_training.runtime.policy import Policy, load_policy
from rl_training.runtime.workflows import config_of
from rl_training.seeding import stream_seed
from rl_training.types import ConfigError

Data: TypeAlias = TransitionDataset | DatasetConfig | str | Path


@dataclass(frozen=True)
class StoredAgent:
    """An agent out of a checkpoint, ready to be valued."""

    name: str
    step: int
    config: TrainConfig
    policy: Policy

    @classmethod
    def load(cls, path: str | Path) -> StoredAgent:
        """From a run directory, a checkpoint or a pointer."""
        checkpoint = find_checkpoint(path)
        config = config_of(checkpoint)
        return cls(str(path), int(checkpoint.manifest["trainer"]["global_step"]), config, load_policy(checkpoint))


def evaluate_off_policy(
    checkpoint: str | Path, dataset: Data | None = None, *, kind: str | None = None, seed: int = 0, **settings: Any
) -> OPEResult:
    """The value of a stored agent by fitted Q evaluation on a dataset; no environment is played.

    ``dataset`` is a file, a Minari id, a :class:`DatasetConfig` or a :class:`TransitionDataset` (with actions in [-1, 1]);
    without it, the data the agent was trained on. ``settings`` are those of :class:`FittedQConfig`, such as ``updates`` and
    ``gamma``. The same seed gives the same result.
    """
    (result,) = rank_checkpoints([checkpoint], dataset, kind=kind, seed=seed, **settings)
    return result


def rank_checkpoints(
    checkpoints: Sequence[str | Path],
    dataset: Data | None = None,
    *,
    kind: str | None = None,
    seed: int = 0,
    on_result: Callable[[OPEResult], None] = lambda result: None,
    **settings: Any,
) -> list[OPEResult]:
    """Evaluate several stored agents on the same data, with the same discount and random numbers; the best first."""
    config = FittedQConfig(**settings)
    agents = [StoredAgent.load(path) for path in checkpoints]
    _require_one_discount(config, agents)
    results = []
    for agent, data in zip(agents, _data_of(agents, dataset, kind), strict=True):
        result = evaluate_policy_off_policy(
            agent.policy,
            data,
            config,
            seed=stream_seed(seed, "ope"),
            name=agent.name,
            algo=agent.config.algo,
            global_step=agent.step,
            scaling=reward_scaling(data, agent.config),
        )
        assert result is not None  # nothing interrupts this evaluation
        on_result(result)
        results.append(result)
    return sorted(results, key=lambda result: -result.fqe_value)


def _require_one_discount(config: FittedQConfig, agents: Sequence[StoredAgent]) -> None:
    discounts = {discount_of(config, agent.policy) for agent in agents}
    if len(discounts) > 1:
        raise ConfigError(
            f"the agents have different discounts ({', '.join(f'{gamma:g}' for gamma in sorted(discounts))}), so their values "
            "do not compare: choose one gamma"
        )


def _data_of(agents: Sequence[StoredAgent], given: Data | None, kind: str | None) -> list[TransitionDataset]:
    """The same data for every agent, loaded once, with actions scaled as the agents scale them."""
    if isinstance(given, TransitionDataset):
        return [given] * len(agents)
    loaded: dict[tuple[str, str], TransitionDataset] = {}
    chosen = []
    for agent in agents:
        source, spec = _source_of(agent, given, kind), agent.policy.env_spec
        key = (source.model_dump_json(), str((spec.action_low, spec.action_high)))
        if key not in loaded:
            loaded[key] = load_source(source, spec, agent.config.env_id, agent.config.env_kwargs)
        chosen.append(loaded[key])
    if len({data.fingerprint() for data in loaded.values()}) > 1:
        raise ConfigError(
            "the agents were trained on different data or scale actions differently, so their values do not compare: "
            "name one dataset, and rank agents of one task"
        )
    return chosen


def _source_of(agent: StoredAgent, given: Data | None, kind: str | None) -> DatasetConfig:
    if isinstance(given, str | Path):
        found, _ = find_source(kind or dataset_kind(given), given)
        source = DatasetConfig(kind=found, path=str(given))
    elif isinstance(given, DatasetConfig):
        source = given
    elif agent.config.dataset is not None:
        source = agent.config.dataset
    elif agent.config.spec.loop == "online":
        raise ConfigError(f"{agent.name} learnt online, so there is no dataset to evaluate it on: name one")
    else:
        source = DatasetConfig()
    if source.kind == "mix":
        raise ConfigError("a mixture has no whole episodes to evaluate on: name one dataset")
    return source
