"""Replay memory: one preallocated matrix with a transition per row, so that a batch is a single gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.types import ActionKind, Batch, ConfigError, DataError

FloatArray = npt.NDArray[np.float32]


class ReplayBuffer:
    """The last ``capacity`` transitions, drawn uniformly with replacement.

    A row is ``obs | action | reward | terminated | next_obs`` in float32, and for n-step transitions
    (``with_discounts``) the discount of its bootstrap, or (``with_returns``) a bound of the return that follows.
    ``dones`` of a batch means *terminated*; a transition cut by a time limit is stored with 0 and the real last
    observation, and so bootstraps.
    Memory is claimed by the operating system as rows are written, not when the buffer is made.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        *,
        action_kind: ActionKind = "continuous",
        with_discounts: bool = False,
        with_returns: bool = False,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.capacity, self.obs_dim, self.action_dim, self.action_kind = capacity, obs_dim, action_dim, action_kind
        self.device = device  # where batches go; the rows stay in main memory
        if with_discounts and with_returns:
            raise ValueError("rows have discounts (n-step transitions) or returns (single steps), not both")
        self.extra = "discounts" if with_discounts else "returns_to_go" if with_returns else None  # name of the last column
        width = 2 * obs_dim + action_dim + 2 + (self.extra is not None)
        try:
            self.rows = torch.empty((capacity, width), dtype=torch.float32)
        except RuntimeError:
            raise ConfigError(
                f"buffer_capacity {capacity} needs {capacity * width * 4 / 1e9:.1f} GB, more than there is; use a smaller one"
            ) from None
        self._array: FloatArray = self.rows.numpy()  # the same memory, for cheap writes
        self.size = 0
        self.cursor = 0
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"ReplayBuffer({self.size}/{self.capacity} rows, obs_dim={self.obs_dim}, action_dim={self.action_dim})"

    def add(
        self,
        obs: npt.ArrayLike,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        next_obs: npt.ArrayLike,
        terminated: npt.ArrayLike,
        extra: npt.ArrayLike | None = None,
    ) -> None:
        """Append ``n`` transitions, one per row of each argument; ``actions`` in [-1, 1] or indices.

        ``extra`` are the discounts or returns of a buffer that has them.
        """
        obs = np.asarray(obs, dtype=np.float32)
        count = len(obs)
        block = np.empty((count, self._array.shape[1]), dtype=np.float32)
        first, second = self.obs_dim, self.obs_dim + self.action_dim
        block[:, :first] = obs
        block[:, first:second] = np.asarray(actions).reshape(count, self.action_dim)
        block[:, second] = rewards
        block[:, second + 1] = terminated
        block[:, second + 2 : second + 2 + first] = next_obs
        if self.extra is not None:
            block[:, -1] = extra
        if not np.isfinite(block).all():
            self._refuse(block)
        for start in range(0, count, self.capacity):  # more rows than the whole buffer: the last ones stay
            self._write(block[start : start + self.capacity])

    def set_returns(self, positions: Sequence[int], returns: FloatArray) -> None:
        """Replace the returns of rows whose episode has ended."""
        if self.extra != "returns_to_go":
            raise ValueError("this buffer keeps no returns")
        self._array[list(positions), -1] = returns

    def _write(self, block: FloatArray) -> None:
        head = min(len(block), self.capacity - self.cursor)
        self._array[self.cursor : self.cursor + head] = block[:head]
        self._array[: len(block) - head] = block[head:]
        self.cursor = (self.cursor + len(block)) % self.capacity
        self.size = min(self.size + len(block), self.capacity)

    def _refuse(self, block: FloatArray) -> None:
        row, column = (int(index) for index in np.argwhere(~np.isfinite(block))[0])
        edges = {"obs": 0, "action": self.obs_dim, "reward": self.obs_dim + self.action_dim}
        edges |= {"terminated": edges["reward"] + 1, "next_obs": edges["reward"] + 2}
        name, start = [(name, start) for name, start in edges.items() if start <= column][-1]
        raise DataError(
            f"{name}[{column - start}] of a transition is {block[row, column]} (row {row} of {len(block)} being stored): "
            "the environment or the policy produced a non-finite number"
        )

    def sample(self, batch_size: int) -> Batch:
        """One batch; views of a fresh copy of the drawn rows."""
        return next(self.sample_batches(batch_size, 1))

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Batch]:
        """``count`` batches from a single draw and a single gather."""
        if self.size == 0:
            raise DataError("cannot sample from an empty replay buffer")
        indices = torch.randint(self.size, (batch_size * count,), generator=self.generator)
        for rows in self.rows.index_select(0, indices).to(self.device).split(batch_size):
            yield self._batch(rows)

    def _batch(self, rows: Tensor) -> Batch:
        first, second = self.obs_dim, self.obs_dim + self.action_dim
        actions = rows[:, first:second]
        batch = {
            "obs": rows[:, :first],
            "actions": actions if self.action_kind == "continuous" else actions.squeeze(1).long(),
            "rewards": rows[:, second],
            "dones": rows[:, second + 1],
            "next_obs": rows[:, second + 2 : second + 2 + first],
        }
        if self.extra is not None:
            batch[self.extra] = rows[:, -1]
        return batch

    def state_dict(self) -> dict[str, Tensor]:
        """The filled rows (a view, not a copy), the write position and the sampler's generator."""
        return {
            "rows": self.rows[: self.size],
            "cursor": torch.tensor(self.cursor),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave. Raises ``ValueError`` where the rows do not fit."""
        rows = state["rows"]
        if rows.ndim != 2 or rows.shape[1] != self.rows.shape[1] or len(rows) > self.capacity:
            raise ValueError(f"replay rows {tuple(rows.shape)} do not fit a buffer of {tuple(self.rows.shape)}")
        self.size = len(rows)
        self.rows[: self.size] = rows
        self.cursor = int(state["cursor"])
        self.generator.set_state(state["generator"])
