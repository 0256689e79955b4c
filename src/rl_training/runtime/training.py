"""Putting a run together from its configuration, and seeing it through."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from rl_training.envs.factory import EnvFactory, env_name, make_env
from rl_training.envs.spec import describe_env
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import reason_of, writing
from rl_training.experiment.lock import run_lock
from rl_training.experiment.run_directory import create_run_directory, update_metadata, write_config
from rl_training.experiment.tracking import require_trackers
from rl_training.runtime.filming import make_film_env
from rl_training.runtime.logs import LOG_FILES
from rl_training.runtime.offline_data import Dataset
from rl_training.runtime.run import Run
from rl_training.runtime.setups import FinetuningSetup, OfflineSetup, OnlineSetup, Setup
from rl_training.runtime.signals import StopSignals
from rl_training.runtime.trainer import TrainResult
from rl_training.types import CheckpointError, ConfigError, EnvSpec

logger = logging.getLogger("rl_training")


class TrainFunction(Protocol):
    """The signature of every ``train_<name>``."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        callbacks: Iterable[object] = (),
        checkpoint: str | Path | None = None,
        run_suffix: str | None = None,
    ) -> TrainResult:
        """Train as configured, or continue from a checkpoint."""


def train_function(name: str) -> TrainFunction:
    """``train_<name>``: :func:`train` that refuses a configuration of another algorithm."""

    def train_named(
        config: TrainConfig,
        *,
        callbacks: Iterable[object] = (),
        checkpoint: str | Path | None = None,
        run_suffix: str | None = None,
    ) -> TrainResult:
        if config.algo != name:
            raise ConfigError(f"train_{name} was given a configuration with algo {config.algo!r}")
        return train(config, callbacks=callbacks, checkpoint=checkpoint, run_suffix=run_suffix)

    train_named.__name__ = train_named.__qualname__ = f"train_{name}"
    train_named.__doc__ = f"Train {name} as configured, or continue from a checkpoint; see rl_training.runtime.training.train."
    return train_named


def train(
    config: TrainConfig,
    *,
    callbacks: Iterable[object] = (),
    checkpoint: str | Path | None = None,
    run_suffix: str | None = None,
    run_dir: Path | None = None,
    env: EnvFactory | None = None,
    dataset: Dataset | None = None,
) -> TrainResult:
    """Train as configured in a fresh run directory, or continue from ``checkpoint`` under ``config``.

    ``run_dir`` is where the fresh directory is made; without it, it is named after the run. ``env`` is a factory to use
    instead of ``config.env_id``, ``dataset`` transitions to use instead of ``config.dataset`` (with actions already in
    [-1, 1]). SIGINT and SIGTERM end the run after the current step with a checkpoint; the result then says so in
    ``stop_reason``.
    """
    if env is not None:
        config = config.replace(env_id=env_name(env))
    if dataset is not None and config.spec.loop == "online" and config.finetune is None:
        raise ConfigError(f"{config.algo} learns from an environment and has no use for a dataset; see rl-training finetune")
    if checkpoint is None:
        return execute(
            config.resolved(), env=env, dataset=dataset, callbacks=callbacks, new_dir=run_dir, run_suffix=run_suffix
        )
    from rl_training.runtime.workflows import continue_run  # here, because workflows builds on this module

    return continue_run(checkpoint, config=config, env=env, dataset=dataset, callbacks=callbacks, run_suffix=run_suffix)


def execute(
    config: TrainConfig,
    *,
    env: EnvFactory | None = None,
    dataset: Dataset | None = None,
    callbacks: Iterable[object] = (),
    checkpoint: Checkpoint | None = None,
    run_dir: Path | None = None,
    new_dir: Path | None = None,
    run_suffix: str | None = None,
) -> TrainResult:
    """Build everything, run the loop, and leave the run directory in an honest state whatever happens.

    The directory is made last, when nothing the user gave can be wrong any more, unless ``run_dir`` names one, which the
    caller has locked. A new one (``new_dir``, or one that names itself) is locked here, for the whole run.
    """
    require_trackers(config.tracking)
    with _torch_threads(config) as config, StopSignals() as signals:
        source = _env_source(config, env)
        env_spec = None if source is None else _describe(config, source)
        device = resolve_device(config.device)
        data: Setup
        if config.spec.loop == "online" and config.finetune is None:
            data = OnlineSetup(config, source, env_spec, device)
        else:
            with signals.at_once():  # loading may take long, and there is nothing to save before it is done
                if config.finetune is None:
                    data = OfflineSetup(config, source, env_spec, device, dataset)
                else:
                    data = FinetuningSetup(config, source, env_spec, device, dataset, checkpoint)
        with contextlib.closing(data), contextlib.ExitStack() as held:
            if checkpoint is not None:
                _require_same_task(checkpoint, config, data.env_spec)
            directory = run_dir
            if directory is None:
                directory = create_run_directory(config, suffix=run_suffix, path=new_dir)
                held.enter_context(run_lock(directory))
            run: Run | None = None
            try:
                with writing(directory):
                    _copy_logs(checkpoint, directory)
                    write_config(directory, config)
                    update_metadata(
                        directory, status="running", torch_threads=config.torch_threads, device=device, **data.facts
                    )
                run = Run(
                    config,
                    algorithm=data.algorithm,
                    env_spec=data.env_spec,
                    source=data.source,
                    make_eval_env=None if source is None else partial(make_env, source, config.env_kwargs),
                    make_film_env=None if source is None else partial(make_film_env, source, config.env_kwargs),
                    directory=directory,
                    callbacks=callbacks,
                    checkpoint=checkpoint,
                    signals=signals,
                    **data.run_options,
                )
                with contextlib.closing(run), run.explaining_bad_numbers():
                    if checkpoint is None:
                        data.start()
                    run.start()
                    data.loop(run)
                    return run.finish()
            except BaseException as error:
                if run is None and run_dir is None:  # it never began: leave nothing behind
                    shutil.rmtree(directory, ignore_errors=True)
                else:
                    _record_failure(directory, error)
                raise


def _record_failure(directory: Path, error: BaseException) -> None:
    """Have the run directory tell what happened. If even that cannot be written, the error itself is the news."""
    status, reason = "failed", f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        status, reason = "interrupted", "stopped at once, without saving"
    try:
        update_metadata(directory, status=status, stop_reason=reason)
    except OSError as problem:
        logger.warning("metadata.json could not be updated (%s)", reason_of(problem))


@contextlib.contextmanager
def _torch_threads(config: TrainConfig) -> Iterator[TrainConfig]:
    """Run with the configured number of threads (else torch's choice, written into the config), then set it back."""
    before = torch.get_num_threads()
    chosen = config.torch_threads or before
    torch.set_num_threads(chosen)
    try:
        yield config if config.torch_threads == chosen else config.replace(torch_threads=chosen)
    finally:
        torch.set_num_threads(before)


def resolve_device(name: str) -> str:
    """``auto`` is the CPU: for networks of this size it is faster than moving every batch to an accelerator."""
    device = "cpu" if name == "auto" else name
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is not available: torch sees no CUDA device; use cpu or auto")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device 'mps' is not available here; use cpu or auto")
    return device


def _env_source(config: TrainConfig, env: EnvFactory | None) -> str | EnvFactory | None:
    if env is not None or config.env_id is None:
        return env
    if config.env_id.startswith("python:"):
        raise ConfigError(f"env_id {config.env_id!r} was a Python function that cannot be imported: pass it again as env=")
    return config.env_id


def _describe(config: TrainConfig, source: str | EnvFactory) -> EnvSpec:
    """Look at an environment once, for its spaces."""
    env = make_env(source, config.env_kwargs)
    try:
        return describe_env(config.env_id or "", env.observation_space, env.action_space)
    finally:
        env.close()


def _require_same_task(checkpoint: Checkpoint, config: TrainConfig, env_spec: EnvSpec) -> None:
    """A checkpoint continues under the same algorithm, spaces and number of environments."""
    manifest = checkpoint.manifest
    if manifest["algo"] != config.algo:
        raise CheckpointError(f"{checkpoint.path} is a checkpoint of {manifest['algo']}, not of {config.algo}")
    saved = EnvSpec.from_dict({**manifest["env_spec"], "env_id": env_spec.env_id})
    if saved != env_spec:
        raise CheckpointError(f"{checkpoint.path} was made for other spaces: {saved}, the environment has {env_spec}")
    if manifest["config"]["num_envs"] != config.num_envs:
        raise CheckpointError(
            f"{checkpoint.path} was made with num_envs {manifest['config']['num_envs']}, not {config.num_envs}"
        )


def _copy_logs(checkpoint: Checkpoint | None, directory: Path) -> None:
    """A run that branches off into a directory of its own starts with the log of the run it came from."""
    if checkpoint is None:
        return
    origin = checkpoint.path.parent.parent
    for name in LOG_FILES:
        if origin != directory and (origin / name).is_file() and not (directory / name).exists():
            shutil.copyfile(origin / name, directory / name)
