"""The runs that are mistreated: every algorithm, with the features whose state is easiest to lose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import tiny_settings

STEPS, WARMUP, CHECKPOINT_INTERVAL, EVAL_INTERVAL = 240, 50, 40, 60

COMMON: dict[str, Any] = {
    "total_timesteps": STEPS,
    "checkpoint_interval": CHECKPOINT_INTERVAL,
    "eval_interval": EVAL_INTERVAL,
    "log_interval": 1,  # the log tells how far a run has come
    "algo_kwargs": {},
}
ONLINE = {"learning_starts": WARMUP, "buffer_capacity": 160}  # smaller than the run: the buffer wraps round
SMALL_TQC = {"critic_hidden_sizes": [16, 16], "num_critics": 2}

VARIANTS: dict[str, dict[str, Any]] = {
    "sac": {},
    "sac, two environments": {"num_envs": 2},
    "sac, two processes": {"num_envs": 2, "vectorization": "async"},
    "sac, cosine schedule": {"learning_rate_schedule": {"type": "cosine", "warmup_steps": 20}},
    "sac, patience": {"early_stopping": {"patience": 20}, "eval_interval": 15},
    "td3": {"learning_rate_schedule": "linear"},
    "td3, early stop": {"early_stopping": {"patience": 1}, "eval_interval": 30},
    "ddpg": {"num_envs": 2},
    "tqc": {"algo_kwargs": SMALL_TQC},
    "redq": {},
    "dqn": {},
    "dqn, n-step": {"algo_kwargs": {"n_step": 3, "double_q": True, "dueling": True}, "num_envs": 2},
    "dqn, tensorboard": {"tensorboard": True},
    "bc": {},
    "iql": {},
    "iql, patience": {"early_stopping": {"patience": 20}, "eval_interval": 15},
    "cql": {},
    "td3_bc": {"dataset": {"kind": "random", "size": 256, "seed": 3, "normalize_observations": True}},
    "awac": {},
    "rebrac": {"learning_rate_schedule": "cosine"},
}


@dataclass(frozen=True)
class Scenario:
    """One run: a variant and the seed of its training."""

    variant: str
    seed: int

    @property
    def algo(self) -> str:
        """The algorithm, which every variant begins with."""
        return self.variant.split(",")[0]

    @property
    def warmup(self) -> int:
        """Steps before the first update."""
        return WARMUP if self._online else 0

    @property
    def num_envs(self) -> int:
        """Environments stepped together."""
        return int(VARIANTS[self.variant].get("num_envs", 1))

    @property
    def eval_interval(self) -> int:
        """Steps between evaluations."""
        return int(VARIANTS[self.variant].get("eval_interval", EVAL_INTERVAL))

    @property
    def _online(self) -> bool:
        return self.algo in ("sac", "td3", "ddpg", "tqc", "redq", "dqn")

    def settings(self, output_dir: Path, **changes: Any) -> dict[str, Any]:
        """The configuration of this run."""
        variant = {**COMMON, **VARIANTS[self.variant], **changes, "seed": self.seed}
        kwargs = {**(ONLINE if self._online else {}), **variant.pop("algo_kwargs")}
        return tiny_settings(self.algo, output_dir, **variant, algo_kwargs=kwargs)
