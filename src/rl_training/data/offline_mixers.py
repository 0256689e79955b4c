"""Several datasets as one: drawn from by weight, batch by batch, or put together once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.types import Batch, DataError


def _shares(parts: Sequence[TransitionDataset], weights: Sequence[float] | None) -> list[float]:
    if not parts:
        raise DataError("a mixture needs at least one dataset")
    layouts = {(part.layout.obs_dim, part.layout.action_dim, part.layout.action_kind) for part in parts}
    if len(layouts) > 1:
        raise DataError(f"datasets of a mixture must agree in observations and actions, got {sorted(map(str, layouts))}")
    chosen = [float(len(part)) for part in parts] if weights is None else [float(weight) for weight in weights]
    if len(chosen) != len(parts) or min(chosen) < 0 or sum(chosen) <= 0 or not np.isfinite(chosen).all():
        raise DataError(f"a mixture of {len(parts)} datasets needs as many weights >= 0 that are not all 0, got {weights}")
    return [weight / sum(chosen) for weight in chosen]


class MixedDataset:
    """A lazy mixture: every transition of a batch comes from a part with a chance given by its weight."""

    def __init__(self, parts: Sequence[TransitionDataset], weights: Sequence[float] | None = None, *, seed: int = 0) -> None:
        self.shares = torch.tensor(_shares(parts, weights), dtype=torch.float64)
        self.parts = list(parts)
        self.generator = torch.Generator().manual_seed(seed)
        self.counts = [0] * len(parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.0%} of {part!r}" for share, part in zip(self.shares.tolist(), self.parts, strict=True))
        return f"MixedDataset({shares})"

    def sample(self, batch_size: int, device: str | torch.device = "cpu") -> Batch:
        """One batch; ``counts`` keeps how many transitions each part has given so far."""
        source = torch.multinomial(self.shares, batch_size, replacement=True, generator=self.generator)
        pieces = []
        for index, part in enumerate(self.parts):
            count = int((source == index).sum())
            self.counts[index] += count
            if count:
                pieces.append(part.sample(count, device))
        common = set.intersection(*(set(piece) for piece in pieces))
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0] if name in common}

    def map(self, change: Callable[[TransitionDataset], TransitionDataset]) -> MixedDataset:
        """The mixture of the changed parts, drawn in the same order."""
        return MixedDataset([change(part) for part in self.parts], self.shares.tolist(), seed=self.generator.initial_seed())

    def fingerprint(self) -> str:
        """The parts' fingerprints and shares."""
        return "+".join(
            f"{share:.6f}*{part.fingerprint()}" for share, part in zip(self.shares.tolist(), self.parts, strict=True)
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Generators of the mixture and its parts, and the counts."""
        state = {"generator": self.generator.get_state(), "counts": torch.tensor(self.counts)}
        return state | {f"part{index}.generator": part.generator.get_state() for index, part in enumerate(self.parts)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue drawing exactly where a checkpoint stood."""
        self.generator.set_state(state["generator"])
        self.counts = state["counts"].tolist()
        for index, part in enumerate(self.parts):
            part.generator.set_state(state[f"part{index}.generator"])


def mix_transition_datasets(
    parts: Sequence[TransitionDataset], *, weights: Sequence[float] | None = None, total_size: int | None = None, seed: int = 0
) -> TransitionDataset:
    """A new dataset of ``total_size`` transitions drawn from the parts by weight (with replacement, in random order).

    Columns that only some parts have are left out, but for next actions, which get a mask of 0 where they are missing.
    """
    shares = _shares(parts, weights)
    size = sum(len(part) for part in parts) if total_size is None else total_size
    if size < 1:
        raise DataError(f"total_size must be >= 1, got {size}")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(size, shares)
    drawn: list[dict[str, Tensor]] = []
    for part, count in zip(parts, counts.tolist(), strict=True):
        batch = part.at(torch.from_numpy(rng.integers(len(part), size=count)))
        if any(other.layout.has_next_actions for other in parts) and "next_actions" not in batch:
            batch |= {"next_actions": torch.zeros_like(batch["actions"]), "next_action_mask": torch.zeros(count)}
        drawn.append(batch)
    common = set.intersection(*(set(batch) for batch in drawn))
    order = torch.from_numpy(rng.permutation(size))
    return TransitionDataset.from_dict(
        {name: torch.cat([batch[name] for batch in drawn])[order] for name in common}, seed=seed
    )
