"""Replay memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.data import ReplayBuffer
from rl_training.types import ConfigError, DataError


def filled(capacity: int, rows: int, *, chunk: int = 1) -> ReplayBuffer:
    """Row t holds obs (t, t), action t/1000, reward t, next_obs (t+1, t+1), terminated every third."""
    buffer = ReplayBuffer(capacity, obs_dim=2, action_dim=1)
    for start in range(0, rows, chunk):
        t = np.arange(start, min(start + chunk, rows), dtype=np.float32)
        buffer.add(np.stack([t, t], 1), t[:, None] / 1000, t, np.stack([t, t], 1) + 1, t % 3 == 2)
    return buffer


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_batches_hold_whole_transitions_from_the_window(chunk: int) -> None:
    buffer = filled(10, 26, chunk=chunk)
    assert len(buffer) == 10
    batch = buffer.sample(400)
    t = batch["rewards"]
    assert set(t.tolist()) == set(range(16, 26))  # the oldest are gone
    assert torch.equal(batch["obs"], torch.stack([t, t], 1))
    assert torch.equal(batch["next_obs"], torch.stack([t, t], 1) + 1)
    assert torch.equal(batch["actions"], (t / 1000)[:, None])
    assert torch.equal(batch["dones"], (t % 3 == 2).float())


def test_more_rows_at_once_than_fit() -> None:
    buffer = filled(4, 11, chunk=11)
    assert set(buffer.sample(100)["rewards"].tolist()) == {7.0, 8.0, 9.0, 10.0}


def test_discrete_actions_come_back_as_indices() -> None:
    buffer = ReplayBuffer(4, obs_dim=1, action_dim=1, action_kind="discrete")
    buffer.add([[0.0]], [3], [0.0], [[0.0]], [False])
    assert buffer.sample(2)["actions"].tolist() == [3, 3]
    assert buffer.sample(2)["actions"].dtype == torch.int64


def test_a_batch_is_a_copy() -> None:
    buffer = filled(4, 4)
    buffer.sample(4)["obs"].zero_()
    assert buffer.sample(50)["obs"].max() == 3


def test_several_batches_come_from_one_draw() -> None:
    one, two = filled(50, 50), filled(50, 50)
    rewards = torch.cat([batch["rewards"] for batch in one.sample_batches(8, 3)])
    assert torch.equal(rewards, two.sample(24)["rewards"])


def test_sampling_is_uniform() -> None:
    counts = torch.bincount(filled(10, 10).sample(20_000)["rewards"].long())
    assert counts.min() > 1800
    assert counts.max() < 2200


@pytest.mark.parametrize("rows", [5, 23])
def test_state_round_trip_continues_exactly(rows: int) -> None:
    buffer = filled(10, rows)
    buffer.sample(3)
    state = {name: tensor.clone() for name, tensor in buffer.state_dict().items()}
    assert len(state["rows"]) == min(rows, 10)  # filled rows only
    other = ReplayBuffer(10, obs_dim=2, action_dim=1, seed=99)
    other.load_state_dict(state)
    for each in (buffer, other):
        each.add([[9, 9]], [[0]], [99], [[9, 9]], [True])
    assert torch.equal(buffer.sample(64)["rewards"], other.sample(64)["rewards"])
    assert torch.equal(buffer.rows[: len(buffer)], other.rows[: len(other)])


def test_saving_copies_no_rows() -> None:
    buffer = filled(10, 5)
    assert buffer.state_dict()["rows"].data_ptr() == buffer.rows.data_ptr()


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        ReplayBuffer(10, obs_dim=3, action_dim=1).load_state_dict(filled(10, 5).state_dict())


@pytest.mark.parametrize(
    ("field", "name"), [("obs", r"obs\[1\]"), ("next_obs", r"next_obs\[1\]"), ("rewards", "reward"), ("actions", "action")]
)
def test_non_finite_numbers_are_refused_by_name(field: str, name: str) -> None:
    values: dict[str, np.ndarray] = {
        "obs": np.zeros((1, 2)),
        "actions": np.zeros((1, 1)),
        "rewards": np.zeros(1),
        "next_obs": np.zeros((1, 2)),
    }
    values[field].reshape(-1)[-1] = np.nan
    buffer = ReplayBuffer(4, obs_dim=2, action_dim=1)
    with pytest.raises(DataError, match=name):
        buffer.add(**values, terminated=[False])
    assert len(buffer) == 0


def test_an_empty_buffer_says_so() -> None:
    with pytest.raises(DataError, match="empty"):
        ReplayBuffer(4, 1, 1).sample(2)


def test_absurd_capacity_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="buffer_capacity"):
        ReplayBuffer(10**15, 100, 10)
