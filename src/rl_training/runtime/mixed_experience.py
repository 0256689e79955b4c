"""Batches of a fine-tuning run: some rows from the dataset, the others from the environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.finetune_config import OfflineShare
from rl_training.runtime.collector import Collector
from rl_training.runtime.offline_data import Dataset
from rl_training.runtime.trainer import CollectResult
from rl_training.types import Batch, Metrics


class MixedExperience:
    """A collector and a dataset as one source of batches, by the share that is due at each step.

    As long as the replay has fewer rows than a batch wants from it, the dataset gives more than its share: no transition
    of the environment is drawn more often than the dataset's rows only because it is among the first.
    """

    def __init__(self, collector: Collector, dataset: Dataset, share: OfflineShare, *, device: str) -> None:
        self.collector, self.dataset, self.share, self.device = collector, dataset, share, device
        self._offline_share = 1.0  # of the last batch

    def collect(self, global_step: int, *, limit: int) -> CollectResult:
        """One step of every environment."""
        return self.collector.collect(global_step, limit=limit)

    def batches(self, batch_size: int, count: int, *, global_step: int) -> Iterator[Batch]:
        """``count`` batches, the dataset's rows first in each."""
        wanted = batch_size - round(self.share.at(global_step) * batch_size)
        online = min(wanted, len(self.collector.buffer))
        self._offline_share = 1.0 - online / batch_size
        recent = self.collector.buffer.sample_batches(online, count) if online > 0 else iter([{}] * count)
        for rows in recent:
            yield self._joined(rows, batch_size - online)

    def _joined(self, online: Batch, num_offline: int) -> Batch:
        """One batch of both, with the columns that both have."""
        if num_offline == 0:
            return online
        offline = self.dataset.sample(num_offline, self.device)
        if not online:
            return offline
        if "next_actions" in offline:  # what the agent does next in the environment is not the data's: no penalty for it
            none: dict[str, Tensor] = {
                "next_actions": torch.zeros_like(online["actions"]),
                "next_action_mask": torch.zeros_like(online["rewards"]),
            }
            online = {**online, **none}
        return {name: torch.cat((offline[name], column)) for name, column in online.items()}

    def metrics(self) -> Metrics:
        """Those of the collector, the size of the data, and the share it had in the last batch."""
        sizes = {"data/dataset_size": float(len(self.dataset)), "data/offline_share": self._offline_share}
        return {**self.collector.metrics(), **sizes}

    def state_dict(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """The collector's state, the data's fingerprint and its sampler; the data itself is not copied into checkpoints."""
        data, parts = self.collector.state_dict()
        sampler = {f"dataset.{name}": tensor for name, tensor in self.dataset.state_dict().items()}
        own = {"fingerprint": self.dataset.fingerprint(), "offline_share": self._offline_share}
        return {**data, **own}, {**parts, "replay": {**parts["replay"], **sampler}}

    def load_state_dict(self, data: dict[str, Any], parts: dict[str, dict[str, Tensor]]) -> bool:
        """Continue where a checkpoint stood, with the same data; False if the environments did not come back exactly."""
        if data["fingerprint"] != self.dataset.fingerprint():
            raise ValueError("the dataset is not the one that the checkpoint was fine-tuned with")
        prefix = "dataset."
        self.dataset.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in parts["replay"].items() if name.startswith(prefix)}
        )
        self._offline_share = float(data["offline_share"])
        return self.collector.load_state_dict(data, parts)
