"""Fitted Q evaluation (Le et al., 2019, arXiv:1903.08738): the value of a fixed policy, from data of other policies.

    critic i   y_i = r + gamma (1 - d) Q'_i(s', pi(s')), kept within what the rewards allow
               minimise  mean w_ie (Q_i(s, a) - y_i)^2
    targets    Q'_i <- (1 - tau) Q'_i + tau Q_i after every update

With neural networks (arXiv:1911.06854, arXiv:2007.09055) and a bootstrap over episodes (arXiv:2102.03607): every critic has
its own weights, its own target, and its own sample of episodes, drawn with replacement (w_ie is how often critic i drew
episode e), so that critics disagree as much as the data leaves open. A time limit bootstraps, a termination does not.

Rewards are divided by their root mean square times the horizon 1 / (1 - gamma), so that values are of size 1 whatever the
task's units; values that leave this module are in the task's units again. The learning rate falls linearly to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.algorithms.functional import flatten_parameters, frozen_copy, polyak_update, td_target
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.experiment.ope_config import FittedQConfig
from rl_training.models.mlp import EnsembleMLP
from rl_training.models.mlp_redq import ensemble_q_values
from rl_training.runtime.ope.transitions import BLOCK, PolicyTransitions
from rl_training.types import Batch, Terms

LOOKS = 20  # times that the values of the initial states are looked at on the way


@dataclass(frozen=True)
class ValueBounds:
    """The least and the greatest value that any policy can have, given the rewards of the data."""

    low: float
    high: float

    @classmethod
    def of(cls, rewards: Tensor, dones: Tensor, gamma: float) -> ValueBounds:
        """From all rewards of a dataset; where episodes may terminate, a value may also be a single reward."""
        least, greatest, horizon = float(rewards.min()), float(rewards.max()), 1.0 / (1.0 - gamma)
        if not bool(dones.any()):
            return cls(least * horizon, greatest * horizon)
        return cls(min(least, least * horizon), max(greatest, greatest * horizon))

    def contain(self, value: float, *, tolerance: float) -> bool:
        """Whether a value is possible, up to a tolerance."""
        return self.low - tolerance <= value <= self.high + tolerance


def fitted_q_loss(*, q_values: Tensor, target_q: Tensor, weights: Tensor) -> Terms:
    """Weighted squared TD error, summed over critics, averaged over the batch; all ``(batch, critics)``."""
    if not q_values.shape == target_q.shape == weights.shape:
        raise ValueError(f"shapes differ: {tuple(q_values.shape)}, {tuple(target_q.shape)}, {tuple(weights.shape)}")
    return {"critic_loss": (weights * (q_values - target_q).square()).mean(dim=0).sum()}


@dataclass(frozen=True)
class TDErrors:
    """Q(s, a) minus its target: how large, and on average how far off. Where critics have settled, the mean is near 0."""

    mean: float
    root_mean_square: float


class FittedQ:
    """The critics of an evaluation. Values are in the task's units; inside, they are divided by ``value_scale``."""

    def __init__(
        self, num_features: int, config: FittedQConfig, *, gamma: float, bounds: ValueBounds, value_scale: float, seed: int
    ) -> None:
        self.config, self.gamma, self.bounds, self.value_scale = config, gamma, bounds, value_scale
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critics = EnsembleMLP(config.num_critics, num_features, config.hidden_sizes, 1, layer_norm=config.layer_norm)
        self.target_critics = frozen_copy(self.critics)
        self.optimizer = FlatAdam(self.critics.parameters(), config.learning_rate)
        self.target_values = flatten_parameters(self.target_critics.parameters())

    def update(self, batch: Batch, weights: Tensor) -> Terms:
        """One critic and target step; ``weights`` is ``(batch, critics)``."""
        with torch.no_grad():
            target_q = self.targets(batch, self.target_critics) / self.value_scale
        q_values = ensemble_q_values(self.critics, batch["obs_actions"])
        terms = fitted_q_loss(q_values=q_values, target_q=target_q, weights=weights)
        self.optimizer.minimize(terms["critic_loss"])
        polyak_update(self.target_values, self.optimizer.values, self.config.tau)
        return terms

    def targets(self, batch: Batch, critics: EnsembleMLP) -> Tensor:
        """r + gamma (1 - d) Q(s', pi(s')) of each critic, ``(batch, critics)``, within the bounds."""
        next_q = ensemble_q_values(critics, batch["next_obs_actions"]) * self.value_scale
        columns = {name: batch[name].unsqueeze(-1).expand_as(next_q) for name in ("rewards", "dones")}
        return td_target(columns, next_q, gamma=self.gamma).clamp(self.bounds.low, self.bounds.high)

    @torch.no_grad()
    def values(self, obs_actions: Tensor) -> Tensor:
        """Q of every critic, ``(rows, critics)``."""
        return torch.cat([ensemble_q_values(self.critics, block) for block in obs_actions.split(BLOCK)]) * self.value_scale

    @torch.no_grad()
    def td_errors(self, transitions: PolicyTransitions, rows: Tensor) -> TDErrors:
        """TD errors at given rows, over rows and critics."""
        total = squares = 0.0
        for block in rows.split(BLOCK):
            batch = transitions.at(block)
            errors = (self.values(batch["obs_actions"]) - self.targets(batch, self.critics)).double()
            total, squares = total + float(errors.sum()), squares + float(errors.square().sum())
        count = len(rows) * self.config.num_critics
        return TDErrors(mean=total / count, root_mean_square=math.sqrt(squares / count))


@dataclass(frozen=True)
class Fit:
    """A finished fit: the critics, what they were fitted to and held out from, and how the value moved on the way."""

    critics: FittedQ
    fitted_rows: Tensor
    held_out_rows: Tensor
    history: tuple[tuple[int, float], ...]


def fit_policy_values(
    transitions: PolicyTransitions,
    config: FittedQConfig,
    *,
    gamma: float,
    seed: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Fit | None:
    """Fit critics to a policy. The same seed gives the same fit, and nothing else is drawn from. None if interrupted."""
    dataset = transitions.dataset
    rewards = dataset.rewards
    root_mean_square = float(rewards.double().square().mean().sqrt())
    critics = FittedQ(
        transitions.num_features,
        config,
        gamma=gamma,
        bounds=ValueBounds.of(rewards, dataset.dones, gamma),
        value_scale=(root_mean_square or 1.0) / (1.0 - gamma),
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    fitted_rows, held_out_rows = _split(transitions, config.held_out_share, generator)
    draws = _episode_draws(transitions.episode_of_row[fitted_rows], config.num_critics, generator)  # (episodes, critics)
    start_pairs = transitions.policy_pairs(torch.from_numpy(transitions.starts))
    history = []
    for step in range(1, config.updates + 1):
        rows = fitted_rows[torch.randint(len(fitted_rows), (config.batch_size,), generator=generator)]
        critics.optimizer.scale_learning_rate(1.0 - (step - 1) / config.updates)
        critics.update(transitions.at(rows), draws[transitions.episode_of_row[rows]])
        if step % max(1, config.updates // LOOKS) == 0 or step == config.updates:
            history.append((step, float(critics.values(start_pairs).mean())))
            if interrupted():
                return None
    return Fit(critics, fitted_rows, held_out_rows, tuple(history))


def _split(transitions: PolicyTransitions, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to fit to, and rows of other episodes; of a single episode, its last rows."""
    episodes = len(transitions.ends)
    rows = torch.arange(len(transitions))
    if episodes == 1:
        cut = max(1, round(len(rows) * (1.0 - share)))
        return rows[:cut], rows[cut:] if cut < len(rows) else rows
    held_out = torch.randperm(episodes, generator=generator)[: max(1, round(share * episodes))]
    is_held_out = torch.isin(transitions.episode_of_row, held_out)
    return rows[~is_held_out], rows[is_held_out]


def _episode_draws(episode_of_row: Tensor, num_critics: int, generator: torch.Generator) -> Tensor:
    """How often each critic drew each episode, ``(episodes, critics)``; every critic draws as many as there are."""
    present = torch.unique(episode_of_row)
    draws = torch.zeros(int(present.max()) + 1, num_critics)
    chosen = present[torch.randint(len(present), (len(present), num_critics), generator=generator)]
    return draws.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=draws.dtype))
