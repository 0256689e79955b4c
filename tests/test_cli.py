"""The command line, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ALGORITHMS, tiny_settings

from rl_training import __version__
from rl_training.cli import load_config, main
from rl_training.experiment.yaml_files import dump_yaml


def config_file(algo: str, tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / f"{algo}.yaml"
    path.write_text(dump_yaml(tiny_settings(algo, tmp_path / "runs", **changes)))
    return str(path)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_train_eval_predict_resume(algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", config_file(algo, tmp_path), "--json"]) == 0
    trained = last_json(capsys)
    assert trained.keys() == {"run_dir", "checkpoint_path", "metrics", "stop_reason"}
    assert main(["eval", "--checkpoint", trained["checkpoint_path"], "--num-episodes", "2", "--json"]) == 0
    assert last_json(capsys)["eval_episodes"] == 2
    obs = json.dumps([0.1] * (4 if algo == "dqn" else 3))
    assert main(["predict", trained["run_dir"], "--obs", obs, "--json"]) == 0
    action = last_json(capsys)["action"]
    assert isinstance(action, int) if algo == "dqn" else len(action) == 1
    assert main(["resume", trained["run_dir"], "--total-timesteps", "120", "--json"]) == 0
    resumed = last_json(capsys)
    assert resumed["run_dir"] == trained["run_dir"]
    assert resumed["metrics"]["global_step"] == 120


def test_train_tells_score_directory_and_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config_file("sac", tmp_path)]) == 0
    out = capsys.readouterr().out
    (run_dir,) = (tmp_path / "runs").iterdir()
    for text in (
        "score ",
        f"rl-training eval {run_dir}",
        f"rl-training resume {run_dir} --total-timesteps 192",
        "tensorboard --logdir",
    ):
        assert text in out


def test_overrides_and_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "sac/pendulum", "--set", "algo_kwargs.learning_rate=5e-4", "--seed", "9", "--total-timesteps", "77"]
    assert main([*arguments, "--output-dir", str(tmp_path), "--dry-run"]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert (resolved["algo_kwargs"]["learning_rate"], resolved["seed"], resolved["total_timesteps"]) == (5e-4, 9, 77)
    assert resolved["algo_kwargs"]["gamma"] == 0.99  # defaults are shown
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--dry-run", "--json"]) == 0
    assert last_json(capsys)["seed"] == 9


def test_prediction_of_a_batch_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    main(["train", config_file("sac", tmp_path), "--json", "-q"])
    run_dir = last_json(capsys)["run_dir"]
    monkeypatch.setattr("sys.stdin", io.StringIO("[[0, 0, 0], [1, 0, 0]]"))
    assert main(["predict", run_dir, "--json"]) == 0
    assert len(last_json(capsys)["action"]) == 2
    assert main(["predict", run_dir, "--obs", "[1, 2]"]) == 2
    assert "shape (2,), expected (3,)" in capsys.readouterr().err
    assert main(["predict", run_dir, "--obs", "hello"]) == 2
    assert "must be a JSON list of numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "give a preset or --config"),
        (["train", "sac/pendulun"], "did you mean 'sac/pendulum'"),
        (["train", "nowhere.yaml"], "no config file or preset 'nowhere.yaml'"),
        (["train", "sac/pendulum", "--set", "algo_kwargs.lerning_rate=1"], "did you mean 'algo_kwargs.learning_rate'"),
        (["train", "sac/pendulum", "--set", "total_timesteps=-5"], "total_timesteps must be >= 1, got -5"),
        (["train", "sac/pendulum", "--set", "env_id=Nope-v1"], "'Nope-v1' cannot be made"),
        (["train", "sac/pendulum", "--set", "env_id=CartPole-v1"], "needs Box actions"),
        (["train", "sac/pendulum", "--set", "env_id=[1"], "not valid YAML"),
        (["train", "sac/pendulum", "--total-timesteps", "x"], "--total-timesteps"),
        (["train", "sac/pendulum", "--output-dir", "/proc/nowhere", "--total-timesteps", "10"], "output_dir '/proc/nowhere'"),
        (["eval", "nowhere"], "nowhere does not exist"),
        (["eval"], "give a run directory or checkpoint"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["predict", "nowhere", "--obs", "[1]"], "nowhere does not exist"),
        (["config", "show", "nope"], "no config file or preset 'nope'"),
        (["config", "schema", "--algo", "nope"], "algo 'nope' is not known"),
        (["nonsense"], "nonsense"),
        (["train", "sac/pendulum", "--nonsense"], "--nonsense"),
    ],
)
def test_mistakes_exit_with_2_and_one_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.replace("│", " ").split())
    assert "Traceback" not in captured.err
    assert not list(tmp_path.iterdir())


def test_damaged_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", config_file("sac", tmp_path), "--json", "-q"])
    checkpoint = Path(last_json(capsys)["checkpoint_path"])
    weights = checkpoint / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    for command in (["eval", str(checkpoint)], ["predict", str(checkpoint), "--obs", "[0,0,0]"], ["resume", str(checkpoint)]):
        assert main(command) == 2
        assert f"{weights} has 100 bytes" in capsys.readouterr().err


def test_a_bug_is_not_called_a_mistake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.experiment.presets.list_presets", lambda: 1 / 0)
    assert main(["list"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_list_version_config_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(algo in out for algo in ALGORITHMS)
    assert "sac/pendulum" in out
    assert main(["list", "--json"]) == 0
    assert {entry["name"] for entry in last_json(capsys)["algorithms"]} == set(ALGORITHMS)
    assert main(["config", "show", "sac/pendulum"]) == 0
    assert "learning_rate: 0.001" in capsys.readouterr().out
    assert main(["config", "schema"]) == 0
    assert "$defs" in json.loads(capsys.readouterr().out)
    assert main(["config", "schema", "--json"]) == 0
    assert "$defs" in last_json(capsys)
    assert main(["doctor", "--json"]) == 0
    assert last_json(capsys)["problems"] == []


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["train"], ["eval"], ["resume"], ["predict"], ["list"], ["config"], ["config", "show"], ["doctor"]):
        assert main([*command, "--help"]) == 0
        assert "Usage" in capsys.readouterr().out


def test_module_entry_point_and_exit_code() -> None:
    done = subprocess.run([sys.executable, "-m", "rl_training", "train", "nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no config file or preset 'nope'")


def test_load_config_takes_names_and_paths(tmp_path: Path) -> None:
    assert load_config("sac/pendulum").algo == "sac"
    assert load_config(config_file("sac", tmp_path)).total_timesteps == 96
