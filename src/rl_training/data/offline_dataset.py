"""A fixed set of transitions: one matrix, a row each, in memory or mapped from a file; a batch is one gather."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

from rl_training.data.lazy_columns import Array, Column, row_blocks
from rl_training.data.return_bounds import return_bounds
from rl_training.data.transforms import ObservationNormalizer, RewardScaling
from rl_training.types import ActionKind, Batch, DataError

ArrayLike = npt.ArrayLike | Tensor
FloatArray = npt.NDArray[np.float32]


def compute_discounted_returns_to_go(
    rewards: npt.ArrayLike, ends: npt.ArrayLike, *, gamma: float = 0.99
) -> npt.NDArray[np.float32]:
    """Discounted sum of the rewards from each step to the end of its episode.

    ``ends`` is 1 at the last step of each episode, however it ended; rows are in order.
    """
    rewards, ends = np.asarray(rewards, dtype=np.float64), np.asarray(ends, dtype=bool)
    if rewards.shape != ends.shape or rewards.ndim != 1:
        raise DataError(f"rewards and ends must be of the same length, got shapes {rewards.shape} and {ends.shape}")
    returns, running = np.empty_like(rewards), 0.0
    for index in range(len(rewards) - 1, -1, -1):
        running = rewards[index] + (0.0 if ends[index] else gamma * running)
        returns[index] = running
    return returns.astype(np.float32)


@dataclass(frozen=True)
class Layout:
    """Which columns of the matrix hold what."""

    obs_dim: int
    action_dim: int
    action_kind: ActionKind = "continuous"
    has_next_actions: bool = False

    @property
    def widths(self) -> dict[str, int]:
        """How many columns each part takes, in order."""
        widths = {"obs": self.obs_dim, "actions": self.action_dim, "rewards": 1, "dones": 1, "next_obs": self.obs_dim}
        return widths | {"next_actions": self.action_dim, "next_action_mask": 1} if self.has_next_actions else widths

    @property
    def width(self) -> int:
        """Columns in all."""
        return sum(self.widths.values())

    def join(self, parts: Mapping[str, Array]) -> FloatArray:
        """One row per transition; the reverse of :meth:`split`."""
        rows = np.empty((len(parts["obs"]), self.width), dtype=np.float32)
        start = 0
        for name, width in self.widths.items():
            rows[:, start : start + width] = parts[name].reshape(len(rows), width)
            start += width
        return rows

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Views of the columns by name; ``next_action_mask`` is 0 where an episode was cut before its next action."""
        widths = self.widths
        parts = dict(zip(widths, rows.split(list(widths.values()), dim=1), strict=True))
        for name in ("rewards", "dones", "next_action_mask"):
            if name in parts:
                parts[name] = parts[name].squeeze(1)
        if self.action_kind == "discrete":
            for name in ("actions", "next_actions"):
                if name in parts:
                    parts[name] = parts[name].squeeze(1).long()
        return parts


class TransitionDataset:
    """Immutable transitions, drawn uniformly with replacement by a generator of its own.

    ``dones`` means terminated. ``episode_ends`` holds the index after the last row of each episode, where episodes are
    known. Rewards may be scaled and observations normalised as they are drawn; the rows themselves never change.
    """

    def __init__(
        self,
        *,
        obs: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_obs: ArrayLike,
        dones: ArrayLike,
        next_actions: ArrayLike | None = None,
        next_action_mask: ArrayLike | None = None,
        returns_to_go: ArrayLike | None = None,
        episode_ends: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        columns = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": dones}
        arrays = {name: np.asarray(value) for name, value in columns.items()}
        optional = {"next_actions": next_actions, "next_action_mask": next_action_mask, "returns_to_go": returns_to_go}
        arrays |= {name: np.asarray(value) for name, value in optional.items() if value is not None}
        layout = layout_of(arrays)
        if layout.has_next_actions:
            arrays.setdefault("next_action_mask", np.ones(len(arrays["obs"])))
        blocks = (
            layout.join({name: arrays[name][start:end] for name in layout.widths})
            for start, end in row_blocks(arrays["obs"], arrays["actions"])
        )
        rows = stack_rows(only_finite(blocks, layout, len(arrays["obs"])), layout, len(arrays["obs"]))
        ends = None if episode_ends is None else np.asarray(episode_ends, dtype=np.int64)
        self._assign(rows, layout, ends, _extras(finite_returns(arrays.get("returns_to_go"))), RewardScaling(), None, seed)

    def _assign(
        self,
        rows: Tensor,
        layout: Layout,
        episode_ends: npt.NDArray[np.int64] | None,
        extras: Mapping[str, Tensor],
        reward_scaling: RewardScaling,
        normalizer: ObservationNormalizer | None,
        seed: int,
    ) -> None:
        self.rows, self.layout, self.episode_ends, self.extras = rows, layout, episode_ends, dict(extras)
        self.reward_scaling, self.normalizer = reward_scaling, normalizer
        self.generator = torch.Generator().manual_seed(seed)
        self._fingerprint: str | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Tensor,
        layout: Layout,
        *,
        episode_ends: npt.NDArray[np.int64] | None = None,
        returns_to_go: FloatArray | None = None,
        seed: int = 0,
    ) -> Self:
        """A dataset over an existing matrix, such as one mapped from a file; nothing is copied or checked."""
        dataset = cls.__new__(cls)
        dataset._assign(rows, layout, episode_ends, _extras(returns_to_go), RewardScaling(), None, seed)
        return dataset

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, seed: int = 0) -> Self:
        """From columns by name; ``next_actions``, ``returns_to_go`` and ``episode_ends`` are optional."""
        known = ("obs", "actions", "rewards", "next_obs", "dones", "next_actions", "next_action_mask", "returns_to_go")
        missing = [name for name in known[:5] if name not in data]
        unknown = sorted(data.keys() - {*known, "episode_ends"})
        if missing or unknown:
            raise DataError(f"missing columns: {missing}, unknown columns: {unknown}; the data has {sorted(data)}")
        return cls(**dict(data), seed=seed)

    # -- columns -----------------------------------------------------------------------------------------------------

    def _column(self, name: str) -> Tensor:
        return self._transformed({name: self.layout.split(self.rows)[name]})[name]

    @property
    def obs(self) -> Tensor:
        """``(rows, obs_dim)``."""
        return self._column("obs")

    @property
    def actions(self) -> Tensor:
        """``(rows, action_dim)``, or ``(rows,)`` indices."""
        return self._column("actions")

    @property
    def rewards(self) -> Tensor:
        """``(rows,)``, as the learner sees them."""
        return self._column("rewards")

    @property
    def next_obs(self) -> Tensor:
        """``(rows, obs_dim)``."""
        return self._column("next_obs")

    @property
    def dones(self) -> Tensor:
        """``(rows,)``: 1 where the episode terminated."""
        return self._column("dones")

    @property
    def next_actions(self) -> Tensor | None:
        """``(rows, action_dim)``, or nothing where the data has none."""
        return self._column("next_actions") if self.layout.has_next_actions else None

    @property
    def returns_to_go(self) -> Tensor | None:
        """``(rows,)``, where they were given or computed."""
        return self.extras.get("returns_to_go")

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        optional = [name for name in ("next_actions", "returns_to_go") if getattr(self, name) is not None]
        episodes = "unknown" if self.episode_ends is None else str(len(self.episode_ends))
        layout = self.layout
        return (
            f"TransitionDataset({len(self)} transitions, {episodes} episodes, obs ({layout.obs_dim},), "
            f"actions ({layout.action_dim},) {layout.action_kind}{', with ' + ' and '.join(optional) if optional else ''})"
        )

    # -- drawing -----------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, device: str | torch.device = "cpu") -> Batch:
        """One batch, drawn uniformly with replacement."""
        if len(self) == 0:
            raise DataError("cannot sample from an empty dataset")
        return self.at(torch.randint(len(self), (batch_size,), generator=self.generator), device)

    def at(self, indices: Tensor, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """The transitions at given rows."""
        batch = self._transformed(self.layout.split(self.rows.index_select(0, indices).to(device)))
        for name, column in self.extras.items():
            batch[name] = column.index_select(0, indices).to(device)
        return batch

    def _transformed(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.reward_scaling != RewardScaling() and "rewards" in batch:
            batch["rewards"] = self.reward_scaling(batch["rewards"])
        if self.normalizer is not None:
            batch |= {name: self.normalizer(batch[name]) for name in ("obs", "next_obs") if name in batch}
        return batch

    # -- other views of the same rows --------------------------------------------------------------------------------

    def _with(self, **changes: Any) -> TransitionDataset:
        other = TransitionDataset.__new__(TransitionDataset)
        current = {
            "rows": self.rows,
            "layout": self.layout,
            "episode_ends": self.episode_ends,
            "extras": self.extras,
            "reward_scaling": self.reward_scaling,
            "normalizer": self.normalizer,
            "seed": self.generator.initial_seed(),
        }
        other._assign(**{**current, **changes})
        return other

    def with_seed(self, seed: int) -> TransitionDataset:
        """The same transitions, drawn in another order."""
        return self._with(seed=seed)

    def with_reward_transform(
        self, scale: float = 1.0, shift: float = 0.0, clip_min: float | None = None, clip_max: float | None = None
    ) -> TransitionDataset:
        """The same transitions with rewards ``clip(scale * r + shift)``. Returns-to-go must be computed after this."""
        scaling = RewardScaling(scale, shift, clip_min, clip_max)
        if "returns_to_go" in self.extras and scaling != self.reward_scaling:
            raise DataError("transform rewards before computing returns-to-go: the returns would not belong to the rewards")
        return self._with(reward_scaling=scaling)

    def with_discounted_returns_to_go(self, gamma: float) -> TransitionDataset:
        """The same transitions with the discounted return from each step on; needs to know where episodes end."""
        if self.episode_ends is None:
            raise DataError("returns-to-go need episode boundaries, which this dataset does not have")
        ends = np.zeros(len(self), dtype=bool)
        ends[self.episode_ends - 1] = True
        returns = compute_discounted_returns_to_go(self.rewards.numpy(), ends, gamma=gamma)
        return self._with(extras={**self.extras, "returns_to_go": torch.from_numpy(returns)})

    def with_return_bounds(self, gamma: float) -> TransitionDataset:
        """The same transitions with what each is known to lead to at least; see :mod:`rl_training.data.return_bounds`."""
        if self.episode_ends is None:
            raise DataError("bounds of returns need episode boundaries, which this dataset does not have")
        bounds = return_bounds(self.rewards.numpy(), self.dones.numpy() > 0, self.episode_ends, gamma=gamma)
        return self._with(extras={**self.extras, "returns_to_go": torch.from_numpy(bounds)})

    def with_normalizer(self, normalizer: ObservationNormalizer | None) -> TransitionDataset:
        """The same transitions with observations as an agent sees them, whatever data its normaliser is of."""
        return self._with(normalizer=normalizer)

    def with_normalized_observations(self) -> TransitionDataset:
        """The same transitions with observations standardised by the dataset's own mean and std."""
        return self._with(normalizer=ObservationNormalizer.of(self.rows[:, : self.layout.obs_dim]))

    def untransformed(self) -> TransitionDataset:
        """The same transitions with rewards and observations as they were recorded, and without returns-to-go."""
        return self._with(reward_scaling=RewardScaling(), normalizer=None, extras={})

    # -- identity and state ------------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """A checksum of the shape and of up to 65,536 evenly spaced rows: tells datasets apart without reading all."""
        if self._fingerprint is None:  # computed once: a run asks at every checkpoint, and a mapped file may be slow
            digest = hashlib.sha256(repr((tuple(self.rows.shape), self.layout)).encode())
            step = max(1, len(self) // 65_536)
            for piece in (*self.rows[::step].split(4096), self.rows[-1:]):
                digest.update(piece.contiguous().numpy().tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def state_dict(self) -> dict[str, Tensor]:
        """The sampler's generator; the rows belong to the data's owner."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue drawing exactly where a checkpoint stood."""
        self.generator.set_state(state["generator"])


def layout_of(columns: Mapping[str, Column]) -> Layout:
    """The layout that columns by name make; refuses those that do not fit together."""
    lengths = {name: column.shape[0] if column.shape else 0 for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"columns must have the same length, got {lengths}")
    _require_shapes({name: tuple(column.shape) for name, column in columns.items()})
    for name, column in columns.items():
        if not (np.issubdtype(column.dtype, np.number) or column.dtype == bool):
            raise DataError(f"{name} must be numbers, got dtype {column.dtype}")
    obs, actions = columns["obs"], columns["actions"]
    flat = len(actions.shape) == 1
    discrete = flat and np.issubdtype(actions.dtype, np.integer)
    return Layout(
        obs.shape[1],
        1 if flat else actions.shape[1],
        "discrete" if discrete else "continuous",
        has_next_actions="next_actions" in columns,
    )


def _require_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in ("obs", "next_obs"):
        if len(shapes[name]) != 2:
            raise DataError(f"{name} must be flat vectors, (rows, dimensions), got shape {shapes[name]}")
    if shapes["obs"] != shapes["next_obs"]:
        raise DataError(f"obs {shapes['obs']} and next_obs {shapes['next_obs']} must have one shape")
    for name in ("rewards", "dones", "returns_to_go"):
        if name in shapes and len(shapes[name]) != 1:
            raise DataError(f"{name} must be one number a row, got shape {shapes[name]}")
    if len(shapes["actions"]) not in (1, 2):
        raise DataError(f"actions must be (rows, dimensions) or (rows,), got shape {shapes['actions']}")
    if "next_actions" in shapes and shapes["next_actions"] != shapes["actions"]:
        raise DataError(f"next_actions {shapes['next_actions']} and actions {shapes['actions']} must have one shape")


def only_finite(blocks: Iterable[FloatArray], layout: Layout, total: int) -> Iterator[FloatArray]:
    """Pass blocks of rows on; raise at the end, when all are counted, if any row was not finite."""
    seen, strays, first = 0, 0, ""
    for block in blocks:
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad) and not strays:
            parts = layout.split(torch.from_numpy(block[bad[:1]])).items()
            names = [name for name, part in parts if not bool(torch.isfinite(part).all())]
            first = f"row {seen + bad[0]} ({', '.join(names)})"
        seen, strays = seen + len(block), strays + len(bad)
        yield block
    if strays:
        raise DataError(f"{strays} of {total} transitions are not finite; the first is {first}")


def stack_rows(blocks: Iterable[FloatArray], layout: Layout, count: int) -> Tensor:
    """All rows as one matrix in memory."""
    matrix, filled = np.empty((count, layout.width), dtype=np.float32), 0
    for block in blocks:
        matrix[filled : filled + len(block)] = block
        filled += len(block)
    return torch.from_numpy(matrix)


def finite_returns(returns_to_go: Array | None) -> FloatArray | None:
    """Returns-to-go as float32; the first that is not finite is named."""
    if returns_to_go is None:
        return None
    returns: FloatArray = returns_to_go.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(returns))
    if len(bad):
        raise DataError(f"{len(bad)} of {len(returns)} returns-to-go are not finite; the first is row {bad[0]}")
    return returns


def _extras(returns_to_go: Array | None) -> dict[str, Tensor]:
    return {} if returns_to_go is None else {"returns_to_go": torch.from_numpy(returns_to_go.astype(np.float32))}
