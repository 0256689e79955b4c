"""Doing one run from its spec: in this process, in a worker process, on a Ray node, always the same.

A run directory that is not there is made; one that is there is continued from its newest intact checkpoint; a finished one
is only read. So a run that was lost with its worker is simply given to another.
"""

from __future__ import annotations

import _thread
import importlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, TypedDict

from rl_training.types import CheckpointError, ConfigError, UserError

if TYPE_CHECKING:  # only: a worker is to answer signals while torch is still being imported
    from rl_training.studies.spec import CallbackSpec, RunSpec


class Outcome(TypedDict):
    """What came of a run, as plain JSON. ``bug``: the message is a traceback and not the user's mistake."""

    status: Literal["finished", "failed", "interrupted"]
    result: dict[str, Any] | None
    message: str
    bug: bool


class RunState(NamedTuple):
    """What a run directory says of itself."""

    status: str  # "absent", "running" (or killed), "interrupted", "failed" or "finished"
    result: dict[str, Any] | None = None
    reason: str | None = None


class Progress(NamedTuple):
    """How far a run has come, as its log says."""

    step: int = 0
    evaluation: float | None = None
    speed: float | None = None


def state_of(run_dir: Path) -> RunState:
    """The state of a run, read from its ``metadata.json``; the result is there when it is finished."""
    try:
        metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
        status, reason = str(metadata["status"]), metadata.get("stop_reason")
    except (OSError, ValueError, KeyError, TypeError):
        return RunState("running" if (run_dir / "config.yaml").is_file() else "absent")
    if status != "finished":
        return RunState(status, reason=reason)
    return RunState(status, result=_stored_result(run_dir, metadata), reason=reason)


def _stored_result(run_dir: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """What ``TrainResult.to_dict`` gave when the run ended."""
    try:
        checkpoint = str(run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip())
    except OSError:
        checkpoint = None
    return {
        "run_dir": str(run_dir),
        "checkpoint_path": checkpoint,
        "metrics": metadata.get("metrics", {}),
        "stop_reason": metadata.get("stop_reason"),
    }


def progress_of(run_dir: Path, *, tail: int = 1 << 16) -> Progress:
    """Step, last evaluation and speed from the end of ``metrics.jsonl``."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
            lines = file.read().splitlines()
    except OSError:
        return Progress()
    step, evaluation, speed = 0, None, None
    for line in lines:
        try:
            row = json.loads(line)
            step = int(row["step"])
        except (ValueError, KeyError, TypeError):  # the first line of the tail may be half a row
            continue
        evaluation, speed = row.get("eval/mean_reward", evaluation), row.get("time/fps", speed)
    return Progress(step, evaluation, speed)


# -- one run ---------------------------------------------------------------------------------------------------------


def do_run(spec: RunSpec) -> Outcome:
    """Do what is left of a run. Errors are part of the outcome; a second signal, or one between runs, is not caught."""
    try:
        import_modules(spec["imports"])
        result = state_of(Path(spec["run_dir"])).result or _train_or_continue(spec)
    except UserError as error:
        return {"status": "failed", "result": None, "message": str(error), "bug": False}
    except Exception:
        return {"status": "failed", "result": None, "message": traceback.format_exc(), "bug": True}
    interrupted = (result["stop_reason"] or "").startswith("interrupted")
    return {"status": "interrupted" if interrupted else "finished", "result": result, "message": "", "bug": False}


def _train_or_continue(spec: RunSpec) -> dict[str, Any]:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.files import delete
    from rl_training.runtime.training import train
    from rl_training.runtime.workflows import resume_training

    run_dir = Path(spec["run_dir"])
    callbacks = [_make_callback(entry) for entry in spec["callbacks"]]
    if (run_dir / "config.yaml").is_file():
        result = _finish_stopped(run_dir, callbacks) or resume_training(run_dir, callbacks=callbacks)
    else:
        for leftover in run_dir.parent.glob(f".{run_dir.name}.*.tmp"):  # of a worker that was killed while making it
            delete(leftover)
        result = train(TrainConfig(**spec["config"]), run_dir=run_dir, callbacks=callbacks)
    return result.to_dict()


def _finish_stopped(run_dir: Path, callbacks: list[object]) -> Any:
    """The result of a run that decided to stop, saved that, and was killed before it could say so; else None.

    ``resume`` takes such a run for one whose owner wants it to go on and asks for confirmation. Here it is to end as it would
    have ended.
    """
    from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore
    from rl_training.experiment.lock import run_lock
    from rl_training.runtime.training import execute
    from rl_training.runtime.workflows import config_of

    store = CheckpointStore(run_dir / "checkpoints", keep_last=1)
    try:
        checkpoint = Checkpoint(store.steps()[-1])
        if not checkpoint.manifest["trainer"]["should_stop"]:
            return None
        checkpoint.verify()
    except (IndexError, CheckpointError):  # none yet, or a damaged one: resume knows what to do
        return None
    with run_lock(run_dir):
        return execute(config_of(checkpoint), checkpoint=checkpoint, run_dir=run_dir, callbacks=callbacks)


def _make_callback(entry: CallbackSpec) -> object:
    module, _, name = entry["use"].partition(":")
    made: object = getattr(importlib.import_module(module), name)(**entry["options"])
    return made


def import_modules(names: list[str] | tuple[str, ...]) -> None:
    """Import the modules that register a user's environments."""
    if names and os.environ.get("RL_TRAINING_NO_USER_CODE", "0") not in ("", "0"):
        raise ConfigError(f"imports {', '.join(names)} is code to import, and user code is switched off (--no-user-code)")
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"imports: {name!r} cannot be imported: {error}") from None


# -- a worker process ------------------------------------------------------------------------------------------------


def surroundings() -> dict[str, Any]:
    """What a worker elsewhere takes over: where modules are found, and the command that started it all."""
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    return {"path": path, "command": sys.argv}


def settle_in(around: dict[str, Any]) -> None:
    """Take over the surroundings of the process that gives out the runs."""
    sys.path += [entry for entry in around["path"] if entry not in sys.path]
    sys.argv = list(around["command"])


def work_for(spec: str, around: str) -> str:
    """Do a run in a process of someone else's making (Ray's); JSON in, JSON out."""
    settle_in(json.loads(around))
    return json.dumps(do_run(json.loads(spec)))


def serve() -> None:
    """Be a worker process: a spec a line on standard input, an outcome a line on standard output, until the input ends.

    The end of the input, be it that the parent wants to stop or that it is gone, is a request to save and leave.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # of a run in progress the run itself takes care
        signal.signal(number, _leave)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s: %(message)s", stream=sys.stderr)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an environment prints goes to the worker's log and not between the answers
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, waiting), daemon=True).start()
    while (line := waiting.get()) is not None:
        print(json.dumps(do_run(json.loads(line))), file=answers, flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listen(lines: TextIO, waiting: queue.SimpleQueue[str | None]) -> None:
    for line in lines:
        waiting.put(line)
    waiting.put(None)
    _thread.interrupt_main(signal.SIGTERM)  # as if the signal had come: a run in progress saves and ends
