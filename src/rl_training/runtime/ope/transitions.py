"""A dataset beside what a fixed policy would do in its states: all that fitted Q evaluation looks at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.transforms import ObservationNormalizer
from rl_training.runtime.policy import Policy
from rl_training.types import DataError, EnvSpec

BLOCK = 65_536  # rows that are read and acted upon at a time


class PolicyTransitions:
    """Transitions as recorded, with the policy's actions in the states they lead to.

    Rewards are in the task's own units. The policy sees observations as it was trained to see them; the critics of the
    evaluation see them standardised by this dataset, so that they are the same whichever policy is evaluated. The policy is
    fixed, so its actions are worked out once.
    """

    def __init__(self, dataset: TransitionDataset, policy: Policy) -> None:
        require_usable(dataset, policy.env_spec)
        assert dataset.episode_ends is not None  # require_usable has complained otherwise
        self.dataset, self.policy = dataset.untransformed(), policy
        self.ends: npt.NDArray[np.int64] = dataset.episode_ends
        self.starts: npt.NDArray[np.int64] = np.concatenate(([0], self.ends[:-1])).astype(np.int64)
        self.episode_of_row = torch.from_numpy(np.repeat(np.arange(len(self.ends)), self.ends - self.starts))
        self._standardize = ObservationNormalizer.of(self.dataset.obs)
        self._next_actions = torch.cat([self.policy_actions(block) for block in self.dataset.next_obs.split(BLOCK)])

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def num_features(self) -> int:
        """Width of ``obs_actions``."""
        return self.dataset.layout.obs_dim + self._next_actions.shape[1]

    def at(self, rows: Tensor) -> dict[str, Tensor]:
        """The transitions at given rows: ``obs_actions``, ``rewards``, ``dones``, ``next_obs_actions`` (the policy's)."""
        batch = self.dataset.at(rows)
        return {
            "obs_actions": self.joined(batch["obs"], self.as_features(batch["actions"])),
            "rewards": batch["rewards"],
            "dones": batch["dones"],
            "next_obs_actions": self.joined(batch["next_obs"], self._next_actions.index_select(0, rows)),
        }

    def policy_pairs(self, rows: Tensor) -> Tensor:
        """States at given rows with the policy's actions in them, as the critics take them."""
        obs = self.dataset.at(rows)["obs"]
        return self.joined(obs, self.policy_actions(obs))

    def policy_actions(self, obs: Tensor) -> Tensor:
        """The deterministic policy's actions, as features, for observations as recorded."""
        return self.as_features(torch.from_numpy(self.policy.unscaled_actions(np.ascontiguousarray(obs.numpy()))))

    def as_features(self, actions: Tensor) -> Tensor:
        """Continuous actions as they are, ``(rows, action_dim)``; discrete ones one-hot, ``(rows, num_actions)``."""
        if self.policy.env_spec.action_kind == "continuous":
            return actions
        return F.one_hot(actions.long(), self.policy.env_spec.num_actions).float()

    def joined(self, obs: Tensor, actions: Tensor) -> Tensor:
        """What a critic takes: standardised observations and actions side by side."""
        return torch.cat((self._standardize(obs), actions), dim=-1)


def require_usable(dataset: TransitionDataset, env_spec: EnvSpec) -> None:
    """Refuse data of another task, and data in which nobody can tell where episodes start."""
    layout = dataset.layout
    if len(dataset) == 0:
        raise DataError("the data has no row with a next observation of its own: there is nothing to evaluate on")
    have = (layout.obs_dim, layout.action_dim, layout.action_kind)
    if have != (env_spec.obs_dim, env_spec.action_dim, env_spec.action_kind):
        raise DataError(
            f"the data has {layout.obs_dim} observation and {layout.action_dim} {layout.action_kind} action dimensions, "
            f"the agent has {env_spec.obs_dim} and {env_spec.action_dim} {env_spec.action_kind}"
        )
    if env_spec.action_kind == "discrete" and not 0 <= int(dataset.actions.min()) <= int(dataset.actions.max()) < (
        env_spec.num_actions
    ):
        raise DataError(f"the data's actions must be indices from 0 to {env_spec.num_actions - 1}")
    if dataset.episode_ends is None or not _rows_follow(dataset):
        raise DataError(
            "the data does not tell where episodes start (its rows do not follow each other), "
            "and a policy is valued at the states where episodes start"
        )


def _rows_follow(dataset: TransitionDataset) -> bool:
    """Whether most rows inside episodes lead to the row after them; shuffled rows lead anywhere."""
    assert dataset.episode_ends is not None
    inside = np.ones(len(dataset), dtype=bool)
    inside[dataset.episode_ends - 1] = False
    rows = np.flatnonzero(inside)
    if len(rows) == 0:
        return True
    sample = torch.from_numpy(rows[:: max(1, len(rows) // BLOCK)])
    leads_to, follows = dataset.at(sample)["next_obs"], dataset.at(sample + 1)["obs"]
    return float((leads_to == follows).all(dim=1).float().mean()) > 0.5
