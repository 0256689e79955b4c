"""Offline agents that go on online: what they start from, what their batches hold, and that they resume exactly."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import CountingEnv, assert_same_run, metric_rows, newest_checkpoint, random_batch, tiny_config
from test_exact_resume import Crash, CrashAt

from rl_training import IQL, SAC
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.cql import conservative_value
from rl_training.algorithms.rebrac import ReBRAC, ReBRACHyperparameters
from rl_training.cli import main
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.return_bounds import RunningReturns, discounted_returns, return_bounds
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.finetune_config import OfflineShare
from rl_training.experiment.presets import load_config
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector, transform_rewards
from rl_training.runtime.finetuning import finetune, finetune_config
from rl_training.runtime.mixed_experience import MixedExperience
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import train
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.types import ConfigError, DataError

METHODS = ("iql", "cql", "td3_bc", "awac", "rebrac")
HANDOVERS = {"awac": "sac", "cql": "sac", "td3_bc": "td3", "rebrac": "td3"}
SHORT: dict[str, Any] = {"total_timesteps": 60, "eval_interval": 40, "checkpoint_interval": 20, "log_interval": 10}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each method on normalised, scaled data."""
    directory = tmp_path_factory.mktemp("offline")
    dataset = {"kind": "random", "size": 256, "seed": 3, "normalize_observations": True}
    runs = {}
    for algo in (*METHODS, "bc"):
        config = tiny_config(algo, directory, total_timesteps=20, dataset=dataset, reward={"scale": 0.1}, eval_interval=None)
        runs[algo] = train(config).run_dir
    return runs


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tuned(run: Path, output_dir: Path, **settings: Any) -> Any:
    return finetune(run, **{**SHORT, "output_dir": str(output_dir), **settings})


# -- exact resume ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", METHODS)
def test_a_killed_run_ends_with_the_same_bits(algo: str, offline: dict[str, Path], tmp_path: Path) -> None:
    settings = {"calibrated": True} if algo == "cql" else {}
    whole = tuned(offline[algo], tmp_path, **settings)
    assert whole.metrics["global_step"] == whole.metrics["update_count"] == 60
    crash = CrashAt(51)
    with pytest.raises(Crash):
        tuned(offline[algo], tmp_path, callbacks=[crash], **settings)
    assert_same_run(whole.run_dir, resume_training(crash.run_dir).run_dir)


@pytest.mark.parametrize("algo", ["cql", "rebrac"])
def test_handed_over_runs_with_several_environments_resume_too(algo: str, offline: dict[str, Path], tmp_path: Path) -> None:
    settings = {"algo": HANDOVERS[algo], "num_envs": 2, "updates_per_step": 2, "offline_share": {"initial": 0.9, "final": 0.1}}
    whole = tuned(offline[algo], tmp_path, **settings)
    crash = CrashAt(46)
    with pytest.raises(Crash):
        tuned(offline[algo], tmp_path, callbacks=[crash], **settings)
    assert_same_run(whole.run_dir, resume_training(crash.run_dir).run_dir)


def test_crash_before_the_first_evaluation_is_saved(offline: dict[str, Path], tmp_path: Path) -> None:
    settings = {"checkpoint_interval": None, "eval_episodes": 0}
    whole = tuned(offline["iql"], tmp_path, **settings)
    crash = CrashAt(30)
    with pytest.raises(Crash):
        tuned(offline["iql"], tmp_path, callbacks=[crash], **settings)
    assert not list((crash.run_dir / "checkpoints").iterdir())
    assert_same_run(whole.run_dir, resume_training(crash.run_dir).run_dir)


def test_a_run_is_made_again_from_its_own_config(offline: dict[str, Path], tmp_path: Path) -> None:
    first = tuned(offline["rebrac"], tmp_path)
    again = train(load_config(first.run_dir / "config.yaml"))
    assert_same_run(first.run_dir, again.run_dir)


def test_resuming_does_not_need_the_offline_checkpoint(offline: dict[str, Path], tmp_path: Path) -> None:
    origin = train(tiny_config("td3_bc", tmp_path, total_timesteps=10, eval_interval=None)).run_dir
    result = tuned(origin, tmp_path)
    origin.rename(tmp_path / "moved")
    assert resume_training(result.run_dir, 70).metrics["global_step"] == 70
    assert evaluate_checkpoint(result.run_dir, 1)["global_step"] == 70
    assert predict_checkpoint(result.run_dir, [1.0, 0.0, 0.0]).shape == (1,)


# -- what a run starts with ------------------------------------------------------------------------------------------


def weights(run: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(newest_checkpoint(run) / "weights.safetensors")
    return tensors


class AtFirst(Callback):
    """Ends the run before its first step, when it has been evaluated and saved."""

    def on_eval_end(self, trainer: TrainerState, metrics: dict[str, float]) -> None:
        trainer.should_stop, trainer.stop_reason = True, "seen"


@pytest.mark.parametrize("algo", METHODS)
def test_the_first_evaluation_is_the_offline_agent(algo: str, offline: dict[str, Path], tmp_path: Path) -> None:
    result = tuned(offline[algo], tmp_path, callbacks=[AtFirst()])
    score = evaluate_checkpoint(offline[algo])["eval_return_mean"]
    assert result.metrics["global_step"] == 0
    assert result.metrics["start_eval_return_mean"] == result.metrics["eval_return_mean"] == score
    assert metric_rows(result.run_dir)[0] | {"eval/mean_reward": score} == metric_rows(result.run_dir)[0]
    assert (result.run_dir / "evaluations.csv").read_text().splitlines()[1].startswith("0,")
    before, after = weights(offline[algo]), weights(result.run_dir)
    assert all(torch.equal(before[name], after[name]) for name in before)
    optimizer = "optimizer.safetensors"
    before, after = (load_file(newest_checkpoint(run) / optimizer) for run in (offline[algo], result.run_dir))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(
        value == 0
        for value in json.loads((newest_checkpoint(result.run_dir) / "manifest.json").read_text())["counters"].values()
    )


@pytest.mark.parametrize(("algo", "target"), HANDOVERS.items())
def test_handing_over_carries_networks_and_targets(
    algo: str, target: str, offline: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rl_training")
    result = tuned(offline[algo], tmp_path, algo=target, callbacks=[AtFirst()])
    before, after = weights(offline[algo]), weights(result.run_dir)
    facts = json.loads((result.run_dir / "metadata.json").read_text())["finetune"]
    targets = "target" if target == "td3" else "target_critics"
    assert facts["carried_over"] == ["model", targets]
    assert "critic_optimizer" in facts["fresh"]
    assert "carried over model" in caplog.text
    assert not load_file(newest_checkpoint(result.run_dir) / "optimizer.safetensors")
    carried = [name for name in after if name.startswith(("model.", f"{targets}."))]
    same = [name for name in carried if name in before and before[name].shape == after[name].shape]
    assert all(torch.equal(before[name], after[name]) for name in same)
    assert len(carried) - len(same) == (2 if algo == "awac" else 0)
    if target == "sac":
        assert "temperature" in facts["fresh"]
    if algo != "awac":
        assert result.metrics["eval_return_mean"] == evaluate_checkpoint(offline[algo])["eval_return_mean"]


def test_a_plain_gaussian_becomes_a_squashed_one_with_its_mean_and_spread() -> None:
    from rl_training.models.squashed_gaussian import squashed_from_plain

    plain = MLPSACModel(3, 2, (8,), policy="gaussian").actor
    with torch.no_grad():
        plain.log_std.copy_(torch.tensor([-1.0, 0.5]))  # type: ignore[union-attr, operator]
    squashed = MLPSACModel(3, 2, (8,)).actor
    squashed.load_state_dict(squashed_from_plain(plain.state_dict()))
    obs = torch.randn(5, 3)
    mean, log_std = squashed(obs)
    torch.testing.assert_close(mean, plain(obs)[0])
    torch.testing.assert_close(log_std, torch.tensor([-1.0, 0.5]).expand(5, 2))


def test_the_actor_of_iql_goes_on_learning(offline: dict[str, Path], tmp_path: Path) -> None:
    """The offline cosine has taken its rate to 0."""
    config = finetune_config(offline["iql"], total_timesteps=60).resolved()
    assert config.algo_kwargs["actor_cosine_decay"] is False
    result = tuned(offline["iql"], tmp_path, learning_rate_schedule="constant")
    before, after = weights(offline["iql"]), weights(result.run_dir)
    assert not torch.equal(before["model.actor.net.layers.0.weight"], after["model.actor.net.layers.0.weight"])


def test_a_schedule_of_the_offline_run_is_not_inherited(offline: dict[str, Path], tmp_path: Path) -> None:
    run = train(
        tiny_config("td3_bc", tmp_path, total_timesteps=10, learning_rate_schedule="linear", eval_interval=None)
    ).run_dir
    config = finetune_config(run, total_timesteps=1000)
    assert config.learning_rate_schedule.type == "constant"
    assert config.eval_interval == 100
    assert config.total_timesteps == 1000


# -- what batches hold -----------------------------------------------------------------------------------------------


class Watch(Callback):
    """Keeps what the agent saw and did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []
        self.explored: list[torch.Tensor] = []
        self.collectors: list[Collector] = []
        draw, explore, start = MixedExperience.batches, Algorithm.explore, Collector.start

        def drawn(experience: MixedExperience, *arguments: Any, **options: Any) -> Iterator[Any]:
            for batch in draw(experience, *arguments, **options):
                self.batches.append(dict(batch))
                yield batch

        def explored(algorithm: Algorithm, obs: torch.Tensor, *, global_step: int) -> torch.Tensor:
            self.explored.append(obs.clone())
            return explore(algorithm, obs, global_step=global_step)

        def started(collector: Collector) -> None:
            self.collectors.append(collector)
            start(collector)

        monkeypatch.setattr(MixedExperience, "batches", drawn)
        monkeypatch.setattr(Algorithm, "explore", explored)
        monkeypatch.setattr(Collector, "start", started)


def test_share_and_order_of_offline_rows_are_exact(
    offline: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    result = tuned(offline["td3_bc"], tmp_path, offline_share=0.25, total_timesteps=30)
    rows = watch.collectors[0].buffer.rows[:30, :3]
    for step, batch in enumerate(watch.batches, start=1):
        assert len(batch["obs"]) == 16
        online = min(step, 12)  # no more than there are
        from_replay = [any(torch.equal(obs, row) for row in rows) for obs in batch["obs"]]
        assert from_replay == [False] * (16 - online) + [True] * online
    shares = [row["data/offline_share"] for row in metric_rows(result.run_dir) if "data/offline_share" in row]
    assert shares == [pytest.approx(6 / 16), 0.25, 0.25]


def test_the_share_moves_linearly_and_stays_at_its_end() -> None:
    share = OfflineShare(initial=0.5, final=0.0, steps=100)
    assert [share.at(step) for step in (0, 50, 100, 1000)] == [0.5, 0.25, 0.0, 0.0]
    assert OfflineShare.model_validate(0.3).at(10**6) == 0.3
    assert OfflineShare(initial=0.0, final=1.0).resolved_for(10).at(5) == 0.5


def test_an_annealed_share_in_a_run(offline: dict[str, Path], tmp_path: Path) -> None:
    share = {"initial": 1.0, "final": 0.0, "steps": 40}
    result = tuned(offline["awac"], tmp_path, offline_share=share)
    shares = [row["data/offline_share"] for row in metric_rows(result.run_dir) if "data/offline_share" in row]
    assert shares == [0.75, 0.5, 0.25, 0.0, 0.0, 0.0]


def test_no_action_is_random_and_the_agent_sees_normalised_observations(
    offline: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also regression of a fault in code of others: rewards of the environment must be scaled as the data's are."""
    watch = Watch(monkeypatch)
    steps: list[Any] = []
    step = CountingStep(steps)
    tuned(offline["td3_bc"], tmp_path, total_timesteps=10, callbacks=[step], offline_share=0.0)
    buffer = watch.collectors[0].buffer
    assert len(watch.explored) == 10
    normalizer = json.loads((newest_checkpoint(offline["td3_bc"]) / "manifest.json").read_text())["normalizer"]
    mean, std = torch.tensor(normalizer["mean"]), torch.tensor(normalizer["std"])
    raw_obs = buffer.rows[:10, :3] * std + mean
    torch.testing.assert_close(raw_obs[:, 0].square() + raw_obs[:, 1].square(), torch.ones(10), rtol=0, atol=1e-4)  # cos, sin
    torch.testing.assert_close(torch.cat(watch.explored), buffer.rows[:10, :3])
    assert (raw_obs[1:] - (buffer.rows[:9, -3:] * std + mean)).abs().max() < 1e-5
    angle = torch.atan2(raw_obs[:, 1], raw_obs[:, 0])
    reward = -(angle.square() + 0.1 * raw_obs[:, 2].square() + 0.001 * (2 * buffer.rows[:10, 3]).square())
    torch.testing.assert_close(buffer.rows[:10, 4], 0.1 * reward, rtol=1e-4, atol=1e-4)


class CountingStep(Callback):
    """Keeps results of collecting."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        self.seen.append(result)


@pytest.mark.parametrize("normalized", [False, True])
def test_rewards_of_the_environment_are_scaled_to_the_bit_as_the_data(normalized: bool, tmp_path: Path) -> None:
    dataset = {"kind": "random", "size": 450, "seed": 3, "normalize_rewards": normalized}
    reward = {"scale": 0.3, "shift": 1.0, "clip_min": -2.0}
    run = train(tiny_config("iql", tmp_path, total_timesteps=5, dataset=dataset, reward=reward, eval_interval=None)).run_dir
    seen: list[Collector] = []
    original = Collector.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "start", lambda collector: (seen.append(collector), original(collector))[1])
        tuned(run, tmp_path, total_timesteps=20)
    from rl_training.runtime.offline_data import load_dataset, spec_of_data  # noqa: F401 - the dataset as the run loads it
    from rl_training.runtime.training import _describe  # type: ignore[attr-defined]

    config = finetune_config(run, total_timesteps=20)
    data = load_dataset(config, _describe(config, "Pendulum-v1"), "Pendulum-v1")
    assert isinstance(data, TransitionDataset)
    raw = data.untransformed().rewards.numpy()
    scaling = data.reward_scaling
    assert (scaling.scale == 0.3) != normalized
    assert np.array_equal(transform_rewards(scaling, raw), data.rewards.numpy())
    assert seen[0]._reward == scaling


def test_online_rows_have_no_next_action_of_the_data(
    offline: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    tuned(offline["rebrac"], tmp_path, total_timesteps=20, critic_bc_weight=0.5)
    masks = watch.batches[-1]["next_action_mask"]
    assert masks[8:].tolist() == [0.0] * 8
    assert masks[:8].sum() > 0


# -- Cal-QL ----------------------------------------------------------------------------------------------------------


def test_calibrated_penalty_worked_by_hand() -> None:
    sampled = torch.tensor([[math.log(2.0)], [math.log(3.0)]], requires_grad=True)
    floors = torch.tensor([[-math.inf], [math.log(5.0)]])
    value = conservative_value(data_q=torch.zeros(1), sampled_q=sampled, log_densities=torch.zeros(2, 1), floors=floors)
    assert value.item() == pytest.approx(math.log(2 + 5))
    value.sum().backward()
    assert sampled.grad is not None
    assert sampled.grad.flatten().tolist() == pytest.approx([2 / 7, 0.0])  # nothing presses below the return


def test_calibration_spares_the_policys_actions_only() -> None:
    from rl_training.algorithms.cql import CQL

    def penalty(returns: float, **options: Any) -> float:
        torch.manual_seed(0)
        learner = CQL(model=MLPSACModel(3, 2, (16,)), num_cql_samples=4, **options)
        learner.generator.manual_seed(0)
        batch = random_batch("cql") | {"returns_to_go": torch.full((16,), returns)}
        return learner.update(batch).metrics["cql_penalty"]

    assert penalty(-1e6, calibrated=True) == penalty(0.0)
    raised = penalty(50.0, calibrated=True)
    expected = 10 * 2 * (50.0 + math.log(8))  # 8 policy actions count as 50, the uniform ones vanish beside them
    assert raised > expected - 10 * 2 * 10
    assert raised > penalty(0.0)


def test_return_bounds_worked_by_hand() -> None:
    rewards = np.array([1.0, 2.0, -3.0, 4.0], dtype=np.float32)
    terminated = np.array([False, True, False, False])
    bounds = return_bounds(rewards, terminated, np.array([2, 4]), gamma=0.5)
    worst = -3.0 / 0.5
    assert bounds.tolist() == [1 + 0.5 * 2, 2.0, -3 + 0.5 * (4 + 0.5 * worst), 4 + 0.5 * worst]
    assert discounted_returns([1.0, 1.0], gamma=0.5, following=0.0).tolist() == [1.5, 1.0]
    with pytest.raises(DataError, match="discount below 1"):
        return_bounds(rewards, terminated, np.array([2, 4]), gamma=1.0)


def test_running_returns_are_put_right_when_the_episode_ends() -> None:
    running = RunningReturns(num_envs=2, capacity=8, gamma=0.5, worst=-2.0)
    assert running.add([0, 1], np.array([1.0, 10.0], dtype=np.float32)).tolist() == [0.0, 9.0]
    running.add([2, 3], np.array([2.0, 20.0], dtype=np.float32))
    other = RunningReturns(num_envs=2, capacity=8, gamma=0.5, worst=-2.0)
    other.load_state_dict(running.state_dict())
    for each in (running, other):
        positions, returns = each.end(0, terminated=True)
        assert (positions, returns.tolist()) == ([0, 2], [2.0, 2.0])
        positions, returns = each.end(1, terminated=False)
        assert (positions, returns.tolist()) == ([1, 3], [10 + 0.5 * 19, 19.0])
        assert each.end(0, terminated=True)[0] == []


def test_returns_of_the_environments_transitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reward 1 a step and termination after 3 of them: returns 1.75, 1.5, 1 at gamma 0.5; a bound in the running one."""
    settings = {"env_id": "support:CountingEnv", "env_kwargs": {"limit": 3, "ends": "terminated"}}
    run = train(
        tiny_config("cql", tmp_path, total_timesteps=5, algo_kwargs={"gamma": 0.5}, eval_interval=None, **settings)
    ).run_dir
    watch = Watch(monkeypatch)
    tuned(run, tmp_path, total_timesteps=4, calibrated=True, num_envs=2, offline_share=0.0)
    assert watch.collectors[0].buffer.rows[:4, -1].tolist() == [1.0, 1.0, 1.0, 1.0]  # rewards are positive: nothing at worst
    watch.collectors.clear()
    tuned(run, tmp_path, total_timesteps=8, calibrated=True, num_envs=2, offline_share=0.0)
    assert watch.collectors[0].buffer.rows[:8, -1].tolist() == [1.75, 1.75, 1.5, 1.5, 1.0, 1.0, 1.0, 1.0]
    assert "returns_to_go" in watch.batches[-1]


def test_cql_can_be_calibrated_offline_too(tmp_path: Path) -> None:
    config = tiny_config("cql", tmp_path, total_timesteps=5, algo_kwargs={"calibrated": True}, eval_interval=None)
    assert train(config).metrics["global_step"] == 5


# -- ReBRAC ----------------------------------------------------------------------------------------------------------


def test_the_actors_penalty_decays_to_its_share() -> None:
    hp = ReBRACHyperparameters(actor_bc_weight=0.2, actor_bc_final=0.5).resolved_for(10)
    assert [hp.actor_bc_weight_after(updates) for updates in (0, 5, 10, 100)] == pytest.approx([0.2, 0.15, 0.1, 0.1])
    assert ReBRACHyperparameters(actor_bc_weight=0.2).resolved_for(10).actor_bc_weight_after(10) == 0.2
    model = MLPTD3Model(3, 2, (16,))
    learner = ReBRAC(model=model, actor_bc_weight=0.2, actor_bc_final=0.5, actor_bc_decay_steps=2)
    reported = [learner.update(random_batch("rebrac")).metrics["actor_bc_weight"] for _ in range(4)]
    assert reported == pytest.approx([0.2, 0.15, 0.1, 0.1])


def test_rebrac_is_fine_tuned_as_in_its_paper(offline: dict[str, Path], tmp_path: Path) -> None:
    result = tuned(offline["rebrac"], tmp_path, updates_per_step=2)
    assert result.metrics["update_count"] == 120
    assert result.metrics["critic_bc_weight"] == 0.0
    assert result.metrics["actor_bc_weight"] == pytest.approx(0.01 * (1 - 0.5 * 119 / 120))


# -- Python, command line, mistakes ----------------------------------------------------------------------------------


def test_an_agent_becomes_the_fine_tuned_one(offline: dict[str, Path], tmp_path: Path) -> None:
    agent = IQL.load(offline["iql"])
    result = agent.finetune("Pendulum-v1", total_timesteps=20, offline_share=0.25, output_dir=str(tmp_path), expectile=0.6)
    assert agent.config.finetune is not None
    assert agent.config.algo_kwargs["expectile"] == 0.6
    assert agent.evaluate(1)["global_step"] == 20
    assert agent.predict([1.0, 0.0, 0.0]).shape == (1,)
    assert agent.resume(30).run_dir == result.run_dir


def test_transitions_and_factories_given_in_python(tmp_path: Path) -> None:
    def make() -> CountingEnv:
        return CountingEnv(limit=4)

    rng = np.random.default_rng(0)
    columns = {"obs": rng.normal(size=(64, 2)), "next_obs": rng.normal(size=(64, 2)), "actions": rng.uniform(-1, 1, (64, 1))}
    data = TransitionDataset(**columns, rewards=np.ones(64), dones=np.zeros(64))
    run = train(
        tiny_config("td3_bc", tmp_path, total_timesteps=5, dataset=None, eval_interval=None), env=make, dataset=data
    ).run_dir
    with pytest.raises(DataError, match="name the data"):
        finetune(run, make, total_timesteps=10, output_dir=str(tmp_path))
    result = finetune(run, make, total_timesteps=10, dataset=data, output_dir=str(tmp_path))
    assert result.metrics["global_step"] == 10


def test_command_line(offline: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["finetune", str(offline["cql"]), "--total-timesteps", "20", "--output-dir", str(tmp_path), "-q"]
    options = ["--env", "Pendulum-v1", "--calibrated", "--offline-share", "0.5:0.1:10", "--updates-per-step", "2", "--json"]
    assert main([*common, *options]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    config = load_config(Path(result["run_dir"]) / "config.yaml")
    assert config.finetune is not None
    assert config.finetune.offline_share == OfflineShare(initial=0.5, final=0.1, steps=10)
    assert config.algo_kwargs["calibrated"] is True
    assert result["metrics"]["update_count"] == 40
    assert main([*common, "--algo", "sac", "--dry-run"]) == 0
    assert "learning_starts: 0" in capsys.readouterr().out
    assert main(common) == 0
    assert "at start" in capsys.readouterr().out


MISTAKES: dict[str, tuple[str, list[str], str]] = {
    "another size of observations": ("iql", ["--env", "Hopper-v5"], "observations of shape 3; Hopper-v5 has"),
    "discrete actions": ("iql", ["--env", "CartPole-v1"], "CartPole-v1"),
    "no such environment": ("iql", ["--env", "Nothing-v0"], "Nothing-v0"),
    "no such data": ("iql", ["--dataset", "nowhere.npz"], "nowhere.npz"),
    "behaviour cloning": ("bc", [], "nothing from rewards"),
    "another family": ("iql", ["--algo", "sac"], "cql as cql or sac"),
    "no such algorithm": ("iql", ["--algo", "sacc"], "did you mean 'sac'"),
    "an option of another method": ("iql", ["--calibrated"], "calibrated is not a setting of iql; cql has it"),
    "noise of a policy that samples": ("awac", ["--exploration-noise", "0.1"], "exploration_noise is not a setting of awac"),
    "a share above 1": ("iql", ["--offline-share", "1.5"], "finetune.offline_share.initial must be in [0, 1], got 1.5"),
    "a share in words": ("iql", ["--offline-share", "half"], "--offline-share takes"),
    "an unknown setting": ("iql", ["--set", "finetune.ofline_share=0.1"], "did you mean 'offline_share'"),
    "other networks": ("iql", ["--set", "algo_kwargs.hidden_sizes=[8]"], "hidden_sizes"),
    "no steps": ("iql", ["--total-timesteps", "0"], "total_timesteps must be >= 1"),
}


@pytest.mark.parametrize(("algo", "options", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told_in_one_message(
    algo: str, options: list[str], message: str, offline: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = [] if "--total-timesteps" in options else ["--total-timesteps", "20"]
    assert main(["finetune", str(offline[algo]), *budget, "--output-dir", str(tmp_path / "runs"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_an_online_agent_is_resumed_instead(tmp_path: Path) -> None:
    agent = SAC(tiny_config("sac", tmp_path, total_timesteps=40, eval_interval=None))
    agent.learn()
    with pytest.raises(ConfigError, match="resume"):
        agent.finetune(total_timesteps=10)


def test_scaled_rewards_and_other_data_do_not_go_together(tmp_path: Path) -> None:
    dataset = {"kind": "random", "size": 450, "seed": 3, "normalize_rewards": True}
    run = train(tiny_config("iql", tmp_path, total_timesteps=5, dataset=dataset, eval_interval=None)).run_dir
    with pytest.raises(ConfigError, match="normalize_rewards"):
        finetune(run, total_timesteps=10, dataset="other.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": None}, "env_id is required"),
        ({"max_epochs": 3}, "max_epochs is for offline runs"),
        ({"algo": "bc"}, "bc cannot go on"),
        ({"algo": "sac", "algo_kwargs": {"learning_starts": 100}}, "learning_starts must be 0"),
        ({"finetune": {"checkpoint": "x", "offline_share": "half"}}, "offline_share must be a share"),
        ({"finetune": {}}, "finetune.checkpoint is required"),
    ],
)
def test_configurations_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    settings = {"algo": "iql", "env_id": "Pendulum-v1", "total_timesteps": 10, "finetune": {"checkpoint": "x"}}
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**{**settings, **changes})
