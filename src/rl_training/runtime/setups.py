"""What a run learns from and with, for each of the three kinds of run: put together from the configuration."""

from __future__ import annotations

import logging
from typing import Any, cast

from rl_training.algorithms.base import Algorithm, OnlineHyperparameters
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.return_bounds import RunningReturns
from rl_training.data.transforms import ObservationNormalizer, RewardScaling
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.spec import require_actions
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import RewardTransform, TrainConfig
from rl_training.runtime.collector import Collector
from rl_training.runtime.finetuning_data import load_finetuning_data, running_returns_for, with_needed_returns
from rl_training.runtime.handover import hand_over, normalizer_of, require_fitting_agent
from rl_training.runtime.mixed_experience import MixedExperience
from rl_training.runtime.offline_data import Dataset, OfflineSource, load_dataset, require_fit, score_reference, spec_of_data
from rl_training.runtime.offline_loop import run_offline
from rl_training.runtime.online_loop import run_online
from rl_training.runtime.ope.evaluation import OPEMonitor
from rl_training.runtime.policy import Policy
from rl_training.runtime.run import Run
from rl_training.seeding import stream_seed
from rl_training.types import ConfigError, EnvSpec

logger = logging.getLogger("rl_training")


class Setup:
    """What ``execute`` needs of a kind of run."""

    env_spec: EnvSpec
    algorithm: Algorithm
    source: Any
    """Where the batches come from; its state is part of every checkpoint."""
    facts: dict[str, Any]
    """For the run's metadata."""
    run_options: dict[str, Any]
    """Further arguments of :class:`Run`."""

    def start(self) -> None:
        """Begin, in a run that does not continue another."""

    def loop(self, run: Run) -> None:
        """Learn until the run is finished."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what was opened."""


class _WithEnvironments(Setup):
    """What learning online and fine-tuning share: the loop, and environments that are opened and closed."""

    collector: Collector
    hyperparameters: OnlineHyperparameters

    def start(self) -> None:
        """Begin the first episodes."""
        self.collector.start()

    def loop(self, run: Run) -> None:
        """Learn until the run is finished."""
        run_online(run, self.source, self.hyperparameters)

    def close(self) -> None:
        """Close the environments."""
        self.collector.envs.close()


class OnlineSetup(_WithEnvironments):
    """What is special to learning from environments: they, the replay buffer and the collector."""

    def __init__(self, config: TrainConfig, source: str | EnvFactory | None, env_spec: EnvSpec | None, device: str) -> None:
        assert source is not None  # the configuration of an online algorithm has an environment
        assert env_spec is not None
        self.env_spec = env_spec
        self.algorithm = _build_algorithm(config, env_spec, device)
        self.hyperparameters = cast(OnlineHyperparameters, self.algorithm.hp)
        self.source = self.collector = _make_collector(
            config, source, env_spec, device, self.algorithm, self.hyperparameters, reward=config.reward
        )
        self.facts = {}
        self.run_options = {}


def _make_collector(
    config: TrainConfig,
    source: str | EnvFactory,
    env_spec: EnvSpec,
    device: str,
    algorithm: Algorithm,
    hp: OnlineHyperparameters,
    *,
    reward: RewardTransform | RewardScaling,
    normalizer: ObservationNormalizer | None = None,
    running_returns: RunningReturns | None = None,
) -> Collector:
    """The environments, and the replay buffer that their transitions go to."""
    buffer = ReplayBuffer(
        hp.buffer_capacity,
        env_spec.obs_dim,
        env_spec.action_dim,
        action_kind=env_spec.action_kind,
        with_discounts=getattr(hp, "n_step", 1) > 1,
        with_returns=running_returns is not None,
        device=device,
        seed=stream_seed(config.seed, "sample"),
    )
    envs = make_vector_env(
        source,
        config.env_kwargs,
        num_envs=config.num_envs,
        seed=config.seed,
        asynchronous=config.vectorization == "async",
    )
    return Collector(
        envs=envs,
        num_envs=config.num_envs,
        env_spec=env_spec,
        buffer=buffer,
        algorithm=algorithm,
        hyperparameters=hp,
        reward=reward,
        seed=stream_seed(config.seed, "explore"),
        normalizer=normalizer,
        running_returns=running_returns,
    )


class OfflineSetup(Setup):
    """What is special to learning from data: the dataset, its normaliser, its epochs."""

    def __init__(
        self,
        config: TrainConfig,
        source: str | EnvFactory | None,
        env_spec: EnvSpec | None,
        device: str,
        dataset: Dataset | None,
    ) -> None:
        dataset = load_dataset(config, env_spec, source) if dataset is None else dataset
        self.env_spec = spec_of_data(dataset, config.dataset) if env_spec is None else env_spec
        if source is None and config.eval_episodes > 0:
            logger.warning("There is no env_id: the run is not evaluated")
        self.algorithm = _build_algorithm(config, self.env_spec, device)
        require_fit(dataset, self.env_spec, self.algorithm.hp)
        dataset = with_needed_returns(dataset, self.algorithm.hp)
        self.source = OfflineSource(dataset, device=device)
        self.facts = {"dataset": {"rows": len(dataset), "fingerprint": dataset.fingerprint()}}
        normalizer = getattr(dataset, "normalizer", None)
        self.run_options = {
            "normalizer": normalizer,
            "score_reference": score_reference(config),
            "updates_per_epoch": len(dataset) / self.algorithm.hp.batch_size,
            "ope": _ope_monitor(config, dataset, Policy(self.algorithm, self.env_spec, normalizer=normalizer)),
        }

    def loop(self, run: Run) -> None:
        """Learn until the run is finished."""
        run_offline(run, self.source, self.algorithm.hp.batch_size)


class FinetuningSetup(_WithEnvironments):
    """What is special to an offline agent that goes on online: its checkpoint, and its data beside the environments.

    ``resumed`` is the run's own checkpoint; without one, the run starts from that of the offline agent.
    """

    def __init__(
        self,
        config: TrainConfig,
        source: str | EnvFactory | None,
        env_spec: EnvSpec | None,
        device: str,
        dataset: Dataset | None,
        resumed: Checkpoint | None,
    ) -> None:
        assert config.finetune is not None
        assert source is not None  # the configuration of a fine-tuning run has an environment
        assert env_spec is not None
        self.env_spec = env_spec
        agent = find_checkpoint(config.finetune.checkpoint) if resumed is None else resumed
        require_fitting_agent(agent, config.algo, env_spec, resuming=resumed is not None)
        self.algorithm = _build_algorithm(config, env_spec, device)
        hp = self.algorithm.hp
        self.hyperparameters = OnlineHyperparameters(batch_size=hp.batch_size, gamma=hp.gamma, **config.finetune.loop_settings)
        normalizer = normalizer_of(agent)
        dataset, scaling = load_finetuning_data(config, env_spec, source, dataset, agent, normalizer)
        require_fit(dataset, env_spec, hp)
        dataset = with_needed_returns(dataset, hp)
        self.facts = {"dataset": {"rows": len(dataset), "fingerprint": dataset.fingerprint()}}
        if resumed is None:
            self.facts["finetune"] = hand_over(agent, self.algorithm, config.algo)
        self.collector = _make_collector(
            config,
            source,
            env_spec,
            device,
            self.algorithm,
            self.hyperparameters,
            reward=scaling,
            normalizer=normalizer,
            running_returns=running_returns_for(dataset, hp, config.num_envs, config.finetune.buffer_capacity),
        )
        self.source = MixedExperience(self.collector, dataset, config.finetune.offline_share, device=device)
        self.run_options = {
            "normalizer": normalizer,
            "score_reference": score_reference(config),
            "evaluates_at_start": True,
        }


def _ope_monitor(config: TrainConfig, dataset: Dataset, policy: Policy) -> OPEMonitor | None:
    if config.ope is None:
        return None
    if not isinstance(dataset, TransitionDataset):
        raise ConfigError("ope values a policy at the starts of episodes, which a mixture does not have")
    return OPEMonitor(config.ope, dataset, policy, seed=config.seed)


def _build_algorithm(config: TrainConfig, env_spec: EnvSpec, device: str) -> Algorithm:
    require_actions(env_spec, config.spec.actions, config.algo)
    return config.spec.build(env_spec, config.hyperparameters, device=device, seed=stream_seed(config.seed, "init"))
