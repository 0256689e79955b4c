"""The off-policy evaluation of one policy: fit critics, value the initial states, and say how far to trust it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.transforms import RewardScaling
from rl_training.experiment.ope_config import FittedQConfig, OPEConfig
from rl_training.runtime.ope.diagnostics import agent_td_error, behaviour_returns, match_actions, warnings_of
from rl_training.runtime.ope.fitted_q import fit_policy_values
from rl_training.runtime.ope.result import OPEResult, bootstrap_interval
from rl_training.runtime.ope.transitions import PolicyTransitions, require_usable
from rl_training.runtime.policy import Policy
from rl_training.seeding import stream_seed
from rl_training.types import ConfigError, Metrics


def discount_of(config: FittedQConfig, policy: Policy) -> float:
    """The discount asked for, else the agent's own."""
    gamma = policy.algorithm.hp.gamma if config.gamma is None else config.gamma
    if gamma >= 1:
        raise ConfigError("the agent's discount is 1, for which values need not be finite: choose a gamma below 1")
    return gamma


def evaluate_policy_off_policy(
    policy: Policy,
    dataset: TransitionDataset,
    config: FittedQConfig,
    *,
    seed: int,
    name: str = "policy",
    algo: str = "",
    global_step: int = 0,
    scaling: RewardScaling | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> OPEResult | None:
    """Value a policy on a dataset, whose actions are in [-1, 1]; nothing if interrupted.

    ``scaling`` is what the agent's own critics saw of the rewards. Random numbers come from ``seed`` alone, so that an
    evaluation in the middle of a run changes nothing in it.
    """
    gamma = discount_of(config, policy)
    transitions = PolicyTransitions(dataset, policy)
    fit = fit_policy_values(transitions, config, gamma=gamma, seed=seed, interrupted=interrupted)
    if fit is None:
        return None
    values = fit.critics.values(transitions.policy_pairs(torch.from_numpy(transitions.starts)))
    value, (low, high) = float(values.mean()), bootstrap_interval(values, seed=seed)
    match = match_actions(transitions, seed=seed)
    held_out = fit.critics.td_errors(transitions, fit.held_out_rows)
    warnings = warnings_of(
        transitions,
        fit,
        match,
        value=value,
        gamma=gamma,
        held_out=held_out,
        fitted=fit.critics.td_errors(transitions, fit.fitted_rows),
    )
    return OPEResult(
        name=name,
        algo=algo,
        global_step=global_step,
        fqe_value=value,
        fqe_low=low,
        fqe_high=high,
        behaviour_value=float(behaviour_returns(transitions, gamma).mean()),
        td_error=held_out.root_mean_square,
        agent_td_error=agent_td_error(transitions, fit.held_out_rows, scaling or RewardScaling()),
        action_distance=match.distance,
        near_share=match.near_share,
        unsupported_share=match.unsupported_share,
        gamma=gamma,
        updates=config.updates,
        seed=seed,
        episodes=len(transitions.ends),
        transitions=len(transitions),
        history=fit.history,
        warnings=tuple(warnings),
    )


class OPEMonitor:
    """Off-policy evaluation on the way through a run: fresh critics every time, seeded by the run's seed and its step."""

    def __init__(self, config: OPEConfig, dataset: TransitionDataset, policy: Policy, *, seed: int) -> None:
        discount_of(config, policy)
        require_usable(dataset, policy.env_spec)  # now, not after the first thousands of steps
        self.config, self.dataset, self.policy, self.seed = config, dataset, policy, seed

    def evaluate(self, step: int, interrupted: Callable[[], bool]) -> Metrics | None:
        """``ope/fqe_value`` and company for the policy as it is now; nothing if interrupted."""
        seed = stream_seed(self.seed, "ope", step)
        result = evaluate_policy_off_policy(self.policy, self.dataset, self.config, seed=seed, interrupted=interrupted)
        return None if result is None else {f"ope/{name}": value for name, value in result.metrics.items()}
