"""Many runs together: making and running them, reading them, statistics over seeds, tuning, reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.studies.study import Study, StudyResult
    from rl_training.studies.tuning import Tuning, TuningResult

__all__ = ["Study", "StudyResult", "Tuning", "TuningResult"]

_HOMES = {"Study": "study", "StudyResult": "study", "Tuning": "tuning", "TuningResult": "tuning"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"rl_training.studies.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
