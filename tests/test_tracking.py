"""Weights & Biases (offline) and MLflow (a local store): several at once, continued on resume, never in the way."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import assert_same_run, metric_rows, tiny_config, tiny_settings

from rl_training.cli import main
from rl_training.experiment import tracking
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tracking import TrackedRun, TrackingSink
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.types import ConfigError

needs_wandb = pytest.mark.skipif(tracking.find_spec("wandb") is None, reason="wandb is not installed")
needs_mlflow = pytest.mark.skipif(tracking.find_spec("mlflow") is None, reason="mlflow is not installed")
Sent = list[tuple[int, dict[str, float]]]


class Recorder:
    """A tracker that only remembers, and continues the list it began."""

    runs: ClassVar[dict[str, Sent]] = {}
    ended: ClassVar[list[str]] = []

    def __init__(self, run: TrackedRun) -> None:
        self.identity = run.state.get("id") or f"run{len(self.runs)}"
        self.rows = self.runs.setdefault(self.identity, [])
        run.keep("wandb", {"id": self.identity})

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self.rows.append((step, dict(row)))

    def end(self, status: str) -> None:
        self.ended.append(status)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Recorder)
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    Recorder.runs, Recorder.ended = {}, []
    return Recorder


class StopAt:
    """Ends a run with an error at a step, as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_collect_end(self, state: Any, result: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("crash")


def test_rows_are_those_of_the_log(recorder: type[Recorder], tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, tracking="wandb"))
    logged = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [{"step": step, **row} for step, row in recorder.runs["run0"]] == logged
    assert recorder.ended == ["finished"]


def test_resumed_run_is_continued_without_duplicates(recorder: type[Recorder], tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, tracking=["wandb"], checkpoint_interval=50)
    with pytest.raises(RuntimeError, match="crash"):
        train(config, callbacks=[StopAt(90)])  # rows of steps 60 and 80 are sent, the checkpoint is at 50
    run_dir = next(path for path in tmp_path.iterdir() if path.is_dir())
    resume_training(run_dir)
    assert list(recorder.runs) == ["run0"]
    assert recorder.ended == ["failed", "finished"]
    sent = [(step, name) for step, row in recorder.runs["run0"] for name in row]
    assert len(sent) == len(set(sent))
    assert set(sent) == {(row["step"], name) for row in _log(run_dir) for name in row if name != "step"}


def test_branch_is_a_run_of_its_own(recorder: type[Recorder], tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, tracking=["wandb"]))
    resume_training(result.run_dir, 120, run_suffix="longer")
    assert list(recorder.runs) == ["run0", "run1"]
    assert {step for step, _ in recorder.runs["run1"]} == {100, 120}


def _log(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


# -- a service that fails --------------------------------------------------------------------------------------------


class Flaky(Recorder):
    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step <= 40:
            raise ConnectionError("no route to host")
        super().log(step, row)


def test_failing_service_is_told_once_and_ends_nothing(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Flaky)
    with caplog.at_level(logging.WARNING):
        result = train(tiny_config("sac", tmp_path, tracking=["wandb"]))
    assert result.metrics["global_step"] == 96
    told = [record.getMessage() for record in caplog.records if "Tracking with wandb" in record.getMessage()]
    assert told == ["Tracking with wandb fails (no route to host). The run goes on; metrics.jsonl has everything"]
    assert min(step for step, _ in recorder.runs["run0"]) == 60  # it came back
    plain = train(tiny_config("sac", tmp_path / "plain"))
    assert_same_run(result.run_dir, plain.run_dir)


def test_service_that_cannot_be_opened_or_hangs_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.05)
    gate = threading.Event()

    def refuse() -> Any:
        raise PermissionError("not logged in")

    def hang() -> Any:
        gate.wait(10)
        return refuse()

    for opening, reason in ((refuse, "not logged in"), (hang, "it does not answer")):
        caplog.clear()
        sink = TrackingSink("mlflow", opening)
        sink.write(1, {"a": 1.0})
        sink.flush()
        sink.close()
        assert [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    gate.set()


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package_is_named_before_anything_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda module: None)
    out = tmp_path / "out"
    assert main(["train", "sac/pendulum", "--track", name, "--output-dir", str(out)]) == 2
    assert f'pip install "rl-training[{name}]"' in capsys.readouterr().err
    assert main(["sweep", "sac/pendulum", "--seeds", "1", "--set", f"tracking={name}", "--output-dir", str(out)]) == 2
    assert f'pip install "rl-training[{name}]"' in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tracking": ["neptune"]}, "tracking.0 must be one of 'wandb' or 'mlflow', got 'neptune'"),
        ({"tracking": ["wandb", "wandb"]}, "tracking must not name one twice"),
        ({"tracking_options": {"projekt": "x"}}, "tracking_options.projekt is not a known key; did you mean 'project'?"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**tiny_settings("sac", tmp_path, **settings))
    assert message in str(caught.value)


# -- the real services -----------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")


@needs_wandb
@needs_mlflow
@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("ignore")  # of the packages' own
@pytest.mark.xdist_group("tracking")
def test_both_at_once_offline_and_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mlflow import MlflowClient

    config = tiny_config("sac", tmp_path, tracking=["wandb", "mlflow"], tensorboard=True, tracking_options={"project": "both"})
    with pytest.raises(RuntimeError, match="crash"), caplog.at_level(logging.WARNING):
        train(config, callbacks=[StopAt(75)])
    run_dir = next(path for path in tmp_path.iterdir() if path.is_dir())
    first = {name: json.loads((run_dir / "tracking" / f"{name}.json").read_text()) for name in ("wandb", "mlflow")}
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run_id = first["mlflow"]["run_id"]
    assert client.get_run(run_id).info.status == "FAILED"
    resume_training(run_dir)
    assert not [record for record in caplog.records if "Tracking" in record.getMessage()], caplog.text

    experiment = client.get_experiment_by_name("both")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == run_id
    assert found.info.status == "FINISHED"
    assert found.data.params["algo_kwargs.batch_size"] == "16"
    for name in ("eval/mean_reward", "train/critic_loss"):
        logged = [(row["step"], row[name]) for row in metric_rows(run_dir) if name in row]
        assert [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)] == logged

    parts = sorted((run_dir / "tracking" / "wandb").glob("offline-run-*"))  # one a start, of the same id
    assert [part.name.rpartition("-")[2] for part in parts] == [first["wandb"]["id"]] * 2
    steps = [_wandb_steps(part) for part in parts]
    assert sorted({*steps[0], *steps[1]}) == sorted({row["step"] for row in _log(run_dir)})
    assert not set(steps[0]) & set(steps[1])
    assert list((run_dir / "tensorboard").iterdir())


def _wandb_steps(part: Path) -> list[int]:
    """The steps of the rows in an offline file: records of 4 bytes checksum, 2 length, 1 kind, then a protobuf message."""
    from wandb.proto import wandb_internal_pb2

    content = next(part.glob("*.wandb")).read_bytes()
    assert len(content) < 32_768, "longer files have blocks"
    steps, position = [], 7  # after the file's own header
    while position < len(content):
        start = position + 7
        position = start + int.from_bytes(content[position + 4 : position + 6], "little")
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content[start:position])
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
    return steps


@needs_wandb
@pytest.mark.filterwarnings("ignore")
@pytest.mark.xdist_group("tracking")
def test_without_a_login_wandb_is_offline_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    given: dict[str, Any] = {}

    class Run:
        offline, url = True, None

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    monkeypatch.setattr(wandb, "init", lambda **options: given.update(options) or Run())
    monkeypatch.setattr(sys.stdin, "read", lambda *size: pytest.fail("asked"))
    tracking.WandbTracker(TrackedRun(tmp_path, tiny_config("sac", tmp_path), {}))
    assert given["mode"] == "offline"
    assert "wandb login" in caplog.text
