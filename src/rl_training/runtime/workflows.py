"""What people do with checkpoints: evaluate, predict, resume."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rl_training.data.columns import RawTransitions
from rl_training.envs.factory import EnvFactory, env_name, make_env
from rl_training.envs.spec import describe_env
from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import build_config
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.runtime.evaluation import evaluate_policy, evaluation_seeds, summarize
from rl_training.runtime.offline_data import Dataset, random_choice, score_reference
from rl_training.runtime.policy import Policy, load_policy
from rl_training.runtime.recording import record_transitions
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import execute
from rl_training.types import CheckpointError, ConfigError, EnvSpec, Metrics

logger = logging.getLogger("rl_training")


def evaluate_checkpoint(
    path: str | Path,
    num_episodes: int | None = None,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    env: EnvFactory | None = None,
) -> Metrics:
    """Play episodes with a stored agent. Without ``seed``, the episodes of the run's own evaluations."""
    checkpoint = find_checkpoint(path)
    config = config_of(checkpoint)
    episodes = config.eval_episodes or 10 if num_episodes is None else num_episodes
    if episodes < 1:
        raise ConfigError(f"num_episodes must be >= 1, got {episodes}")
    policy = load_policy(checkpoint)
    source = env or config.env_id
    if source is None:
        raise ConfigError(f"{checkpoint.path} was trained without an environment: there is nothing to play; pass env=")
    environment = make_env(source, config.env_kwargs)
    try:
        _require_same_spaces(
            policy.env_spec, describe_env(config.env_id or "", environment.observation_space, environment.action_space)
        )
        seeds = evaluation_seeds(config.seed if seed is None else seed, episodes)
        played = evaluate_policy(policy, environment, seeds=seeds, deterministic=deterministic)
    finally:
        environment.close()
    assert played is not None  # nothing interrupts this evaluation
    metrics = {"global_step": float(checkpoint.manifest["trainer"]["global_step"]), **summarize(played)}
    if (reference := score_reference(config)) is not None:
        metrics["eval_normalized_score"] = reference.normalized(metrics["eval_return_mean"])
    return metrics


def predict_checkpoint(path: str | Path, obs: npt.ArrayLike, *, deterministic: bool = True) -> Any:
    """The action of a stored agent for one observation, or the actions for a batch."""
    return Policy.from_checkpoint(path).predict(obs, deterministic=deterministic)


def resume_training(
    path: str | Path,
    total_timesteps: int | None = None,
    run_suffix: str | None = None,
    *,
    callbacks: Iterable[object] = (),
    env: EnvFactory | None = None,
    dataset: Dataset | None = None,
    ignore_stop: bool = False,
) -> TrainResult:
    """Continue a run to its budget, or to a larger ``total_timesteps``, exactly as if it had never stopped.

    Goes on in the same run directory, or, with ``run_suffix``, in a new one that branches off. A run that was stopped
    early goes on only with ``ignore_stop`` or a larger budget.
    """
    return continue_run(
        path,
        total_timesteps=total_timesteps,
        run_suffix=run_suffix,
        callbacks=callbacks,
        env=env,
        dataset=dataset,
        ignore_stop=ignore_stop,
    )


def collect_transitions(
    path: str | Path | None = None,
    *,
    env_id: str | None = None,
    steps: int,
    seed: int = 0,
    deterministic: bool = True,
    on_step: Callable[[int], None] = lambda step: None,
) -> RawTransitions:
    """Play a stored agent (or, without ``path``, a uniformly random policy) for so many steps and keep the transitions."""
    if steps < 1:
        raise ConfigError(f"steps must be >= 1, got {steps}")
    policy = None if path is None else Policy.from_checkpoint(path)
    config = None if path is None else config_of(find_checkpoint(path))
    source = env_id or (config.env_id if config else None)
    if source is None:
        raise ConfigError(
            "say which environment to play: the checkpoint has none" if path else "give a checkpoint or an env_id"
        )
    environment = make_env(source, config.env_kwargs if config and env_id is None else None)
    try:
        env_spec = describe_env(source, environment.observation_space, environment.action_space)
        if policy is None:
            choose = random_choice(env_spec, seed)
        else:
            _require_same_spaces(policy.env_spec, env_spec)
            agent = policy

            def choose(obs: Any) -> Any:
                return agent.predict(obs, deterministic=deterministic)

        return record_transitions(environment, choose, steps=steps, seed=seed, on_step=on_step)
    finally:
        environment.close()


def continue_run(
    path: str | Path,
    *,
    config: TrainConfig | None = None,
    total_timesteps: int | None = None,
    run_suffix: str | None = None,
    callbacks: Iterable[object] = (),
    env: EnvFactory | None = None,
    dataset: Dataset | None = None,
    ignore_stop: bool = False,
) -> TrainResult:
    """Find the checkpoint, settle the configuration and the directory, and go on."""
    checkpoint, run_dir = _locate(Path(path), branching=run_suffix is not None)
    saved = config_of(checkpoint) if checkpoint else _config_of_directory(run_dir)
    config = config.resolved() if config else saved
    if total_timesteps is not None:
        config = config.replace(total_timesteps=total_timesteps)
    if env is not None:
        config = config.replace(env_id=env_name(env))
    if checkpoint is not None:
        checkpoint = _clear_stop(checkpoint, config, saved, ignore_stop=ignore_stop)
        step = checkpoint.manifest["trainer"]["global_step"]
        if step > config.total_timesteps:
            raise ConfigError(
                f"total_timesteps must be >= {step}, where {checkpoint.path} stands, got {config.total_timesteps}"
            )
    if run_suffix is not None:
        run_dir = None
    return execute(
        config,
        env=env,
        dataset=dataset,
        callbacks=callbacks,
        checkpoint=checkpoint,
        run_dir=run_dir,
        run_suffix=run_suffix,
    )


def config_of(checkpoint: Checkpoint) -> TrainConfig:
    """The configuration a checkpoint was made under."""
    return build_config(checkpoint.manifest["config"], source=str(checkpoint.path))


def _config_of_directory(run_dir: Path | None) -> TrainConfig:
    assert run_dir is not None  # without a checkpoint there is a run directory, or _locate has complained
    return build_config(read_yaml_mapping(run_dir / "config.yaml"), source=str(run_dir / "config.yaml"))


def _locate(path: Path, *, branching: bool) -> tuple[Checkpoint | None, Path | None]:
    """The checkpoint to continue from and the run directory to continue in; either may be missing, not both."""
    if path.is_dir() and (path / "config.yaml").is_file() and (path / "checkpoints").is_dir():
        store = CheckpointStore(path / "checkpoints", keep_last=1)
        checkpoint, complaints = store.newest_intact()
        for complaint in complaints:
            logger.warning("%s", complaint)
        if checkpoint is not None:
            if complaints:
                logger.warning("Falling back to the newest intact checkpoint, %s", checkpoint.path.name)
                _drop_newer(store, checkpoint, branching=branching)
            return checkpoint, path.absolute()
        if complaints:
            raise CheckpointError(f"no checkpoint in {path} is intact:\n  " + "\n  ".join(complaints))
        logger.warning("%s has no checkpoint yet: the run starts from its first step", path)
        return None, path.absolute()
    checkpoint = find_checkpoint(path)
    checkpoint.verify()
    run_dir = checkpoint.path.absolute().parent.parent
    if not (run_dir / "config.yaml").is_file():
        return checkpoint, None  # a checkpoint that was saved on its own: continues in a new directory
    newest = CheckpointStore(run_dir / "checkpoints", keep_last=1).steps()[-1]
    if not branching and newest.name != checkpoint.path.name:
        raise CheckpointError(
            f"{checkpoint.path.name} is not the newest checkpoint of {run_dir} ({newest.name} is). Resume the run directory, "
            "or give a run suffix to branch off into a new one"
        )
    return checkpoint, run_dir


def _drop_newer(store: CheckpointStore, checkpoint: Checkpoint, *, branching: bool) -> None:
    """Damaged checkpoints after the one used would be taken for newer ones later."""
    if not branching:
        for path in store.steps():
            if path.name > checkpoint.path.name:
                shutil.rmtree(path, ignore_errors=True)


def _clear_stop(checkpoint: Checkpoint, config: TrainConfig, saved: TrainConfig, *, ignore_stop: bool) -> Checkpoint:
    """A run that stopped early stays stopped unless its owner says otherwise."""
    trainer = checkpoint.manifest["trainer"]
    if not trainer["should_stop"]:
        return checkpoint
    if not ignore_stop and config.total_timesteps <= saved.total_timesteps:
        raise CheckpointError(
            f"{checkpoint.path} was stopped at step {trainer['global_step']} ({trainer['stop_reason']}). "
            "To go on all the same, ignore the stop (--ignore-stop) or give a larger total_timesteps"
        )
    logger.warning("The run had stopped (%s); it goes on as asked", trainer["stop_reason"])
    trainer["should_stop"], trainer["stop_reason"] = False, None  # in the opened manifest only, not in the file
    return checkpoint


def _require_same_spaces(agent: EnvSpec, env: EnvSpec) -> None:
    if EnvSpec.from_dict({**agent.to_dict(), "env_id": env.env_id}) != env:
        raise CheckpointError(f"the agent was trained for other spaces: {agent}, the environment has {env}")
