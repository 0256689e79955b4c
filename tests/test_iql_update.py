"""IQL against numbers worked by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support import random_batch

from rl_training.algorithms.iql import IQL, IQLHyperparameters, expectile_loss, iql_loss, iql_weights
from rl_training.models.mlp_iql import MLPIQLModel


def make(**hyperparameters: object) -> IQL:
    torch.manual_seed(0)
    return IQL(model=MLPIQLModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


PARTS = {
    "q1_values": torch.tensor([1.0, 2.0]),
    "q2_values": torch.tensor([0.0, 4.0]),
    "target_q_values": torch.tensor([1.0, 3.0]),
    "value_predictions": torch.tensor([1.0, 5.0]),
    "target_state_values": torch.tensor([3.0, 4.0]),
    "behavior_logprobs": torch.tensor([-1.0, -2.0]),
    "advantage_weights": torch.tensor([2.0, 0.5]),
}


def test_loss_worked_by_hand() -> None:
    metrics = iql_loss(PARTS)
    assert metrics["critic_loss"] == pytest.approx(0.5 + 1.0)
    assert metrics["value_loss"] == pytest.approx((0.7 * 4 + 0.3 * 1) / 2)  # errors +2 and -1
    assert metrics["actor_loss"] == pytest.approx((2 * 1 + 0.5 * 2) / 2)
    assert metrics["advantage_weight_mean"] == pytest.approx(1.25)
    assert metrics["value_mean"] == pytest.approx(3.0)
    assert iql_loss({**PARTS, "expectile": 0.9})["value_loss"] == pytest.approx((0.9 * 4 + 0.1 * 1) / 2)


def test_half_an_expectile_is_half_the_squared_error_and_a_high_one_is_near_the_maximum() -> None:
    values, targets = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0])
    assert expectile_loss(values=values, target_values=targets, expectile=0.5)["value_loss"].item() == pytest.approx(1.25)
    value = torch.zeros(1, requires_grad=True)
    outcomes = torch.tensor([0.0, 1.0])  # the 0.9-expectile of these is 0.9
    optimizer = torch.optim.SGD([value], lr=0.5)
    for _ in range(300):
        optimizer.zero_grad()
        expectile_loss(values=value.expand(2), target_values=outcomes, expectile=0.9)["value_loss"].backward()
        optimizer.step()
    assert value.item() == pytest.approx(0.9, abs=1e-4)


def test_weights_are_exponential_and_bounded() -> None:
    weights = iql_weights(advantages=torch.tensor([-1.0, 0.0, 0.5, 1e6]), beta=2.0, max_advantage_weight=10.0)
    assert weights.tolist() == pytest.approx([math.exp(-2), 1.0, math.e, 10.0])


def test_first_update_reports_everything() -> None:
    result = make().update(random_batch("sac"), global_step=1)
    assert result.num_gradient_steps == 1
    expected = {"critic_loss", "value_loss", "actor_loss", "target_q_mean", "q_mean", "value_mean", "advantage_weight_mean"}
    assert expected <= result.metrics.keys()


def test_value_then_actor_then_critics_then_targets() -> None:
    """Value against the old targets; actor and critics with the value that has just moved; targets last."""
    learner, batch, calls = make(gamma=0.9, beta=2.0, tau=0.1, learning_rate=1e-2), random_batch("sac"), []
    old_targets = copy.deepcopy(learner.target_critics)
    old_values = learner.model.values(batch["obs"]).detach()
    for name in ("value", "actor", "critic"):
        optimizer = getattr(learner, f"{name}_optimizer")

        def record(loss: torch.Tensor, name: str = name, minimize: object = optimizer.minimize) -> None:
            calls.append((name, torch.equal(learner.target_values, before)))
            minimize(loss)  # type: ignore[operator]

        optimizer.minimize = record
    before = learner.target_values.clone()
    metrics = learner.update(batch).metrics
    assert calls == [("value", True), ("actor", True), ("critic", True)]
    torch.testing.assert_close(learner.target_values, before + 0.1 * (learner.critic_optimizer.values - before))

    with torch.no_grad():
        data_q = torch.minimum(*old_targets(batch["obs"], batch["actions"]))
        new_values, new_next_values = learner.model.values(batch["obs"]), learner.model.values(batch["next_obs"])
    assert not torch.allclose(old_values, new_values)
    value_loss = expectile_loss(values=old_values, target_values=data_q, expectile=0.7)["value_loss"]
    assert metrics["value_loss"] == pytest.approx(value_loss.item(), rel=1e-5)
    weights = (2.0 * (data_q - new_values)).exp().clamp(max=100)
    assert metrics["advantage_weight_mean"] == pytest.approx(weights.mean().item(), rel=1e-5)
    target_q = batch["rewards"] + 0.9 * (1 - batch["dones"]) * new_next_values
    assert metrics["target_q_mean"] == pytest.approx(target_q.mean().item(), rel=1e-5)


def test_each_loss_moves_its_own_networks_only() -> None:
    for step, untouched in (("value", "actor critic"), ("actor", "value critic"), ("critic", "value actor")):
        learner = make()
        for name in untouched.split():
            getattr(learner, f"{name}_optimizer").minimize = lambda loss: None
        before = {name: getattr(learner, f"{name}_optimizer").values.clone() for name in ("value", "actor", "critic")}
        learner.update(random_batch("sac"))
        moved = {name for name in before if not torch.equal(before[name], getattr(learner, f"{name}_optimizer").values)}
        assert moved == {step}


def test_policy_actions_are_never_valued() -> None:
    """In-sample: with another actor, values and critics learn exactly the same."""
    one, two, batch = make(), make(), random_batch("sac")
    two.actor_optimizer.values.add_(1.0)
    for _ in range(3):
        left, right = one.update(batch).metrics, two.update(batch).metrics
    for name in ("critic_loss", "value_loss", "target_q_mean"):
        assert left[name] == right[name]
    assert left["actor_loss"] != right["actor_loss"]


def test_logprobs_are_those_of_the_given_actions() -> None:
    """Mean 0 and std 1 give log N(a) of the very actions, unsquashed, also at the border."""
    model = MLPIQLModel(obs_dim=1, action_dim=2, hidden_sizes=(4,))
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.zero_()
    actions = torch.tensor([[0.0, 0.5], [1.0, -1.0]])
    expected = (-0.5 * actions.square() - 0.5 * math.log(2 * math.pi)).sum(dim=1)
    torch.testing.assert_close(model.action_logprobs(torch.zeros(2, 1), actions), expected)
    with pytest.raises(ValueError, match="actions must have the shape of the mean"):
        MLPIQLModel(1, 1, (4,)).action_logprobs(torch.zeros(3, 1), torch.zeros(3))


def test_policy_is_bounded_and_its_spread_is_the_same_in_every_state() -> None:
    model = MLPIQLModel(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    obs = 100 * torch.randn(64, 3)
    assert model.mean_actions(obs).abs().max() <= 1
    sampled = model.sample_actions(obs)
    assert sampled.actions.shape == (64, 2)
    assert sampled.logprobs.shape == (64,)
    assert sampled.actions.abs().max() == 1  # std 1: some samples are clamped
    assert model.actor(obs)[1].shape == (2,)
    with torch.no_grad():
        model.actor.log_std.fill_(-9.0)
    assert model.actor(obs)[1].tolist() == [-5.0, -5.0]


@pytest.mark.parametrize("depth", [1, 3])
def test_all_critics_have_the_asked_for_depth(depth: int) -> None:
    model = MLPIQLModel(3, 2, (8, 8), critic_hidden_sizes=[16] * depth, layer_norm=True)
    for net in (model.critics.q1.net, model.critics.q2.net, model.value):
        assert [layer.out_features for layer in net.layers] == [16] * depth + [1]  # type: ignore[union-attr]
        assert net.norms is not None
    assert len(model.actor.net.layers) == 3
    assert model.actor.net.norms is None


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        expectile_loss(values=torch.zeros(4), target_values=torch.zeros(4, 1), expectile=0.7)
    with pytest.raises(ValueError, match="differ in shape"):
        iql_loss({**PARTS, "advantage_weights": torch.ones(2, 1)})
    with pytest.raises(ValueError, match="shape of rewards"):
        make().update({**random_batch("sac"), "rewards": torch.zeros(16, 1)})


def test_actor_rate_falls_along_a_cosine_and_no_other_does() -> None:
    learner = make(learning_rate=1e-2, actor_decay_steps=4)
    rates = []
    for step in range(6):
        learner.update(random_batch("sac", seed=step))
        rates.append(learner.actor_optimizer.learning_rate / 1e-2)
    expected = [0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)] + [0.0, 0.0]
    assert rates == pytest.approx(expected, abs=1e-12)
    assert learner.critic_optimizer.learning_rate == learner.value_optimizer.learning_rate == 1e-2


def test_schedule_and_decay_multiply_in_either_order_and_survive_a_restart() -> None:
    learner = make(learning_rate=1e-2, actor_decay_steps=4)
    for step in range(2):
        learner.update(random_batch("sac", seed=step))
    learner.scale_learning_rate(0.5)
    assert learner.actor_optimizer.learning_rate == pytest.approx(1e-2 * 0.5 * 0.5)  # halfway down the cosine
    assert learner.critic_optimizer.learning_rate == pytest.approx(1e-2 * 0.5)
    other = make(learning_rate=1e-2, actor_decay_steps=4)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    other.scale_learning_rate(0.5)  # as a resumed run does
    batch = random_batch("sac", seed=2)
    assert learner.update(batch).metrics == other.update(batch).metrics
    assert learner.actor_optimizer.learning_rate == other.actor_optimizer.learning_rate == pytest.approx(1e-2 * 0.5 * 0.5)
    assert torch.equal(learner.actor_optimizer.values, other.actor_optimizer.values)


def test_decay_is_as_long_as_the_run_and_can_be_turned_off() -> None:
    resolved = IQLHyperparameters().resolved_for(500)
    assert resolved.actor_decay_steps == 500
    assert resolved.resolved_for(900).actor_decay_steps == 500  # extending a run does not stretch it
    assert resolved.actor_decay(250) == pytest.approx(0.5)
    constant = IQLHyperparameters(actor_cosine_decay=False).resolved_for(500)
    assert constant.actor_decay_steps is None
    assert constant.actor_decay(499) == IQLHyperparameters().actor_decay(499) == 1.0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("expectile", 0, r"expectile must be in \(0, 1\), got 0"),
        ("expectile", 1.0, r"expectile must be in \(0, 1\), got 1.0"),
        ("beta", 0, "beta must be > 0, got 0"),
        ("max_advantage_weight", -1, "max_advantage_weight must be > 0, got -1"),
        ("actor_decay_steps", 0, "actor_decay_steps must be >= 1, got 0"),
        ("buffer_capacity", 1000, "buffer_capacity is not a known key"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
