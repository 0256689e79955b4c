"""Callbacks: any object with some of the hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ALGORITHMS, ONLINE, tiny_config

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.types import ConfigError


class Recorder:
    """Duck-typed: no base class."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_train_start(self, trainer: TrainerState) -> None:
        self.events.append(("start", trainer.algorithm))

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        self.events.append(("collect", result.num_env_steps))

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        self.events.append(("update", result.num_gradient_steps))

    def on_eval_end(self, trainer: TrainerState, metrics: dict[str, float]) -> None:
        self.events.append(("eval", metrics["eval_episodes"]))

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        self.events.append(("end", result.metrics["global_step"]))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_hook_is_called(algo: str, tmp_path: Path) -> None:
    recorder, config = Recorder(), tiny_config(algo, tmp_path)
    train(config, callbacks=[recorder])
    names = [name for name, _ in recorder.events]
    assert recorder.events[0] == ("start", algo)
    assert recorder.events[-1] == ("end", 96.0)
    assert names.count("eval") == 3
    if algo in ONLINE:
        assert names.count("collect") == 96
        assert names.count("update") == 64 * config.hyperparameters.gradient_updates_per_step  # type: ignore[attr-defined]
    else:
        assert names.count("collect") == 0
        assert names.count("update") == 96


def test_a_callback_can_stop_the_run(tmp_path: Path) -> None:
    class Stop:
        def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
            if trainer.global_step == 50:
                trainer.should_stop, trainer.stop_reason = True, "enough"

    result = train(tiny_config("sac", tmp_path), callbacks=[Stop()])
    assert (result.metrics["global_step"], result.stop_reason) == (50, "enough")


def test_state_of_a_callback_survives_a_resume(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.updates = 0

        def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
            self.updates += 1

        def state_dict(self) -> dict[str, int]:
            return {"updates": self.updates}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.updates = state["updates"]

    first = train(tiny_config("sac", tmp_path, total_timesteps=60), callbacks=[Counter()])
    counter = Counter()
    resume_training(first.run_dir, 96, callbacks=[counter])
    assert counter.updates == 64


def test_an_object_without_hooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a callback"):
        train(tiny_config("sac", tmp_path), callbacks=[object()])
    assert not list(tmp_path.iterdir())


def test_untouched_hooks_of_the_base_class_cost_nothing() -> None:
    callbacks = CallbackList([EarlyStoppingCallback(EarlyStoppingConfig()), Callback()])
    assert len(callbacks.on_eval_end) == 1
    assert callbacks.on_update_end == callbacks.on_collect_end == []


def test_early_stopping_has_every_hook(tmp_path: Path) -> None:
    callback, trainer = EarlyStoppingCallback(EarlyStoppingConfig()), TrainerState("sac", tmp_path, global_step=1)
    callback.on_train_start(trainer)
    callback.on_collect_end(trainer, CollectResult(num_env_steps=1))
    callback.on_update_end(trainer, UpdateResult(metrics={}, num_gradient_steps=0))
    callback.on_eval_end(trainer, {"eval_return_mean": 0.0, "eval_episodes": 1.0})
    callback.on_train_end(trainer, TrainResult(run_dir=tmp_path, checkpoint_path=None, metrics={"global_step": 0.0}))
    assert trainer.should_stop is False
