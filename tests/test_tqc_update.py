"""TQC against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from support import random_batch

from rl_training.algorithms.functional import quantile_huber_loss, quantile_td_target
from rl_training.algorithms.tqc import TQC, midpoint_taus, tqc_loss, truncated_atoms
from rl_training.models import MLPTQCModel


def make(**hyperparameters: object) -> TQC:
    torch.manual_seed(0)
    model = MLPTQCModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16), num_critics=3, num_quantiles=5)
    return TQC(model=model, **hyperparameters)


def test_truncation_pools_sorts_and_drops_the_top() -> None:
    quantiles = torch.tensor([[[1.0, 9.0, 5.0], [2.0, 8.0, 4.0]]])  # 2 critics, 3 quantiles
    assert truncated_atoms(quantiles, 0).tolist() == [[1, 2, 4, 5, 8, 9]]
    assert truncated_atoms(quantiles, 1).tolist() == [[1, 2, 4, 5]]  # one per net: two in all, from wherever they are
    assert truncated_atoms(quantiles, 2).tolist() == [[1, 2]]


def test_taus_are_midpoints() -> None:
    assert midpoint_taus(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_quantile_huber_worked_by_hand() -> None:
    """Quantiles 0 and 1 at taus 0.25 and 0.75; targets 0.5 and 3.

    delta (target - quantile) is 0.5, 3 for the first and -0.5, 2 for the second; Huber of those: 0.125, 2.5, 0.125, 1.5;
    weights |tau - 1(delta < 0)|: 0.25, 0.25, 0.25, 0.75.
    """
    loss = quantile_huber_loss(
        quantiles=torch.tensor([[[0.0, 1.0]]]), target_atoms=torch.tensor([[0.5, 3.0]]), taus=torch.tensor([0.25, 0.75])
    )
    assert loss.item() == pytest.approx((0.25 * 0.125 + 0.25 * 2.5 + 0.25 * 0.125 + 0.75 * 1.5) / 4)


def test_minimum_of_the_quantile_loss_is_the_quantile() -> None:
    """The median of 0, 1, 10 is 1, not the mean."""
    quantile = torch.tensor([[[5.0]]], requires_grad=True)
    optimizer = torch.optim.Adam([quantile], 0.05)
    for _ in range(800):
        optimizer.zero_grad()
        target = torch.tensor([[0.0, 1.0, 10.0]])
        quantile_huber_loss(quantiles=quantile, target_atoms=target, taus=torch.tensor([0.5]), kappa=0.01).backward()
        optimizer.step()
    assert quantile.item() == pytest.approx(1.0, abs=0.1)


def test_targets_of_atoms() -> None:
    batch = {"rewards": torch.tensor([1.0, 2.0]), "dones": torch.tensor([0.0, 1.0])}
    assert quantile_td_target(batch, torch.tensor([[10.0, 20.0], [5.0, 5.0]]), gamma=0.5).tolist() == [[6, 11], [2, 2]]


def test_loss_names() -> None:
    metrics = tqc_loss(
        {
            "critic_quantiles": torch.zeros(4, 2, 5),
            "target_quantiles": torch.ones(4, 8),
            "taus": midpoint_taus(5),
            "sampled_logprobs": torch.zeros(4),
            "sampled_q_values": torch.full((4,), 2.0),
            "alpha": 0.2,
            "kappa": 1.0,
        }
    )
    assert metrics["critic_loss"] == pytest.approx(0.25)  # mean tau 0.5 times Huber(1) = 0.5
    assert metrics["actor_loss"] == pytest.approx(-2.0)
    assert {"target_q_mean", "entropy_term"} <= metrics.keys()


def test_actor_uses_every_quantile() -> None:
    learner, batch = make(top_quantiles_to_drop_per_net=2, alpha=1e-8, learn_alpha=False), random_batch("tqc")
    learner.critic_optimizer.minimize = lambda loss: None  # type: ignore[method-assign, misc, assignment]
    state = learner.generator.get_state()
    learner.model.sample_actions(batch["next_obs"], learner.generator)  # what the target draws first
    actions = learner.model.sample_actions(batch["obs"], learner.generator).actions
    expected = -learner.model.quantiles(batch["obs"], actions).mean().item()
    learner.generator.set_state(state)
    assert learner.update(batch).metrics["actor_loss"] == pytest.approx(expected, rel=1e-4)


def test_shapes() -> None:
    model = make().model
    assert model.quantiles(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (4, 3, 5)
    assert model.q_values(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_quantiles_to_drop_per_net": 5}, r"top_quantiles_to_drop_per_net must be < num_quantiles \(5\), got 5"),
        ({"top_quantiles_to_drop_per_net": -1}, "top_quantiles_to_drop_per_net must be >= 0, got -1"),
        ({"kappa": 0}, "kappa must be > 0, got 0"),
        ({"num_quantiles": 7}, "the model has"),
    ],
)
def test_nonsense_is_refused_at_construction(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_quantile_huber_gradient_is_that_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles = torch.randn(5, 2, 4, generator=generator, dtype=torch.float64).requires_grad_()
    atoms, taus = (
        2.0 * torch.randn(5, 7, generator=generator, dtype=torch.float64),
        torch.tensor([0.1, 0.4, 0.6, 0.9]).double(),
    )
    for kappa in (1.0, 0.5):
        delta = atoms[:, None, None, :] - quantiles[..., None]
        size = delta.abs()
        huber = torch.where(size <= kappa, 0.5 * delta.square(), kappa * (size - 0.5 * kappa)) / kappa
        expected = ((taus[:, None] - (delta.detach() < 0).double()).abs() * huber).mean()
        loss = quantile_huber_loss(quantiles=quantiles, target_atoms=atoms, taus=taus, kappa=kappa)
        torch.testing.assert_close(loss, expected)
        (mine,), (theirs,) = (torch.autograd.grad(value, [quantiles]) for value in (3.0 * loss, 3.0 * expected))
        torch.testing.assert_close(mine, theirs)
