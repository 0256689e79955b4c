"""ReBRAC against numbers worked by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from support import random_batch
from torch import Tensor

from rl_training.algorithms.rebrac import SPEC, ReBRAC, rebrac_loss
from rl_training.models import MLPTD3Model
from rl_training.types import EnvSpec

WEIGHTS = {"actor_bc_weight", "critic_bc_weight", "actor_q_weight"}


def make(**hyperparameters: object) -> ReBRAC:
    torch.manual_seed(0)
    model = MLPTD3Model(obs_dim=3, action_dim=2, hidden_sizes=(16, 16), layer_norm=True)
    learner = ReBRAC(model=model, **hyperparameters)
    learner.generator.manual_seed(0)
    return learner


def batch_with_next_actions(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    return {**random_batch("td3", seed=seed), "next_actions": torch.rand(16, 2, generator=generator) * 2 - 1}


def gradients(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def still_targets(**hyperparameters: object) -> ReBRAC:
    """A learner whose target action is 0 without noise, so that the penalty is the next actions' own squared length."""
    learner = make(policy_noise=0.0, **hyperparameters)
    learner.target_actor_values.zero_()
    return learner


def test_loss_worked_by_hand() -> None:
    metrics = rebrac_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([3.0, 0.0]),
            "target_q_values": torch.tensor([1.0, 1.0]),
            "actor_q_values": torch.tensor([-2.0, 6.0]),
            "actor_bc_loss": torch.tensor(0.8),
            "critic_bc_penalty": torch.tensor(0.7),
            "actor_bc_weight": torch.tensor(0.5),
            "critic_bc_weight": torch.tensor(0.25),
            "actor_q_weight": torch.tensor(2.0),
        }
    )
    assert metrics == {
        "critic_loss": pytest.approx(0.5 + (4 + 1) / 2),
        "q_mean": pytest.approx(1.5),
        "target_q_mean": pytest.approx(1.0),
        "actor_loss": pytest.approx(0.5 * 0.8 - 2.0 * 2.0 / 4.0),  # mean Q is 2, mean |Q| is 4
        "actor_bc_loss": pytest.approx(0.8),
        "actor_q_mean": pytest.approx(2.0),
        "critic_bc_penalty": pytest.approx(0.7),
        "actor_bc_weight": pytest.approx(0.5),
        "critic_bc_weight": pytest.approx(0.25),
        "actor_q_weight": pytest.approx(2.0),
    }


def test_penalty_lowers_the_target_by_the_worked_amount() -> None:
    batch = {**batch_with_next_actions(), "next_actions": torch.tensor([0.5, -0.5]).expand(16, 2)}
    free = still_targets(gamma=0.9, critic_bc_weight=0.0).update(batch).metrics
    held = still_targets(gamma=0.9, critic_bc_weight=0.2).update(batch).metrics
    assert free["critic_bc_penalty"] == pytest.approx(0.25 + 0.25)  # summed over dimensions, not weighted
    assert held["critic_bc_penalty"] == pytest.approx(0.5)
    alive = 1 - batch["dones"].mean().item()
    assert 0 < alive < 1
    assert free["target_q_mean"] - held["target_q_mean"] == pytest.approx(0.9 * alive * 0.2 * 0.5, rel=1e-4)


def test_target_penalises_the_smoothed_and_clipped_action() -> None:
    learner, batch = make(gamma=0.9, critic_bc_weight=0.3, policy_noise=1.0), batch_with_next_actions()
    with torch.no_grad():
        noise = torch.randn(16, 2, generator=torch.Generator().manual_seed(0)).clamp(-0.5, 0.5)
        actions = (learner.target.actor(batch["next_obs"]) + noise).clamp(-1, 1)
        q1, q2 = learner.target.q_values(batch["next_obs"], actions)
        distance = ((actions - batch["next_actions"]) ** 2).sum(dim=1)
        expected = batch["rewards"] + 0.9 * (1 - batch["dones"]) * (torch.minimum(q1, q2) - 0.3 * distance)
    metrics = learner.update(batch).metrics
    assert metrics["target_q_mean"] == pytest.approx(expected.mean().item(), rel=1e-5)
    assert metrics["critic_bc_penalty"] == pytest.approx(distance.mean().item(), rel=1e-5)


def test_rows_without_a_next_action_have_no_penalty() -> None:
    mask = (torch.arange(16) < 4).float()
    batch = {
        **batch_with_next_actions(),
        "dones": torch.zeros(16),
        "next_actions": torch.full((16, 2), 0.5),
        "next_action_mask": mask,
    }
    free = still_targets(gamma=0.9, critic_bc_weight=0.0).update(batch).metrics
    held = still_targets(gamma=0.9, critic_bc_weight=1.0).update(batch).metrics
    assert held["critic_bc_penalty"] == pytest.approx(0.5 * 4 / 16)
    assert free["target_q_mean"] - held["target_q_mean"] == pytest.approx(0.9 * 0.5 * 4 / 16, rel=1e-4)
    elsewhere = {**batch, "next_actions": torch.where(mask[:, None] > 0, batch["next_actions"], -1.0)}
    assert still_targets(gamma=0.9, critic_bc_weight=1.0).update(elsewhere).metrics == held


def test_batch_without_next_actions_trains_without_the_penalty() -> None:
    batch = random_batch("td3")
    without, free = make(critic_bc_weight=5.0), make(critic_bc_weight=0.0)
    metrics = without.update(batch).metrics
    assert metrics["critic_bc_penalty"] == 0.0
    assert metrics["critic_bc_weight"] == 5.0
    assert metrics["target_q_mean"] == free.update(batch_with_next_actions()).metrics["target_q_mean"]
    assert torch.equal(without.critic_optimizer.values, free.critic_optimizer.values)


def test_next_actions_of_another_shape_are_refused() -> None:
    batch = {**batch_with_next_actions(), "next_actions": torch.zeros(16, 1)}
    with pytest.raises(ValueError, match="differ in shape"):
        make().update(batch)


def test_actor_descends_weighted_cloning_minus_the_smaller_normalised_q() -> None:
    learner, batch = make(actor_bc_weight=0.4, actor_q_weight=1.5), batch_with_next_actions()
    actor = copy.deepcopy(learner.model.actor)
    metrics = learner.update(batch).metrics  # the actor's step sees the critics of after their own

    policy = actor(batch["obs"])
    q_values = torch.stack(learner.model.q_values(batch["obs"], policy)).amin(dim=0)
    scale = 1 / q_values.abs().mean().item()
    cloning = ((policy - batch["actions"]) ** 2).sum() / 16  # summed over dimensions
    loss = 0.4 * cloning - 1.5 * scale * q_values.mean()
    assert metrics["actor_bc_loss"] == pytest.approx(cloning.item(), rel=1e-5)
    assert metrics["actor_q_mean"] == pytest.approx(q_values.mean().item(), rel=1e-4)
    assert metrics["actor_loss"] == pytest.approx(loss.item(), rel=1e-4)
    for got, expected in zip(gradients(learner.model.actor), torch.autograd.grad(loss, list(actor.parameters())), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_actor_step_leaves_the_critics_and_their_gradients_alone() -> None:
    both, critic_only, batch = make(), make(), batch_with_next_actions()
    critic_only.updates = 1  # so that no actor step is due
    assert "actor_loss" in both.update(batch).metrics
    assert "actor_loss" not in critic_only.update(batch).metrics
    assert torch.equal(both.critic_optimizer.values, critic_only.critic_optimizer.values)
    for one, two in zip(gradients(both.model.critics), gradients(critic_only.model.critics), strict=True):
        assert torch.equal(one, two)


def test_actor_weights_have_no_say_in_the_critics() -> None:
    batch = batch_with_next_actions()
    one, two = make(actor_bc_weight=0.01, actor_q_weight=1.0), make(actor_bc_weight=3.0, actor_q_weight=0.1)
    one.update(batch)
    two.update(batch)
    assert torch.equal(one.critic_optimizer.values, two.critic_optimizer.values)
    assert not torch.equal(one.actor_optimizer.values, two.actor_optimizer.values)


def test_actor_and_targets_move_on_every_second_update_from_the_first() -> None:
    learner = make(policy_delay=2)
    moved = []
    for step in range(4):
        actor, target = learner.actor_optimizer.values.clone(), learner.target_critic_values.clone()
        target_actor = learner.target_actor_values.clone()
        metrics = learner.update(batch_with_next_actions(step)).metrics
        changes = [
            not torch.equal(actor, learner.actor_optimizer.values),
            not torch.equal(target, learner.target_critic_values),
            not torch.equal(target_actor, learner.target_actor_values),
            *(name in metrics for name in ("actor_loss", "actor_bc_loss", "actor_q_mean")),
        ]
        assert len(set(changes)) == 1
        assert {"critic_loss", "q_mean", "target_q_mean", "critic_bc_penalty", *WEIGHTS} <= metrics.keys()
        moved.append(changes[0])
    assert moved == [True, False, True, False]


def test_acting_explores_only_when_not_deterministic() -> None:
    learner, obs = make(exploration_noise=0.1), torch.zeros(4000, 3)
    assert torch.equal(learner.act(obs), learner.model.actions(obs))
    noise = learner.act(obs, deterministic=False) - learner.act(obs)
    assert noise.std().item() == pytest.approx(0.1, rel=0.1)


def test_networks_built_for_a_task_are_the_papers() -> None:
    env_spec = EnvSpec("made-up", (3,), "continuous", (2,), "float32", (-1.0, -2.0), (1.0, 2.0))
    learner = SPEC.build(env_spec, SPEC.hyperparameters())
    assert isinstance(learner, ReBRAC)
    assert (learner.hp.batch_size, learner.hp.learning_rate) == (1024, 1e-3)
    model = learner.model
    for net, bound in ((model.actor.net, 1e-3), (model.critics.q1.net, 3e-3), (model.critics.q2.net, 3e-3)):
        *hidden, last = net.layers
        assert [layer.out_features for layer in hidden] == [256, 256, 256]
        for layer in hidden:
            assert torch.equal(layer.bias, torch.full_like(layer.bias, 0.1))
            assert layer.weight.abs().max() <= layer.in_features**-0.5
        assert 0 < last.weight.abs().max() <= bound
        assert last.bias.abs().max() <= bound
    assert model.actor.net.norms is None
    assert model.critics.q1.net.norms is not None
    assert torch.equal(learner.target_critic_values, learner.critic_optimizer.values)


def test_it_has_no_settings_of_an_environment_loop() -> None:
    assert SPEC.loop == "offline"
    assert not {"buffer_capacity", "learning_starts", "train_frequency"} & SPEC.hyperparameters.model_fields.keys()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("actor_bc_weight", 0, "actor_bc_weight must be > 0, got 0"),
        ("critic_bc_weight", -0.1, "critic_bc_weight must be >= 0, got -0.1"),
        ("actor_q_weight", 0, "actor_q_weight must be > 0, got 0"),
        ("policy_delay", 0, "policy_delay must be >= 1, got 0"),
        ("policy_noise", -0.1, "policy_noise must be >= 0, got -0.1"),
        ("noise_clip", -1, "noise_clip must be >= 0, got -1"),
        ("tau", 0, r"tau must be in \(0, 1\], got 0"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
