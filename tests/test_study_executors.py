"""Executors: the same bits everywhere, whatever is killed, interrupted or fails on the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support import CountingEnv, assert_same_run, tiny_settings

from rl_training.cli import main
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.studies import Study
from rl_training.studies.executors import Event, Executor, ProcessExecutor, Resubmissions, SerialExecutor, one_by_one
from rl_training.studies.worker import do_run, state_of
from rl_training.types import ConfigError

pytestmark = pytest.mark.xdist_group("executors")  # one worker has the reference runs and Ray
GRID = {"algo_kwargs.learning_rate": [1e-3, 3e-4]}
SETTINGS = ["learning_rate=0.001", "learning_rate=0.0003"]


def settings(**changes: Any) -> dict[str, Any]:
    given = {"total_timesteps": 80, "checkpoint_interval": 20, "eval_interval": 40, "log_interval": 20, **changes}
    patient = {"algo_kwargs": {"learning_starts": 50}, "env_id": "test_study_executors:patient_pendulum"}
    data = tiny_settings("sac", Path("unused"), **{**patient, **given})
    for key in ("seed", "output_dir", "torch_threads"):
        del data[key]
    return data


class Patient(gym.Wrapper[Any, Any, Any, Any]):
    """Slow as long as a file is there: time enough to do something to whoever plays it."""

    def __init__(self, env: gym.Env[Any, Any], slow_while: str | None) -> None:
        super().__init__(env)
        self.slow_while = slow_while

    def step(self, action: Any) -> Any:
        if self.slow_while is not None and Path(self.slow_while).exists():
            time.sleep(0.02)
        return super().step(action)


def patient_pendulum(slow_while: str | None = None) -> gym.Env[Any, Any]:
    return Patient(gym.make("Pendulum-v1"), slow_while)


class BrokenEnv(CountingEnv):
    """Has a bug."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("this environment is broken")


class DeadlyEnv(CountingEnv):
    """Takes its process with it."""

    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Four undisturbed runs, one after the other in this process."""
    study = Study.create(settings(), seeds="1-2", grid=GRID, output_dir=tmp_path_factory.mktemp("serial"), name="s")
    result = study.run("serial")
    assert result.exit_code == 0
    assert [row["setting"] for row in result.summary()] == SETTINGS
    return study


def assert_same_study(reference: Study, study: Study) -> None:
    for spec in study.runs():
        assert_same_run(reference.directory / "runs" / spec["name"], Path(spec["run_dir"]))


def slow_settings(directory: Path) -> dict[str, Any]:
    """Settings of runs that :func:`once_it_has_saved` slows down."""
    return settings(env_kwargs={"slow_while": str(directory / "slow")})


@contextlib.contextmanager
def once_it_has_saved(run_dir: Path, act: Callable[[int], None], slow: Path) -> Iterator[None]:
    """Have something done to the process that does a run, as soon as there is a checkpoint; until then runs are slow."""

    def watch() -> None:
        while not gone.is_set():
            with contextlib.suppress(OSError, TypeError):
                holder = re.match(r"process (\d+)", (run_dir / ".lock").read_text())
                if any((run_dir / "checkpoints").glob("step_*")):
                    act(int(holder[1]))  # type: ignore[index]
                    return
            gone.wait(0.002)

    slow.touch()
    gone = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        gone.set()
        watcher.join()
        slow.unlink(missing_ok=True)


def kill(process: int) -> None:
    assert process != os.getpid()
    os.kill(process, signal.SIGKILL)


def interrupt_this(process: int) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def completes_though_a_worker_is_killed(study: Study, executor: Executor | str) -> list[Event]:
    events: list[Event] = []
    victim, slow = study.directory / "runs" / SETTINGS[0] / "seed2", study.directory.parent / "slow"

    def kill_and_hurry(process: int) -> None:
        kill(process)
        slow.unlink()

    with once_it_has_saved(victim, kill_and_hurry, slow):
        result = study.run(executor, on_event=events.append, **({"workers": 2} if isinstance(executor, str) else {}))
    assert result.exit_code == 0
    assert [event.run["name"] for event in events if event.kind == "lost"] == [f"{SETTINGS[0]}/seed2"]
    assert sum(event.kind == "finished" for event in events) == 4
    return events


# -- processes -------------------------------------------------------------------------------------------------------


def test_processes_give_the_same_bits_though_one_is_killed(reference: Study, tmp_path: Path) -> None:
    study = Study.create(slow_settings(tmp_path), seeds="1-2", grid=GRID, output_dir=tmp_path, name="s")
    lost = next(e for e in completes_though_a_worker_is_killed(study, "process") if e.kind == "lost")
    assert "it ended with signal 9" in lost.message
    assert_same_study(reference, study)


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_ctrl_c_saves_and_sweep_goes_on(
    kind: str, reference: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(slow_settings(tmp_path)))
    command = ["sweep", str(config), "--grid", "algo_kwargs.learning_rate=1e-3,3e-4", "--seeds", "1-2", "--name", "s", "-q"]
    command += ["--output-dir", str(tmp_path), "--executor"]
    victim = tmp_path / "s" / "runs" / SETTINGS[0] / "seed1"
    with once_it_has_saved(victim, interrupt_this, tmp_path / "slow"):
        assert main([*command, kind, "--workers", "1"]) == 130
    assert state_of(victim).status == "interrupted"
    assert f"rl-training sweep {tmp_path / 's'}" in capsys.readouterr().out
    assert not list((tmp_path / "s").rglob(".lock"))  # nobody is left working
    assert main([*command, "serial"]) == 0  # another executor may go on
    assert_same_study(reference, Study.open(tmp_path / "s"))


def test_workers_whose_parent_is_killed_save_and_leave(reference: Study, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(slow_settings(tmp_path)))
    command = ["sweep", str(config), "--grid", "algo_kwargs.learning_rate=1e-3,3e-4", "--seeds", "1", "--name", "s"]
    command += ["--output-dir", str(tmp_path), "--executor", "process", "--workers", "1"]
    parent = subprocess.Popen(
        [sys.executable, "-m", "rl_training", *command],
        cwd=Path(__file__).parent,  # where the environment is
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    victim, workers = tmp_path / "s" / "runs" / SETTINGS[0] / "seed1", []

    def kill_parent(worker: int) -> None:
        workers.append(worker)
        parent.kill()

    with once_it_has_saved(victim, kill_parent, tmp_path / "slow"):
        parent.wait(timeout=120)
        end = time.monotonic() + 60
        while not has_ended(workers[0]) and time.monotonic() < end:
            time.sleep(0.02)
    assert state_of(victim).status == "interrupted"
    assert Study.open(tmp_path / "s").run("serial").exit_code == 0
    assert_same_study(reference, Study.open(tmp_path / "s"))


def test_a_worker_that_keeps_dying_does_not_stop_the_others(tmp_path: Path) -> None:
    grid = {"env_id": ["test_study_executors:DeadlyEnv", "support:CountingEnv"]}
    short = settings(total_timesteps=40, algo_kwargs={"learning_starts": 35})
    study = Study.create(short, seeds=1, grid=grid, output_dir=tmp_path, name="s")
    result = study.run("process", workers=1, retries=0)
    deadly, harmless = result.runs
    assert (deadly.status, harmless.status) == ("failed", "finished")
    assert "its worker died (once), the last time: it ended with signal 9" in deadly.message
    assert result.exit_code == 1
    assert (tmp_path / "s" / "logs" / "worker_1.log").exists()


def test_a_lost_run_is_given_out_again_before_new_ones_but_not_for_ever(reference: Study) -> None:
    first, second = reference.runs()[:2]
    lost, others = Resubmissions(retries=2), one_by_one([second])
    assert [lost.lost(first, "why").kind for _ in range(2)] == ["lost", "lost"]
    assert [lost.next_before(others) for _ in range(4)] == [first, first, second, None]
    last = lost.lost(first, "why")
    assert (last.kind, last.bug, last.message) == ("failed", True, "its worker died (3 times), the last time: why")


def test_a_polite_request_to_a_worker_is_no_failure(tmp_path: Path) -> None:
    """SIGTERM from outside: the run saves, and goes on in the same worker."""
    study = Study.create(slow_settings(tmp_path), seeds=1, output_dir=tmp_path, name="s")
    kinds, slow = [], tmp_path / "slow"
    executor = ProcessExecutor(1, log_dir=tmp_path / "logs")

    def ask_and_hurry(process: int) -> None:
        os.kill(process, signal.SIGTERM)
        slow.unlink()

    with once_it_has_saved(Path(study.runs()[0]["run_dir"]), ask_and_hurry, slow):
        assert study.run(executor, on_event=lambda event: kinds.append(event.kind)).exit_code == 0
    assert kinds == ["started", "lost", "started", "finished"]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["worker_1.log"]


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "exit_code", "message"),
    [("test_study_executors:BrokenEnv", 1, "this environment is broken"), ("support:NanEnv", 2, "became nan")],
)
def test_one_failing_run_does_not_stop_the_others(
    env: str, exit_code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(settings(total_timesteps=40, env_kwargs={"limit": 10})))
    command = ["sweep", str(config), "--seeds", "1", "--grid", f"env_id={env},support:CountingEnv", "--name", "s"]
    assert main([*command, "--output-dir", str(tmp_path), "--executor", "serial"]) == exit_code
    captured = capsys.readouterr()
    assert message in captured.err
    assert f"failed: env_id={env.replace(':', '-')}/seed1" in captured.err
    assert re.search(r"CountingEnv +1/1", captured.out)


def test_a_run_that_decided_to_stop_and_was_killed_before_it_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = settings(early_stopping={"patience": 0, "target_value": -1e9}, eval_interval=40)
    whole, killed = (
        Study.create(stops, seeds=1, output_dir=tmp_path / name, name="s").runs()[0] for name in ("whole", "killed")
    )
    assert (do_run(whole)["result"] or {})["stop_reason"].startswith("early stopping")

    class Killed(BaseException):
        pass

    def dies(*arguments: Any, **options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("rl_training.runtime.run.Run.finish", dies)
        patch.setattr("rl_training.runtime.training._record_failure", lambda directory, error: None)
        with pytest.raises(Killed):
            do_run(killed)
    assert state_of(Path(killed["run_dir"])).status == "running"
    assert do_run(killed)["status"] == "finished"
    assert_same_run(Path(whole["run_dir"]), Path(killed["run_dir"]))


class Stopper(Callback):
    """A callback that a spec names."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: TrainerState, result: object) -> None:
        if trainer.global_step >= self.step:
            trainer.should_stop, trainer.stop_reason = True, "as the spec says"


def test_specs_can_carry_callbacks_and_executors_ask_for_runs_when_they_have_room(tmp_path: Path) -> None:
    specs = Study.create(settings(), seeds="1-2", output_dir=tmp_path, name="s").runs()
    specs[0]["callbacks"] = [{"use": "test_study_executors:Stopper", "options": {"step": 60}}]
    asked = one_by_one(specs)
    log: list[str] = []

    def next_run() -> Any:
        spec = asked()
        log.append(f"asked {spec and spec['name']}")
        return spec

    for event in SerialExecutor().run(next_run):
        log.append(f"{event.kind} {event.run['name']}")
    assert log == [
        *("asked base/seed1", "started base/seed1", "finished base/seed1"),
        *("asked base/seed2", "started base/seed2", "finished base/seed2", "asked None"),
    ]
    assert state_of(Path(specs[0]["run_dir"])).reason == "as the spec says"


# -- Ray -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """One local Ray for all tests that need it, started the way the executor starts it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install rl-training[ray]")
    from rl_training.studies.ray_executor import connected

    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or it writes a token into the home directory
        with connected(ray, None):
            assert signal.getsignal(signal.SIGTERM) is before
            yield ray


@pytest.mark.ray
def test_ray_gives_the_same_bits_though_a_worker_is_killed(ray_cluster: Any, reference: Study, tmp_path: Path) -> None:
    study = Study.create(slow_settings(tmp_path), seeds="1-2", grid=GRID, output_dir=tmp_path, name="s")
    lost = next(e for e in completes_though_a_worker_is_killed(study, "ray") if e.kind == "lost")
    assert "WorkerCrashedError" in lost.message
    assert_same_study(reference, study)


@pytest.mark.ray
def test_ray_saves_when_interrupted_refuses_what_does_not_fit_and_is_joined_by_its_address(
    ray_cluster: Any, reference: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(slow_settings(tmp_path)))
    command = ["sweep", str(config), "--grid", "algo_kwargs.learning_rate=1e-3,3e-4", "--seeds", "1", "--name", "s", "-q"]
    command += ["--output-dir", str(tmp_path), "--executor", "ray"]
    assert main([*command, "--cpus-per-run", "9999"]) == 2
    assert "a run asks for 9999 CPUs, and no machine of the Ray cluster has that" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    victim = tmp_path / "s" / "runs" / SETTINGS[0] / "seed1"
    with once_it_has_saved(victim, interrupt_this, tmp_path / "slow"):
        assert main([*command, "--workers", "1"]) == 130
    assert state_of(victim).status == "interrupted"
    # another process joins the cluster by its address, and goes on
    address = ray_cluster.get_runtime_context().gcs_address
    joined = subprocess.run(
        [sys.executable, "-m", "rl_training", *command, "--workers", "1", "--ray-address", address, "--json"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert joined.returncode == 0, joined.stderr
    assert [run["status"] for run in json.loads(joined.stdout.splitlines()[-1])["runs"]] == ["finished"] * 2
    assert_same_study(reference, Study.open(tmp_path / "s"))


def test_room_on_a_cluster() -> None:
    from rl_training.studies.ray_executor import room_for

    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    assert room_for({"CPU": 1.0, "GPU": 0.0}, nodes) == 7
    assert room_for({"CPU": 2.0, "GPU": 0.0}, nodes) == 3
    assert room_for({"CPU": 0.5, "GPU": 0.5}, nodes) == 2
    for wanted in ({"CPU": 6.0, "GPU": 0.0}, {"CPU": 1.0, "GPU": 2.0}):
        with pytest.raises(ConfigError, match="2 machines, at most 4 CPUs, 1 GPUs each"):
            room_for(wanted, nodes)
    with pytest.raises(ConfigError, match="0 machines"):
        room_for({"CPU": 1.0, "GPU": 0.0}, [])
