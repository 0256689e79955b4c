"""Learning-rate schedules as functions of the absolute step: a resumed run does not stretch or restart them."""

from __future__ import annotations

import math

from rl_training.experiment.config import ScheduleConfig


def learning_rate_scale(schedule: ScheduleConfig, step: int) -> float:
    """Factor of the base learning rate at ``step`` (of environment steps online, of updates offline)."""
    if step < schedule.warmup_steps:
        return schedule.start * (step + 1) / schedule.warmup_steps
    if schedule.type == "constant":
        return schedule.start
    horizon = schedule.horizon
    if horizon is None:
        raise ValueError(f"a {schedule.type} schedule needs a horizon")
    progress = min(max(step - schedule.warmup_steps, 0) / max(horizon - schedule.warmup_steps, 1), 1.0)
    if schedule.type == "cosine":
        progress = (1.0 - math.cos(math.pi * progress)) / 2.0
    return schedule.start + (schedule.end - schedule.start) * progress
