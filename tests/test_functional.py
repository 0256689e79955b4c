"""The shared pieces against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rl_training.algorithms.functional import (
    as_floats,
    flatten_parameters,
    frozen_copy,
    polyak_update,
    squared_error,
    td_target,
    twin_critic_loss,
)
from rl_training.algorithms.optimizer import FlatAdam


def test_td_target_masks_termination_only() -> None:
    batch = {"rewards": torch.tensor([1.0, 2.0]), "dones": torch.tensor([0.0, 1.0])}
    assert td_target(batch, torch.tensor([10.0, 10.0]), gamma=0.9).tolist() == [10.0, 2.0]


def test_td_target_uses_per_row_discounts() -> None:
    batch = {"rewards": torch.tensor([1.0]), "dones": torch.tensor([0.0]), "discounts": torch.tensor([0.5])}
    assert td_target(batch, torch.tensor([10.0]), gamma=0.9).tolist() == [6.0]


def test_column_vectors_do_not_broadcast_into_a_matrix() -> None:
    batch = {"rewards": torch.zeros(4), "dones": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"\(4,\).*\(4, 1\)"):
        td_target(batch, torch.zeros(4, 1), gamma=0.9)
    with pytest.raises(ValueError, match="differ in shape"):
        squared_error(torch.zeros(4), torch.zeros(4, 1))


def test_twin_critic_loss_sums_over_critics_and_averages_over_the_batch() -> None:
    terms = twin_critic_loss(q1=torch.tensor([1.0, 3.0]), q2=torch.tensor([0.0, 0.0]), target_q=torch.tensor([0.0, 1.0]))
    assert as_floats(terms) == {"critic_loss": (1 + 4) / 2 + 0.5, "q_mean": 1.0, "target_q_mean": 0.5}


def test_polyak_moves_by_tau() -> None:
    target, source = torch.tensor([0.0, 10.0]), torch.tensor([10.0, 0.0])
    polyak_update(target, source, 0.1)
    torch.testing.assert_close(target, torch.tensor([1.0, 9.0]))


def test_flattened_parameters_stay_views_of_the_buffer() -> None:
    module = nn.Linear(2, 2)
    before = [p.clone() for p in module.parameters()]
    flat = flatten_parameters(module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    flat.zero_()
    assert all((p == 0).all() for p in module.parameters())


def test_frozen_copy_is_apart() -> None:
    module = nn.Linear(2, 1)
    copy = frozen_copy(module)
    with torch.no_grad():
        module.weight.add_(1)
    assert not torch.equal(copy.weight, module.weight)
    assert not any(p.requires_grad for p in copy.parameters())


def test_flat_adam_is_torch_adam() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    theirs.load_state_dict(ours.state_dict())
    flat, reference = FlatAdam(ours.parameters(), 1e-2), torch.optim.Adam(theirs.parameters(), 1e-2)
    for _ in range(5):
        x = torch.randn(8, 3)
        flat.minimize(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_flat_adam_touches_only_its_own_gradients() -> None:
    actor, critic = nn.Linear(2, 1), nn.Linear(1, 1)
    FlatAdam(actor.parameters(), 1e-2).minimize(critic(actor(torch.randn(4, 2))).mean())
    assert critic.weight.grad is None


def test_flat_adam_clips_the_norm_of_the_whole_group() -> None:
    layer = nn.Linear(1, 1, bias=False)
    optimizer = FlatAdam(layer.parameters(), 1.0)
    optimizer.minimize(1000 * layer(torch.ones(1, 1)).sum(), max_grad_norm=10.0)
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == pytest.approx(10.0, rel=1e-4)


def test_flat_adam_state_round_trip() -> None:
    def make() -> tuple[nn.Linear, FlatAdam]:
        torch.manual_seed(1)
        layer = nn.Linear(2, 1)
        return layer, FlatAdam(layer.parameters(), 1e-2)

    x = torch.tensor([[1.0, -1.0]])
    (one, first), (two, second) = make(), make()
    first.minimize(one(x).square().sum())
    two.load_state_dict(one.state_dict())
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    for layer, optimizer in ((one, first), (two, second)):
        optimizer.minimize(layer(x).square().sum())
    assert torch.equal(one.weight, two.weight)


def test_as_floats_mixes_tensors_and_numbers() -> None:
    assert as_floats({"a": torch.tensor([2.0]), "b": 3, "c": torch.tensor(0.5)}) == {"a": 2.0, "b": 3.0, "c": 0.5}
    assert as_floats({}) == {}
