"""Fine-tuning as a workflow: from an offline agent's checkpoint to the configuration of a run, and the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.data.dataset_loaders import find_source
from rl_training.envs.factory import EnvFactory, env_name
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import DatasetConfig, TrainConfig
from rl_training.experiment.presets import build_config
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms
from rl_training.runtime.handover import require_continuable
from rl_training.runtime.offline_data import Dataset
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import train
from rl_training.runtime.workflows import config_of
from rl_training.types import ConfigError, Problem
from rl_training.validation import suggest

INHERITED = (
    "seed",
    "dataset",
    "reward",
    "eval_episodes",
    "output_dir",
    "keep_last",
    "on_save_error",
    "tensorboard",
    "device",
    "torch_threads",
)
"""Settings of the offline run that the fine-tuning run keeps unless told otherwise; its budgets and cadences are its own."""

EVALUATIONS = 10
LONGEST_EVAL_INTERVAL = 5_000
FINETUNE_SETTINGS = ("offline_share", "buffer_capacity", "updates_per_step")


def finetune(
    checkpoint: str | Path,
    env: str | EnvFactory | None = None,
    *,
    total_timesteps: int,
    algo: str | None = None,
    dataset: str | Path | Mapping[str, Any] | Dataset | None = None,
    callbacks: Iterable[object] = (),
    run_suffix: str | None = None,
    **settings: Any,
) -> TrainResult:
    """Continue an offline agent online, in a run directory of its own; see :func:`finetune_config` for the settings.

    ``env`` is an id or a factory (the checkpoint's environment if none), ``dataset`` a file, a ``dataset`` section, or
    transitions with actions in [-1, 1] and the reward transform that the agent was trained with.
    """
    described = dataset if isinstance(dataset, str | Path | Mapping) else None
    config = finetune_config(checkpoint, env, total_timesteps=total_timesteps, algo=algo, dataset=described, settings=settings)
    return train(
        config,
        callbacks=callbacks,
        run_suffix=run_suffix,
        env=env if callable(env) else None,
        dataset=None if isinstance(dataset, str | Path | Mapping) else dataset,
    )


def finetune_config(
    checkpoint: str | Path,
    env: str | EnvFactory | None = None,
    *,
    total_timesteps: int,
    algo: str | None = None,
    dataset: str | Path | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> TrainConfig:
    """The whole configuration of a fine-tuning run.

    ``settings`` may mix those of the ``finetune`` section, hyper-parameters and settings of a run; ``overrides`` are
    ``key.path=value`` as on the command line. Everything else is the checkpoint's: see ``INHERITED``, its
    hyper-parameters as far as the algorithm has them, and what the algorithm itself changes for fine-tuning.
    """
    stored = find_checkpoint(checkpoint)
    origin = config_of(stored)
    target = origin.algo if algo is None else get_algorithm_spec(algo).name
    require_continuable(origin.algo, target)
    whole = origin.to_dict()
    data = {name: whole[name] for name in INHERITED}
    env_id = origin.env_id if env is None else env if isinstance(env, str) else env_name(env)
    if env_id == origin.env_id:
        data["env_kwargs"] = whole["env_kwargs"]
    if dataset is not None:
        data["dataset"] = _dataset_section(dataset, origin)
    interval = min(LONGEST_EVAL_INTERVAL, max(1, total_timesteps // EVALUATIONS))
    own, others, section = _sorted_settings(settings or {}, target)
    data |= {
        "algo": target,
        "env_id": env_id,
        "total_timesteps": total_timesteps,
        "eval_interval": interval,
        "finetune": {"checkpoint": str(stored.path.absolute()), **section},
        **others,
        "algo_kwargs": {**_inherited_hyperparameters(origin, target), **own},
    }
    return build_config(data, overrides, source=f"fine-tuning {stored.path}")


def _inherited_hyperparameters(origin: TrainConfig, target: str) -> dict[str, Any]:
    """Those of the checkpoint that the target has too, then what the target changes when it is fine-tuned."""
    spec = get_algorithm_spec(target)
    fields = spec.hyperparameters.model_fields
    kept = {name: value for name, value in origin.hyperparameters.model_dump(mode="json").items() if name in fields}
    return {**kept, **spec.when_finetuned}


def _dataset_section(dataset: str | Path | Mapping[str, Any], origin: TrainConfig) -> dict[str, Any]:
    """The ``dataset`` section of other data than the checkpoint's."""
    if origin.dataset is not None and origin.dataset.normalize_rewards:
        raise ConfigError(
            "the agent's rewards are scaled by the range of returns of its own dataset (normalize_rewards), which other data "
            "do not have: fine-tune with that dataset, or train the agent with reward.scale instead"
        )
    if isinstance(dataset, Mapping):
        return dict(dataset)
    kind, _ = find_source(None, dataset)
    normalized = (origin.dataset or DatasetConfig()).normalize_observations
    return {"kind": kind, "path": str(dataset), "normalize_observations": normalized}


def _sorted_settings(settings: Mapping[str, Any], target: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Hyper-parameters of the target, settings of the run, and settings of the ``finetune`` section."""
    fields = get_algorithm_spec(target).hyperparameters.model_fields
    section = {name: value for name, value in settings.items() if name in FINETUNE_SETTINGS}
    others = {name: value for name, value in settings.items() if name in TrainConfig.model_fields}
    own = {name: value for name, value in settings.items() if name not in section and name not in others}
    problems = []
    for name in own:
        if name not in fields:
            having = [algo for algo in list_algorithms() if name in get_algorithm_spec(algo).hyperparameters.model_fields]
            known = [*FINETUNE_SETTINGS, *fields, *TrainConfig.model_fields]
            hint = f"; {', '.join(having)} has it" if having else suggest(name, known)
            problems.append(Problem(name, f"is not a setting of {target}{hint}"))
    if problems:
        raise ConfigError(problems)
    kwargs = dict(others.pop("algo_kwargs", {}))
    return {**kwargs, **own}, others, section
