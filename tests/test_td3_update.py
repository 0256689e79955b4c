"""TD3 against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.functional import smoothed
from rl_training.algorithms.td3 import TD3, td3_loss
from rl_training.models import MLPTD3Model


def make(**hyperparameters: object) -> TD3:
    torch.manual_seed(0)
    return TD3(model=MLPTD3Model(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


def test_loss_worked_by_hand() -> None:
    metrics = td3_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([3.0, 0.0]),
            "target_q_values": torch.tensor([1.0, 1.0]),
            "actor_q_values": torch.tensor([2.0, 6.0]),
        }
    )
    assert metrics["critic_loss"] == pytest.approx(0.5 + (4 + 1) / 2)
    assert metrics["actor_loss"] == pytest.approx(-4.0)
    assert metrics["target_q_mean"] == pytest.approx(1.0)


def test_smoothing_is_clipped_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    actions = torch.tensor([[0.0], [0.9], [-1.0]]).repeat(500, 1)
    noisy = smoothed(actions, 10.0, 0.5, generator)  # so much noise that nearly all of it is clipped
    assert (noisy - actions).abs().max() <= 0.5 + 1e-6
    assert noisy.abs().max() <= 1.0
    assert ((noisy - actions).abs()[actions == 0.0] == 0.5).float().mean() > 0.9
    assert torch.equal(smoothed(actions, 0.0, 0.5, generator), actions)


def test_target_takes_the_smaller_critic_at_the_smoothed_target_action() -> None:
    learner, batch = make(gamma=0.9), random_batch("td3")
    state = learner.generator.get_state()
    with torch.no_grad():
        noise = (torch.randn(16, 2, generator=learner.generator) * 0.2).clamp(-0.5, 0.5)
        actions = (learner.target.actor(batch["next_obs"]) + noise).clamp(-1, 1)
        q1, q2 = learner.target.q_values(batch["next_obs"], actions)
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * torch.minimum(q1, q2)).mean()
    learner.generator.set_state(state)
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected.item(), rel=1e-5)


def test_actor_and_targets_move_on_every_second_update_from_the_first() -> None:
    learner = make(policy_delay=2)
    moved = []
    for step in range(4):
        actor, target = learner.actor_optimizer.values.clone(), learner.target_critic_values.clone()
        target_actor = learner.target_actor_values.clone()
        result = learner.update(random_batch("td3", seed=step))
        changes = [
            not torch.equal(actor, learner.actor_optimizer.values),
            not torch.equal(target, learner.target_critic_values),
            not torch.equal(target_actor, learner.target_actor_values),
            "actor_loss" in result.metrics,
        ]
        assert len(set(changes)) == 1
        moved.append(changes[0])
    assert moved == [True, False, True, False]


def test_actor_follows_q1_alone() -> None:
    learner = make()
    with torch.no_grad():
        for parameter in learner.model.critics.q2.parameters():
            parameter.fill_(float("nan"))
    obs = torch.randn(4, 3)
    q1 = learner.model.critics.q1(torch.cat((obs, learner.model.actions(obs)), dim=-1))
    learner.actor_optimizer.minimize(-q1.mean())
    assert learner.actor_optimizer.values.isfinite().all()


def test_exploration_noise_has_the_asked_for_size() -> None:
    learner = make(exploration_noise=0.1)
    obs = torch.zeros(4000, 3)
    noise = learner.explore(obs, global_step=0) - learner.act(obs)
    assert noise.std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("policy_delay", 0, "policy_delay must be >= 1, got 0"),
        ("policy_noise", -0.1, "policy_noise must be >= 0, got -0.1"),
        ("noise_clip", -1, "noise_clip must be >= 0, got -1"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
