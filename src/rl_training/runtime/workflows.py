"""What people do with checkpoints: evaluate, predict, resume."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import numpy.typing as npt

from rl_training import __version__
from rl_training.data.columns import RawTransitions
from rl_training.envs.factory import EnvFactory, env_name, make_env
from rl_training.envs.spec import describe_env
from rl_training.experiment.checkpointing import PARTS, Checkpoint, CheckpointStore, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import delete_temporaries
from rl_training.experiment.lock import run_lock
from rl_training.experiment.presets import build_config
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.runtime.evaluation import evaluate_policy, evaluation_seeds, summarize
from rl_training.runtime.offline_data import Dataset, random_choice, score_reference
from rl_training.runtime.policy import Policy, load_policy, require_stored_networks
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
    checkpoint = None if path is None else find_checkpoint(path)
    policy = None if checkpoint is None else load_policy(checkpoint)
    config = None if checkpoint is None else config_of(checkpoint)
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
    """Lock the run, find the checkpoint, settle the configuration and the directory, and go on."""
    run_dir = _run_directory_of(Path(path))
    branching = run_suffix is not None
    # before anything is looked at: what looks damaged may be another process at work
    with contextlib.nullcontext() if run_dir is None or branching else run_lock(run_dir):
        checkpoint = _locate(Path(path), run_dir, branching=branching)
        saved = config_of(checkpoint) if checkpoint else _config_of_directory(run_dir)
        config = config.resolved() if config else saved
        if total_timesteps is not None:
            config = config.replace(total_timesteps=total_timesteps)
        if env is not None:
            config = config.replace(env_id=env_name(env))
        if checkpoint is not None:
            require_stored_networks(checkpoint)
            checkpoint = _clear_stop(checkpoint, config, saved, ignore_stop=ignore_stop)
            step = checkpoint.manifest["trainer"]["global_step"]
            if step > config.total_timesteps:
                raise ConfigError(
                    f"total_timesteps must be >= {step}, where {checkpoint.path} stands, got {config.total_timesteps}"
                )
        return execute(
            config,
            env=env,
            dataset=dataset,
            callbacks=callbacks,
            checkpoint=checkpoint,
            run_dir=None if branching else run_dir,
            run_suffix=run_suffix,
        )


def config_of(checkpoint: Checkpoint) -> TrainConfig:
    """The configuration a checkpoint was made under; settings that came later have their defaults."""
    manifest = checkpoint.manifest
    _require_manifest_of_run(manifest, checkpoint.path)
    try:
        return build_config(manifest["config"], source=f"the configuration in {checkpoint.path}")
    except ConfigError as error:
        made_by = manifest.get("package_version")
        hint = f"\nIt was written by rl_training {made_by}, this is {__version__}: upgrade the package if that is later"
        raise CheckpointError(f"{error}{hint if made_by != __version__ else ''}") from None


_MANIFEST_OF_RUN: dict[str, type | tuple[type, ...]] = {
    "algo": str,
    "config": dict,
    "env_spec": dict,
    "trainer": dict,
    "trainer.global_step": int,
    "trainer.num_updates": int,
    "trainer.last_log_step": int,
    "trainer.last_eval_step": int,
    "trainer.should_stop": bool,
    "trainer.stop_reason": (str, NoneType),
    "trainer.time_elapsed": (int, float),
    "logs": dict,
    "logs.metrics.jsonl": int,
    "logs.evaluations.csv": int,
    "config.algo_kwargs": dict,
    "config.num_envs": int,
    "evaluation": dict,
    "evaluation.last": dict,
    "evaluation.best": (dict, NoneType),
    "latest_metrics": dict,
    "callbacks": list,
}


def _require_manifest_of_run(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuse a manifest without what every checkpoint of a run has."""
    for key, kind in _MANIFEST_OF_RUN.items():
        section, _, name = key.partition(".")
        value = manifest.get(section)
        if name and isinstance(value, Mapping):
            value = value.get(name, _MISSING)
        if section not in manifest or not isinstance(value, kind) or (type(value) is int and value < 0):
            raise CheckpointError(f"{path} is not a checkpoint of a run: its manifest has no usable {key}")


_MISSING = object()


def _config_of_directory(run_dir: Path | None) -> TrainConfig:
    assert run_dir is not None  # without a checkpoint there is a run directory, or _locate has complained
    return build_config(read_yaml_mapping(run_dir / "config.yaml"), source=str(run_dir / "config.yaml"))


def _run_directory_of(path: Path) -> Path | None:
    """The run directory that a path (of itself, its ``checkpoints``, one of them or a pointer) belongs to, if any."""
    path = path.absolute()
    for run_dir in (path, path.parent, path.parent.parent):
        checkpoints = run_dir / "checkpoints"
        if path in (run_dir, checkpoints) or path.parent == checkpoints:
            with contextlib.suppress(OSError, ValueError):  # find_checkpoint complains of impossible paths
                if (run_dir / "config.yaml").is_file() and checkpoints.is_dir():
                    return run_dir
    return None


def _locate(path: Path, run_dir: Path | None, *, branching: bool) -> Checkpoint | None:
    """The checkpoint to continue from; none if a run directory has none yet."""
    if run_dir is None:
        checkpoint = find_checkpoint(path, parts=PARTS)
        checkpoint.verify()
        return checkpoint  # one that was saved on its own: continues in a new directory
    store = CheckpointStore(run_dir / "checkpoints", keep_last=1)
    if not branching:
        delete_temporaries(run_dir)
        store.clean()
    if path.absolute() in (run_dir, store.directory, store.directory / "last"):
        intact = store.newest()
        if intact is None:
            logger.warning("%s has no checkpoint yet: the run starts from its first step", path)
            return None
        checkpoint = intact
    else:
        checkpoint = find_checkpoint(path)
        checkpoint.verify()
        if not branching and (newest := store.steps()[-1].name) != checkpoint.path.name:
            raise CheckpointError(
                f"{checkpoint.path.name} is not the newest checkpoint of {run_dir} ({newest} is). Resume the run directory, "
                "or give a run suffix to branch off into a new one"
            )
    if not branching:
        store.adopt(checkpoint)
    return checkpoint


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
