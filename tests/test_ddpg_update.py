"""DDPG against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.ddpg import DDPG, ddpg_loss
from rl_training.models import MLPDDPGModel


def make(**hyperparameters: object) -> DDPG:
    torch.manual_seed(0)
    return DDPG(model=MLPDDPGModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


def test_loss_worked_by_hand() -> None:
    metrics = ddpg_loss(
        {
            "q_values": torch.tensor([1.0, 4.0]),
            "target_q_values": torch.tensor([2.0, 2.0]),
            "actor_q_values": torch.tensor([1.0, 3.0]),
        }
    )
    assert metrics["critic_loss"] == pytest.approx((1 + 4) / 2)
    assert metrics["actor_loss"] == pytest.approx(-2.0)
    assert metrics["target_q_mean"] == pytest.approx(2.0)


def test_target_is_the_target_networks_value_without_noise() -> None:
    learner, batch = make(gamma=0.9), random_batch("ddpg")
    with torch.no_grad():
        next_q = learner.target.q_values(batch["next_obs"], learner.target.actions(batch["next_obs"]))
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * next_q).mean()
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected.item(), rel=1e-5)


def test_every_update_moves_actor_and_targets() -> None:
    learner = make(tau=0.1)
    for step in range(3):
        before = learner.target_actor_values.clone()
        assert "actor_loss" in learner.update(random_batch("ddpg", seed=step)).metrics
        expected = before + 0.1 * (learner.actor_optimizer.values - before)
        torch.testing.assert_close(learner.target_actor_values, expected)


def test_q_values_have_one_dimension() -> None:
    assert make().model.q_values(torch.zeros(5, 3), torch.zeros(5, 2)).shape == (5,)
