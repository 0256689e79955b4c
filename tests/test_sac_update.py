"""SAC against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.entropy import EntropyHyperparameters, Temperature, entropy_actor_loss
from rl_training.algorithms.sac import SAC, sac_loss
from rl_training.models.mlp_sac import MLPSACModel


def make(**hyperparameters: object) -> SAC:
    torch.manual_seed(0)
    return SAC(model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


def test_loss_worked_by_hand() -> None:
    metrics = sac_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([0.0, 4.0]),
            "target_q_values": torch.tensor([1.0, 3.0]),
            "sampled_logprobs": torch.tensor([-1.0, -3.0]),
            "sampled_q1": torch.tensor([5.0, 1.0]),
            "sampled_q2": torch.tensor([2.0, 7.0]),
            "alpha": 0.5,
        }
    )
    assert metrics["critic_loss"] == pytest.approx(0.5 + 1.0)  # (0 + 1) / 2 + (1 + 1) / 2
    assert metrics["target_q_mean"] == pytest.approx(2.0)
    assert metrics["entropy_term"] == pytest.approx(-1.0)  # 0.5 * mean(-1, -3)
    assert metrics["actor_loss"] == pytest.approx(-1.0 - 1.5)  # minus mean of min(5, 2), min(1, 7)


def test_temperature_rises_when_entropy_is_too_low() -> None:
    temperature = Temperature(EntropyHyperparameters(), action_dim=2)
    low_entropy = torch.full((4,), 3.0, requires_grad=True)  # entropy -3, target -2
    temperature.loss(low_entropy)["alpha_loss"].backward()
    assert temperature.log_alpha.grad is not None
    assert temperature.log_alpha.grad.item() == pytest.approx(-1.0)  # descent raises log alpha
    assert low_entropy.grad is None  # and does not touch the policy


def test_first_update_reports_everything() -> None:
    result = make(alpha=0.2).update(random_batch("sac"), global_step=8)
    assert result.num_gradient_steps == 1
    assert {"critic_loss", "actor_loss", "target_q_mean", "entropy_term", "alpha", "alpha_loss"} <= result.metrics.keys()
    assert result.metrics["alpha"] == pytest.approx(0.2)


def test_target_is_reward_plus_soft_value_and_stops_at_termination() -> None:
    """gamma 0 and termination both leave the bare reward; otherwise the soft value of the target critics is added."""
    batch = random_batch("sac")
    assert make(gamma=0.0).update(batch).metrics["target_q_mean"] == pytest.approx(batch["rewards"].mean().item(), rel=1e-5)
    ended = {**batch, "dones": torch.ones(16)}
    assert make().update(ended).metrics["target_q_mean"] == pytest.approx(batch["rewards"].mean().item(), rel=1e-5)

    learner = make(gamma=0.9, alpha=0.3)
    state = learner.generator.get_state()
    with torch.no_grad():
        actions, logprobs = learner.model.sample_actions(batch["next_obs"], learner.generator)
        soft = torch.minimum(*learner.target_critics(batch["next_obs"], actions)) - 0.3 * logprobs
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * soft).mean().item()
    learner.generator.set_state(state)
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected, rel=1e-5)


def test_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False)
    result = learner.update(random_batch("sac"))
    assert "alpha_loss" not in result.metrics
    assert learner.temperature().item() == pytest.approx(0.2)


def test_target_entropy_is_minus_the_action_dimensions_unless_given() -> None:
    assert make().temperature.target_entropy == -2.0
    assert make(target_entropy=-0.5).temperature.target_entropy == -0.5


def test_critics_do_not_move_in_the_actor_step() -> None:
    learner = make()
    batch = random_batch("sac")
    learner.critic_optimizer.minimize = lambda loss: None  # type: ignore[method-assign, misc, assignment]
    before = learner.critic_optimizer.values.clone()
    learner.update(batch)
    assert torch.equal(before, learner.critic_optimizer.values)


def test_targets_follow_by_tau() -> None:
    learner = make(tau=0.1)
    before = learner.target_values.clone()
    learner.update(random_batch("sac"))
    expected = before + 0.1 * (learner.critic_optimizer.values - before)
    torch.testing.assert_close(learner.target_values, expected)


def test_shapes_of_the_actor_loss_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        entropy_actor_loss(logprobs=torch.zeros(4), q_values=torch.zeros(4, 1), alpha=torch.tensor(1.0))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", 0, "learning_rate must be > 0, got 0"),
        ("gamma", 1.5, r"gamma must be in \[0, 1\], got 1.5"),
        ("tau", 0, r"tau must be in \(0, 1\], got 0"),
        ("alpha", -1, "alpha must be > 0, got -1"),
        ("batch_size", 0, "batch_size must be >= 1, got 0"),
        ("learning_rate", float("nan"), "learning_rate must be a finite number"),
        ("nonsense", 1, "nonsense is not a known key"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
