"""Configurations: strict, complete, and clear about what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import ALGORITHMS, tiny_config, tiny_settings

from rl_training.experiment.config import ALIASES, TrainConfig
from rl_training.experiment.presets import list_presets, load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.schema import config_schema
from rl_training.experiment.yaml_files import parse_yaml
from rl_training.types import ConfigError

GOOD: dict[str, Any] = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 100}


def problems(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algo": "sacc"}, "algo 'sacc' is not a known algorithm; did you mean 'sac'?"),
        ({"num_env": 2}, "num_env is not a known key; did you mean 'num_envs'?"),
        ({"learning_rate": 1e-3}, "learning_rate is not a known key; did you mean 'algo_kwargs.learning_rate'?"),
        ({"n_envs": 4}, "n_envs is not a known key; did you mean 'num_envs'?"),
        ({"algo_kwargs": {"gama": 1}}, "algo_kwargs.gama is not a known key of sac; did you mean 'algo_kwargs.gamma'?"),
        ({"algo_kwargs": {"buffer_size": 1}}, "did you mean 'algo_kwargs.buffer_capacity'?"),
        ({"algo_kwargs": {"num_envs": 1}}, "did you mean 'num_envs'?"),
        ({"total_timesteps": 0}, "total_timesteps must be >= 1, got 0"),
        ({"total_timesteps": 1.5}, "total_timesteps must be a whole number, got 1.5"),
        ({"total_timesteps": "many"}, "total_timesteps must be a whole number, got 'many'"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"vectorization": "threads"}, "vectorization must be one of 'sync' or 'async', got 'threads'"),
        ({"env_id": ""}, "env_id must name an environment"),
        ({"algo_kwargs": {"tau": 7}}, "algo_kwargs.tau must be in (0, 1], got 7"),
        ({"algo_kwargs": {"hidden_sizes": []}}, "algo_kwargs.hidden_sizes must have at least 1 entries, got []"),
        ({"algo_kwargs": {"hidden_sizes": [4, 0]}}, "algo_kwargs.hidden_sizes.1 must be >= 1, got 0"),
        ({"algo_kwargs": 3}, "algo_kwargs must be a mapping, got 3"),
        ({"algo_kwargs": {"buffer_capacity": 10}}, "buffer_capacity must be >= batch_size (256), got 10"),
        ({"early_stopping": {"mode": "up"}}, "early_stopping.mode must be one of 'max' or 'min', got 'up'"),
        ({"early_stopping": {"patiense": 1}}, "early_stopping.patiense is not a known key; did you mean 'patience'?"),
        ({"early_stopping": {}, "eval_interval": None}, "early_stopping looks at evaluations"),
        ({"learning_rate_schedule": "zigzag"}, "learning_rate_schedule.type must be one of"),
        ({"reward": {"clip_min": 1, "clip_max": 0}}, "clip_min must be < clip_max"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ({"device": 3}, "device must be text, got 3"),
        ({"torch_threads": 0}, "torch_threads must be >= 1, got 0"),
    ],
)
def test_each_mistake_is_named(change: dict[str, Any], message: str) -> None:
    assert message in problems(**{**GOOD, **change})


def test_all_problems_appear_together() -> None:
    text = problems(algo="sac", sed=3, total_timesteps=0, algo_kwargs={"tau": 2, "gama": 1})
    for part in (
        "5 problems",
        "env_id is required",
        "sed is not",
        "total_timesteps must",
        "algo_kwargs.tau",
        "algo_kwargs.gama",
    ):
        assert part in text


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_resolved_config_is_the_same_run(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path)
    again = TrainConfig(**json.loads(json.dumps(config.to_dict())))
    assert again.to_dict() == config.to_dict()
    assert again.hyperparameters == config.hyperparameters


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_hyperparameter_is_described_and_refuses_text(algo: str, tmp_path: Path) -> None:
    for name, field in get_algorithm_spec(algo).hyperparameters.model_fields.items():
        assert field.description, name
        settings = tiny_settings(algo, tmp_path)
        settings["algo_kwargs"][name] = "nonsense"
        assert f"algo_kwargs.{name}" in problems(**settings)


def test_aliases_move_old_spellings() -> None:
    config = TrainConfig(
        **GOOD,
        algo_kwargs={
            "eval_interval": 7,
            "early_stopping": {"patience": 3},
            "max_updates": 5,
            "learning_rate_schedule": "cosine",
            "warmup_steps": 4,
            "reward_scale": 0.1,
            "reward_clip_max": 2.0,
            "tau": 0.1,
        },
    )
    assert config.eval_interval == 7
    assert config.early_stopping is not None
    assert config.early_stopping.patience == 3
    assert config.max_updates == 5
    assert (config.learning_rate_schedule.type, config.learning_rate_schedule.warmup_steps) == ("cosine", 4)
    assert (config.reward.scale, config.reward.clip_max) == (0.1, 2.0)
    assert config.algo_kwargs == {"tau": 0.1}


@pytest.mark.parametrize("old", list(ALIASES))
def test_an_alias_beside_the_new_spelling_is_refused(old: str) -> None:
    settings: dict[str, Any] = {**GOOD, "algo_kwargs": {old.split(".")[1]: 1}}
    *home, name = ALIASES[old].split(".")
    if home:
        settings[home[0]] = {name: 1}
    else:
        settings[name] = {"type": "linear"} if name == "learning_rate_schedule" else 1
    assert f"{old} and {ALIASES[old]} are the same setting" in problems(**settings)


def test_schedule_keeps_the_horizon_of_the_first_budget() -> None:
    config = TrainConfig(**GOOD, learning_rate_schedule="linear")
    assert config.replace(total_timesteps=500).resolved().learning_rate_schedule.horizon == 500
    assert config.resolved().learning_rate_schedule.horizon == 100
    assert config.resolved().replace(total_timesteps=500).resolved().learning_rate_schedule.horizon == 100  # a run, extended


def test_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TrainConfig(**GOOD).seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["3e-4", "3E-4", "1e6", "3.0e-4", "-1e-3", ".5e1"])
def test_yaml_reads_numbers_as_people_write_them(text: str) -> None:
    assert parse_yaml(f"x: {text}", source="test") == {"x": float(text)}


@pytest.mark.parametrize("text", ["'3e-4'", "e4", "1e", "v1e3"])
def test_yaml_leaves_text_alone(text: str) -> None:
    assert isinstance(parse_yaml(text, source="test"), str)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("a: 1\na: 2", "key 'a' appears twice"),
        ("- 1", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
        ("1: 2", "must hold a mapping"),
    ],
)
def test_bad_yaml_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "bad.yaml")


@pytest.mark.parametrize("preset", list_presets())
def test_preset_loads_from_anywhere(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(preset)
    assert config.algo == preset.split("/")[0]
    assert load_config(f"configs/{preset}.yaml") == config


def test_a_file_extends_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: sac/pendulum\nseed: 7\nalgo_kwargs: {tau: 0.5}\n")
    (tmp_path / "other.yaml").write_text("extends: mine.yaml\nalgo_kwargs: {gamma: 0.9}\n")
    preset, other = load_config("sac/pendulum"), load_config(tmp_path / "other.yaml")
    assert other == preset.replace(seed=7, algo_kwargs={**preset.algo_kwargs, "tau": 0.5, "gamma": 0.9})


@pytest.mark.parametrize(
    ("text", "message"),
    [("extends: 3\n", "must name a preset"), ("extends: self.yaml\n", "circle"), ("extends: sac/nothing\n", "no config file")],
)
def test_bad_extends(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "self.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "self.yaml")


def test_presets_of_every_algorithm() -> None:
    assert {preset.split("/")[0] for preset in list_presets()} == set(ALGORITHMS)


def test_overrides(tmp_path: Path) -> None:
    config = load_config(
        "sac/pendulum", ["algo_kwargs.learning_rate=5e-4", "seed=9", f"output_dir={tmp_path}", "reward.scale=2"]
    )
    assert (config.algo_kwargs["learning_rate"], config.seed, config.output_dir) == (5e-4, 9, tmp_path)
    assert config.reward.scale == 2.0
    with pytest.raises(ConfigError, match=r"key\.path=value"):
        load_config("sac/pendulum", ["seed"])


@pytest.mark.parametrize("name", ["sac/pendulun", "nowhere/x.yaml", "configs/sac/nothing.yaml"])
def test_missing_config_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_config(name)


def test_schema_accepts_what_the_config_accepts() -> None:
    schema = config_schema()
    assert set(schema["properties"]) == set(TrainConfig.model_fields)
    assert schema["properties"]["algo"]["enum"] == list(ALGORITHMS)
    assert set(schema["$defs"]["sac_kwargs"]["properties"]) == set(get_algorithm_spec("sac").hyperparameters.model_fields)
    assert json.loads(json.dumps(schema)) == schema
