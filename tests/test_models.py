"""Networks: shapes, ranges and densities."""

from __future__ import annotations

import math

import pytest
import torch

from rl_training.models import MLPSACModel
from rl_training.models.mlp import MLP


def test_sac_model_shapes_and_ranges() -> None:
    model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8, 8, 8))
    obs = torch.randn(5, 3)
    sampled = model.sample_actions(obs)
    assert sampled.actions.shape == (5, 2)
    assert sampled.logprobs.shape == (5,)
    assert sampled.actions.abs().max() <= 1
    q1, q2 = model.q_values(obs, sampled.actions)
    assert q1.shape == q2.shape == (5,)
    assert not torch.equal(q1, q2)
    assert model.mean_actions(obs).abs().max() <= 1


def test_logprobs_of_given_actions_are_those_of_sampling() -> None:
    model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    obs = torch.randn(64, 3)
    sampled = model.sample_actions(obs)
    torch.testing.assert_close(model.action_logprobs(obs, sampled.actions), sampled.logprobs, rtol=1e-3, atol=1e-3)


def test_squashed_density_worked_by_hand() -> None:
    """Mean 0, std 1, u = 0.5: log N(0.5) - log(1 - tanh(0.5)^2)."""
    model = MLPSACModel(obs_dim=1, action_dim=1, hidden_sizes=(4,))
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.zero_()
    action = math.tanh(0.5)
    expected = -0.5 * 0.25 - 0.5 * math.log(2 * math.pi) - math.log(1 - action**2)
    assert model.action_logprobs(torch.zeros(1, 1), torch.tensor([[action]])).item() == pytest.approx(expected, rel=1e-5)


def test_density_integrates_to_one() -> None:
    """Over u = atanh(a), whose steps are fine where the density of a is steep: near the bounds."""
    model = MLPSACModel(obs_dim=1, action_dim=1, hidden_sizes=(4,))
    step = 1e-3
    actions = torch.arange(-7, 7, step).unsqueeze(1).tanh()
    density = model.action_logprobs(torch.ones(len(actions), 1), actions).exp()
    assert (density * (1 - actions.squeeze(1) ** 2)).sum().item() * step == pytest.approx(1.0, abs=1e-3)


def test_actions_at_the_border_have_a_finite_density_and_gradient() -> None:
    model = MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(4,))
    logprobs = model.action_logprobs(torch.zeros(2, 2), torch.tensor([[1.0], [-1.0]]))
    logprobs.sum().backward()
    assert logprobs.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.actor.parameters())


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_of_any_depth(depth: int, layer_norm: bool) -> None:
    net = MLP(3, [8] * depth, 2, layer_norm=layer_norm)
    assert net(torch.randn(5, 3)).shape == (5, 2)
    assert (net.norms is not None) == layer_norm


def test_layer_norm_is_in_the_critics_only_and_bounds_what_they_see() -> None:
    model = MLPSACModel(obs_dim=3, action_dim=1, hidden_sizes=(8, 8), layer_norm=True)
    assert model.actor.net.norms is None
    assert model.critics.q1.net.norms is not None
    far = model.q_values(torch.full((1, 3), 1e6), torch.zeros(1, 1))[0]
    assert far.abs().item() < 100  # without LayerNorm the value would grow with the observation
