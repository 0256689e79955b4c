"""CQL against numbers worked by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support import random_batch

from rl_training.algorithms import cql
from rl_training.algorithms.cql import CQL, SPEC, conservative_value, cql_critic_loss, cql_loss, lagrange_loss
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.types import EnvSpec


def make(**hyperparameters: object) -> CQL:
    torch.manual_seed(0)
    return CQL(model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **hyperparameters)


PARTS = {
    "q1_values": torch.tensor([1.0, 2.0]),
    "q2_values": torch.tensor([0.0, 4.0]),
    "target_q_values": torch.tensor([1.0, 3.0]),
    "ood_q1_logsumexp": torch.tensor([2.0, 2.0]),
    "ood_q2_logsumexp": torch.tensor([3.0, 5.0]),
    "cql_alpha": 10.0,
    "sampled_logprobs": torch.tensor([-1.0, -3.0]),
    "sampled_q1": torch.tensor([5.0, 1.0]),
    "sampled_q2": torch.tensor([2.0, 7.0]),
    "alpha": 0.5,
}


def test_loss_worked_by_hand() -> None:
    metrics = cql_loss(PARTS)
    assert metrics["td_loss"] == pytest.approx(0.5 + 1.0)
    assert metrics["cql_penalty"] == pytest.approx(10 * (0.5 + 2.0))  # mean (1, 0) and mean (3, 1)
    assert metrics["critic_loss"] == pytest.approx(1.5 + 25.0)
    assert metrics["ood_q_mean"] == pytest.approx(3.0)
    assert metrics["q_mean"] == pytest.approx(1.75)
    assert metrics["target_q_mean"] == pytest.approx(2.0)
    assert metrics["entropy_term"] == pytest.approx(-1.0)
    assert metrics["actor_loss"] == pytest.approx(-1.0 - 1.5)


def test_conservative_value_worked_by_hand() -> None:
    data_q, sampled_q = torch.tensor([math.log(4.0)]), torch.tensor([[math.log(2.0)], [math.log(3.0)]])
    densities = torch.tensor([[math.log(0.5)], [math.log(0.25)]])
    weighted = conservative_value(data_q=data_q, sampled_q=sampled_q, log_densities=densities)
    assert weighted.item() == pytest.approx(math.log(2 / 0.5 + 3 / 0.25))  # the data's action has no part in it
    plain = conservative_value(data_q=data_q, sampled_q=sampled_q, log_densities=None)
    assert plain.item() == pytest.approx(math.log(4 + 2 + 3))


def test_importance_sampling_estimates_the_integral_of_exp_q() -> None:
    """With Q = c everywhere, L is c plus the log of the volume [-1, 1]^2, plus the log of the number of samples."""
    samples = 1000
    uniform = torch.full((samples, 1), 2 * math.log(0.5))
    value = conservative_value(data_q=torch.zeros(1), sampled_q=torch.full((samples, 1), 1.5), log_densities=uniform)
    assert value.item() == pytest.approx(1.5 + math.log(4.0) + math.log(samples), rel=1e-5)


def test_first_update_reports_everything() -> None:
    expected = {"critic_loss", "td_loss", "cql_penalty", "ood_q_mean", "q_mean", "target_q_mean"}
    expected |= {"actor_loss", "entropy_term", "entropy", "alpha", "alpha_loss"}
    result = make(num_cql_samples=2).update(random_batch("sac"), global_step=1)
    assert result.num_gradient_steps == 1
    assert result.metrics.keys() == expected
    metrics = make(num_cql_samples=2, lagrange=True).update(random_batch("sac")).metrics
    assert metrics.keys() == expected | {"lagrange_multiplier", "lagrange_loss"}
    assert "alpha_loss" not in make(num_cql_samples=1, learn_alpha=False).update(random_batch("sac")).metrics


def test_critic_loss_is_td_error_plus_penalty() -> None:
    metrics = make(num_cql_samples=3, cql_alpha=2.0).update(random_batch("sac")).metrics
    assert metrics["cql_penalty"] == pytest.approx(2.0 * 2 * (metrics["ood_q_mean"] - metrics["q_mean"]), rel=1e-4)
    assert metrics["critic_loss"] == pytest.approx(metrics["td_loss"] + metrics["cql_penalty"], rel=1e-5)
    plain = make(num_cql_samples=3, cql_alpha=0.0).update(random_batch("sac")).metrics
    assert plain["critic_loss"] == pytest.approx(plain["td_loss"])
    assert plain["td_loss"] == pytest.approx(metrics["td_loss"])


def test_penalised_actions_are_uniform_and_of_the_policy_at_both_states() -> None:
    learner, batch = make(num_cql_samples=4), random_batch("sac")
    sampled = learner.penalised_actions(batch["obs"], batch["next_obs"])
    assert sampled.actions.shape == (12, 16, 2)
    assert sampled.logprobs.shape == (12, 16)
    assert sampled.actions.abs().max() <= 1
    assert not sampled.actions.requires_grad
    assert not sampled.logprobs.requires_grad
    assert torch.equal(sampled.logprobs[:4], torch.full((4, 16), 2 * math.log(0.5)))
    for row in range(4, 12):  # pi(s) and pi(s') in turn
        states = batch["obs"] if row % 2 == 0 else batch["next_obs"]
        logprobs = learner.model.action_logprobs(states, sampled.actions[row])
        torch.testing.assert_close(logprobs, sampled.logprobs[row], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows_at_once", [1, 48, 10_000])
def test_values_of_many_actions_do_not_depend_on_how_many_are_computed_at_once(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch = make(num_cql_samples=3), random_batch("sac")
    actions = torch.rand(7, 16, 2) * 2 - 1
    monkeypatch.setattr(cql, "ROWS_AT_ONCE", rows_at_once)
    q1, q2 = learner.values_of_many(batch["obs"], actions)
    for sample in range(7):
        one_q1, one_q2 = learner.model.q_values(batch["obs"], actions[sample])
        torch.testing.assert_close((q1[sample], q2[sample]), (one_q1, one_q2))


@pytest.mark.parametrize("importance_sampling", [True, False])
def test_every_sampled_action_is_valued_at_its_own_state(importance_sampling: bool) -> None:
    learner = make(num_cql_samples=2, importance_sampling=importance_sampling)
    batch = random_batch("sac")
    critics, state = copy.deepcopy(learner.model.critics), learner.generator.get_state()
    metrics = learner.update(batch).metrics
    learner, critics = make(num_cql_samples=2), critics.requires_grad_(False)
    learner.generator.set_state(state)
    learner.model.sample_actions(batch["next_obs"], learner.generator)  # the target's action is drawn first
    sampled = learner.penalised_actions(batch["obs"], batch["next_obs"])
    values = []
    for critic in range(2):
        rows = torch.stack([critics(batch["obs"], actions)[critic] for actions in sampled.actions])  # at s, also pi(s')
        if importance_sampling:
            values.append((rows - sampled.logprobs).logsumexp(dim=0))
        else:
            data_q = critics(batch["obs"], batch["actions"])[critic]
            values.append(torch.cat((rows, data_q.unsqueeze(0))).logsumexp(dim=0))
    assert metrics["ood_q_mean"] == pytest.approx(torch.stack(values).mean().item(), rel=1e-4)


def test_penalty_has_a_gradient_for_both_critics_through_the_logsumexp() -> None:
    """D7: a detached logsumexp would leave only the pull on the data's actions."""
    q1, q2 = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    sampled = torch.zeros(6, 4, requires_grad=True)
    ood = conservative_value(data_q=q1, sampled_q=sampled, log_densities=torch.zeros(6, 4))
    loss = cql_critic_loss(q1=q1, q2=q2, target_q=torch.zeros(4), ood_q1=ood, ood_q2=ood, cql_alpha=3.0)["critic_loss"]
    loss.backward()
    assert sampled.grad is not None
    torch.testing.assert_close(sampled.grad, torch.full((6, 4), 3.0 * 2 / 4 / 6))  # pushed down, a softmax share each
    for q in (q1, q2):
        assert q.grad is not None
        torch.testing.assert_close(q.grad, torch.full((4,), -3.0 / 4))  # held up where the data is


def test_penalty_reaches_the_critics_and_never_the_policy() -> None:
    learner, batch = make(num_cql_samples=2), random_batch("sac")
    seen: list[torch.Tensor] = []
    learner.critic_optimizer.minimize = seen.append  # type: ignore[method-assign, assignment]
    learner.update(batch)
    policy = torch.autograd.grad(seen[0], list(learner.model.actor.parameters()), allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in policy)
    for critic in (learner.model.critics.q1, learner.model.critics.q2):
        gradients = torch.autograd.grad(seen[0], list(critic.parameters()), retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
    temperature = torch.autograd.grad(seen[0], list(learner.temperature.parameters()), allow_unused=True)
    assert temperature == (None,)


def test_critics_fall_off_the_data() -> None:
    def gap(cql_alpha: float) -> float:
        learner, batch = make(num_cql_samples=4, cql_alpha=cql_alpha, learning_rate=1e-2), random_batch("sac")
        for _ in range(60):
            metrics = learner.update(batch).metrics
        return metrics["ood_q_mean"] - metrics["q_mean"]

    assert gap(10.0) < gap(0.0) - 1.0


def test_no_entropy_in_the_backup() -> None:
    learner, batch = make(gamma=0.9, alpha=5.0, num_cql_samples=1), random_batch("sac")
    state = learner.generator.get_state()
    with torch.no_grad():
        actions, _ = learner.model.sample_actions(batch["next_obs"], learner.generator)
        next_q = torch.minimum(*learner.target_critics(batch["next_obs"], actions))
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * next_q).mean().item()
    learner.generator.set_state(state)
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected, rel=1e-5)


def test_rates_of_critics_and_actor_are_apart() -> None:
    learner = make(learning_rate=1e-3, actor_learning_rate=1e-4)
    assert learner.critic_optimizer.learning_rate == learner.multiplier_optimizer.learning_rate == 1e-3
    assert learner.actor_optimizer.learning_rate == learner.alpha_optimizer.learning_rate == 1e-4
    before = learner.actor_optimizer.values.clone()
    learner.update(random_batch("sac"))
    assert (learner.actor_optimizer.values - before).abs().max().item() == pytest.approx(1e-4, rel=1e-2)


def test_critics_do_not_move_in_the_actor_step_and_targets_follow_by_tau() -> None:
    learner = make(tau=0.1, num_cql_samples=1)
    before = learner.target_values.clone()
    learner.update(random_batch("sac"))
    torch.testing.assert_close(learner.target_values, before + 0.1 * (learner.critic_optimizer.values - before))
    learner.critic_optimizer.minimize = lambda loss: None  # type: ignore[method-assign, misc, assignment]
    critics = learner.critic_optimizer.values.clone()
    learner.update(random_batch("sac"))
    assert torch.equal(critics, learner.critic_optimizer.values)


def test_lagrange_worked_by_hand() -> None:
    terms = cql_critic_loss(
        **{name: torch.tensor(values) for name, values in {"q1": [1.0], "q2": [0.0], "target_q": [1.0]}.items()},
        ood_q1=torch.tensor([4.0]),
        ood_q2=torch.tensor([5.0]),
        cql_alpha=2.0 * torch.tensor(3.0),
        target_action_gap=1.0,
    )
    assert terms["cql_penalty"].item() == pytest.approx(6 * ((3 - 1) + (5 - 1)))
    log_multiplier = torch.tensor(math.log(3.0), requires_grad=True)
    loss = lagrange_loss(multiplier=log_multiplier.exp(), excess=2.0 * torch.tensor(4.0 - 1.0))["lagrange_loss"]
    assert loss.item() == pytest.approx(-3 * 2 * 3)
    loss.backward()
    assert log_multiplier.grad is not None
    assert log_multiplier.grad.item() < 0  # the gap is above its target: descent raises the multiplier


@pytest.mark.parametrize(("target", "rises"), [(1e-3, True), (1e3, False)])
def test_multiplier_moves_towards_the_target_gap_and_is_saved(target: float, rises: bool) -> None:
    learner = make(lagrange=True, target_action_gap=target, num_cql_samples=2)
    first = learner.update(random_batch("sac")).metrics
    assert first["lagrange_multiplier"] == pytest.approx(1.0)
    second = learner.update(random_batch("sac")).metrics
    assert (second["lagrange_multiplier"] > 1.0) == rises
    state = learner.state_dict()
    assert state.weights["log_multiplier"].item() != 0.0
    other = make(lagrange=True, target_action_gap=target, num_cql_samples=2)
    other.load_state_dict(copy.deepcopy(state))
    assert learner.update(random_batch("sac")).metrics == other.update(random_batch("sac")).metrics


def test_multiplier_is_bounded_and_stays_without_lagrange() -> None:
    learner = make(num_cql_samples=1)
    learner.update(random_batch("sac"))
    assert learner.log_multiplier.item() == 0.0
    learner = make(num_cql_samples=1, lagrange=True)
    learner.log_multiplier.data.fill_(50.0)
    assert learner.update(random_batch("sac")).metrics["lagrange_multiplier"] == 1e6


@pytest.mark.parametrize("sizes", [None, (16, 16, 16, 16, 16)])
def test_both_critics_have_the_asked_for_depth(sizes: tuple[int, ...] | None) -> None:
    env_spec = EnvSpec("made-up", (3,), "continuous", (2,), "float32", (-1.0, -2.0), (1.0, 2.0))
    model = SPEC.build_model(env_spec, SPEC.hyperparameters(critic_hidden_sizes=sizes))
    for critic in (model.critics.q1, model.critics.q2):
        assert [layer.out_features for layer in critic.net.layers] == [*(sizes or (256, 256, 256)), 1]
    assert len(model.actor.net.layers) == 4  # three hidden layers by default


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        cql_loss({**PARTS, "ood_q1_logsumexp": torch.zeros(2, 1)})
    with pytest.raises(ValueError, match="differ in shape"):
        conservative_value(data_q=torch.zeros(4), sampled_q=torch.zeros(6, 4), log_densities=torch.zeros(6, 1))
    with pytest.raises(ValueError, match="shape of rewards"):
        make().update({**random_batch("sac"), "rewards": torch.zeros(16, 1)})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cql_alpha", -1, "cql_alpha must be >= 0, got -1"),
        ("num_cql_samples", 0, "num_cql_samples must be >= 1, got 0"),
        ("actor_learning_rate", 0, "actor_learning_rate must be > 0, got 0"),
        ("target_action_gap", 0, "target_action_gap must be > 0, got 0"),
        ("alpha", 0, "alpha must be > 0, got 0"),
        ("buffer_capacity", 1000, "buffer_capacity is not a known key"),
    ],
)
def test_nonsense_is_refused_at_construction(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{name: value})
