"""Callbacks: any object with some of these methods.

    on_train_start(trainer)           on_collect_end(trainer, collect_result)     on_update_end(trainer, update_result)
    on_eval_end(trainer, metrics)     on_ope_end(trainer, metrics)                on_train_end(trainer, train_result)

``trainer`` is a :class:`TrainerState`. A callback that also has ``state_dict()`` and ``load_state_dict(state)`` (plain
JSON data) is saved in checkpoints and continues exactly after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.types import ConfigError, Metrics

HOOKS = ("on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_ope_end", "on_train_end")


class Callback:
    """A base with every hook, for those who like one; methods left as they are cost nothing."""

    def on_train_start(self, trainer: TrainerState) -> None:
        """Before the first step, also of a resumed run."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """After each step of the environments."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """After each gradient step."""

    def on_eval_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """After each evaluation; ``metrics`` also holds the last update's."""

    def on_ope_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        """After each off-policy evaluation; ``metrics`` has ``ope/fqe_value`` and company."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """After the last checkpoint."""


class CallbackList:
    """Calls the hooks that the callbacks really have, in order."""

    def __init__(self, callbacks: Iterable[object] = ()) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
                raise ConfigError(f"{callback!r} is not a callback: it has none of {', '.join(HOOKS)}")
        self.on_train_start = self._hooks("on_train_start")
        self.on_collect_end = self._hooks("on_collect_end")
        self.on_update_end = self._hooks("on_update_end")
        self.on_eval_end = self._hooks("on_eval_end")
        self.on_ope_end = self._hooks("on_ope_end")
        self.on_train_end = self._hooks("on_train_end")

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        found = []
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            if callable(method) and getattr(type(callback), name, None) is not getattr(Callback, name):
                found.append(method)
        return found

    def state_dict(self) -> list[dict[str, Any]]:
        """State of each callback that keeps one, by class name and in order."""
        return [
            {"type": type(callback).__name__, "state": callback.state_dict()}
            for callback in self.callbacks
            if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")
        ]

    def load_state_dict(self, saved: list[dict[str, Any]]) -> None:
        """Give each callback the state of the first saved one of its type that is left."""
        remaining = list(saved)
        for callback in self.callbacks:
            for entry in remaining:
                if entry["type"] == type(callback).__name__ and hasattr(callback, "load_state_dict"):
                    callback.load_state_dict(entry["state"])
                    remaining.remove(entry)
                    break
