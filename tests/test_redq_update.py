"""REDQ against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.functional import sample_critic_subset
from rl_training.algorithms.redq import REDQ, redq_loss
from rl_training.models import MLPREDQModel
from rl_training.models.mlp import MLP, EnsembleMLP
from rl_training.models.mlp_redq import ensemble_q_values


def make(**hyperparameters: object) -> REDQ:
    torch.manual_seed(0)
    return REDQ(model=MLPREDQModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16), num_critics=5), **hyperparameters)


def test_loss_worked_by_hand() -> None:
    metrics = redq_loss(
        {
            "critic_q_values": torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
            "target_q_values": torch.tensor([1.0, 2.0]),
            "sampled_logprobs": torch.tensor([-1.0, 1.0]),
            "sampled_q_values": torch.tensor([3.0, 5.0]),
            "alpha": 0.5,
        }
    )
    assert metrics["critic_loss"] == pytest.approx((0 + 4) / 2 + (1 + 4) / 2 + (4 + 4) / 2)  # summed over critics
    assert metrics["actor_loss"] == pytest.approx(0.0 - 4.0)
    assert metrics["entropy_term"] == pytest.approx(0.0)


@pytest.fixture(params=["batched", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which an ensemble computes its members."""
    monkeypatch.setattr(EnsembleMLP, "CACHED_ENTRIES", 2**18 if request.param == "batched" else 0)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_both_ways_to_compute_an_ensemble_agree(layer_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, of all members and of some."""
    ensemble, x = EnsembleMLP(5, 4, [16, 8], 3, layer_norm=layer_norm), torch.randn(6, 4, requires_grad=True)
    weights = torch.randn(5, 6, 3)
    found = []
    for entries in (2**18, 0):
        monkeypatch.setattr(EnsembleMLP, "CACHED_ENTRIES", entries)
        values, some = ensemble(x), ensemble(x, torch.tensor([4, 1]))
        found.append((values, some, *torch.autograd.grad((values * weights).sum(), [x, *ensemble.parameters()])))
    for batched, apart in zip(*found, strict=True):
        torch.testing.assert_close(batched, apart)


@pytest.mark.usefixtures("way")
def test_critics_of_an_ensemble_are_separate_networks() -> None:
    ensemble, x = EnsembleMLP(3, 4, [8, 8], 2), torch.randn(6, 4)
    together = ensemble(x)
    for member in range(3):
        net = MLP(4, [8, 8], 2)
        with torch.no_grad():
            for layer, weight, bias in zip(net.layers, ensemble.weights, ensemble.biases, strict=True):
                layer.weight.copy_(weight[member].T)
                layer.bias.copy_(bias[member, 0])
        torch.testing.assert_close(together[member], net(x))


@pytest.mark.usefixtures("way")
def test_layer_norm_is_each_members_own() -> None:
    ensemble, x = EnsembleMLP(2, 4, [8], 1, layer_norm=True), torch.randn(6, 4)
    before = ensemble(x)
    with torch.no_grad():
        ensemble.norm_scales[0][1] *= 2
    after = ensemble(x)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@pytest.mark.usefixtures("way")
def test_subset_of_critics_alone_is_computed() -> None:
    learner = make()
    inputs = torch.randn(4, 5)
    everything = ensemble_q_values(learner.target_critics, inputs)
    some = ensemble_q_values(learner.target_critics, inputs, torch.tensor([3, 1]))
    torch.testing.assert_close(some, everything[:, [3, 1]])
    with torch.no_grad():
        for weight in learner.target_critics.weights:
            weight[[0, 2, 4]] = float("nan")
    assert ensemble_q_values(learner.target_critics, inputs, torch.tensor([3, 1])).isfinite().all()


def test_subsets_are_fresh_without_repeats_and_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [tuple(sorted(sample_critic_subset(5, 2, generator).tolist())) for _ in range(2000)]
    counts = {pair: draws.count(pair) for pair in set(draws)}
    assert len(counts) == 10
    assert all(a != b for a, b in counts)
    assert min(counts.values()) > 140


def test_target_is_the_smaller_of_the_subset() -> None:
    learner, batch = make(gamma=0.9, alpha=0.3, subset_size=2), random_batch("redq")
    state = learner.generator.get_state()
    with torch.no_grad():
        actions, logprobs = learner.model.sample_actions(batch["next_obs"], learner.generator)
        subset = sample_critic_subset(5, 2, learner.generator)
        all_q = ensemble_q_values(learner.target_critics, torch.cat((batch["next_obs"], actions), -1))
        soft = all_q[:, subset].min(dim=1).values - 0.3 * logprobs
        expected = (batch["rewards"] + 0.9 * (1 - batch["dones"]) * soft).mean()
    learner.generator.set_state(state)
    assert learner.update(batch).metrics["target_q_mean"] == pytest.approx(expected.item(), rel=1e-5)


def test_actor_and_temperature_move_once_per_environment_step() -> None:
    learner = make(gradient_updates_per_step=3)
    seen = ["actor_loss" in learner.update(random_batch("redq", seed=step)).metrics for step in range(7)]
    assert seen == [True, False, False, True, False, False, True]


def test_targets_move_after_every_update() -> None:
    learner = make(gradient_updates_per_step=20, tau=0.1)
    for step in range(3):
        before = learner.target_values.clone()
        learner.update(random_batch("redq", seed=step))
        torch.testing.assert_close(learner.target_values, before + 0.1 * (learner.critic_optimizer.values - before))


def test_q_values_with_and_without_a_batch() -> None:
    model = make().model
    assert model.q_values(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (4, 5)
    assert model.q_values(torch.zeros(3), torch.zeros(2)).shape == (5,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subset_size": 0}, "subset_size must be >= 1, got 0"),
        ({"subset_size": 6}, r"subset_size must be <= num_critics \(5\), got 6"),
        ({"num_critics": 7}, "the model has 5 critics"),
        ({"gradient_updates_per_step": 0}, "gradient_updates_per_step must be >= 1, got 0"),
    ],
)
def test_nonsense_is_refused_at_construction(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)
