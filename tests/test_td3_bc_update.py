"""TD3+BC against numbers worked by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from support import random_batch

from rl_training.algorithms.td3_bc import SPEC, TD3BC, normalizing_weight, td3_bc_loss
from rl_training.models import MLPTD3Model


def make(**hyperparameters: object) -> TD3BC:
    torch.manual_seed(0)
    learner = TD3BC(model=MLPTD3Model(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)
    learner.generator.manual_seed(0)
    return learner


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def test_loss_worked_by_hand() -> None:
    metrics = td3_bc_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([3.0, 0.0]),
            "target_q_values": torch.tensor([1.0, 1.0]),
            "actor_q_values": torch.tensor([2.0, 6.0]),
            "bc_loss": torch.tensor(0.3),
            "bc_lambda": torch.tensor(0.5),
        }
    )
    assert metrics == {
        "critic_loss": pytest.approx(0.5 + (4 + 1) / 2),
        "q_mean": pytest.approx(1.5),
        "target_q_mean": pytest.approx(1.0),
        "actor_loss": pytest.approx(0.3 - 0.5 * 4.0),
        "bc_loss": pytest.approx(0.3),
        "bc_lambda": pytest.approx(0.5),
    }


def test_lambda_is_one_over_the_mean_size_of_q_and_a_constant() -> None:
    q_values = torch.tensor([-2.0, 6.0], requires_grad=True)
    weight = normalizing_weight(q_values)
    assert weight.item() == pytest.approx(1 / 4)
    assert not weight.requires_grad
    assert normalizing_weight(torch.zeros(3)).item() == pytest.approx(1e6)


def test_target_is_that_of_td3() -> None:
    learner, batch = make(gamma=0.9), random_batch("td3")
    with torch.no_grad():
        noise = (torch.randn(16, 2, generator=torch.Generator().manual_seed(0)) * 0.2).clamp(-0.5, 0.5)
        actions = (learner.target.actor(batch["next_obs"]) + noise).clamp(-1, 1)
        q1, q2 = learner.target.q_values(batch["next_obs"], actions)
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * torch.minimum(q1, q2)).mean()
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("bc_alpha", [0.1, 2.5])
def test_actor_descends_cloning_minus_normalised_q1(bc_alpha: float) -> None:
    learner, batch = make(bc_alpha=bc_alpha), random_batch("td3")
    actor = copy.deepcopy(learner.model.actor)
    metrics = learner.update(batch).metrics  # the actor's step sees the critics of after their own

    policy = actor(batch["obs"])
    q1, _ = learner.model.q_values(batch["obs"], policy)
    bc_lambda = bc_alpha / q1.abs().mean().item()
    cloning = ((policy - batch["actions"]) ** 2).sum() / policy.numel()
    loss = cloning - bc_lambda * q1.mean()
    assert metrics["bc_lambda"] == pytest.approx(bc_lambda, rel=1e-5)
    assert metrics["bc_loss"] == pytest.approx(cloning.item(), rel=1e-5)
    assert metrics["actor_loss"] == pytest.approx(loss.item(), rel=1e-4)
    for got, expected in zip(gradients(learner.model.actor), torch.autograd.grad(loss, list(actor.parameters())), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_second_critic_has_no_say_in_the_actor() -> None:
    learner, batch = make(), random_batch("td3")
    changed = make()
    with torch.no_grad():
        for parameter in changed.model.critics.q2.parameters():
            parameter.mul_(3.0)
    assert learner.update(batch).metrics["actor_loss"] == changed.update(batch).metrics["actor_loss"]
    assert torch.equal(learner.actor_optimizer.values, changed.actor_optimizer.values)


def test_actor_step_leaves_the_critics_and_their_gradients_alone() -> None:
    both, critic_only, batch = make(), make(), random_batch("td3")
    critic_only.updates = 1  # so that no actor step is due
    assert "actor_loss" in both.update(batch).metrics
    assert "actor_loss" not in critic_only.update(batch).metrics
    assert torch.equal(both.critic_optimizer.values, critic_only.critic_optimizer.values)
    for one, two in zip(gradients(both.model.critics), gradients(critic_only.model.critics), strict=True):
        assert torch.equal(one, two)


def test_cloning_the_policys_own_actions_leaves_the_value_term_alone() -> None:
    learner, batch = make(bc_alpha=2.0), random_batch("td3")
    own = learner.model.actions(batch["obs"]).detach()
    metrics = learner.update({**batch, "actions": own}).metrics
    assert metrics["bc_loss"] == pytest.approx(0.0, abs=1e-10)
    assert abs(metrics["actor_loss"]) <= 2.0 + 1e-5  # bc_alpha bounds the value term, whatever the scale of rewards
    large = make(bc_alpha=2.0).update({**batch, "rewards": 1000 * batch["rewards"]}).metrics
    assert abs(large["actor_loss"] - large["bc_loss"]) <= 2.0 + 1e-5


def test_actor_and_targets_move_on_every_second_update_from_the_first() -> None:
    learner = make(policy_delay=2)
    moved = []
    for step in range(4):
        actor, target = learner.actor_optimizer.values.clone(), learner.target_critic_values.clone()
        target_actor = learner.target_actor_values.clone()
        metrics = learner.update(random_batch("td3", seed=step)).metrics
        changes = [
            not torch.equal(actor, learner.actor_optimizer.values),
            not torch.equal(target, learner.target_critic_values),
            not torch.equal(target_actor, learner.target_actor_values),
            *(name in metrics for name in ("actor_loss", "bc_loss", "bc_lambda")),
        ]
        assert len(set(changes)) == 1
        moved.append(changes[0])
    assert moved == [True, False, True, False]


def test_acting_explores_only_when_not_deterministic() -> None:
    learner, obs = make(exploration_noise=0.1), torch.zeros(4000, 3)
    assert torch.equal(learner.act(obs), learner.model.actions(obs))
    noise = learner.act(obs, deterministic=False) - learner.act(obs)
    assert noise.std().item() == pytest.approx(0.1, rel=0.1)


def test_it_has_no_settings_of_an_environment_loop() -> None:
    assert SPEC.loop == "offline"
    assert not {"buffer_capacity", "learning_starts", "train_frequency"} & SPEC.hyperparameters.model_fields.keys()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bc_alpha", 0, "bc_alpha must be > 0, got 0"),
        ("policy_delay", 0, "policy_delay must be >= 1, got 0"),
        ("policy_noise", -0.1, "policy_noise must be >= 0, got -0.1"),
        ("noise_clip", -1, "noise_clip must be >= 0, got -1"),
        ("exploration_noise", -1, "exploration_noise must be >= 0, got -1"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
