"""The logs of a run, together: rows to all of them, lengths of the files for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_training.experiment.files import writing
from rl_training.experiment.sinks import EvaluationsFile, JsonlSink, LogSink, TensorBoardSink
from rl_training.experiment.tracking import Status, TrackingSink
from rl_training.runtime.evaluation import Episode
from rl_training.types import Metrics

LOG_FILES = ("metrics.jsonl", "evaluations.csv")
"""What a checkpoint keeps the lengths of."""


class RunLogs:
    """``metrics.jsonl``, ``evaluations.csv``, TensorBoard, trackers. What could not be written comes with the next row."""

    def __init__(
        self,
        directory: Path,
        *,
        tensorboard: bool,
        lengths: Mapping[str, int],
        resumed_at: int | None,
        trackers: Sequence[TrackingSink] = (),
    ) -> None:
        with writing(directory):
            self._jsonl = JsonlSink(directory / "metrics.jsonl", length=lengths.get("metrics.jsonl", 0))
            self._evaluations = EvaluationsFile(directory / "evaluations.csv", length=lengths.get("evaluations.csv", 0))
        self._sinks: list[LogSink] = [self._jsonl]
        if tensorboard:
            self._sinks.append(TensorBoardSink(directory / "tensorboard", resumed_at=resumed_at))
        self._trackers = trackers
        self._sinks += trackers

    def write(self, step: int, row: Metrics) -> None:
        """Give every sink a row, also when one of them cannot write it; the first ``OSError`` is raised afterwards."""
        errors = []
        for sink in self._sinks:
            try:
                sink.write(step, row)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def write_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Record the episodes of an evaluation."""
        self._evaluations.write([(step, index, e.seed, repr(e.episode_return), e.length) for index, e in enumerate(episodes)])

    def flush(self) -> None:
        """Have everything in the files."""
        for sink in self._sinks:
            sink.flush()
        self._evaluations.flush()

    def lengths(self) -> dict[str, int]:
        """Bytes of each file, all of them on the disk; an ``OSError`` if a row could not be written."""
        return {"metrics.jsonl": self._jsonl.length(), "evaluations.csv": self._evaluations.length()}

    def conclude(self, status: Status) -> None:
        """Have the trackers know how the run ended."""
        for tracker in self._trackers:
            tracker.conclude(status)

    def close(self) -> None:
        """Let go of the files."""
        for sink in self._sinks:
            sink.close()
        self._evaluations.close()
