"""Studies: what they are made of, what they refuse, what they do and do not do again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import REPOSITORY, assert_same_run, tiny_settings

from rl_training.cli import main
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.studies import Study
from rl_training.studies.spec import StudyFile, parse_grid, parse_seeds, plan_study
from rl_training.studies.tuning import TuneFile
from rl_training.studies.worker import do_run, progress_of, state_of
from rl_training.types import ConfigError

RATES = {"algo_kwargs.learning_rate": [1e-3, 3e-4]}


def settings(**changes: Any) -> dict[str, Any]:
    """A run of a second, without what a study decides."""
    data = tiny_settings("sac", Path("unused"), **changes)
    for key in ("seed", "output_dir", "torch_threads"):
        del data[key]
    return data


def config_file(directory: Path, **changes: Any) -> str:
    path = directory / "tiny.yaml"
    path.write_text(dump_yaml(settings(**changes)))
    return str(path)


# -- what a study is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("1-3", (1, 2, 3)), ("1,4,6-7", (1, 4, 6, 7)), ([5, 2], (5, 2)), (9, (9,)), ("0", (0,)), (range(2), (0, 1))],
)
def test_seeds(given: Any, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(given) == seeds


@pytest.mark.parametrize("given", [None, "", [], "a", "-1", "1.5", [True], "3-1", "1-999999999", "1,2,1", [1.5], "1-3,2"])
def test_seeds_that_make_no_sense(given: Any) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(given)


def test_grid_values_are_yaml() -> None:
    grid = parse_grid(["algo_kwargs.hidden_sizes=[64,64],[256,256]", "num_envs=1,2", "reward.clip_max=null,1e-3"])
    assert grid == {
        "algo_kwargs.hidden_sizes": [[64, 64], [256, 256]],
        "num_envs": [1, 2],
        "reward.clip_max": [None, 1e-3],
    }


def test_labels_are_short_safe_and_unique() -> None:
    def labels(grid: dict[str, list[Any]], **changes: Any) -> list[str]:
        return [s.label for s in plan_study({"": settings(**changes)}, source="x", name="x", seeds=1, grid=grid).settings]

    assert labels({}) == ["base"]
    assert labels(RATES) == ["learning_rate=0.001", "learning_rate=0.0003"]
    both = labels({**RATES, "num_envs": [1, 2]})
    assert both[1] == "learning_rate=0.001__num_envs=2"
    assert labels({"algo_kwargs.hidden_sizes": [[8, 8], [16]]}) == ["hidden_sizes=8x8", "hidden_sizes=16"]
    assert labels({"reward.scale": [1.0, 2.0], "learning_rate_schedule.end": [0.0]})[0] == "scale=1.0__end=0.0"
    odd = labels({"env_kwargs.name": ["a/b", "a b", "A b", "x" * 300]})
    assert len({label.lower() for label in odd}) == 4
    assert all(re.fullmatch(r"[\w.=+-]{1,100}", label) for label in [*both, *odd])


def test_a_study_file_may_have_several_bases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.yaml"
    content = {
        "base": ["sac/pendulum", "dqn/cartpole"],
        "set": {"eval_episodes": 3},
        "grid": {"num_envs": [1, 2]},
        "seeds": "1-2",
    }
    file.write_text(dump_yaml({**content, "output_dir": str(tmp_path)}))
    study = Study.create(file)
    assert [setting.label for setting in study.spec.settings] == [
        *("sac-pendulum__num_envs=1", "sac-pendulum__num_envs=2", "dqn-cartpole__num_envs=1", "dqn-cartpole__num_envs=2")
    ]
    assert [(s.config["algo"], s.config["eval_episodes"]) for s in study.spec.settings[1:3]] == [("sac", 3), ("dqn", 3)]
    assert len(Study.create(file, seeds="1-3").runs()) == 12  # the same study, with a seed more
    file.write_text(dump_yaml({**content, "base": ["sac/pendulum", "td3/pendulum"], "output_dir": str(tmp_path)}))
    with pytest.raises(ConfigError, match="another configuration"):
        Study.create(file)
    file.write_text(dump_yaml({**content, "base": ["sac/pendulum", "sac/pendulum"]}))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert "base must not name one twice" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted((REPOSITORY / "benchmarks" / "suite").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_benchmark_suite_is_made_of_studies(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(file), "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) >= 12


def test_specs_are_plain_json_and_whole(tmp_path: Path) -> None:
    study = Study.create(settings(), seeds="1-2", grid=RATES, output_dir=tmp_path, name="s")
    specs = study.runs()
    assert json.loads(json.dumps(specs)) == specs
    assert [spec["name"] for spec in specs] == [f"learning_rate={r}/seed{s}" for r in (0.001, 0.0003) for s in (1, 2)]
    for spec in specs:
        assert Path(spec["run_dir"]).is_absolute()
        assert spec["config"]["torch_threads"] == 1
        assert spec["config"]["learning_rate_schedule"]["horizon"] == 96  # resolved
        assert spec["config"]["algo_kwargs"]["gamma"] == 0.99  # complete
    assert Study.open(tmp_path / "s").runs() == specs


def test_what_depends_on_the_budget_follows_the_grid(tmp_path: Path) -> None:
    dqn = tiny_settings("dqn", tmp_path, algo_kwargs={"exploration_fraction": 0.5})
    study = Study.create(dqn, seeds=1, grid={"total_timesteps": [100, 200]}, output_dir=tmp_path, name="s")
    assert [setting.config["algo_kwargs"]["exploration_steps"] for setting in study.spec.settings] == [50, 100]


def test_paths_of_data_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = [{"kind": "npz", "path": "part.npz"}, {"kind": "minari", "path": "an/id-v0"}]
    for dataset, expected in (
        ({"kind": "hdf5", "path": "data.hdf5"}, str(tmp_path / "data.hdf5")),
        ({"kind": "mix", "parts": parts}, None),
    ):
        data = tiny_settings("iql", tmp_path, dataset=dataset)
        found = plan_study({"": data}, source="x", name="x", seeds=1).settings[0].config["dataset"]
        assert found["path"] == expected
        assert [part["path"] for part in found["parts"]] == ([str(tmp_path / "part.npz"), "an/id-v0"] if not expected else [])


def test_study_files_in_the_documents_are_valid() -> None:
    page = (REPOSITORY / "docs" / "studies.md").read_text()
    found = {title: text for title, text in re.findall(r'```yaml title="(\w+).yaml"\n(.*?)```', page, re.DOTALL)}
    StudyFile(**yaml.safe_load(found["study"]))
    TuneFile(**yaml.safe_load(found["tune"]))


# -- running ---------------------------------------------------------------------------------------------------------


def test_a_run_of_a_study_is_the_run_of_train(tmp_path: Path) -> None:
    study = Study.create(settings(), seeds="3", output_dir=tmp_path, name="s")
    result = study.run("serial")
    run_dir = result.runs[0].run_dir
    assert run_dir == tmp_path / "s" / "runs" / "base" / "seed3"
    alone = train(study_config(study), run_dir=tmp_path / "alone")
    assert alone.run_dir == tmp_path / "alone"
    assert_same_run(run_dir, alone.run_dir)
    assert main(["eval", str(run_dir), "-n", "1"]) == 0
    assert resume_training(run_dir, 110, "longer").metrics["global_step"] == 110
    assert progress_of(run_dir).step == 96
    assert result.runs[0].evaluation == progress_of(run_dir).evaluation


def study_config(study: Study) -> Any:
    from rl_training.experiment.config import TrainConfig

    return TrainConfig(**study.runs()[0]["config"])


def test_sweep_does_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = config_file(tmp_path, total_timesteps=40, eval_interval=None)
    command = ["sweep", tiny, "--executor", "serial", "--output-dir", str(tmp_path / "out"), "--name", "s"]
    command += ["--grid", "algo_kwargs.learning_rate=1e-3,3e-4", "--json"]
    assert main([*command, "--seeds", "1"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["status"] for run in first["runs"]] == ["finished", "finished"]
    assert first["summary"][0]["mean"] == first["runs"][0]["evaluation"]
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.name == "metadata.json"}
    assert main([*command, "--seeds", "1,2", "-q"]) == 0  # a seed more
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(second["runs"]) == 4
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert main([*command, "--seeds", "2", "-q"]) == 0  # fewer: they stay
    captured = capsys.readouterr()
    assert len(json.loads(captured.out.splitlines()[-1])["runs"]) == 4
    assert captured.err == ""
    assert main(["sweep", str(tmp_path / "out" / "s"), "--dry-run"]) == 0  # by its directory
    assert "0 to do" in capsys.readouterr().out


def test_lines_and_table_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = config_file(tmp_path, total_timesteps=40, eval_interval=None)
    command = ["sweep", tiny, "--executor", "serial", "--output-dir", str(tmp_path / "out"), "--seeds", "1-2"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert [line.split(":")[0] for line in captured.err.splitlines()] == [
        "[1/2] base/seed1 finished",
        "[2/2] base/seed2 finished",
    ]
    assert re.search(r"base +2/2 +-\d+\.\d \+/- \d+", captured.out)
    assert f"rl-training report {tmp_path / 'out' / 'tiny'}" in captured.out


def test_a_live_table_of_all_runs(tmp_path: Path) -> None:
    from rich.console import Console

    from rl_training.cli.studies import RunTable
    from rl_training.studies.executors import Event

    study = Study.create(settings(), seeds="1-3", output_dir=tmp_path, name="s")
    first, second, third = study.runs()
    do_run(first)
    console = Console(width=100, height=8, record=True, file=(tmp_path / "out").open("w"))
    table = RunTable(study.runs(), console)
    table.note(Event("started", second))
    table.note(Event("failed", third))
    console.print(table.render())
    console.file.close()
    text = console.export_text()
    assert "3 runs: 1 running, 1 failed, 1 finished" in text
    assert re.search(r"base +1 +finished +96/96 +-[\d,]+\.\d", text)
    assert text.index("running") < text.index("base")


def test_dry_run_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "sac/pendulum", "--seeds", "1-2", "--dry-run"]) == 0
    assert "2 to do" in capsys.readouterr().out
    assert main(["sweep", "sac/pendulum", "--seeds", "1-2", "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert not list(tmp_path.iterdir())


def test_study_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file(tmp_path)
    study = {"base": "tiny.yaml", "set": {"gamma": 0.9}, "grid": {"num_envs": [1, 2]}, "seeds": "1-2", "executor": "serial"}
    path = tmp_path / "study.yaml"
    path.write_text(dump_yaml({**study, "name": "named", "output_dir": str(tmp_path / "out")}))
    assert main(["sweep", str(path), "--dry-run"]) == 2
    assert "gamma is not a known key; did you mean 'algo_kwargs.gamma'?" in capsys.readouterr().err
    path.write_text(
        dump_yaml({**study, "set": {"algo_kwargs.gamma": 0.9}, "name": "named", "output_dir": str(tmp_path / "out")})
    )
    assert main(["sweep", str(path), "--seeds", "7", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["study_dir"] == str(tmp_path / "out" / "named")
    assert plan["executor"]["kind"] == "serial"
    assert [run["name"] for run in plan["runs"]] == ["num_envs=1/seed7", "num_envs=2/seed7"]
    assert plan["runs"][0]["config"]["algo_kwargs"]["gamma"] == 0.9
    path.write_text(dump_yaml({**study, "sedes": [1]}))
    assert main(["sweep", str(path)]) == 2
    assert f"{path}: 1 problem" in (told := capsys.readouterr().err)
    assert "sedes is not a known key; did you mean 'seeds'?" in told


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "seeds must name at least one seed"),
        (["--seeds", "1,1"], "seeds must differ: 1 named twice"),
        (["--seeds", "x"], "seeds must be whole numbers"),
        (["--seeds", "1", "--grid", "algo_kwargs.lerning_rate=1"], "did you mean 'algo_kwargs.learning_rate'"),
        (["--seeds", "1", "--grid", "algo_kwargs.tau=0.1,7"], "algo_kwargs.tau must be in (0, 1], got 7"),
        (["--seeds", "1", "--grid", "algo_kwargs.tau="], "must have at least one value"),
        (["--seeds", "1", "--grid", "algo_kwargs.tau=0.1,0.1"], "must not name a value twice"),
        (["--seeds", "1", "--grid", "algo_kwargs.tau"], "--grid takes key.path=value"),
        (["--seeds", "1", "--grid", "num_envs=1", "--grid", "num_envs=2"], "--grid num_envs is given twice"),
        (["--seeds", "1", "--grid", "seed=1,2"], "grid seed is decided by seeds"),
        (["--seeds", "1", "--grid", "num_envs.x=1,2"], "num_envs is 3, not a section"),
        (["--seeds", "1", "--set", "env_id=Nope-v1"], "'Nope-v1' cannot be made"),
        (["--seeds", "1", "--set", "env_id=CartPole-v1"], "needs Box actions"),
        (["--seeds", "1", "--import", "no_such_module"], "'no_such_module' cannot be imported"),
        (["--seeds", "1", "--name", "a/b"], "must be a file name"),
        (["--seeds", "1", "--executor", "slurm"], "kind must be one of 'serial', 'process' or 'ray'"),
        (["--seeds", "1", "--workers", "0"], "workers must be >= 1"),
        (["--seeds", "1", "--cpus-per-run", "2"], "are for --executor ray"),
        (["--seeds", "1", "--output-dir", "/proc/nowhere", "--executor", "serial"], "/proc/nowhere"),
        (["--seeds", "0-99999", "--grid", "num_envs=1,2,3"], "the study has 300000 runs"),
    ],
)
def test_mistakes_exit_with_2_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert main(["sweep", config_file(tmp_path, num_envs=3), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "Traceback" not in captured.err
    assert not list((tmp_path / "work").iterdir())


def test_modules_to_import_are_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", config_file(tmp_path), "--seeds", "1", "--import", "json", "--output-dir", str(tmp_path / "out")]
    assert main([*command, "--no-user-code"]) == 2
    assert "user code is switched off" in capsys.readouterr().err


def test_no_ray_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    out = tmp_path / "out"
    assert main(["sweep", config_file(tmp_path), "--seeds", "1", "--executor", "ray", "--output-dir", str(out)]) == 2
    assert 'pip install "rl-training[ray]"' in capsys.readouterr().err
    assert not out.exists()


def test_a_directory_of_another_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Study.create(settings(), seeds=1, grid=RATES, output_dir=tmp_path, name="s")
    Study.create(settings(), seeds=[1, 2], grid=RATES, output_dir=tmp_path, name="s")  # more seeds are welcome
    assert Study.open(tmp_path / "s").spec.seeds == (1, 2)
    for change, grid, difference in (
        ({"total_timesteps": 97}, RATES, "total_timesteps is 96 there, 97 here"),
        ({"algo_kwargs": {"tau": 0.5}}, RATES, "algo_kwargs.tau is 0.005 there, 0.5 here"),
        ({}, {"algo_kwargs.learning_rate": [1e-3]}, r"learning_rate is \[0.001, 0.0003\] there, \[0.001\] here"),
        ({}, {}, "is .* there, not given here"),
    ):
        with pytest.raises(ConfigError, match=difference):
            Study.create(settings(**change), seeds=1, grid=grid, output_dir=tmp_path, name="s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(ConfigError, match="is there already and is not a study"):
        Study.create(settings(), seeds=1, output_dir=tmp_path, name="full")
    assert main(["sweep", str(tmp_path / "s"), "--grid", "num_envs=1,2"]) == 2
    assert "only --seeds can be given" in capsys.readouterr().err


def test_damaged_and_foreign_study_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a study"):
        Study.open(tmp_path)
    path = tmp_path / "study.json"
    for text, message in (
        ("{", "is not valid JSON"),
        ("[1]", "is not the file of a study"),
        ('{"format_version": 99}', "written by a later rl_training"),
        ('{"format_version": 1, "name": "x"}', "seeds is required"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            Study.open(tmp_path)


def test_a_run_of_another_configuration_is_not_taken_over(tmp_path: Path) -> None:
    study = Study.create(settings(), seeds=1, output_dir=tmp_path, name="s")
    other = Study.create(settings(total_timesteps=40), seeds=1, output_dir=tmp_path, name="other")
    other.run("serial")
    (tmp_path / "other" / "runs").rename(tmp_path / "s" / "runs")
    with pytest.raises(ConfigError, match=r"was run with another configuration: total_timesteps is 40 there, 96 here"):
        Study.create(settings(), seeds=1, output_dir=tmp_path, name="s")
    assert study.spec.seeds == (1,)


def test_a_study_is_run_by_one_command_at_a_time(tmp_path: Path) -> None:
    from rl_training.studies.study import study_lock

    study = Study.create(settings(), seeds=1, output_dir=tmp_path, name="s")
    with study_lock(study.directory), pytest.raises(ConfigError, match="is being run by process"):
        study.run("serial")


def test_state_of_directories(tmp_path: Path) -> None:
    assert state_of(tmp_path / "none").status == "absent"
    (tmp_path / "config.yaml").touch()
    assert state_of(tmp_path).status == "running"  # killed before it could say anything
    (tmp_path / "metadata.json").write_text('{"status": "failed", "stop_reason": "why"}')
    assert state_of(tmp_path) == ("failed", None, "why")
    (tmp_path / "metrics.jsonl").write_text(
        'lf a row}\n{"step": 20, "time/fps": 5.0}\n{"step": 40, "eval/mean_reward": -3.5}\n'
    )
    assert progress_of(tmp_path) == (40, -3.5, 5.0)
