"""How far an off-policy evaluation can be trusted: does the policy act as the data does, and did the critics settle?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.functional import td_target
from rl_training.data.offline_dataset import compute_discounted_returns_to_go
from rl_training.data.transforms import RewardScaling
from rl_training.runtime.ope.fitted_q import Fit, TDErrors
from rl_training.runtime.ope.transitions import BLOCK, PolicyTransitions

NEAR = 0.2  # of an action that reaches from -1 to 1
PROBES, REFERENCES = 1_000, 20_000  # pairs whose nearest neighbour is looked for, and among how many
RARE = 0.99  # further from the data than this share of the data's own pairs is unsupported


@dataclass(frozen=True)
class ActionMatch:
    """How the policy's actions relate to the data's.

    ``distance`` is the root mean square difference between the policy's action and the recorded one, per dimension, in
    units in which actions reach from -1 to 1; ``near_share`` the share of rows where no dimension differs by more than 0.2
    (of discrete actions: where they are the same). ``unsupported_share`` is the share of states in which the policy's action
    is unlike anything in the data: the pair of state and action is further from its nearest neighbour in the data than 99 %
    of the data's own pairs are from theirs. About 0.01 is what the data itself has.
    """

    distance: float
    near_share: float
    unsupported_share: float


def match_actions(transitions: PolicyTransitions, *, seed: int) -> ActionMatch:
    """Compare the policy with the data; exact but for ``unsupported_share``, which looks at a sample."""
    squared, near = 0.0, 0
    for rows in torch.arange(len(transitions)).split(BLOCK):
        batch = transitions.dataset.at(rows)
        difference = transitions.policy_actions(batch["obs"]) - transitions.as_features(batch["actions"])
        squared += float(difference.square().mean(dim=1).double().sum())
        near += int((difference.abs() <= NEAR).all(dim=1).sum())
    return ActionMatch(
        distance=float(np.sqrt(squared / len(transitions))),
        near_share=near / len(transitions),
        unsupported_share=_unsupported_share(transitions, torch.Generator().manual_seed(seed)),
    )


def _unsupported_share(transitions: PolicyTransitions, generator: torch.Generator) -> float:
    """Probes are of other episodes than the references, where there are several: neighbours in time are not evidence."""
    episodes = len(transitions.ends)
    order = torch.randperm(episodes, generator=generator)
    is_probe = torch.isin(transitions.episode_of_row, order[: max(1, episodes // 5)])
    rows = torch.arange(len(transitions))
    probes, references = (rows[is_probe], rows[~is_probe]) if episodes > 1 else (rows[::2], rows[1::2])
    if len(references) == 0:
        return 0.0
    probes = probes[torch.randperm(len(probes), generator=generator)[:PROBES]]
    references = references[torch.randperm(len(references), generator=generator)[:REFERENCES]]
    known = transitions.at(references)["obs_actions"]
    own = _nearest(transitions.at(probes)["obs_actions"], known)
    policy = _nearest(transitions.policy_pairs(probes), known)
    return float((policy > torch.quantile(own, RARE)).float().mean())


def _nearest(points: Tensor, known: Tensor) -> Tensor:
    return torch.cat([torch.cdist(block, known).min(dim=1).values for block in points.split(256)])


def behaviour_returns(transitions: PolicyTransitions, gamma: float) -> npt.NDArray[np.float32]:
    """Discounted return of each episode of the data from its start to its recorded end."""
    ended = np.zeros(len(transitions), dtype=bool)
    ended[transitions.ends - 1] = True
    returns = compute_discounted_returns_to_go(transitions.dataset.rewards.numpy(), ended, gamma=gamma)
    return returns[transitions.starts]


def agent_td_error(transitions: PolicyTransitions, rows: Tensor, scaling: RewardScaling) -> float | None:
    """Root mean square TD error of the agent's own critics (their mean) for its deterministic policy, in the task's units.

    None if it has no critic of state and action. The critics of entropy-regularised methods also value entropy, which this
    leaves out.
    """
    policy = transitions.policy
    q_values = getattr(getattr(policy.algorithm, "model", None), "q_values", None)
    if q_values is None or scaling.scale == 0:
        return None
    device = next(iter(policy.algorithm.networks())).device

    def mean_q(obs: Tensor, actions: Tensor) -> Tensor:
        values = q_values(obs.to(device), actions.to(device))
        stacked = torch.stack(list(values), dim=-1) if isinstance(values, tuple) else values.reshape(len(obs), -1)
        return stacked.mean(dim=-1).cpu()

    def seen(obs: Tensor) -> Tensor:
        return obs if policy.normalizer is None else policy.normalizer(obs)

    total = 0.0
    with torch.no_grad():
        for block in rows.split(BLOCK):
            batch = transitions.dataset.at(block)
            next_q = mean_q(seen(batch["next_obs"]), transitions.policy_actions(batch["next_obs"]))
            target = td_target(batch | {"rewards": scaling(batch["rewards"])}, next_q, gamma=policy.algorithm.hp.gamma)
            error = mean_q(seen(batch["obs"]), batch["actions"]) - target
            total += float(error.square().double().sum())
    return float(np.sqrt(total / len(rows))) / abs(scaling.scale)


def warnings_of(
    transitions: PolicyTransitions,
    fit: Fit,
    match: ActionMatch,
    *,
    value: float,
    gamma: float,
    held_out: TDErrors,
    fitted: TDErrors,
) -> list[str]:
    """What speaks against trusting the value, in plain words."""
    critics, episodes = fit.critics, len(transitions.ends)
    found = []
    if match.unsupported_share > 0.2:
        found.append(
            f"bad pairing: in {match.unsupported_share:.0%} of the data's states the policy acts unlike anything in the data "
            f"(root mean square difference {match.distance:.2f} where actions reach from -1 to 1); the value is a guess there"
        )
    if episodes < 20:
        found.append(f"few initial states: the data has {episodes} episodes, so the interval says little")
    if (tail := _cut_tail(transitions, gamma)) > 0.05:
        found.append(
            f"horizon cut by time limits: at the end of the data's episodes {tail:.0%} of the discounted weight is still to "
            "come; fqe_value counts it, behaviour_value cannot"
        )
    needed = 3.0 / (critics.config.tau * (1.0 - gamma))  # the level of all values gets there at this rate: to 95 % of the way
    if critics.config.updates < needed:
        found.append(f"not converged: {critics.config.updates:,} updates are too few for this discount; give it {needed:,.0f}")
    gap = abs(fitted.mean) / (1.0 - gamma)  # an error of every value by x leaves a mean TD error of (1 - gamma) x
    if max(gap, _drift(fit)) > 0.1 * critics.value_scale:
        found.append(
            f"not converged: the value moved by {_drift(fit):.3g} over the last fifth of the updates and the mean TD error "
            f"puts it off by about {gap:.3g}; give it more updates"
        )
    if held_out.root_mean_square > 2.0 * fitted.root_mean_square:
        found.append(
            f"the critics do not generalise: their TD error is {held_out.root_mean_square:.4g} on held-out episodes and "
            f"{fitted.root_mean_square:.4g} on those they were fitted to"
        )
    if not critics.bounds.contain(value, tolerance=0.01 * critics.value_scale):
        found.append(
            f"impossible value: {value:.4g} is outside what the data's rewards allow, "
            f"{critics.bounds.low:.4g} to {critics.bounds.high:.4g}"
        )
    return found


def _cut_tail(transitions: PolicyTransitions, gamma: float) -> float:
    """Mean discount weight left at the end of episodes, 0 for those that terminated."""
    terminated = transitions.dataset.dones.numpy()[transitions.ends - 1] > 0
    return float(np.where(terminated, 0.0, gamma ** (transitions.ends - transitions.starts)).mean())


def _drift(fit: Fit) -> float:
    """How much the value of the initial states moved over the last fifth of the fit."""
    last_step, last_value = fit.history[-1]
    before = [value for step, value in fit.history if step <= 0.8 * last_step]
    return abs(last_value - before[-1]) if before else 0.0
