"""Tuning: search spaces of every algorithm, trials that survive interruptions, pruning, and a best setting that runs."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support import ALGORITHMS, assert_same_run, tiny_settings

from rl_training.algorithms.base import Choice, Range
from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import list_presets, load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.studies import Tuning
from rl_training.studies.executors import Event
from rl_training.studies.search_space import build_space, contains, parse_space, parse_values
from rl_training.studies.worker import do_run
from rl_training.types import ConfigError, Metrics

pytest.importorskip("optuna", reason="Optuna is not installed: pip install rl-training[tune]")


def settings(**changes: Any) -> dict[str, Any]:
    """A run of half a second with three evaluations of three steps each."""
    given = {
        "env_id": "test_tuning:Slope",
        "total_timesteps": 60,
        "eval_interval": 20,
        "checkpoint_interval": 20,
        "algo_kwargs": {"learning_starts": 55, "learning_rate": 1e-3},
        **changes,
    }
    data = tiny_settings("sac", Path("unused"), **given)
    for key in ("seed", "output_dir", "torch_threads"):
        del data[key]
    return data


def Slope(rate: float = 1.0, limit: int = 3) -> Any:
    """Pays ``rate`` a step: what is best to tune is known, and does not depend on learning."""
    from support import CountingEnv

    class Paying(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, _, *ends = super().step(action)
            return obs, rate, *ends

    return Paying(limit)


def config_file(directory: Path, **changes: Any) -> str:
    path = directory / "tiny.yaml"
    path.write_text(dump_yaml(settings(**changes)))
    return str(path)


# -- search spaces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_declares_a_valid_search_space(algo: str, tmp_path: Path) -> None:
    hyperparameters = get_algorithm_spec(algo).hyperparameters
    space = hyperparameters.whole_search_space()
    assert "learning_rate" in space
    assert len(space) >= 2
    assert space.keys() <= hyperparameters.model_fields.keys()
    defaults = hyperparameters()
    inside = [contains(values, getattr(defaults, name)) for name, values in space.items()]
    assert all(inside), f"the default is not in the space of {dict(zip(space, inside, strict=True))}"
    build_space(
        TrainConfig(**tiny_settings(algo, tmp_path, algo_kwargs={"buffer_capacity": 9999} if algo in ONLINE else {})), {}
    )


ONLINE = [name for name in ALGORITHMS if get_algorithm_spec(name).loop == "online"]


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_can_be_tuned(preset: str) -> None:
    build_space(load_config(preset), {})


def test_spaces_as_text() -> None:
    assert parse_space(["tau=0.01:0.1", "gamma=0.9,0.99", "learning_rate=1e-5:1e-2:log", "n=1:8"]) == {
        "tau": Range(low=0.01, high=0.1),
        "gamma": Choice(values=(0.9, 0.99)),
        "learning_rate": Range(low=1e-5, high=1e-2, log=True),
        "n": Range(low=1, high=8),
    }
    assert parse_values("x", [[64, 64], [256]]) == Choice(values=([64, 64], [256]))
    assert parse_values("x", {"low": 1, "high": 2.5}) == Range(low=1, high=2.5)
    assert parse_values("x", "[64,64],[256]") == Choice(values=([64, 64], [256]))


@pytest.mark.parametrize("given", ["1:0", "0:1:log", "", "a:b", "1:2:3", {"low": 1}, {"low": 1, "high": 2, "lag": True}])
def test_spaces_that_make_no_sense(given: Any) -> None:
    with pytest.raises(ConfigError, match="space x must be"):
        parse_values("x", given)


def test_changing_a_space(tmp_path: Path) -> None:
    config = TrainConfig(**tiny_settings("sac", tmp_path, algo_kwargs={"buffer_capacity": 9999}))
    assert list(build_space(config, {}, ["tau", "algo_kwargs.gamma"])) == ["algo_kwargs.tau", "algo_kwargs.gamma"]
    changed = build_space(config, {"tau": Choice(values=(0.5,)), "num_envs": Choice(values=(1, 2))}, ["tau", "num_envs"])
    assert changed == {"algo_kwargs.tau": Choice(values=(0.5,)), "num_envs": Choice(values=(1, 2))}
    for changes, only, message in (
        ({"tau": Range(low=0.1, high=2)}, None, r"algo_kwargs.tau must be in \(0, 1\], got 2"),
        ({"tay": Range(low=0.1, high=2)}, None, "tay is not a known key"),
        ({"seed": Range(low=1, high=2)}, None, "seed cannot be tuned"),
        ({}, ["tay"], "tay is not in the search space; did you mean 'tau'"),
        ({}, [], "there is nothing to tune"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_space(config, changes, only)


# -- trials ----------------------------------------------------------------------------------------------------------

SPACE = {"env_kwargs.rate": "0.0:10.0", "learning_rate": "1e-4:1e-2:log", "hidden_sizes": [[8], [16, 16]]}


def tuning(directory: Path, **options: Any) -> Tuning:
    given = {"space": SPACE, "only": list(SPACE), "seeds": 2, "pruner": "none", "name": "t", **options}
    return Tuning.create(settings(), output_dir=directory, **given)


def test_tuning_finds_what_is_better_and_train_accepts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = [
        argument for key, values in SPACE.items() if isinstance(values, str) for argument in ("--space", f"{key}={values}")
    ]
    command = ["tune", config_file(tmp_path), "--seeds", "2", *space, "--only", "env_kwargs.rate,learning_rate", "-q"]
    command += ["--output-dir", str(tmp_path), "--name", "t", "--executor", "serial", "--pruner", "none"]
    assert main([*command, "--trials", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [trial["status"] for trial in told["trials"]] == ["finished"] * 4
    assert told["best"] == max(told["trials"], key=lambda trial: trial["value"])
    rate = told["best"]["values"]["env_kwargs.rate"]
    assert told["best"]["value"] == pytest.approx(3 * rate)  # three steps an episode
    base, best = told["confirmed"]
    assert (base["setting"], base["mean"], base["finished"]) == ("base", 3.0, 2)
    assert best["mean"] == pytest.approx(3 * rate)
    seeds = sorted(path.name for path in (tmp_path / "t" / "confirm" / "runs" / "base").iterdir())
    assert seeds == ["seed3", "seed4"]  # which no trial has seen

    assert main(["train", told["best_file"], "--output-dir", str(tmp_path / "runs"), "--json", "-q"]) == 0
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    number = told["best"]["number"]
    assert_same_run(Path(run["run_dir"]), tmp_path / "t" / "runs" / f"trial_{number}" / "seed1")
    assert "# On fresh seeds 3-4" in Path(told["best_file"]).read_text()

    assert main(["tune", str(tmp_path / "t"), "--trials", "5", "--executor", "serial", "-q"]) == 0  # one more
    out = capsys.readouterr().out
    assert "5 finished, 0 pruned, 0 failed" in out
    assert "importance" in out
    assert len(list((tmp_path / "t" / "runs").iterdir())) == 5


def test_the_first_trial_is_the_base_where_the_space_has_it(tmp_path: Path) -> None:
    result = tuning(tmp_path).run(1, "serial", confirm=False)
    assert result.trials[0]["values"] != {}
    chosen = {"learning_rate": "1e-4:1e-2:log", "hidden_sizes": [[8], [16, 16]]}
    result = tuning(tmp_path, name="u", space=chosen, only=list(chosen)).run(1, "serial", confirm=False)
    assert result.trials[0]["values"] == {"algo_kwargs.learning_rate": 1e-3, "algo_kwargs.hidden_sizes": [16, 16]}


def test_same_seed_same_trials_also_when_interrupted(tmp_path: Path) -> None:
    whole = tuning(tmp_path / "whole").run(7, "serial", confirm=False)  # two more than are drawn at random
    again = tuning(tmp_path / "again")
    seen: list[str] = []

    def ctrl_c_in_the_second_seed_of_a_trial(event: Event) -> None:
        seen.append(event.run["name"])
        if event.kind == "started" and event.run["name"] == "trial_5/seed2":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    stopped = again.run(7, "serial", confirm=False, on_event=ctrl_c_in_the_second_seed_of_a_trial)
    assert stopped.exit_code == 130
    assert [trial["status"] for trial in stopped.trials] == ["finished"] * 5 + ["unfinished"]
    seen.clear()
    result = Tuning.open(again.directory).run(7, "serial", confirm=False, on_event=lambda e: seen.append(e.run["name"]))
    assert result.trials == whole.trials
    assert set(seen) == {f"trial_{n}/seed{s}" for n in (5, 6) for s in (1, 2)}
    assert tuning(tmp_path / "other", sampler_seed=1).run(2, "serial", confirm=False).trials[1] != whole.trials[1]


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_bad_trials_are_pruned_without_their_other_seeds(pruner: str, tmp_path: Path) -> None:
    space = {"env_kwargs.rate": "0.0:10.0"}
    study = tuning(tmp_path, pruner=pruner, space=space, only=list(space))
    result = study.run(11, "serial", confirm=False)
    pruned = [trial for trial in result.trials if trial["status"] == "pruned"]
    assert pruned
    finished = [trial["value"] for trial in result.trials if trial["status"] == "finished"]
    assert result.best is not None
    assert result.best["value"] == max(finished)
    for trial in pruned:
        run_dir = study.directory / "runs" / f"trial_{trial['number']}" / "seed1"
        assert "pruned at step" in (run_dir / "metadata.json").read_text()
        assert trial["value"] is None
    assert any(len(list((study.directory / "runs" / f"trial_{t['number']}").iterdir())) == 1 for t in pruned)
    # reported: the mean over the seeds so far, seed after seed
    first = study.optuna_study().trials[0]
    assert sorted(first.intermediate_values) == [20, 40, 60, 80, 100, 120]
    assert list(first.intermediate_values.values()) == pytest.approx([3 * first.params["env_kwargs.rate"]] * 6, abs=1e-4)


class Killed(BaseException):
    """Stands for the process dying."""


class DiesOnce(Callback):
    """Takes the run with it at an evaluation, the first time."""

    def __init__(self, step: int, mark: str) -> None:
        self.step, self.mark = step, Path(mark)

    def on_eval_end(self, trainer: TrainerState, metrics: Metrics) -> None:
        if trainer.global_step == self.step and not self.mark.exists():
            self.mark.touch()
            raise Killed


def test_a_trial_whose_run_was_lost_is_judged_once(tmp_path: Path) -> None:
    study = tuning(tmp_path, pruner="median")
    trial = study.optuna_study().ask()
    spec = study.trial_run(trial.number, study.config_of({}), 0)
    spec["callbacks"].append({"use": "test_tuning:DiesOnce", "options": {"step": 40, "mark": str(tmp_path / "died")}})
    with pytest.raises(Killed):
        do_run(spec)
    assert do_run(spec)["status"] == "finished"
    assert study.optuna_study().trials[0].intermediate_values == {20: 3.0, 40: 3.0, 60: 3.0}


def test_several_trials_at_a_time(tmp_path: Path) -> None:
    result = tuning(tmp_path, pruner="median").run(4, "process", workers=2, confirm=False)
    assert result.exit_code == 0
    assert len(result.trials) == 4
    assert all(len(trial["scores"]) == 2 for trial in result.trials)
    assert result.best_file is not None
    assert result.best_file.exists()


def test_a_setting_that_cannot_be_trained_is_a_bad_one(tmp_path: Path) -> None:
    space = {"env_id": ["support:NanEnv", "test_tuning:Slope"]}
    study = Tuning.create(
        settings(env_kwargs={"limit": 9}), output_dir=tmp_path, name="t", space=space, only=["env_id"], seeds=1
    )
    result = study.run(6, "serial", confirm=False)
    failed = [trial for trial in result.trials if trial["status"] == "failed"]
    assert failed
    assert all("became nan" in trial["message"] for trial in failed)
    assert result.best is not None
    assert result.exit_code == 0


def test_half_a_line_in_the_journal_is_cut_off(tmp_path: Path) -> None:
    study = tuning(tmp_path)
    before = study.run(1, "serial", confirm=False).trials
    journal = study.directory / "trials.journal"
    with journal.open("a") as file:
        file.write('{"op_code": 4, "wor')
    assert study.run(2, "serial", confirm=False).trials[:1] == before


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --trials N"),
        (["--trials", "0"], "--trials must be >= 1, got 0"),
        (["--trials", "1", "--seeds", "0"], "seeds must be in [1, 1000], got 0"),
        (["--trials", "1", "--pruner", "sha"], "pruner must be one of"),
        (["--trials", "1", "--space", "tau"], "--space takes key.path=value"),
        (["--trials", "1", "--space", "tau=2:1"], "low must be < high"),
        (["--trials", "1", "--space", "tau=0.1:3"], "algo_kwargs.tau must be in (0, 1], got 3"),
        (["--trials", "1", "--set", "eval_episodes=0"], "tuning looks at evaluations"),
        (["--trials", "1", "--set", "env_id=Nope-v1"], "'Nope-v1' cannot be made"),
    ],
)
def test_mistakes_exit_with_2_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert main(["tune", config_file(tmp_path, algo_kwargs={"buffer_capacity": 9999}), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "work").iterdir())


def test_no_optuna_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert main(["tune", "sac/pendulum", "--trials", "1", "--output-dir", str(tmp_path / "out")]) == 2
    assert 'pip install "rl-training[tune]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_directory_of_another_tuning_study_is_refused(tmp_path: Path) -> None:
    tuning(tmp_path)
    tuning(tmp_path)
    for change, difference in (
        ({"seeds": 3}, "seeds is 2 there, 3 here"),
        ({"objective": "iqm"}, 'objective is "mean" there, "iqm" here'),
        ({"only": ["learning_rate"]}, "space.env_kwargs.rate is .* there, not given here"),
        ({"overrides": {"total_timesteps": 70}}, "config.total_timesteps is 60 there, 70 here"),
    ):
        with pytest.raises(ConfigError, match=difference):
            tuning(tmp_path, **change)


def test_tune_yaml_and_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file(tmp_path)
    path = tmp_path / "tune.yaml"
    content = {"base": "tiny.yaml", "space": SPACE, "only": list(SPACE), "trials": 9, "seeds": 2, "executor": "serial"}
    path.write_text(dump_yaml({**content, "output_dir": str(tmp_path / "out")}))
    assert main(["tune", str(path), "--dry-run", "--json", "--objective", "iqm"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["trials"], plan["seeds"], plan["objective"]) == (9, 2, "iqm")
    assert plan["space"]["algo_kwargs.learning_rate"] == {"low": 1e-4, "high": 1e-2, "log": True}
    assert main(["tune", str(path), "--dry-run"]) == 0
    assert "9 x 2 seeds" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
