"""A run in progress: its counters, cadences, logs, evaluations and checkpoints. The loops only feed it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import torch

from rl_training.algorithms.base import Algorithm, LearnerState, UpdateResult
from rl_training.algorithms.functional import as_floats
from rl_training.data.transforms import ObservationNormalizer
from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore
from rl_training.experiment.config import ScheduleConfig, TrainConfig
from rl_training.experiment.files import reason_of
from rl_training.experiment.reference_scores import ReferenceReturns
from rl_training.experiment.run_directory import update_metadata
from rl_training.experiment.tracking import Status, open_trackers
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.clock import Clock
from rl_training.runtime.controls import build_control_callbacks, crossed
from rl_training.runtime.evaluation import Episode, evaluate_policy, evaluation_seeds, summarize
from rl_training.runtime.filming import EvaluationFilms
from rl_training.runtime.logs import RunLogs
from rl_training.runtime.numerics import Kind, NonFiniteError, first_non_finite, require_finite_weights, stopped_by
from rl_training.runtime.ope.evaluation import OPEMonitor
from rl_training.runtime.policy import UNFIT, Policy, normalizer_to_dict
from rl_training.runtime.schedules import learning_rate_scale
from rl_training.runtime.signals import StopSignals
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.types import Batch, CheckpointError, EnvSpec, Metrics

logger = logging.getLogger("rl_training")

LOG_NAMES = {
    "alpha": "train/ent_coef",
    "alpha_loss": "train/ent_coef_loss",
    "epsilon": "rollout/exploration_rate",
}
"""Metrics that dashboards know under another tag."""


class DataSource(Protocol):
    """Where batches come from: the environments and their replay buffer, or a dataset."""

    def metrics(self) -> Metrics:
        """What the source adds to a log row."""

    def state_dict(self) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
        """Plain data for the manifest, and tensors by checkpoint part."""

    def load_state_dict(self, data: dict[str, Any], parts: dict[str, dict[str, torch.Tensor]]) -> bool:
        """Continue where a checkpoint stood; False if that was not exactly possible."""


class Run:
    """Everything around the loop. ``update`` and ``collected`` are fed by it; ``do_due`` does what a step makes due."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        algorithm: Algorithm,
        env_spec: EnvSpec,
        source: DataSource,
        make_eval_env: Callable[[], gym.Env[Any, Any]] | None,
        make_film_env: Callable[[], gym.Env[Any, Any]] | None = None,
        directory: Path,
        callbacks: Iterable[object] = (),
        checkpoint: Checkpoint | None = None,
        signals: StopSignals | None = None,
        normalizer: ObservationNormalizer | None = None,
        score_reference: ReferenceReturns | None = None,
        updates_per_epoch: float | None = None,
        ope: OPEMonitor | None = None,
        evaluates_at_start: bool = False,
    ) -> None:
        self.config, self.algorithm, self.env_spec, self.source = config, algorithm, env_spec, source
        self.directory = directory
        self.state = TrainerState(config.algo, directory, total_timesteps=config.total_timesteps)
        self.callbacks = CallbackList([*build_control_callbacks(config), *callbacks])
        self.num_updates = 0
        self.checkpoint_path: Path | None = None
        self._signals = signals or StopSignals()
        self._policy = Policy(algorithm, env_spec, normalizer=normalizer)
        self._score_reference, self._updates_per_epoch = score_reference, updates_per_epoch
        self._evaluates = make_eval_env is not None and config.eval_episodes > 0
        self._evaluates_at_start = evaluates_at_start and self._evaluates
        self._at_start: float | None = None  # mean return before the first step, where it is asked for
        self._make_eval_env = make_eval_env
        self._ope = ope
        self._eval_env: gym.Env[Any, Any] | None = None  # made at the first evaluation
        self._films: EvaluationFilms | None = None
        if config.record_video and make_film_env is not None:
            self._films = EvaluationFilms(directory / "videos", make_film_env)
        self._store = CheckpointStore(directory / "checkpoints", keep_last=config.keep_last)
        self._latest: dict[str, torch.Tensor | float] = {}  # of each term, its most recent value
        self._last_log = self._last_eval = self._last_save = self._last_try = 0  # a try to save may fail
        self._last_eval_metrics: Metrics = {}
        self._last_ope, self._last_ope_metrics = 0, Metrics()
        self._best: dict[str, float] | None = None
        self._best_unsaved = self._row_unsaved = self._save_is_due = self._finishing = False
        self._on_cpu = next(iter(algorithm.networks())).device.type == "cpu"
        self._scheduled = config.learning_rate_schedule != ScheduleConfig(horizon=config.learning_rate_schedule.horizon)
        manifest = self._load(checkpoint) if checkpoint is not None else None
        elapsed = manifest["trainer"]["time_elapsed"] if manifest else 0.0
        self._clock = Clock(elapsed, step=self.step, updates=self.num_updates)
        lengths = manifest["logs"] if manifest else {}
        self._logs = RunLogs(
            directory,
            tensorboard=config.tensorboard,
            lengths=lengths,
            resumed_at=self.state.global_step if manifest else None,
            trackers=open_trackers(config, directory, kept=lengths.get("metrics.jsonl", 0)),
        )

    # -- what the loops ask and tell ---------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Environment steps (online) or gradient steps (offline) done so far."""
        return self.state.global_step

    @property
    def remaining(self) -> int:
        """Steps left of the budget."""
        return self.config.total_timesteps - self.state.global_step

    @property
    def remaining_updates(self) -> float:
        """Gradient steps left of ``max_updates`` and ``max_epochs``."""
        budgets = [math.inf if self.config.max_updates is None else self.config.max_updates]
        if self.config.max_epochs is not None and self._updates_per_epoch is not None:
            budgets.append(math.ceil(self.config.max_epochs * self._updates_per_epoch))
        return min(budgets) - self.num_updates

    @property
    def interrupted(self) -> bool:
        """Whether a signal asked the run to stop."""
        return self._signals.received is not None

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, a callback asked to stop, or a signal came."""
        return self.state.should_stop or self.remaining <= 0 or self.remaining_updates <= 0 or self.interrupted

    def start(self) -> None:
        """Tell the callbacks, and catch up with what was due when a checkpoint was written but not done."""
        for hook in self.callbacks.on_train_start:
            hook(self.state)
        self.apply_schedule()
        if self._evaluates_at_start and self.step == 0 and self._at_start is None:
            self._evaluate()
        self.do_due()

    def apply_schedule(self) -> None:
        """Set the learning rate of this step."""
        if self._scheduled:
            self.algorithm.scale_learning_rate(learning_rate_scale(self.config.learning_rate_schedule, self.step))

    def advance(self, steps: int) -> None:
        """Count steps of the run and set the learning rate they call for."""
        self.state.global_step += steps
        self.apply_schedule()

    def collected(self, result: CollectResult) -> None:
        """Account for environment steps."""
        self.advance(result.num_env_steps)
        for hook in self.callbacks.on_collect_end:
            hook(self.state, result)

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step, accounted for."""
        result = self.algorithm.update(batch, global_step=self.state.global_step)
        self.num_updates += result.num_gradient_steps
        self._latest.update(result.terms)
        if self._on_cpu:  # elsewhere this would wait for the device: checked when a row is logged
            self._require_finite(result.terms, batch, kind="loss")
        for hook in self.callbacks.on_update_end:
            hook(self.state, result)
        return result

    def do_due(self) -> None:
        """Log, evaluate and save, in this order, where the step has passed an interval."""
        config, step = self.config, self.step
        if crossed(config.log_interval, self._last_log, step):
            self._log()
        if self._evaluates and crossed(config.eval_interval, self._last_eval, step):
            self._evaluate()
        if self._ope is not None and crossed(self._ope.config.interval, self._last_ope, step):
            self._evaluate_off_policy(self._ope)
        if self._save_is_due or crossed(config.checkpoint_interval, self._last_try, step):
            self._save()

    def finish(self) -> TrainResult:
        """The end: a last log row, evaluation and checkpoint; after a signal only the checkpoint. All must be written."""
        self._finishing = True
        if not self.interrupted:
            if self._last_log != self.step:
                self._log()
            if self._evaluates and (self._last_eval != self.step or not self._last_eval_metrics):
                self._evaluate()
            if self._ope is not None and (self._last_ope != self.step or not self._last_ope_metrics):
                self._evaluate_off_policy(self._ope)
        unsaved = self._last_save != self.step or self.checkpoint_path is None or self._best_unsaved or self._row_unsaved
        if unsaved or self.state.should_stop:
            self._save()
        reason = f"interrupted by {self._signals.received}" if self.interrupted else self._stop_reason()
        result = TrainResult(self.directory, self.checkpoint_path, self._final_metrics(), reason)
        status: Status = "interrupted" if self.interrupted else "finished"
        self._logs.conclude(status)
        with self._disk_errors("the log"):
            self._logs.flush()
            update_metadata(self.directory, status=status, stop_reason=reason, metrics=result.metrics)
        for hook in self.callbacks.on_train_end:
            hook(self.state, result)
        return result

    def close(self) -> None:
        """Let go of files and the evaluation environment."""
        self._logs.close()
        if self._eval_env is not None:
            self._eval_env.close()
        if self._films is not None:
            self._films.close()

    # -- logging -----------------------------------------------------------------------------------------------------

    def _log(self) -> None:
        row: Metrics = {
            **self._clock.rates(self.step, self.num_updates),
            **self.source.metrics(),
            "train/n_updates": float(self.num_updates),
            "train/learning_rate": self.algorithm.optimizers()[0].learning_rate,
        }
        if self._updates_per_epoch is not None:
            row["train/epoch"] = self.num_updates / self._updates_per_epoch
        row |= {LOG_NAMES.get(name, f"train/{name}"): value for name, value in as_floats(self._latest).items()}
        self._write(row)
        self._last_log = self.step

    def _write(self, row: Metrics) -> None:
        self._require_finite(row, kind="metric")
        self._row_unsaved = True  # the manifest tells where the log stands
        with self._disk_errors("the log"):
            self._logs.write(self.step, row)

    @contextlib.contextmanager
    def _disk_errors(self, what: str) -> Iterator[None]:
        """A write that fails ends the run or, as configured, is told and made up for later; the last ones always end it."""
        try:
            yield
        except (OSError, CheckpointError) as error:
            kept = "no checkpoint has been saved yet" if self.checkpoint_path is None else f"{self.checkpoint_path} is intact"
            problem = f"{what} could not be written at step {self.step} ({reason_of(error)}); {kept}"
            if self._finishing or self.config.on_save_error == "stop":
                raise CheckpointError(f"{problem}. The run is stopped") from error
            logger.warning("%s. The run goes on, and tries again later", problem)

    # -- bad numbers -------------------------------------------------------------------------------------------------

    def _require_finite(self, terms: Mapping[str, torch.Tensor | float], batch: Batch | None = None, *, kind: Kind) -> None:
        bad = first_non_finite(terms)
        if bad is not None:
            raise NonFiniteError(kind, *bad, rows=batch)

    @contextlib.contextmanager
    def explaining_bad_numbers(self) -> Iterator[None]:
        """A NaN or an infinity, wherever it is noticed, ends the run with its name, the step and a dump."""
        try:
            yield
        except NonFiniteError as bad:
            facts = {
                "metrics": {**as_floats(self._latest), "learning_rate": self.algorithm.optimizers()[0].learning_rate},
                "config": self.config.to_dict(),
            }
            weights = self.algorithm.state_dict().weights
            raise stopped_by(bad, self.directory, step=self.step, update=self.num_updates, weights=weights, **facts) from bad

    # -- evaluation --------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        if self._eval_env is None:
            assert self._make_eval_env is not None  # _evaluates is false without an environment
            self._eval_env = self._make_eval_env()
        seeds = evaluation_seeds(self.config.seed, self.config.eval_episodes)
        with self._clock.pause():
            episodes = evaluate_policy(self._policy, self._eval_env, seeds=seeds, interrupted=lambda: self.interrupted)
            if self._films is not None and episodes is not None:
                self._films.record(self._policy, step=self.step, seed=seeds[0], interrupted=lambda: self.interrupted)
        if episodes is None:  # asked to stop: a resumed run does this evaluation anew
            return
        metrics = summarize(episodes)
        if self._score_reference is not None:
            metrics["eval_normalized_score"] = self._score_reference.normalized(metrics["eval_return_mean"])
        self._record_evaluation(episodes, metrics)
        for hook in self.callbacks.on_eval_end:
            hook(self.state, {**as_floats(self._latest), **metrics, "global_step": float(self.step)})

    def _record_evaluation(self, episodes: list[Episode], metrics: Metrics) -> None:
        self._last_eval, self._last_eval_metrics = self.step, metrics
        if self._evaluates_at_start and self.step == 0:
            self._at_start = metrics["eval_return_mean"]
        with self._disk_errors("the log"):
            self._logs.write_episodes(self.step, episodes)
        row = {
            "eval/mean_reward": metrics["eval_return_mean"],
            "eval/std_reward": metrics["eval_return_std"],
            "eval/mean_ep_length": metrics["eval_length_mean"],
        }
        if "eval_normalized_score" in metrics:
            row["eval/normalized_score"] = metrics["eval_normalized_score"]
        self._write(row)
        if self._best is None or metrics["eval_return_mean"] > self._best["eval_return_mean"]:
            self._best = {"global_step": float(self.step), "eval_return_mean": metrics["eval_return_mean"]}
            self._best_unsaved = self._save_is_due = True

    def _evaluate_off_policy(self, ope: OPEMonitor) -> None:
        with self._clock.pause():
            metrics = ope.evaluate(self.step, interrupted=lambda: self.interrupted)
        if metrics is None:  # asked to stop: a resumed run does this evaluation anew
            return
        self._last_ope, self._last_ope_metrics = self.step, metrics
        self._write(metrics)
        for hook in self.callbacks.on_ope_end:
            hook(self.state, {**metrics, "global_step": float(self.step)})

    def _final_metrics(self) -> Metrics:
        metrics: Metrics = {"global_step": float(self.step), "update_count": float(self.num_updates)}
        metrics |= as_floats(self._latest) | self._last_eval_metrics | self._last_ope_metrics
        if self._best is not None:
            metrics["best_eval_return_mean"] = self._best["eval_return_mean"]
        if self._at_start is not None:
            metrics["start_eval_return_mean"] = self._at_start
        metrics["learning_rate"] = self.algorithm.optimizers()[0].learning_rate
        if self._updates_per_epoch is not None:
            metrics["epoch"] = self.num_updates / self._updates_per_epoch
        if self._scheduled:
            metrics["lr_scale"] = learning_rate_scale(self.config.learning_rate_schedule, self.step)
        return metrics

    def _stop_reason(self) -> str | None:
        if self.state.should_stop:
            return self.state.stop_reason or "a callback asked to stop"
        if self.remaining <= 0:
            return None
        spent = self.config.max_updates is not None and self.num_updates >= self.config.max_updates
        return "max_updates reached" if spent else "max_epochs reached"

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._last_try, self._save_is_due = self.step, False
        learner = self.algorithm.state_dict()
        require_finite_weights(learner.weights | learner.optimizers)  # the last good checkpoint stays the last
        source_data, source_parts = self.source.state_dict()
        manifest = {
            "algo": self.config.algo,
            "config": self.config.to_dict(),
            "env_spec": self.env_spec.to_dict(),
            "trainer": {
                "global_step": self.step,
                "should_stop": self.state.should_stop,
                "stop_reason": self.state.stop_reason,
                "num_updates": self.num_updates,
                "last_log_step": self._last_log,
                "last_eval_step": self._last_eval,
                "last_ope_step": self._last_ope,
                "time_elapsed": self._clock.elapsed(),
            },
            "normalizer": normalizer_to_dict(self._policy.normalizer),
            "latest_metrics": as_floats(self._latest),
            "evaluation": {
                "last": self._last_eval_metrics,
                "best": self._best,
                "at_start": self._at_start,
                "ope": self._last_ope_metrics,
            },
            "counters": learner.counters,
            "source": source_data,
            "callbacks": self.callbacks.state_dict(),
        }
        parts = {
            "weights": learner.weights,
            "optimizer": learner.optimizers,
            "rng": learner.generators,
            **source_parts,
        }
        with self._clock.pause(), self._disk_errors("the checkpoint"):
            manifest["logs"] = self._logs.lengths()  # after the rows that a full disk held up, or not at all
            self.checkpoint_path = self._store.save(self.step, manifest=manifest, parts=parts, best=self._best_unsaved)
            self._last_save, self._best_unsaved, self._row_unsaved = self.step, False, False

    def _load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        manifest = checkpoint.manifest
        try:
            self.algorithm.load_state_dict(
                LearnerState(
                    weights=checkpoint.tensors("weights"),
                    optimizers=checkpoint.tensors("optimizer"),
                    generators=checkpoint.tensors("rng"),
                    counters=manifest["counters"],
                )
            )
            parts = {part: checkpoint.tensors(part) for part in ("replay", "episodes") if checkpoint.has(part)}
            exact = self.source.load_state_dict(manifest["source"], parts)
            trainer = manifest["trainer"]
            self.state.global_step, self.num_updates = trainer["global_step"], trainer["num_updates"]
            self.state.should_stop, self.state.stop_reason = trainer["should_stop"], trainer["stop_reason"]
            self._last_log, self._last_eval = trainer["last_log_step"], trainer["last_eval_step"]
            self._last_ope = int(trainer.get("last_ope_step", 0))  # older checkpoints have none
            self._last_ope_metrics = _numbers(manifest["evaluation"].get("ope", {}))
            self._latest.update(_numbers(manifest["latest_metrics"]))
            self._last_eval_metrics, best = _numbers(manifest["evaluation"]["last"]), manifest["evaluation"]["best"]
            self._best = best and {name: float(best[name]) for name in ("global_step", "eval_return_mean")}
            at_start = manifest["evaluation"].get("at_start")
            self._at_start = None if at_start is None else float(at_start)
            self.callbacks.load_state_dict(manifest["callbacks"])
        except UNFIT as error:
            raise CheckpointError(f"{checkpoint.path} does not fit this run: {error}") from None
        if not exact:
            logger.warning(
                "%s did not come back to the same observation when its episode was replayed: it is not deterministic. "
                "The run goes on with fresh episodes, and is not bit for bit the run that was interrupted.",
                self.config.env_id,
            )
        self._last_save = self._last_try = self.step
        self.checkpoint_path = checkpoint.path
        return manifest


def _numbers(metrics: dict[str, Any]) -> Metrics:
    return {name: float(value) for name, value in metrics.items()}
