"""Evaluation cadence, early stopping, budgets, schedules: the same for every algorithm."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support import ALGORITHMS, metric_rows, tiny_config

from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import ScheduleConfig
from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig, build_control_callbacks, crossed
from rl_training.runtime.schedules import learning_rate_scale
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.types import CheckpointError, ConfigError


def judge(values: list[float], **settings: object) -> list[bool]:
    callback = EarlyStoppingCallback(EarlyStoppingConfig(**settings))
    stops = []
    for value in values:
        trainer = TrainerState("sac", Path("."))
        callback.on_eval_end(trainer, {"eval_return_mean": value})
        stops.append(trainer.should_stop)
    return stops


def test_patience() -> None:
    assert judge([10, 10, 9], patience=1) == [False, False, True]
    assert judge([1, 2, 3, 4], patience=0) == [False] * 4
    assert judge([1, 1], patience=0) == [False, True]
    assert judge([5, 4, 3], patience=0, mode="min") == [False] * 3
    assert judge([1.0, 1.5, 1.9], patience=0, min_delta=1.0) == [False, True, True]


def test_target_value() -> None:
    assert judge([99, 100], target_value=100) == [False, True]
    assert judge([3, 2], target_value=2, mode="min") == [False, True]


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(ConfigError, match="'eval_return' is not measured; did you mean 'eval_return_mean'"):
        judge([1], metric="eval_return")


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(0, 9, False), (9, 10, True), (8, 12, True), (10, 19, False), (10, 40, True), (0, 0, False)],
)
def test_crossed(before: int, now: int, expected: bool) -> None:
    assert crossed(10, before, now) is expected
    assert crossed(None, before, now) is False


def test_schedules() -> None:
    def scale(step: int, **settings: object) -> float:
        return learning_rate_scale(ScheduleConfig(horizon=100, **settings), step)

    assert [scale(step) for step in (0, 50, 500)] == [1, 1, 1]
    assert [scale(step, type="linear") for step in (0, 25, 100, 500)] == [1, 0.75, 0, 0]
    assert [scale(step, type="linear", start=0.5, end=0.1) for step in (0, 50, 100)] == pytest.approx([0.5, 0.3, 0.1])
    assert [scale(step, type="cosine") for step in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    assert [scale(step, warmup_steps=4) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert [scale(step, type="linear", warmup_steps=50) for step in (50, 75, 100)] == [1, 0.5, 0]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_evaluation_interval(algo: str, tmp_path: Path) -> None:
    result = train(tiny_config(algo, tmp_path, eval_interval=25, eval_episodes=2))
    rows = list(csv.DictReader((result.run_dir / "evaluations.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [25, 25, 50, 50, 75, 75, 96, 96]
    assert len({row["seed"] for row in rows}) == 2
    assert [row["step"] for row in metric_rows(result.run_dir) if "eval/mean_reward" in row] == [25, 50, 75, 96]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_early_stopping_is_recorded_and_respected(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path, eval_interval=20, early_stopping={"target_value": -1e9})
    result = train(config)
    assert result.metrics["global_step"] == 20
    assert result.stop_reason is not None
    assert "early stopping" in result.stop_reason
    trainer = find_checkpoint(result.run_dir).manifest["trainer"]
    assert trainer["should_stop"] is True
    assert trainer["stop_reason"] == result.stop_reason
    with pytest.raises(CheckpointError, match=r"was stopped at step 20 .*--ignore-stop"):
        resume_training(result.run_dir)
    assert resume_training(result.run_dir, ignore_stop=True).metrics["global_step"] == 40  # stops again at its next evaluation
    assert resume_training(result.run_dir, total_timesteps=120).metrics["global_step"] == 60


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_update_budget_and_schedule(algo: str, tmp_path: Path) -> None:
    result = train(tiny_config(algo, tmp_path, max_updates=5, learning_rate_schedule={"type": "linear", "warmup_steps": 2}))
    assert result.metrics["update_count"] == 5
    assert result.stop_reason == "max_updates reached"
    assert 0 < result.metrics["lr_scale"] < 1
    assert result.metrics["learning_rate"] > 0


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_early_stopping_on_a_training_metric(algo: str, tmp_path: Path) -> None:
    metric = {"dqn": "loss", "bc": "bc_loss"}.get(algo, "critic_loss")
    config = tiny_config(
        algo, tmp_path, eval_interval=50, early_stopping={"metric": metric, "mode": "min", "target_value": 1e9}
    )
    assert train(config).metrics["global_step"] == 50


def test_no_evaluation(tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, eval_episodes=0))
    assert "eval_return_mean" not in result.metrics
    assert (result.run_dir / "evaluations.csv").read_text().count("\n") == 1


def test_checkpoint_interval_and_keep_last(tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, eval_interval=None, eval_episodes=0, checkpoint_interval=10, keep_last=3))
    names = sorted(path.name for path in (result.run_dir / "checkpoints").glob("step_*"))
    assert names == ["step_000000080", "step_000000090", "step_000000096"]


def test_log_rows(tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, eval_episodes=0, env_id="support:CountingEnv"))
    rows = metric_rows(result.run_dir)
    assert [row["step"] for row in rows] == [20, 40, 60, 80, 96]
    assert "train/critic_loss" not in rows[0]
    assert {"train/critic_loss", "train/ent_coef", "train/learning_rate", "rollout/ep_rew_mean"} <= rows[-1].keys()
    text = (result.run_dir / "metrics.jsonl").read_text()
    assert "time/fps" in text
    assert "time/updates_per_s" in text


def test_build_control_callbacks(tmp_path: Path) -> None:
    assert build_control_callbacks(tiny_config("sac", tmp_path)) == []
    (callback,) = build_control_callbacks(tiny_config("sac", tmp_path, algo_kwargs={"early_stopping": {"patience": 2}}))
    assert isinstance(callback, EarlyStoppingCallback)
    assert callback.config.patience == 2
