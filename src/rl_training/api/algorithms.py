"""Agents as objects: ``SAC(TrainConfig(...)).learn()``, or short, ``SAC("Pendulum-v1", learning_rate=1e-3).learn(20_000)``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy.typing as npt
from rich.console import Console
from typing_extensions import Self

from rl_training.algorithms import ALGORITHMS
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import MixedDataset
from rl_training.envs.factory import EnvFactory, env_name, factory_of
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import delete, writing
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.exporting import ExportedPolicy, ExportFormat, export_policy
from rl_training.runtime.finetuning import finetune
from rl_training.runtime.ope.checkpoints import Data, evaluate_off_policy
from rl_training.runtime.ope.result import OPEResult
from rl_training.runtime.policy import Policy
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import train
from rl_training.runtime.workflows import config_of, evaluate_checkpoint, resume_training
from rl_training.types import CheckpointError, ConfigError, Metrics

DEFAULT_TIMESTEPS = 20_000


class ManagedAlgorithm:
    """An agent with its configuration: learn, evaluate, predict, save, load, resume, export.

    Built from a :class:`TrainConfig`, or from an environment (an id, a factory or an instance, of which the run makes
    copies) and settings by name: settings of a run (``seed``, ``num_envs``, ``eval_interval``, ...) and hyper-parameters of
    the algorithm may be mixed freely. An offline algorithm takes its ``dataset`` so, as a mapping or as a
    :class:`TransitionDataset` with actions in [-1, 1], and can do without an environment.
    """

    algo: ClassVar[str]

    def __init__(
        self, config: TrainConfig | str | EnvFactory | gym.Env[Any, Any] | None = None, *others: object, **settings: Any
    ) -> None:
        if others:
            raise ConfigError(
                f"{type(self).__name__} takes the environment first and everything else by name, e.g. "
                f'{type(self).__name__}("Pendulum-v1", learning_rate=1e-3); there is no policy argument: '
                "networks are set with hidden_sizes"
            )
        if isinstance(config, gym.Env):
            config = factory_of(config)
        self._env = None if isinstance(config, TrainConfig | str) else config
        given = settings.get("dataset")
        self._dataset = settings.pop("dataset") if isinstance(given, TransitionDataset | MixedDataset) else None
        if isinstance(config, TrainConfig):
            if settings:
                raise ConfigError(f"settings belong into the TrainConfig; got {', '.join(sorted(settings))} beside one")
            if config.algo != self.algo:
                raise ConfigError(f"{type(self).__name__} was given a configuration with algo {config.algo!r}")
            self.config = config
        else:
            self.config = self._short_config(config, settings)
        self._checkpoint: Path | None = None
        self._policy: Policy | None = None

    def _short_config(self, env: str | EnvFactory | None, settings: dict[str, Any]) -> TrainConfig:
        own = set(get_algorithm_spec(self.algo).hyperparameters.model_fields)
        hyperparameters = {name: value for name, value in settings.items() if name in own}
        others = {name: value for name, value in settings.items() if name not in own}
        others.setdefault("total_timesteps", DEFAULT_TIMESTEPS)
        if "algo_kwargs" in others:
            hyperparameters = {**others.pop("algo_kwargs"), **hyperparameters}
        env_id = env if env is None or isinstance(env, str) else env_name(env)
        return TrainConfig(algo=self.algo, env_id=env_id, algo_kwargs=hyperparameters, **others)

    def learn(
        self, total_timesteps: int | None = None, *, callbacks: Iterable[object] = (), progress_bar: bool = False
    ) -> TrainResult:
        """Train to the budget. A second call continues the same run; it needs a larger ``total_timesteps``.

        ``progress_bar`` shows on the terminal what the command line shows.
        """
        if total_timesteps is not None:
            self.config = self.config.replace(total_timesteps=total_timesteps)
        with contextlib.ExitStack() as display:
            if progress_bar:
                callbacks = [
                    *callbacks,
                    display.enter_context(contextlib.closing(ProgressDisplay(console=Console(stderr=True)))),
                ]
            if self._checkpoint is None:
                result = train(self.config, callbacks=callbacks, env=self._env, dataset=self._dataset)
            else:
                result = resume_training(
                    self._checkpoint,
                    self.config.total_timesteps,
                    callbacks=callbacks,
                    env=self._env,
                    dataset=self._dataset,
                )
        self._checkpoint, self._policy = result.checkpoint_path, None
        return result

    def resume(self, total_timesteps: int | None = None, *, callbacks: Iterable[object] = ()) -> TrainResult:
        """Continue from the last checkpoint, to the configured or a larger budget."""
        self._require_trained()
        return self.learn(total_timesteps, callbacks=callbacks)

    def finetune(
        self,
        env: str | EnvFactory | None = None,
        *,
        total_timesteps: int,
        callbacks: Iterable[object] = (),
        **settings: Any,
    ) -> TrainResult:
        """Go on online, in a run of its own, from what was learnt from data; this agent is then the fine-tuned one.

        ``env`` is the agent's own environment if none. ``settings`` are ``offline_share``, ``updates_per_step``,
        ``buffer_capacity``, ``dataset``, settings of a run and hyper-parameters. To go on as another method, see
        :func:`rl_training.runtime.finetuning.finetune`.
        """
        if "algo" in settings:
            raise ConfigError(
                f"a {type(self).__name__} stays one: to go on as {settings['algo']}, use runtime.finetuning.finetune"
            )
        chosen, data = self._env if env is None else env, settings.setdefault("dataset", self._dataset)
        result = finetune(self._require_trained(), chosen, total_timesteps=total_timesteps, callbacks=callbacks, **settings)
        assert result.checkpoint_path is not None  # a run that returns has saved
        self._env = None if isinstance(chosen, str) else chosen
        self._dataset = data if isinstance(data, TransitionDataset | MixedDataset) else None
        self.config = config_of(find_checkpoint(result.checkpoint_path))
        self._checkpoint, self._policy = result.checkpoint_path, None
        return result

    def evaluate(self, num_episodes: int | None = None, *, seed: int | None = None, deterministic: bool = True) -> Metrics:
        """Play episodes; returns ``eval_return_mean`` and company."""
        return evaluate_checkpoint(
            self._require_trained(), num_episodes, seed=seed, deterministic=deterministic, env=self._env
        )

    def ope(self, dataset: Data | None = None, *, seed: int = 0, **settings: Any) -> OPEResult:
        """Value this agent on a dataset (its own if none), without an environment; ``settings`` as ``updates``, ``gamma``.

        See :func:`rl_training.runtime.ope.checkpoints.evaluate_off_policy`.
        """
        return evaluate_off_policy(self._require_trained(), dataset, seed=seed, **settings)

    def predict(self, obs: npt.ArrayLike, *, deterministic: bool = True) -> Any:
        """One valid environment action for one observation, a batch for a batch. The policy stays in memory."""
        if self._policy is None:
            self._policy = Policy.from_checkpoint(self._require_trained())
        return self._policy.predict(obs, deterministic=deterministic)

    def save(self, path: str | Path) -> Path:
        """Copy the whole checkpoint (a directory) to ``path``; it must not exist yet."""
        source, target = self._require_trained(), Path(path)
        if target.exists():
            raise CheckpointError(f"{target} exists already; choose another path")
        half_made = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with writing(target):
                shutil.copytree(source, half_made)
                os.replace(half_made, target)
        finally:
            delete(half_made)
        return target

    def export(self, path: str | Path, *, format: ExportFormat | None = None) -> ExportedPolicy:
        """Write the policy as one ONNX (``.onnx``) or TorchScript (``.pt``) file that runs without this package."""
        return export_policy(self._require_trained(), path, format=format)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """An agent from a checkpoint or run directory: ready to predict, evaluate and resume."""
        checkpoint = find_checkpoint(path)
        agent = cls(config_of(checkpoint))
        agent._checkpoint = checkpoint.path
        agent._policy = Policy.from_checkpoint(checkpoint.path)
        return agent

    def _require_trained(self) -> Path:
        if self._checkpoint is None:
            raise CheckpointError(f"this {type(self).__name__} has not learnt anything yet: call learn() or load() first")
        return self._checkpoint

    def __repr__(self) -> str:
        state = f"trained, {self._checkpoint}" if self._checkpoint else "not trained"
        return f"{type(self).__name__}({self.config.env_id!r}, seed={self.config.seed}, {state})"


class DQN(ManagedAlgorithm):
    """Deep Q-Network, with double, dueling and n-step options."""

    algo = "dqn"


class DDPG(ManagedAlgorithm):
    """Deep Deterministic Policy Gradient."""

    algo = "ddpg"


class TD3(ManagedAlgorithm):
    """Twin Delayed DDPG."""

    algo = "td3"


class TQC(ManagedAlgorithm):
    """Truncated Quantile Critics."""

    algo = "tqc"


class REDQ(ManagedAlgorithm):
    """Randomized Ensembled Double Q-learning."""

    algo = "redq"


class SAC(ManagedAlgorithm):
    """Soft Actor-Critic with a learned temperature."""

    algo = "sac"


class BC(ManagedAlgorithm):
    """Behaviour cloning."""

    algo = "bc"


class IQL(ManagedAlgorithm):
    """Implicit Q-Learning."""

    algo = "iql"


class CQL(ManagedAlgorithm):
    """Conservative Q-Learning."""

    algo = "cql"


class TD3BC(ManagedAlgorithm):
    """TD3 with a cloning term, for fixed data."""

    algo = "td3_bc"


class AWAC(ManagedAlgorithm):
    """Advantage-weighted actor-critic."""

    algo = "awac"


class ReBRAC(ManagedAlgorithm):
    """TD3+BC with decoupled penalties and LayerNorm."""

    algo = "rebrac"


def _agents() -> dict[str, type[ManagedAlgorithm]]:
    """The classes above by name, and one for every registered algorithm that has none there."""
    agents = {agent.__name__: agent for agent in ManagedAlgorithm.__subclasses__()}
    for name, class_name in ALGORITHMS.items():
        if class_name not in agents:
            doc = f"Managed agent of the algorithm {name!r}."
            agents[class_name] = type(class_name, (ManagedAlgorithm,), {"algo": name, "__doc__": doc})
    return agents


AGENTS = _agents()
