"""Reading files: what columns mean, where episodes end, what is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from support import REPOSITORY, assert_same_run, tiny_config

from rl_training.cli import main
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.dataset_loaders import read_transitions
from rl_training.data.inspection import histogram
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.offline_data import load_dataset
from rl_training.runtime.policy import Policy
from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.types import CheckpointError, ConfigError, DataError

REAL = Path(os.environ.get("RL_TRAINING_REAL_DATA", REPOSITORY.parent / "shared" / "data"))
real_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no real datasets at {REAL}")


def episodes(lengths: tuple[int, ...] = (3, 4), *, ends: str = "timeouts") -> dict[str, Any]:
    """Rows 0, 1, ... of consecutive episodes; actions t/10; the last row of each episode flagged in column ``ends``."""
    rows = sum(lengths)
    t = np.arange(rows, dtype=np.float32)
    flags = np.zeros(rows, dtype=bool)
    flags[np.cumsum(lengths) - 1] = True
    data: dict[str, Any] = {"observations": np.stack([t, t], 1), "actions": t[:, None] / 10, "rewards": t}
    return {**data, "terminals": np.zeros(rows, dtype=bool), **{ends: flags}}


def save_npz(path: Path, data: dict[str, Any]) -> Path:
    np.savez(path, **data)
    return path


def save_hdf5(path: Path, data: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in data.items():
            file[name] = value
    return path


def test_cut_episodes_lose_their_last_row_and_terminated_ones_do_not(tmp_path: Path) -> None:
    cut = load_transition_dataset(dataset_path=save_npz(tmp_path / "cut.npz", episodes()))
    assert cut.rewards.tolist() == [0, 1, 3, 4, 5]
    assert cut.next_obs[:, 0].tolist() == [1, 2, 4, 5, 6]
    assert cut.dones.sum() == 0
    assert cut.episode_ends is not None
    assert cut.episode_ends.tolist() == [2, 5]
    ended = load_transition_dataset(dataset_path=save_npz(tmp_path / "ended.npz", episodes(ends="terminals")))
    assert ended.rewards.tolist() == list(range(7))
    assert ended.dones.tolist() == [0, 0, 1, 0, 0, 0, 1]


def test_next_actions_stay_inside_their_episode(tmp_path: Path) -> None:
    dataset = load_transition_dataset(dataset_path=save_npz(tmp_path / "x.npz", episodes(ends="terminals")))
    batch = dataset.at(torch.arange(7))
    mask = batch["next_action_mask"]
    assert mask.tolist() == [1, 1, 0, 1, 1, 1, 0]
    torch.testing.assert_close(batch["next_actions"][mask == 1, 0], torch.tensor([0.1, 0.2, 0.4, 0.5, 0.6]))


@pytest.mark.parametrize("kind", ["npz", "hdf5", "pt"])
def test_every_kind_of_file_gives_the_same_transitions(kind: str, tmp_path: Path) -> None:
    data = episodes()
    expected = load_transition_dataset(dataset_path=save_npz(tmp_path / "x.npz", data))
    if kind == "hdf5":
        path = save_hdf5(tmp_path / "x.hdf5", data)
    elif kind == "pt":
        path = tmp_path / "x.pt"
        torch.save({name: torch.from_numpy(np.asarray(value)) for name, value in data.items()}, path)
    else:
        path = tmp_path / "x.npz"
    assert torch.equal(load_transition_dataset(kind, dataset_path=path).rows, expected.rows)


def test_d3rlpy_terminals_count_only_at_the_end_of_an_episode(tmp_path: Path) -> None:
    data = episodes(ends="episode_terminals")
    data["terminals"][[1, 2]] = True  # also on the row before the last, as its CartPole file has it
    raw = read_transitions(dataset_path=save_hdf5(tmp_path / "x.h5", data))
    assert np.flatnonzero(raw.terminated).tolist() == [2]
    assert raw.episode_ends.tolist() == [3, 7]
    assert "inside their episode" in raw.warnings[0]


def test_declared_columns_and_nested_names(tmp_path: Path) -> None:
    data = episodes()
    renamed = {"log/o": data["observations"], "log/a": data["actions"], "gain": data["rewards"], "end": data["terminals"]}
    path = save_hdf5(tmp_path / "x.hdf5", {**renamed, "timeouts": data["timeouts"]})
    columns = {"obs": "log/o", "actions": "log/a", "rewards": "gain", "terminated": "end"}
    assert len(load_transition_dataset(dataset_path=path, columns=columns)) == 5
    with pytest.raises(DataError, match=r"no column for obs, actions, rewards; the file has end, gain, log/a, log/o"):
        load_transition_dataset(dataset_path=path)
    with pytest.raises(DataError, match="there is no 'nope' for obs"):
        load_transition_dataset(dataset_path=path, columns={**columns, "obs": "nope"})
    with pytest.raises(DataError, match="'colour' is not a column"):
        load_transition_dataset(dataset_path=path, columns={"colour": "end"})


def test_a_time_limit_that_looks_like_termination(tmp_path: Path) -> None:
    data = episodes((4, 4, 4), ends="dones")
    del data["terminals"]
    path = save_npz(tmp_path / "x.npz", data)
    raw = read_transitions(dataset_path=path)
    assert raw.terminated.sum() == 3
    assert "declare time_limit: 4" in raw.warnings[0]
    assert read_transitions(dataset_path=path, time_limit=4).terminated.sum() == 0


def test_next_observations_that_belong_to_the_next_episode_are_left_out(tmp_path: Path) -> None:
    data = episodes((3, 3))
    data["next_observations"] = np.concatenate((data["observations"][1:], data["observations"][:1]))
    dataset = load_transition_dataset(dataset_path=save_npz(tmp_path / "x.npz", data))
    assert dataset.rewards.tolist() == [0, 1, 3, 4]
    data["next_observations"] = data["observations"] + 0.5  # real ones
    assert len(load_transition_dataset(dataset_path=save_npz(tmp_path / "y.npz", data))) == 6


def test_actions_are_scaled_and_strays_reported(tmp_path: Path) -> None:
    data = episodes()
    data["actions"] = data["actions"] * 10  # 0 to 6
    path = save_npz(tmp_path / "x.npz", data)
    with pytest.raises(DataError, match=r"5 of 7 actions are outside the action bounds.*from 0 to 6.*clip_actions"):
        load_transition_dataset(dataset_path=path)
    scaled = load_transition_dataset(dataset_path=path, action_low=0.0, action_high=6.0)
    torch.testing.assert_close(scaled.actions[:, 0], torch.tensor([-1, -2 / 3, 0, 1 / 3, 2 / 3]))
    clipped = load_transition_dataset(dataset_path=path, clip_actions=True)
    assert clipped.actions.max() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros(3)}, "same length"),
        ({"rewards": np.array([1.0] * 6 + [np.nan])}, "not finite"),
        ({"observations": np.zeros(7)}, "flat vectors"),
        ({"observations": np.array([[{}]] * 7, dtype=object)}, "Python objects"),
        ({"terminals": np.full(7, 3)}, "0 and 1 only"),
        ({"dones": np.zeros(7)}, "could both say where episodes terminate"),
        ({"obs": np.zeros((7, 2))}, "obs and observations could both be obs"),
        ({"actions": np.array(["a"] * 7)}, "must be numbers|could not convert|dtype"),
    ],
)
def test_bad_columns_are_refused_with_the_files_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save_npz(tmp_path / "bad.npz", {**episodes(ends="terminals"), **change})
    with pytest.raises(DataError, match=message):
        load_transition_dataset(dataset_path=path)


def test_unreadable_files(tmp_path: Path) -> None:
    good = save_hdf5(tmp_path / "x.hdf5", episodes())
    (tmp_path / "short.hdf5").write_bytes(good.read_bytes()[:1000])
    (tmp_path / "text.npz").write_text("not a zip")
    (tmp_path / "text.pt").write_text("not tensors")
    save_npz(tmp_path / "empty.npz", {name: value[:0] for name, value in episodes().items()})
    for name, message in {
        "short.hdf5": "not a readable HDF5",
        "text.npz": "cannot be read|not a readable",
        "text.pt": "not a file of plain tensors",
        "empty.npz": "empty",
        "missing.npz": "does not exist",
        "file.csv": "unknown kind",
        "no_such_id": "no Minari dataset",
    }.items():
        with pytest.raises(DataError, match=message):
            load_transition_dataset(dataset_path=tmp_path / name)


def test_pickles_are_not_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (canary,))

    (tmp_path / "x.pt").write_bytes(pickle.dumps(Bomb()))
    torch.save({"obs": Bomb()}, tmp_path / "y.pt")
    np.savez(tmp_path / "z.npz", **{**episodes(), "observations": np.array([Bomb()], dtype=object)})
    for name in ("x.pt", "y.pt", "z.npz"):
        with pytest.raises(DataError):
            load_transition_dataset(dataset_path=tmp_path / name)
    assert not canary.exists()


# -- runs on data ----------------------------------------------------------------------------------------------------


def test_random_recipe_is_deterministic_and_consistent(tmp_path: Path) -> None:
    def make(seed: int) -> TransitionDataset:
        config = tiny_config("iql", tmp_path, dataset={"kind": "random", "size": 450, "seed": seed})
        from rl_training.envs.factory import make_env
        from rl_training.envs.spec import describe_env

        env = make_env("Pendulum-v1")
        dataset = load_dataset(config, describe_env("Pendulum-v1", env.observation_space, env.action_space), "Pendulum-v1")
        assert isinstance(dataset, TransitionDataset)
        return dataset

    one, two, other = make(1), make(1), make(2)
    assert torch.equal(one.rows, two.rows)
    assert not torch.equal(one.rows, other.rows)
    assert len(one) == 450
    assert one.dones.sum() == 0  # Pendulum only truncates
    batch = one.at(torch.arange(450))
    inside = batch["next_action_mask"][:-1] == 1
    assert torch.equal(batch["next_actions"][:-1][inside], batch["actions"][1:][inside])
    assert torch.equal(batch["next_obs"][:-1][inside], batch["obs"][1:][inside])


def test_older_spellings_of_the_dataset() -> None:
    config = TrainConfig(
        algo="iql",
        env_id="Pendulum-v1",
        total_timesteps=8,
        algo_kwargs={"dataset_kind": "random", "dataset_size": 32, "dataset_seed": 41, "max_epochs": 2},
    )
    assert config.dataset is not None
    assert (config.dataset.kind, config.dataset.size, config.dataset.seed, config.max_epochs) == ("random", 32, 41, 2)
    mixed = TrainConfig(
        algo="iql",
        env_id="Pendulum-v1",
        total_timesteps=8,
        algo_kwargs={"dataset_mix": [{"kind": "npz", "dataset_path": "a.npz", "weight": 0.25}, {"kind": "random"}]},
    )
    assert mixed.dataset is not None
    assert mixed.dataset.kind == "mix"
    assert [(part.kind, part.path, part.weight) for part in mixed.dataset.parts] == [
        ("npz", "a.npz", 0.25),
        ("random", None, 1),
    ]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"kind": "npz"}, "path names a file"),
        ({"kind": "random", "path": "x"}, "path names a file"),
        ({"kind": "mix"}, "parts and kind: mix go together"),
        ({"kind": "csv", "path": "x"}, "dataset.kind must be one of"),
        ({"kind": "npz", "path": "x", "action_low": -1}, "go together"),
        ({"kind": "mix", "parts": [{"kind": "npz"}]}, "path names a file"),
        ({"kind": "npz", "path": "x", "size": 3}, "a file has neither"),
        ({"kind": "mix", "parts": [{"kind": "random"}], "normalize_observations": True}, "set its size"),
        ({"kind": "random", "sise": 3}, "dataset.sise is not a known key; did you mean 'size'"),
    ],
)
def test_bad_dataset_sections_are_refused(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(algo="bc", env_id="Pendulum-v1", total_timesteps=8, dataset=dataset)


def test_settings_of_the_other_kind_of_learning_are_refused() -> None:
    with pytest.raises(ConfigError, match="dataset is for offline algorithms; sac learns online"):
        TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=8, dataset={"kind": "random"})
    with pytest.raises(ConfigError, match="num_envs is for online algorithms"):
        TrainConfig(algo="bc", env_id="Pendulum-v1", total_timesteps=8, num_envs=2)
    with pytest.raises(ConfigError, match="vectorization is for online algorithms"):
        TrainConfig(algo="bc", env_id="Pendulum-v1", total_timesteps=8, vectorization="async")


def made_up(rows: int = 64) -> TransitionDataset:
    rng = np.random.default_rng(0)
    return TransitionDataset(
        obs=rng.normal(size=(rows, 3)),
        actions=rng.uniform(-1, 1, (rows, 2)),
        rewards=rng.normal(size=rows),
        next_obs=rng.normal(size=(rows, 3)),
        dones=np.zeros(rows),
    )


def test_without_an_environment_a_run_trains_predicts_and_is_not_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("rebrac", tmp_path, env_id=None, dataset=None)
    result = train(config, dataset=made_up())
    assert "not evaluated" in caplog.text
    assert "no next actions" in caplog.text
    assert "eval_return_mean" not in result.metrics
    assert result.metrics["critic_bc_penalty"] == 0.0
    assert result.run_dir.name.startswith("rebrac__data__seed7")
    assert Policy.from_checkpoint(result.run_dir).predict([0.0, 0.0, 0.0]).shape == (2,)
    with pytest.raises(ConfigError, match="trained without an environment"):
        evaluate_checkpoint(result.run_dir)
    with pytest.raises(CheckpointError, match="not the one that the checkpoint was trained on"):
        resume_training(result.run_dir, 120, dataset=made_up(65))


def test_observation_statistics_belong_to_the_agent(tmp_path: Path) -> None:
    data = {"kind": "random", "size": 256, "seed": 3, "normalize_observations": True}
    result = train(tiny_config("td3_bc", tmp_path, dataset=data))
    policy = Policy.from_checkpoint(result.run_dir)
    assert policy.normalizer is not None
    assert policy.normalizer.std[2] > 1  # angular velocity
    plain = Policy(policy.algorithm, policy.env_spec)
    assert not np.array_equal(policy.predict([1.0, 0.0, 5.0]), plain.predict([1.0, 0.0, 5.0]))
    assert evaluate_checkpoint(result.run_dir, 1)["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_epoch_budget(tmp_path: Path) -> None:
    result = train(tiny_config("bc", tmp_path, max_epochs=2))  # 256 rows in batches of 16: 16 updates an epoch
    assert result.metrics["update_count"] == 32
    assert result.metrics["epoch"] == 2.0
    assert result.stop_reason == "max_epochs reached"


def test_a_mixture_trains_and_resumes_exactly(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "x.npz", {**episodes((20, 20)), "observations": np.random.default_rng(0).normal(size=(40, 3))})
    parts = [
        {"kind": "random", "size": 100, "weight": 1},
        {"kind": "npz", "path": str(file), "weight": 2, "action_low": -4, "action_high": 4},
    ]
    settings = {"dataset": {"kind": "mix", "parts": parts}}
    whole = train(tiny_config("awac", tmp_path / "whole", **settings))
    first = train(tiny_config("awac", tmp_path / "two", **settings, max_updates=60))
    assert "data/drawn_from_1" in (whole.run_dir / "metrics.jsonl").read_text()
    assert first.metrics["update_count"] == 60
    again = train(tiny_config("awac", tmp_path / "three", **settings))
    assert_same_run(whole.run_dir, again.run_dir)


def test_a_mixture_with_a_size_is_put_together_once(tmp_path: Path) -> None:
    parts = [{"kind": "random", "size": 100, "seed": seed} for seed in (1, 2)]
    old = {"dataset_mix": parts, "dataset_mix_size": 50, "dataset_mix_seed": 4}
    result = train(tiny_config("bc", tmp_path, dataset=None, algo_kwargs=old))
    assert json.loads((result.run_dir / "metadata.json").read_text())["dataset"]["rows"] == 50
    data = {"kind": "mix", "parts": parts, "size": 50, "normalize_observations": True}
    run_dir = train(tiny_config("bc", tmp_path, dataset=data)).run_dir
    assert Policy.from_checkpoint(run_dir).normalizer is not None


def test_impossible_action_bounds(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "x.npz", episodes())
    with pytest.raises(DataError, match="do not fit actions of 1 dimensions"):
        load_transition_dataset(dataset_path=path, action_low=np.zeros(3), action_high=np.ones(3))
    with pytest.raises(DataError, match="action_low must be <= action_high"):
        load_transition_dataset(dataset_path=path, action_low=1.0, action_high=-1.0)


def test_data_of_another_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 observation and 2 continuous action dimensions, Pendulum-v1 has 3 and 1"):
        train(tiny_config("bc", tmp_path, dataset=None), dataset=made_up())


@pytest.mark.parametrize("env_id", ["Hopper-v5"])
def test_scores_in_percent(env_id: str, tmp_path: Path) -> None:
    result = train(tiny_config("bc", tmp_path, env_id=env_id))
    expected = 100 * (result.metrics["eval_return_mean"] + 20.272305) / (3234.3 + 20.272305)
    assert result.metrics["eval_normalized_score"] == pytest.approx(expected)
    assert "eval/normalized_score" in (result.run_dir / "metrics.jsonl").read_text()


# -- real data made by others ----------------------------------------------------------------------------------------

FACTS = {  # rows, episodes, terminations, mean return
    "d3rlpy_hdf5/pendulum_v1.1.0.h5": (99_500, 500, 0, -180),
    "d3rlpy_hdf5/pendulum_random_v1.1.0.h5": (99_500, 500, 0, -1224),
    "d3rlpy_hdf5/cartpole_v1.1.0.h5": (99_866, 1_582, 1_448, 63),
    "npz/pendulum_replay_rllib.npz": (99_500, 500, 500, -180),
    "npz/pendulum_medium_sac_rllib.npz": (10_000, 50, 0, -524),
    "npz/simglucose_val_neorl2.npz": (20_018, 62, 30, 316),
    "npz/pendulum_expert_imitation.npz": (11_200, 56, 56, -189),
}


@real_data
@pytest.mark.parametrize("name", FACTS)
def test_real_files_are_counted_right(name: str) -> None:
    raw = read_transitions(dataset_path=REAL / name)
    counts = (len(raw.rewards), len(raw.episode_ends), int(raw.terminated.sum()), round(float(raw.episode_returns.mean())))
    assert counts == FACTS[name]


@real_data
@pytest.mark.parametrize("name", [*FACTS, "minari"])
def test_inspect_reports_real_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = REAL / "minari" / "D4RL/door/human-v2" if name == "minari" else REAL / name
    assert main(["data", "inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    counts = {"rows", "episodes", "terminations", "truncations", "nan_count", "has_next_obs", "has_next_actions", "warnings"}
    ranges = {"return_mean", "return_std", "obs_dim", "action_dim", "action_min", "action_max"}
    assert counts | ranges <= facts.keys()
    expected = (6_729, 25, 0, 803) if name == "minari" else FACTS[name]
    assert (facts["rows"], facts["episodes"], facts["terminations"], round(facts["return_mean"])) == expected
    assert facts["terminations"] + facts["truncations"] == facts["episodes"]
    assert main(["data", "inspect", str(path)]) == 0
    assert "transitions in" in capsys.readouterr().out


def test_inspect_warns_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = episodes()
    data["rewards"][3] = np.nan
    path = save_npz(tmp_path / "x.npz", {**data, "a": data["actions"]})
    assert main(["data", "inspect", str(path), "--column", "actions=a"]) == 0
    out = capsys.readouterr().out
    assert "1 numbers are NaN" in out
    assert "no next observations" in out
    for arguments, message in {
        ("nowhere.npz",): "nowhere.npz does not exist",
        ("nowhere",): "no Minari dataset 'nowhere'",
        (str(path), "--column", "obs"): "meaning=name",
        (str(path), "--column", "obs=zzz"): "there is no 'zzz' for obs",
    }.items():
        assert main(["data", "inspect", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["npz", "hdf5", "minari"])
def test_collect_a_dataset_convert_it_and_learn_from_it(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    first, second = (
        str(tmp_path / "first.npz"),
        {"minari": "minari:test/pendulum-v0"}.get(ending, str(tmp_path / f"second.{ending}")),
    )
    assert main(["data", "collect", first, "--env", "Pendulum-v1", "--steps", "450", "--seed", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": first, "rows": 450, "episodes": 3}
    assert main(["data", "convert", first, second]) == 0
    kind, path = ("minari", "test/pendulum-v0") if ending == "minari" else (None, second)
    one = load_transition_dataset(dataset_path=first, action_low=-2, action_high=2)
    two = load_transition_dataset(kind, dataset_path=path, action_low=-2, action_high=2)
    assert torch.equal(one.rows, two.rows)
    assert len(one) == 450
    assert one.dones.sum() == 0
    data = {"kind": kind or ending, "path": path}
    assert train(tiny_config("iql", tmp_path / "runs", dataset=data)).metrics["global_step"] == 96


def test_collect_from_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = train(tiny_config("td3", tmp_path / "runs")).run_dir
    out = [str(tmp_path / f"{name}.npz") for name in ("one", "two", "other")]
    arguments = ["--checkpoint", str(run_dir), "--steps", "230"]
    assert main(["data", "collect", out[0], *arguments]) == main(["data", "collect", out[1], *arguments]) == 0
    assert main(["data", "collect", out[2], *arguments, "--stochastic", "--seed", "1"]) == 0
    one, two, other = (read_transitions(dataset_path=path) for path in out)
    assert np.array_equal(one.actions, two.actions)
    assert not np.array_equal(one.actions, other.actions)
    played = Policy.from_checkpoint(run_dir).predict(one.obs[7])
    np.testing.assert_allclose(one.actions[7], played, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect", "x.csv", "--env", "Pendulum-v1"], "write to a .npz, .h5 or .hdf5 file"),
        (["collect", "no/such/dir/x.npz", "--env", "Pendulum-v1"], "there is no directory"),
        (["collect", "x.npz"], "give a checkpoint or an env_id"),
        (["collect", "x.npz", "--env", "Nope-v0"], "'Nope-v0' cannot be made"),
        (["collect", "x.npz", "--env", "Pendulum-v1", "--steps", "0"], "steps must be >= 1, got 0"),
        (["convert", "nowhere.npz", "x.npz"], "nowhere.npz does not exist"),
        (["convert", "taken.npz", "taken.npz"], "exists already"),
    ],
)
def test_collect_and_convert_refuse(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.npz").write_text("")
    assert main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken.npz"]


def test_histogram_lines() -> None:
    lines = histogram(np.array([0.0, 0.0, 0.0, 10.0]), bins=2, width=9)
    assert [line.split()[-1] for line in lines] == ["3", "1"]
    assert lines[0].count("█") == 9


@real_data
def test_two_files_of_the_same_rows_agree_once_time_limits_are_declared() -> None:
    bounds = {"action_low": -2.0, "action_high": 2.0}
    d3rlpy = load_transition_dataset(dataset_path=REAL / "d3rlpy_hdf5/pendulum_v1.1.0.h5", **bounds)
    rllib = load_transition_dataset(dataset_path=REAL / "npz/pendulum_replay_rllib.npz", time_limit=199, **bounds)
    assert len(d3rlpy) == len(rllib) == 99_000
    assert d3rlpy.dones.sum() == rllib.dones.sum() == 0
    for name in ("obs", "actions", "rewards", "next_obs", "next_actions"):
        torch.testing.assert_close(getattr(d3rlpy, name), getattr(rllib, name), atol=1e-5, rtol=1e-5)


@real_data
def test_a_genuine_minari_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(REAL / "minari"))
    for name in ("D4RL/door/human-v2", str(REAL / "minari" / "D4RL/door/human-v2")):
        raw = read_transitions("minari", dataset_path=name)
        assert (len(raw.rewards), len(raw.episode_ends), int(raw.terminated.sum())) == (6_729, 25, 0)
    dataset = load_transition_dataset("minari", dataset_path="D4RL/door/human-v2", clip_actions=True)
    assert len(dataset) == 6_729  # truncated last steps are usable: their next observation is there


@real_data
def test_discrete_data_is_refused_by_continuous_methods(tmp_path: Path) -> None:
    data = {"kind": "hdf5", "path": str(REAL / "d3rlpy_hdf5/cartpole_v1.1.0.h5")}
    with pytest.raises(ConfigError, match="needs Box actions"):
        train(tiny_config("bc", tmp_path, env_id="CartPole-v1", dataset=data))
    with pytest.raises(DataError, match="discrete actions"):
        train(tiny_config("bc", tmp_path, env_id=None, dataset=data))
