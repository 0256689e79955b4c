"""What an off-policy evaluation came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.types import Metrics

CONFIDENCE, RESAMPLES = 0.95, 2_000


@dataclass(frozen=True)
class OPEResult:
    """The value of a policy by fitted Q evaluation, and what it takes to judge it. In the task's units throughout.

    ``fqe_value`` is the mean of Q(s0, pi(s0)) over the states in which the data's episodes start, ``fqe_low`` and
    ``fqe_high`` its 95 % bootstrap interval, ``behaviour_value`` the mean discounted return of the data's own episodes up to
    their recorded ends. ``td_error`` is the root mean square TD error of the evaluation's critics on held-out episodes,
    ``agent_td_error`` that of the agent's own critics, if it has some. For ``action_distance``, ``near_share`` and
    ``unsupported_share`` see :class:`rl_training.runtime.ope.diagnostics.ActionMatch`.
    """

    name: str
    algo: str
    global_step: int
    fqe_value: float
    fqe_low: float
    fqe_high: float
    behaviour_value: float
    td_error: float
    agent_td_error: float | None
    action_distance: float
    near_share: float
    unsupported_share: float
    gamma: float
    updates: int
    seed: int
    episodes: int
    transitions: int
    history: tuple[tuple[int, float], ...]
    warnings: tuple[str, ...]

    @property
    def metrics(self) -> Metrics:
        """What a run logs, as ``ope/<name>``."""
        names = ("fqe_value", "fqe_low", "fqe_high", "td_error", "action_distance", "near_share", "unsupported_share")
        return {name: float(getattr(self, name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        own = "none" if self.agent_td_error is None else f"{self.agent_td_error:.4g}"
        lines = [
            f"{self.name} ({self.algo}, step {self.global_step:,})",
            f"  value of the policy    {self.fqe_value:.4g}  (95 % interval {self.fqe_low:.4g} to {self.fqe_high:.4g}, "
            f"discount {self.gamma:g}, {self.episodes:,} initial states)",
            f"  value of the data      {self.behaviour_value:.4g}",
            f"  TD error, held out     {self.td_error:.4g}  (of the agent's own critics: {own})",
            f"  actions                {self.action_distance:.2f} from the data's, {self.near_share:.0%} near them, "
            f"{self.unsupported_share:.0%} unlike any",
            *(f"  warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def bootstrap_interval(values: Tensor, *, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the mean of ``(states, critics)``: states and critics are drawn anew, each for itself.

    The mean over drawn states and critics is ``share of states @ values @ share of critics``.
    """
    matrix = values.double().numpy()
    rng = np.random.default_rng(seed)
    states, critics = matrix.shape
    state_shares = rng.multinomial(states, np.full(states, 1 / states), size=RESAMPLES) / states
    critic_shares = rng.multinomial(critics, np.full(critics, 1 / critics), size=RESAMPLES) / critics
    means = np.einsum("rc,rc->r", state_shares @ matrix, critic_shares)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
