"""Behaviour cloning against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.bc import BC, SPEC, bc_loss
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.types import EnvSpec


def make(**hyperparameters: object) -> BC:
    torch.manual_seed(0)
    return BC(model=MLPBCModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


def test_loss_worked_by_hand() -> None:
    metrics = bc_loss(
        {
            "policy_actions": torch.tensor([[0.5, -0.5], [1.0, 0.0]]),
            "actions": torch.tensor([[0.0, 0.5], [1.0, -1.0]]),
        }
    )
    assert metrics == {
        "bc_loss": pytest.approx((0.25 + 1.0 + 0.0 + 1.0) / 4),  # over the batch and the action's dimensions
        "action_abs_mean": pytest.approx((0.5 + 0.5 + 1.0 + 0.0) / 4),
    }


def test_loss_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        bc_loss({"policy_actions": torch.zeros(4, 1), "actions": torch.zeros(4)})


def test_update_descends_the_gradient_of_the_squared_error() -> None:
    learner, batch = make(), random_batch("td3")
    error = learner.model.actions(batch["obs"]) - batch["actions"]
    loss = (error**2).sum() / error.numel()
    expected = torch.autograd.grad(loss, list(learner.model.parameters()))
    metrics = learner.update(batch).metrics
    assert metrics["bc_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for parameter, gradient in zip(learner.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_only_observations_and_actions_matter() -> None:
    batch = random_batch("td3")
    bare = {name: batch[name] for name in ("obs", "actions")}
    full, less = make(gamma=0.1), make(gamma=0.9)
    assert full.update(batch).metrics == less.update(bare).metrics
    assert torch.equal(full.optimizer.values, less.optimizer.values)


def test_it_learns_a_policy_of_the_data() -> None:
    learner, obs = make(learning_rate=1e-2), random_batch("td3", rows=128)["obs"]
    actions = torch.tanh(obs[:, :2])
    for _ in range(300):
        metrics = learner.update({"obs": obs, "actions": actions}).metrics
    assert metrics["bc_loss"] < 1e-3


def test_acting_is_the_same_with_and_without_deterministic() -> None:
    learner, obs = make(), torch.randn(5, 3)
    assert torch.equal(learner.act(obs), learner.act(obs, deterministic=False))
    assert learner.act(obs * 100).abs().max() <= 1


def test_the_spec_builds_an_offline_learner_of_the_asked_for_size() -> None:
    env_spec = EnvSpec("made-up", (3,), "continuous", (2,), "float32", (-1.0, -2.0), (1.0, 2.0))
    learner = SPEC.build(env_spec, SPEC.hyperparameters(hidden_sizes=(8,)))
    assert SPEC.loop == "offline"
    assert [tuple(parameter.shape) for parameter in learner.networks()] == [(8, 3), (8,), (2, 8), (2,)]
    assert "buffer_capacity" not in SPEC.hyperparameters.model_fields


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", 0, "learning_rate must be > 0, got 0"),
        ("batch_size", 0, "batch_size must be >= 1, got 0"),
        ("tau", 0.005, "tau is not a known key"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
