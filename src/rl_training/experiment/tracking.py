"""Metrics to Weights & Biases and MLflow, for those who have them.

A run hands its rows to a thread, so that neither a slow network nor a service that is down holds it up. What goes wrong there
is told once and never ends a run: ``metrics.jsonl`` has everything anyway. Which tracked run belongs to a run directory stands
in its ``tracking/<name>.json``; a resumed run continues that one, and does not send again what it has sent before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import read_bounded, write_json
from rl_training.experiment.lock import run_lock
from rl_training.types import CheckpointError, ConfigError
from rl_training.validation import flatten

logger = logging.getLogger("rl_training")

Status = Literal["finished", "interrupted", "failed"]

CLOSE_SECONDS = 30.0
"""How long the end of a run waits for rows that are still on their way."""
_LONGEST_TURN = 120.0
_LARGEST_STATE = 100_000
_MLFLOW_PARAMS_AT_ONCE, _MLFLOW_LONGEST_PARAM = 100, 500


class Tracker(Protocol):
    """A run of a tracking service."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Record one row."""

    def end(self, status: Status) -> None:
        """Say how the run ended and have everything sent."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to know of a run."""

    directory: Path
    config: TrainConfig
    state: Mapping[str, Any]  # what the tracker kept when the run began; empty for a new one

    @property
    def name(self) -> str:
        """The last two parts of the path: of a study, setting and seed."""
        return "/".join(self.directory.parts[-2:])

    def keep(self, tracker: str, state: Mapping[str, Any]) -> None:
        """Write down which tracked run this is."""
        path = _state_file(self.directory, tracker)
        path.parent.mkdir(exist_ok=True)
        write_json(path, dict(state))


class WandbTracker:
    """A run of Weights & Biases. Without a login, and without ``WANDB_MODE``, it is written offline; nobody is asked."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        options, mode = run.config.tracking_options, None
        if "WANDB_MODE" not in os.environ and not _logged_in(wandb):
            logger.warning("W&B has no login here: the run is tracked offline; 'wandb login' and 'wandb sync' send it later")
            mode = "offline"
        identity = run.state.get("id") or uuid.uuid4().hex[:12]
        directory = run.directory / "tracking"
        directory.mkdir(exist_ok=True)
        self._run: Any = wandb.init(
            id=str(identity),
            resume="allow",
            reinit="create_new",  # never the run that the user's own code may have begun
            mode=mode,  # type: ignore[arg-type]
            dir=str(directory),
            project=options.project,
            entity=options.entity,
            group=options.group,
            tags=list(options.tags),
            name=run.name,
            config=run.config.to_dict(),
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off"),
        )
        run.keep("wandb", {"id": identity, "url": None if self._run.offline else self._run.url})

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Record one row; W&B joins rows of the same step."""
        self._run.log(dict(row), step=step)

    def end(self, status: Status) -> None:
        """Finish; what did not end by itself counts as failed."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


def _logged_in(wandb: Any) -> bool:
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # before 0.31
        return wandb.api.api_key is not None


class MlflowTracker:
    """A run of MLflow, in the experiment named after the project."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        home = run.directory.parent.absolute()
        uri = run.config.tracking_options.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        # MLflow makes a database in many steps, and two runs that both make it leave it broken
        with _turn_in(home) if uri is None else contextlib.nullcontext():
            self._client: Any = MlflowClient(tracking_uri=uri or f"sqlite:///{home / 'mlflow.db'}")
            self._run_id = self._continued(run) or self._created(run)

    def _continued(self, run: TrackedRun) -> str | None:
        identity = run.state.get("run_id")
        if identity is None:
            return None
        try:
            self._client.update_run(identity, status="RUNNING")
        except Exception as error:  # whatever a store says of a run that it does not have
            logger.warning("MLflow has no run %s any more (%s): a new one is begun", identity, error)
            return None
        return str(identity)

    def _created(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        options = run.config.tracking_options
        tags = {"run_dir": str(run.directory), "group": options.group, "tags": ",".join(options.tags)}
        made = self._client.create_run(
            self._experiment(options.project),
            run_name=run.name,
            tags={name: value for name, value in tags.items() if value},
        )
        identity = str(made.info.run_id)
        run.keep("mlflow", {"run_id": identity})
        settings = flatten(run.config.to_dict())
        params = [Param(name, str(value)[:_MLFLOW_LONGEST_PARAM]) for name, value in settings.items()]
        for start in range(0, len(params), _MLFLOW_PARAMS_AT_ONCE):
            self._client.log_batch(identity, params=params[start : start + _MLFLOW_PARAMS_AT_ONCE])
        return identity

    def _experiment(self, name: str) -> str:
        there = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if there is None else there.experiment_id)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Record one row."""
        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, metrics=[self._metric(name, value, now, step) for name, value in row.items()])

    def end(self, status: Status) -> None:
        """Set the run's status."""
        names = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._run_id, names[status])


@contextlib.contextmanager
def _turn_in(directory: Path) -> Iterator[None]:
    """Be the only one here, after a while."""
    deadline = time.monotonic() + _LONGEST_TURN
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(run_lock(directory))
                break
            except CheckpointError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
"""By name, which is also that of the package and of the extra."""


def require_trackers(names: Iterable[str]) -> None:
    """A ``ConfigError`` that says how to get what is missing."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f'tracking with {name} needs a package that is not installed: pip install "rl-training[{name}]"')


def open_trackers(config: TrainConfig, directory: Path, *, kept: int) -> list[TrackingSink]:
    """The configured sinks of a run, whose ``metrics.jsonl`` is about to be cut to ``kept`` bytes."""
    sinks = []
    for name in config.tracking:
        state = _read_state(directory, name)
        run = TrackedRun(directory, config, state)
        sent = _sent_after(directory / "metrics.jsonl", kept) if state else frozenset()
        sinks.append(TrackingSink(name, lambda name=name, run=run: TRACKERS[name](run), sent=sent))  # type: ignore[misc]
    return sinks


def _state_file(directory: Path, tracker: str) -> Path:
    return directory / "tracking" / f"{tracker}.json"


def _read_state(directory: Path, tracker: str) -> dict[str, Any]:
    try:
        state = json.loads(read_bounded(_state_file(directory, tracker), _LARGEST_STATE))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _sent_after(log: Path, length: int) -> frozenset[tuple[int, str]]:
    """Step and name of each number that was logged after the checkpoint: the service cannot take them back."""
    sent = set()
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(length)
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be half a row
                row = json.loads(line)
                sent |= {(int(row["step"]), name) for name in row if name != "step"}
    return frozenset(sent)


class TrackingSink:
    """A sink that never fails and never waits: a thread of its own opens the tracker and sends the rows."""

    def __init__(
        self, name: str, open_tracker: Callable[[], Tracker], *, sent: frozenset[tuple[int, str]] = frozenset()
    ) -> None:
        self._name, self._open_tracker, self._sent = name, open_tracker, sent
        self._status: Status = "failed"
        self._told = False
        self._rows: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name=f"tracking with {name}", daemon=True)
        self._thread.start()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Pass on what was not sent before the run was resumed."""
        if fresh := {name: value for name, value in row.items() if (step, name) not in self._sent}:
            self._rows.put((step, fresh))

    def flush(self) -> None:
        """Nothing: rows are on their way, and nobody waits for them."""

    def conclude(self, status: Status) -> None:
        """Keep how the run ended, for when the sink is closed; without this it has failed."""
        self._status = status

    def close(self) -> None:
        """Give the rows that are left some time."""
        self._rows.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._tell("it does not answer")

    def _send(self) -> None:
        tracker: Tracker | None = None
        with self._errors_told():
            tracker = self._open_tracker()
        for entry in iter(self._rows.get, None):
            if tracker is not None:
                with self._errors_told():
                    tracker.log(*entry)
        if tracker is not None:
            with self._errors_told():
                tracker.end(self._status)

    @contextlib.contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of whatever kind: it is another's service, and the run does not depend on it
            self._tell(str(error) or type(error).__name__)

    def _tell(self, problem: str) -> None:
        if not self._told:
            logger.warning("Tracking with %s fails (%s). The run goes on; metrics.jsonl has everything", self._name, problem)
        self._told = True
