"""Transitions from fixed data: columns, views, drawing, mixing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data import MixedDataset, TransitionDataset, compute_discounted_returns_to_go, mix_transition_datasets
from rl_training.data.transforms import ObservationNormalizer
from rl_training.types import DataError


def columns(rows: int = 10, *, offset: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Row t: obs (t, t), action t/100, reward t, next_obs (t+1, t+1)."""
    t = np.arange(rows, dtype=np.float32) + offset
    data = {
        "obs": np.stack([t, t], 1),
        "actions": np.stack([t / 100, -t / 100], 1),
        "rewards": t,
        "next_obs": np.stack([t, t], 1) + 1,
        "dones": np.zeros(rows, dtype=np.float32),
    }
    return {**data, **changes}


def test_batches_hold_whole_transitions() -> None:
    dataset = TransitionDataset(**columns(next_actions=np.full((10, 2), 0.5)))
    batch = dataset.sample(batch_size=64, device="cpu")
    assert set(batch) == {"obs", "actions", "rewards", "next_obs", "dones", "next_actions", "next_action_mask"}
    t = batch["rewards"]
    assert torch.equal(batch["obs"], torch.stack([t, t], 1))
    assert torch.equal(batch["next_obs"], torch.stack([t, t], 1) + 1)
    torch.testing.assert_close(batch["actions"], torch.stack([t / 100, -t / 100], 1))
    assert (batch["next_actions"] == 0.5).all()
    assert "10 transitions" in repr(dataset)
    assert "next_actions" in repr(dataset)


def test_discrete_actions_stay_indices() -> None:
    dataset = TransitionDataset(**columns(actions=np.arange(10) % 2))
    assert dataset.sample(5)["actions"].dtype == torch.int64
    assert dataset.sample(5)["actions"].shape == (5,)


def test_optional_columns_are_absent_when_not_given() -> None:
    dataset = TransitionDataset.from_dict(columns())
    assert set(dataset.sample(3)) == {"obs", "actions", "rewards", "next_obs", "dones"}
    assert dataset.next_actions is None
    assert dataset.returns_to_go is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.zeros((4, 2))}, "same length"),
        ({"obs": np.zeros(10)}, "flat vectors"),
        ({"next_obs": np.zeros((10, 3))}, "must have one shape"),
        ({"rewards": np.zeros((10, 1))}, "rewards must be one number a row"),
        ({"next_actions": np.zeros((10, 1))}, "next_actions"),
        ({"obs": np.array([[None, None]] * 10)}, "must be numbers"),
        ({"rewards": np.array([0.0] * 9 + [np.nan])}, r"1 of 10 transitions are not finite; the first is row 9 \(rewards\)"),
    ],
)
def test_bad_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TransitionDataset(**columns(**change))


def test_from_dict_names_missing_and_unknown_columns() -> None:
    data = columns()
    del data["rewards"]
    with pytest.raises(DataError, match=r"missing columns: \['rewards'\], unknown columns: \['reward'\]"):
        TransitionDataset.from_dict({**data, "reward": np.zeros(10)})


def test_an_empty_dataset_says_so() -> None:
    with pytest.raises(ValueError, match="empty"):
        TransitionDataset(**columns(0)).sample(1)


def test_views_leave_the_rows_alone() -> None:
    dataset = TransitionDataset(**columns())
    scaled = dataset.with_reward_transform(scale=0.5, shift=1.0, clip_min=0.0, clip_max=3.0)
    assert scaled.rewards.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    assert dataset.rewards.tolist() == list(range(10))
    assert scaled.rows.data_ptr() == dataset.rows.data_ptr()
    assert scaled.sample(32)["rewards"].max() == 3.0


def test_observations_are_standardised_and_the_statistics_kept() -> None:
    dataset = TransitionDataset(**columns()).with_normalized_observations()
    assert dataset.normalizer is not None
    std = np.arange(10).std() + 1e-3
    torch.testing.assert_close(dataset.normalizer.std, torch.full((2,), float(std)))
    torch.testing.assert_close(dataset.obs[:, 0], (torch.arange(10.0) - 4.5) / std)
    torch.testing.assert_close(dataset.next_obs[:, 0], (torch.arange(10.0) + 1 - 4.5) / std)  # the same statistics


def test_statistics_in_pieces_are_those_of_the_whole() -> None:
    dataset = TransitionDataset(**columns(1000))
    for chunk in (7, 1000):
        normalizer = ObservationNormalizer.of(dataset.obs, chunk=chunk)
        torch.testing.assert_close(normalizer.mean, torch.full((2,), 499.5))
        torch.testing.assert_close(normalizer.std, torch.full((2,), float(np.arange(1000).std() + 1e-3)))


def test_returns_to_go_stop_at_episode_ends() -> None:
    returns = compute_discounted_returns_to_go([1, 1, 1, 10], [0, 0, 1, 0], gamma=0.5)
    assert returns.tolist() == [1.75, 1.5, 1.0, 10.0]
    dataset = TransitionDataset(**columns(4, rewards=np.ones(4), episode_ends=[3, 4])).with_discounted_returns_to_go(0.5)
    assert dataset.returns_to_go is not None
    assert dataset.returns_to_go.tolist() == [1.75, 1.5, 1.0, 1.0]
    assert "returns_to_go" in dataset.sample(2)
    with pytest.raises(DataError, match="episode boundaries"):
        TransitionDataset(**columns()).with_discounted_returns_to_go(0.9)
    with pytest.raises(DataError, match="before computing returns-to-go"):
        dataset.with_reward_transform(scale=2.0)


def test_state_round_trip_continues_drawing() -> None:
    one, two = TransitionDataset(**columns()), TransitionDataset(**columns(), seed=99)
    one.sample(3)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.sample(50)["rewards"], two.sample(50)["rewards"])


def test_fingerprints_tell_datasets_apart() -> None:
    assert TransitionDataset(**columns()).fingerprint() == TransitionDataset(**columns()).fingerprint()
    assert TransitionDataset(**columns()).fingerprint() != TransitionDataset(**columns(offset=1)).fingerprint()


def test_a_lazy_mixture_draws_by_weight_and_counts() -> None:
    parts = [TransitionDataset(**columns()), TransitionDataset(**columns(offset=1000))]
    mixed = MixedDataset(parts, [1, 3], seed=1)
    rewards = torch.cat([mixed.sample(100)["rewards"] for _ in range(20)])
    assert (rewards >= 1000).float().mean().item() == pytest.approx(0.75, abs=0.04)
    assert sum(mixed.counts) == 2000
    assert mixed.counts[1] == int((rewards >= 1000).sum())
    again = MixedDataset([TransitionDataset(**columns()), TransitionDataset(**columns(offset=1000))], [1, 3], seed=5)
    again.load_state_dict(mixed.state_dict())
    assert torch.equal(mixed.sample(64)["rewards"], again.sample(64)["rewards"])
    assert again.counts == mixed.counts


def test_a_materialised_mixture_is_repeatable_and_masks_missing_next_actions() -> None:
    parts = [TransitionDataset(**columns(next_actions=np.full((10, 2), 0.25))), TransitionDataset(**columns(offset=1000))]
    one, two = (mix_transition_datasets(parts, weights=(0.5, 0.5), total_size=40, seed=7) for _ in range(2))
    assert len(one) == 40
    assert torch.equal(one.rows, two.rows)
    batch = one.at(torch.arange(40))
    assert torch.equal(batch["next_action_mask"], (batch["rewards"] < 1000).float())


@pytest.mark.parametrize(
    ("weights", "message"), [((1,), "as many weights"), ((-1, 2), "as many weights"), ((0, 0), "as many weights")]
)
def test_bad_mixtures_are_refused(weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        mix_transition_datasets([TransitionDataset(**columns())] * 2, weights=weights)
    with pytest.raises(DataError, match="at least one"):
        MixedDataset([])
    wide = TransitionDataset(**columns(obs=np.zeros((10, 3)), next_obs=np.zeros((10, 3))))
    with pytest.raises(DataError, match="must agree"):
        MixedDataset([TransitionDataset(**columns()), wide])
