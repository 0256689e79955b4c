"""Trials in Optuna: their journal, and giving up on one whose evaluations are worse than those of others.

Each evaluation is reported to the pruner as the mean over the seeds so far of their evaluations at that step, at position
``step + (seeds before this one) x total_timesteps``: a trial is compared with other trials at the same point of the same
seed.
"""

from __future__ import annotations

import contextlib
import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.types import ConfigError, Metrics

STARTUP_TRIALS = 5
"""Trials at random before the sampler and the median pruner draw conclusions."""
PRUNED = "pruned"
"""How the stop reason of a run begins that was not worth going on with."""


def import_optuna() -> Any:
    """The package, or a ``ConfigError`` that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError('tuning needs Optuna: pip install "rl-training[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_trials(path: Path, name: str, pruner: Any = None) -> Any:
    """The Optuna study in a journal file, made if it is not there."""
    optuna = import_optuna()
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    class KernelLock(JournalFileOpenLock):
        """A lock that the system takes back from a killed process; Optuna's own would hold up everyone for 30 seconds."""

        def acquire(self) -> bool:
            if sys.platform != "win32":
                import fcntl

                self._descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
                with contextlib.suppress(OSError):  # a file system without such locks
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                    return True
                os.close(self._descriptor)
            self._descriptor = -1
            return super().acquire()

        def release(self) -> None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            else:
                super().release()

    storage = JournalStorage(JournalFileBackend(str(path), lock_obj=KernelLock(str(path))))
    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction="maximize",
        load_if_exists=True,
        pruner=pruner or optuna.pruners.NopPruner(),
    )


def repair_journal(path: Path) -> None:
    """Cut off half a line at the end, which a power failure may leave; whatever is appended to it would be unreadable."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def make_pruner(kind: str, *, total_timesteps: int, eval_interval: int | None, seeds: int) -> Any:
    """Optuna's pruner. The median one spares the first quarter of the first seed and the first trials."""
    optuna = import_optuna()
    if kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=total_timesteps // 4)
    if kind == "hyperband":
        first = min(eval_interval or total_timesteps, total_timesteps)
        return optuna.pruners.HyperbandPruner(min_resource=first, max_resource=seeds * total_timesteps, reduction_factor=3)
    return optuna.pruners.NopPruner()


class PruneTrial(Callback):
    """Reports each evaluation of a run to Optuna, and ends the run where its trial is to be pruned."""

    def __init__(self, *, journal: str, study: str, trial: int, seed_index: int, earlier: list[str], pruner: dict[str, Any]):
        self._optuna_study = open_trials(Path(journal), study, make_pruner(**pruner))
        trial_id = self._optuna_study.get_trials(deepcopy=False)[trial]._trial_id
        self._trial = import_optuna().trial.Trial(self._optuna_study, trial_id)
        self._offset = seed_index * int(pruner["total_timesteps"])
        self._last_position = int(pruner["seeds"]) * int(pruner["total_timesteps"])
        self._earlier = [evaluation_curve(Path(path)) for path in earlier]

    def on_eval_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """Report the mean over the seeds so far; stop if it is not worth going on."""
        step = trainer.global_step
        position = self._offset + step
        known = self._optuna_study.get_trials(deepcopy=False)[self._trial.number]
        if position not in known.intermediate_values:
            values = [metrics["eval_return_mean"], *(_value_by(curve, step) for curve in self._earlier)]
            self._trial.report(float(np.mean(values)), position)
        elif position < max(known.intermediate_values):
            return  # a resumed run comes by once more; it was judged the first time
        pruned_at = known.user_attrs.get("pruned_at")  # Hyperband answers a second time differently
        if pruned_at is None and position < self._last_position and self._trial.should_prune():
            self._trial.set_user_attr("pruned_at", position)
            pruned_at = position
        if pruned_at is not None:
            trainer.should_stop, trainer.stop_reason = True, f"{PRUNED} at step {step}"


def evaluation_curve(run_dir: Path) -> dict[int, float]:
    """Mean return of each evaluation of a run, by step."""
    returns: dict[int, list[float]] = {}
    with (run_dir / "evaluations.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            returns.setdefault(int(row["step"]), []).append(float(row["return"]))
    return {step: float(np.mean(values)) for step, values in returns.items()}


def _value_by(curve: Mapping[int, float], step: int) -> float:
    """The evaluation at a step, or the last one before it, if the run ended earlier."""
    return curve[max((known for known in curve if known <= step), default=min(curve))]
