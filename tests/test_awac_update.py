"""AWAC against numbers worked by hand."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
from support import random_batch

from rl_training.algorithms.awac import AWAC, SPEC, advantage_weighted_loss, advantage_weights, awac_loss
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.types import EnvSpec


def make(policy: Literal["squashed", "gaussian"] = "gaussian", **hyperparameters: object) -> AWAC:
    torch.manual_seed(0)
    return AWAC(model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16), policy=policy), **hyperparameters)


PARTS = {
    "q1_values": torch.tensor([1.0, 2.0]),
    "q2_values": torch.tensor([0.0, 4.0]),
    "target_q_values": torch.tensor([1.0, 3.0]),
    "behavior_logprobs": torch.tensor([-1.0, -2.0]),
    "advantage_weights": torch.tensor([2.0, 0.5]),
    "advantages": torch.tensor([0.5, -1.5]),
}


def test_loss_worked_by_hand() -> None:
    metrics = awac_loss(PARTS)
    assert metrics["critic_loss"] == pytest.approx(0.5 + 1.0)
    assert metrics["actor_loss"] == pytest.approx((2 * 1 + 0.5 * 2) / 2)
    assert metrics["advantage_weight_mean"] == pytest.approx(1.25)
    assert metrics["advantage_mean"] == pytest.approx(-0.5)
    assert metrics["behavior_logprob_mean"] == pytest.approx(-1.5)
    assert metrics["target_q_mean"] == pytest.approx(2.0)


def test_clipped_weights_worked_by_hand() -> None:
    advantages = torch.tensor([-0.5, 0.0, 0.5, 1e6])
    weights = advantage_weights(advantages=advantages, awac_lambda=0.5, max_advantage_weight=10.0)
    assert weights.tolist() == pytest.approx([math.exp(-1), 1.0, math.e, 10.0])


def test_softmax_weights_have_mean_one_and_do_not_see_an_offset_of_q() -> None:
    advantages = torch.tensor([0.0, math.log(3.0)])

    def softmax(advantages: torch.Tensor, awac_lambda: float) -> list[float]:
        return advantage_weights(
            advantages=advantages, awac_lambda=awac_lambda, max_advantage_weight=1.0, weighting="softmax"
        ).tolist()

    assert softmax(advantages, 1.0) == pytest.approx([2 * 1 / 4, 2 * 3 / 4])
    assert softmax(advantages, 0.5) == pytest.approx([2 * 1 / 10, 2 * 9 / 10])
    assert softmax(advantages + 1000, 1.0) == pytest.approx([0.5, 1.5], rel=1e-3)


def test_weights_are_constants_of_the_actor_loss() -> None:
    logprobs, weights = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    advantage_weighted_loss(behavior_logprobs=logprobs, advantage_weights=weights)["actor_loss"].backward()
    assert weights.grad is None
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3] * 3)


@pytest.mark.parametrize("weighting", ["clip", "softmax"])
@pytest.mark.parametrize("policy", ["squashed", "gaussian"])
def test_first_update_reports_everything(weighting: str, policy: Literal["squashed", "gaussian"]) -> None:
    result = make(policy, weighting=weighting).update(random_batch("sac"), global_step=1)
    assert result.num_gradient_steps == 1
    expected = {"critic_loss", "actor_loss", "target_q_mean", "q_mean"}
    expected |= {"advantage_mean", "advantage_weight_mean", "behavior_logprob_mean"}
    assert result.metrics.keys() == expected
    assert all(math.isfinite(value) for value in result.metrics.values())
    if weighting == "softmax":
        assert result.metrics["advantage_weight_mean"] == pytest.approx(1.0, rel=1e-5)


def test_target_has_no_entropy_and_advantages_come_from_the_moved_online_critics() -> None:
    learner, batch = make(gamma=0.9, awac_lambda=0.5, learning_rate=1e-2), random_batch("sac")
    targets, actor = copy.deepcopy(learner.target_critics), copy.deepcopy(learner.model.actor)
    state = learner.generator.get_state()
    metrics = learner.update(batch).metrics
    learner.generator.set_state(state)
    with torch.no_grad():
        next_actions = actor.sample(batch["next_obs"], learner.generator).actions
        assert next_actions.abs().max() <= 1
        next_q = torch.minimum(*targets(batch["next_obs"], next_actions))
        target_q = batch["rewards"] + 0.9 * (1 - batch["dones"]) * next_q
        policy_actions = actor.sample(batch["obs"], learner.generator).actions
        q_data = torch.minimum(*learner.model.q_values(batch["obs"], batch["actions"]))
        advantages = q_data - torch.minimum(*learner.model.q_values(batch["obs"], policy_actions))
        logprobs = actor.logprobs(batch["obs"], batch["actions"])
    weights = (advantages / 0.5).exp().clamp(max=100)
    assert metrics["target_q_mean"] == pytest.approx(target_q.mean().item(), rel=1e-5)
    assert metrics["advantage_mean"] == pytest.approx(advantages.mean().item(), rel=1e-4)
    assert metrics["advantage_weight_mean"] == pytest.approx(weights.mean().item(), rel=1e-5)
    assert metrics["actor_loss"] == pytest.approx(-(weights * logprobs).mean().item(), rel=1e-5)


def test_critics_do_not_move_in_the_actor_step_and_targets_follow_by_tau() -> None:
    learner = make(tau=0.1)
    before = learner.target_values.clone()
    learner.update(random_batch("sac"))
    torch.testing.assert_close(learner.target_values, before + 0.1 * (learner.critic_optimizer.values - before))
    learner.critic_optimizer.minimize = lambda loss: None  # type: ignore[method-assign, misc, assignment]
    critics = learner.critic_optimizer.values.clone()
    learner.update(random_batch("sac"))
    assert torch.equal(critics, learner.critic_optimizer.values)


@pytest.mark.parametrize("policy", ["squashed", "gaussian"])
def test_logprobs_are_those_of_the_given_actions(policy: Literal["squashed", "gaussian"]) -> None:
    """Other actions have other log-probabilities, the same ones the same, whatever is sampled in between."""
    model, batch = make(policy).model, random_batch("sac")
    first = model.action_logprobs(batch["obs"], batch["actions"])
    model.sample_actions(batch["obs"])
    assert torch.equal(first, model.action_logprobs(batch["obs"], batch["actions"]))
    assert (first != model.action_logprobs(batch["obs"], -0.5 * batch["actions"])).all()


def test_cloning_raises_the_density_of_the_data() -> None:
    learner, batch = make(learning_rate=1e-2, weighting="softmax", awac_lambda=100.0), random_batch("sac")
    first = learner.update(batch).metrics["behavior_logprob_mean"]
    for _ in range(20):
        last = learner.update(batch).metrics["behavior_logprob_mean"]
    assert last > first


def test_gaussian_policy_is_not_squashed_but_its_actions_are_bounded() -> None:
    model = make("gaussian").model
    obs = 1000 * torch.randn(64, 3)
    mean, log_std = model.actor(obs)
    assert mean.abs().max() > 1
    assert log_std.shape == (2,)
    assert model.mean_actions(obs).abs().max() == 1
    assert model.sample_actions(obs).actions.abs().max() == 1
    with torch.no_grad():
        model.actor.log_std.fill_(-9.0)
    assert model.actor(obs)[1].tolist() == [-6.0, -6.0]
    with pytest.raises(ValueError, match="policy must be 'squashed' or 'gaussian', got 'cauchy'"):
        MLPSACModel(3, 2, policy="cauchy")  # type: ignore[arg-type]


def test_log_std_starts_where_it_has_a_gradient_both_ways() -> None:
    """Data wider than the policy raises the log-std above its start and the gradient is still there."""
    actor = make("gaussian").model.actor
    for value in (0.0, 0.1):
        actor.log_std.data.fill_(value)
        actor.log_std.grad = None
        actor.logprobs(torch.zeros(4, 3), torch.full((4, 2), 3.0)).sum().backward()
        assert (actor.log_std.grad > 0).all()


@pytest.mark.parametrize("sizes", [None, (16, 16, 16, 16)])
def test_both_critics_have_the_asked_for_depth(sizes: tuple[int, ...] | None) -> None:
    env_spec = EnvSpec("made-up", (3,), "continuous", (2,), "float32", (-1.0, -2.0), (1.0, 2.0))
    model = SPEC.build_model(env_spec, SPEC.hyperparameters(critic_hidden_sizes=sizes))
    for critic in (model.critics.q1, model.critics.q2):
        assert [layer.out_features for layer in critic.net.layers] == [*(sizes or (256, 256, 256)), 1]
    assert len(model.actor.net.layers) == 4  # three hidden layers by default
    assert hasattr(model.actor, "log_std")  # the Gaussian that is not squashed


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        awac_loss({**PARTS, "advantage_weights": torch.ones(2, 1)})
    with pytest.raises(ValueError, match="differ in shape"):
        awac_loss({**PARTS, "target_q_values": torch.ones(2, 1)})
    with pytest.raises(ValueError, match="shape of rewards"):
        make().update({**random_batch("sac"), "rewards": torch.zeros(16, 1)})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("awac_lambda", 0, "awac_lambda must be > 0, got 0"),
        ("max_advantage_weight", 0, "max_advantage_weight must be > 0, got 0"),
        ("weighting", "mean", "weighting must be one of 'clip' or 'softmax', got 'mean'"),
        ("tau", 2, r"tau must be in \(0, 1\], got 2"),
        ("learning_starts", 100, "learning_starts is not a known key"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
