"""DQN (Mnih et al., 2015), with double Q-learning, a dueling network and n-step returns as options.

    target   y = r + gamma (1 - d) max_a Q'(s', a)
    double   y = r + gamma (1 - d) Q'(s', argmax_a Q(s', a))                        (arXiv:1509.06461)
    n-step   r is the discounted sum of n rewards, gamma becomes gamma^n; fewer where the episode ends
    loss     minimise  mean Huber (Q(s, a) - y), gradient norm clipped
    targets  Q' <- Q every target_update_interval environment steps

Actions are epsilon-greedy, epsilon falling linearly over the first ``exploration_fraction`` of the budget. Deviations from
the 2015 paper: Adam instead of RMSProp, rewards are not clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from rl_training.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Choice,
    OnlineHyperparameters,
    Range,
    SearchSpace,
    UpdateResult,
)
from rl_training.algorithms.functional import as_floats, flatten_parameters, frozen_copy, polyak_update, td_target
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.mlp_dueling_q_network import MLPDuelingQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.types import Batch, EnvSpec, Metrics, Terms


class DQNHyperparameters(OnlineHyperparameters):
    """What DQN can be told."""

    search_space: ClassVar[SearchSpace] = {
        "target_update_interval": Choice(values=(100, 250, 500, 1000)),
        "n_step": Choice(values=(1, 3, 5)),
        "double_q": Choice(values=(False, True)),
        "epsilon_end": Range(low=0.01, high=0.1),
        "exploration_fraction": Range(low=0.05, high=0.5),
    }

    learning_rate: float = Field(1e-3, gt=0, description="step size of Adam")
    batch_size: int = Field(64, ge=1, description="transitions per gradient step")
    buffer_capacity: int = Field(100_000, ge=1, description="transitions the replay buffer can hold")
    learning_starts: int = Field(1_000, ge=0, description="uniformly random environment steps before the first update")
    target_update_interval: int = Field(500, ge=1, description="environment steps between copies to the target network")
    double_q: bool = Field(False, description="let the online network choose the target's action")
    dueling: bool = Field(False, description="split the network into state value and advantages")
    n_step: int = Field(1, ge=1, description="rewards summed before bootstrapping")
    max_grad_norm: float | None = Field(10.0, gt=0, description="bound of the gradient's norm; none: no bound")
    epsilon_start: float = Field(1.0, ge=0, le=1, description="chance of a random action at the first step")
    epsilon_end: float = Field(0.05, ge=0, le=1, description="chance of a random action in the end")
    exploration_fraction: float = Field(0.1, ge=0, le=1, description="share of the budget over which epsilon falls")
    exploration_steps: int | None = Field(
        None, ge=0, description="the same in environment steps; worked out from exploration_fraction when a run is configured"
    )

    def resolved_for(self, total_timesteps: int) -> Self:
        """Fix the schedule of epsilon in steps, so that extending a run does not stretch it."""
        if self.exploration_steps is not None:
            return self
        return self.model_copy(update={"exploration_steps": round(self.exploration_fraction * total_timesteps)})

    def epsilon(self, step: int) -> float:
        """Chance of a random action at an environment step."""
        progress = min(step / self.exploration_steps, 1.0) if self.exploration_steps else 1.0
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * progress


def dqn_td_loss(*, q_values: Tensor, actions: Tensor, target_q: Tensor) -> Terms:
    """Huber loss of the taken actions' values; ``q_values`` is ``(batch, actions)``, the others ``(batch,)``."""
    taken = q_values.gather(1, actions.long().unsqueeze(1)).squeeze(1)
    if taken.shape != target_q.shape:
        raise ValueError(f"values {tuple(taken.shape)} and target {tuple(target_q.shape)} differ in shape")
    return {
        "loss": F.smooth_l1_loss(taken, target_q),
        "q_value_mean": taken.detach(),
        "target_mean": target_q,
        "td_error_mean": (taken.detach() - target_q).abs(),
    }


def dqn_loss(batch: Mapping[str, Tensor]) -> Metrics:
    """The named metrics of one step from its parts: the same function that ``DQN.update`` minimises."""
    return as_floats(dqn_td_loss(q_values=batch["q_values"], actions=batch["actions"], target_q=batch["target_q_values"]))


class DQN(Algorithm):
    """Q-learning with a target network, for discrete actions."""

    state = ("q_network", "target", "optimizer", "target_updated_at")
    hp: DQNHyperparameters

    def __init__(self, *, q_network: MLPQNetwork | MLPDuelingQNetwork, **hyperparameters: Any) -> None:
        self.hp = hp = DQNHyperparameters(**hyperparameters)
        self.q_network, self.target = q_network, frozen_copy(q_network)
        self.optimizer = FlatAdam(q_network.parameters(), hp.learning_rate)
        self.target_values = flatten_parameters(self.target.parameters())
        self.target_updated_at = 0  # environment step

    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One gradient step; the target network is renewed first when environment steps have made it due."""
        hp = self.hp
        if global_step // hp.target_update_interval > self.target_updated_at // hp.target_update_interval:
            polyak_update(self.target_values, self.optimizer.values, 1.0)
            self.target_updated_at = global_step
        with torch.no_grad():
            next_values = self.target(batch["next_obs"])  # (batch, actions)
            if hp.double_q:
                best = self.q_network(batch["next_obs"]).argmax(dim=1, keepdim=True)
                next_q = next_values.gather(1, best).squeeze(1)
            else:
                next_q = next_values.amax(dim=1)
            target_q = td_target(batch, next_q, gamma=hp.gamma)
        terms = dqn_td_loss(q_values=self.q_network(batch["obs"]), actions=batch["actions"], target_q=target_q)
        self.optimizer.minimize(terms["loss"], max_grad_norm=hp.max_grad_norm)
        return UpdateResult({**terms, "epsilon": hp.epsilon(global_step)})

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The greedy action; with a chance of ``epsilon_end`` a random one unless deterministic."""
        return self._greedy(obs) if deterministic else self._epsilon_greedy(obs, self.hp.epsilon_end)

    def explore(self, obs: Tensor, *, global_step: int) -> Tensor:
        """Epsilon-greedy actions."""
        return self._epsilon_greedy(obs, self.hp.epsilon(global_step))

    def _greedy(self, obs: Tensor) -> Tensor:
        values: Tensor = self.q_network(obs)
        return values.argmax(dim=1)

    def _epsilon_greedy(self, obs: Tensor, epsilon: float) -> Tensor:
        count, device = len(obs), obs.device
        anything = torch.randint(self.q_network.num_actions, (count,), generator=self.generator, device=device)
        is_random = torch.rand(count, generator=self.generator, device=device) < epsilon
        if bool(is_random.all()):  # nobody asks the network
            return anything
        return torch.where(is_random, anything, self._greedy(obs))


def build_model(env_spec: EnvSpec, hp: DQNHyperparameters) -> MLPQNetwork | MLPDuelingQNetwork:
    """The network for a task."""
    network = MLPDuelingQNetwork if hp.dueling else MLPQNetwork
    return network(env_spec.obs_dim, env_spec.num_actions, hp.hidden_sizes)


SPEC = AlgorithmSpec(
    name="dqn",
    title="Deep Q-Network",
    loop="online",
    actions="discrete",
    hyperparameters=DQNHyperparameters,
    build_model=build_model,
    learner=DQN,
    model_argument="q_network",
)
