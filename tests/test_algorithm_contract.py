"""What every registered algorithm must do, tested the day it is registered."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support import ALGORITHMS, TINY_KWARGS, random_batch, tiny_spec

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.registry import get_algorithm_spec

pytestmark = pytest.mark.parametrize("algo", ALGORITHMS)


def build(algo: str, *, seed: int = 0, **hyperparameters: object) -> Algorithm:
    spec = get_algorithm_spec(algo)
    return spec.build(tiny_spec(algo), spec.hyperparameters(**{**TINY_KWARGS, **hyperparameters}), seed=seed)


def test_first_update_is_one_finite_step_with_complete_metrics(algo: str) -> None:
    first = build(algo).update(random_batch(algo), global_step=1)
    assert first.num_gradient_steps == 1
    assert all(math.isfinite(value) for value in first.metrics.values())
    learner = build(algo)
    seen = set()
    for step in range(6):
        seen |= learner.update(random_batch(algo, seed=step), global_step=step).metrics.keys()
    assert seen == first.metrics.keys()  # later steps may skip some metrics, never add any


def test_updates_move_the_networks(algo: str) -> None:
    learner = build(algo)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().weights.items()}
    for step in range(3):
        learner.update(random_batch(algo, seed=step), global_step=step)
    moved = [name for name, tensor in learner.state_dict().weights.items() if not torch.equal(tensor, before[name])]
    assert any(name.startswith(("model", "q_network")) for name in moved)


def test_targets_lag_behind(algo: str) -> None:
    learner = build(algo)
    weights = learner.state_dict().weights
    if not any(name.startswith("target") for name in weights):
        pytest.skip("has no target network")
    start = {name: tensor.clone() for name, tensor in weights.items()}
    learner.update(random_batch(algo))
    now = learner.state_dict().weights
    target_names = [name for name in start if name.startswith("target")]

    def distance(names: list[str]) -> float:
        return sum((now[name] - start[name]).norm().item() for name in names)

    online = [name for name in start if name.startswith(("model", "q_network"))]
    assert distance(target_names) < 0.2 * distance(online)


def test_same_seed_same_bits_and_other_seed_other_weights(algo: str) -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        learner = build(algo, seed=seed)
        for step in range(3):
            learner.update(random_batch(algo, seed=step), global_step=step)
        return learner.state_dict().weights

    one, same, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_building_and_updating_leave_torchs_own_generator_alone(algo: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    learner = build(algo)
    learner.update(random_batch(algo))
    learner.act(torch.zeros(2, 3), deterministic=False)
    assert torch.equal(before, torch.get_rng_state())


def test_state_round_trip_continues_bit_for_bit(algo: str) -> None:
    learner, other = build(algo, seed=1), build(algo, seed=2)
    for step in range(3):
        learner.update(random_batch(algo, seed=step), global_step=step)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for step in range(3, 8):
        batch = random_batch(algo, seed=step)
        assert learner.update(batch, global_step=step).metrics == other.update(batch, global_step=step).metrics
    left, right = learner.state_dict(), other.state_dict()
    for part in ("weights", "optimizers", "generators"):
        one, two = getattr(left, part), getattr(right, part)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert left.counters == right.counters
    obs = torch.randn(5, 3)
    assert torch.equal(learner.explore(obs, global_step=3), other.explore(obs, global_step=3))


def test_foreign_weights_are_refused(algo: str) -> None:
    learner = build(algo)
    weights = dict(learner.state_dict().weights)
    name = next(iter(weights))
    with pytest.raises(ValueError, match="missing tensors"):
        learner.load_weights({key: value for key, value in weights.items() if key != name})
    with pytest.raises(ValueError, match="unknown tensors: strange"):
        learner.load_weights({**weights, "strange": torch.zeros(1)})
    with pytest.raises(ValueError, match="shape"):
        learner.load_weights({**weights, name: torch.zeros(1, 1, 1)})


def test_acting_is_bounded_and_deterministic_when_asked(algo: str) -> None:
    learner, obs = build(algo), torch.randn(7, 3)
    actions = learner.act(obs, deterministic=True)
    assert torch.equal(actions, learner.act(obs, deterministic=True))
    if get_algorithm_spec(algo).actions == "discrete":
        assert actions.shape == (7,)
        assert set(actions.tolist()) <= {0, 1}
    else:
        assert actions.shape == (7, 2)
        assert actions.abs().max() <= 1
        assert learner.explore(obs, global_step=0).abs().max() <= 1


def test_termination_cuts_the_future(algo: str) -> None:
    """With every row terminated, next_obs must not matter."""
    if get_algorithm_spec(algo).name == "bc":
        pytest.skip("clones actions and has no values")
    batch = {**random_batch(algo), "dones": torch.ones(16)}
    changed = {**batch, "next_obs": batch["next_obs"] + 100}
    one, two = build(algo).update(batch).metrics, build(algo).update(changed).metrics
    name = "target_q_mean" if "target_q_mean" in one else "target_mean"
    assert one[name] == two[name]


def test_learning_rate_follows_the_scale(algo: str) -> None:
    learner = build(algo, learning_rate=1e-2)
    learner.scale_learning_rate(0.5)
    for optimizer in learner.optimizers():
        assert optimizer.learning_rate == pytest.approx(0.5 * optimizer.base_learning_rate)
