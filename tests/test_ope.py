"""Off-policy evaluation: values worked by hand, diagnostics, the command, and early stopping that resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import assert_same_run, metric_rows, tiny_config, tiny_settings
from test_exact_resume import crashed_run
from torch import Tensor, nn

from rl_training import BC
from rl_training.algorithms.base import Algorithm, Hyperparameters, UpdateResult
from rl_training.cli import main
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.ope_config import OPE_METRICS, FittedQConfig
from rl_training.runtime.ope.checkpoints import evaluate_off_policy, rank_checkpoints
from rl_training.runtime.ope.evaluation import evaluate_policy_off_policy
from rl_training.runtime.ope.fitted_q import ValueBounds, fit_policy_values, fitted_q_loss
from rl_training.runtime.ope.result import OPEResult, bootstrap_interval
from rl_training.runtime.ope.transitions import PolicyTransitions
from rl_training.runtime.policy import Policy
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training
from rl_training.types import ConfigError, DataError, EnvSpec

QUICK: dict[str, Any] = {"updates": 1200, "num_critics": 2, "hidden_sizes": (16, 16), "batch_size": 32}
TINY: dict[str, Any] = {"updates": 20, "num_critics": 2, "hidden_sizes": (8,), "batch_size": 16}


class ConstantAction(Algorithm):
    """A policy that always does the same."""

    state = ("net",)

    def __init__(self, action: float, gamma: float = 0.9) -> None:
        self.action, self.net, self.hp = action, nn.Linear(1, 1), Hyperparameters(gamma=gamma)

    def update(self, batch: Any, *, global_step: int = 0) -> UpdateResult:
        raise NotImplementedError

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        assert deterministic
        return torch.full((len(obs), 1), self.action)


def constant_policy(action: float, obs_dim: int = 2, gamma: float = 0.9) -> Policy:
    spec = EnvSpec("made-up", (obs_dim,), "continuous", (1,), "float32", (-1.0,), (1.0,))
    return Policy(ConstantAction(action, gamma), spec)


def two_state_chain(episodes: int = 100, seed: int = 0) -> TransitionDataset:
    """From A, forwards (a > 0) gives 1 and leads to B, backwards 0.5 and stays; from B, forwards gives 2 and ends,
    backwards 0 and leads to A. The data goes either way at random."""
    rng = np.random.default_rng(seed)
    state_a, state_b = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "actions", "rewards", "next_obs", "dones")}
    ends = []
    for _ in range(episodes):
        in_a, done = True, False
        while not done:
            forwards = rng.random() < 0.5
            reward = (1.0 if forwards else 0.5) if in_a else (2.0 if forwards else 0.0)
            done = not in_a and bool(forwards)
            rows["obs"].append(state_a if in_a else state_b)
            in_a = not forwards if in_a else True
            rows["actions"].append([0.5 if forwards else -0.5])
            rows["rewards"].append(reward)
            rows["next_obs"].append(state_a if in_a else state_b)
            rows["dones"].append(float(done))
        ends.append(len(rows["obs"]))
    return TransitionDataset(**{name: np.array(column, dtype=np.float32) for name, column in rows.items()}, episode_ends=ends)


def test_values_of_a_chain_worked_by_hand() -> None:
    transitions = PolicyTransitions(two_state_chain(), constant_policy(0.5))
    fit = fit_policy_values(transitions, FittedQConfig(**QUICK), gamma=0.9, seed=0)
    assert fit is not None
    obs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    actions = torch.tensor([[0.5], [-0.5], [0.5], [-0.5]])
    values = fit.critics.values(transitions.joined(obs, actions)).mean(dim=1)
    forwards_a = 1 + 0.9 * 2
    torch.testing.assert_close(
        values, torch.tensor([forwards_a, 0.5 + 0.9 * forwards_a, 2.0, 0.9 * forwards_a]), atol=0.1, rtol=0
    )


def test_result_for_the_chain() -> None:
    result = value_of(two_state_chain(), 0.5)
    assert result.fqe_value == pytest.approx(2.8, abs=0.1)
    assert result.fqe_low <= result.fqe_value <= result.fqe_high
    assert (result.episodes, result.gamma) == (100, 0.9)
    assert result.near_share == pytest.approx(0.5, abs=0.1)
    assert result.agent_td_error is None  # this agent has no critic
    assert result.warnings == ()
    assert "value of the policy" in str(result)
    assert {f"ope/{name}" for name in result.metrics} == set(OPE_METRICS)


def value_of(dataset: TransitionDataset, action: float, **changes: Any) -> OPEResult:
    policy = constant_policy(action, dataset.layout.obs_dim)
    result = evaluate_policy_off_policy(policy, dataset, FittedQConfig(**{**QUICK, **changes}), seed=0)
    assert result is not None
    return result


class LinearPolicy(ConstantAction):
    """Pushes against the state: a = -gain * s."""

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        return (-self.action * obs).clamp(-1, 1)


def pushed(states: Any, actions: Any) -> Any:
    """A mass on a line between walls."""
    return np.clip(states + 0.5 * actions, -1, 1)


def test_agents_of_known_quality_are_ranked_as_playing_them_does() -> None:
    """Keep s near 0, with reward -s^2: the data pushes at random, six policies push with different gains."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, 60)
    recorded = []
    for _ in range(20):
        actions = rng.uniform(-1, 1, 60)
        recorded.append(np.stack((states, actions, -(states**2), pushed(states, actions))))
        states = recorded[-1][3]
    state, action, reward, following = np.stack(recorded).transpose(1, 2, 0).reshape(4, -1)  # one episode after the other
    dataset = TransitionDataset(
        obs=state[:, None],
        actions=action[:, None],
        rewards=reward,
        next_obs=following[:, None],
        dones=np.zeros(1200),
        episode_ends=np.arange(20, 1201, 20),
    )
    spec = EnvSpec("made-up", (1,), "continuous", (1,), "float32", (-1.0,), (1.0,))
    true, estimated = [], []
    for gain in (-1.0, -0.2, 0.0, 0.15, 0.5, 1.5):
        policy = Policy(LinearPolicy(gain), spec)
        result = evaluate_policy_off_policy(policy, dataset, FittedQConfig(**{**QUICK, "updates": 400}), seed=0)
        assert result is not None
        estimated.append(result.fqe_value)
        states, value = recorded[0][0], 0.0
        for step in range(100):
            value -= 0.9**step * float((states**2).mean())
            states = pushed(states, np.clip(-gain * states, -1, 1))
        true.append(value)
    ranks = [np.argsort(np.argsort(values)) for values in (true, estimated)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] >= 0.8


def one_step_episodes(terminated: bool) -> TransitionDataset:
    """Always the same state; rewards of 0 and 2 in turn; every episode is one step."""
    rows = 200
    return TransitionDataset(
        obs=np.zeros((rows, 1)),
        actions=np.zeros((rows, 1)),
        rewards=np.arange(rows) % 2 * 2.0,
        next_obs=np.zeros((rows, 1)),
        dones=np.full(rows, float(terminated)),
        episode_ends=np.arange(rows) + 1,
    )


def test_a_termination_ends_the_value_and_a_time_limit_does_not() -> None:
    assert value_of(one_step_episodes(terminated=True), 0.0).fqe_value == pytest.approx(1.0, abs=0.25)
    cut = value_of(one_step_episodes(terminated=False), 0.0)
    assert cut.fqe_value == pytest.approx(10.0, abs=1.5)
    assert cut.behaviour_value == pytest.approx(1.0)
    assert any("horizon cut" in warning for warning in cut.warnings)


def test_loss_by_hand() -> None:
    loss = fitted_q_loss(
        q_values=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        target_q=torch.tensor([[0.0, 2.0], [1.0, 1.0]]),
        weights=torch.tensor([[1.0, 5.0], [0.5, 2.0]]),
    )
    assert loss["critic_loss"].item() == pytest.approx((1 + 0.5 * 4) / 2 + (0 + 2 * 9) / 2)
    with pytest.raises(ValueError, match="shapes differ"):
        fitted_q_loss(q_values=torch.zeros(2, 1), target_q=torch.zeros(2), weights=torch.zeros(2, 1))


def test_bounds_by_hand() -> None:
    rewards = torch.tensor([-1.0, 3.0])
    assert ValueBounds.of(rewards, torch.zeros(2), 0.5) == ValueBounds(-2.0, 6.0)
    assert ValueBounds.of(rewards.abs(), torch.tensor([0.0, 1.0]), 0.5) == ValueBounds(1.0, 6.0)


def test_bootstrap_interval_by_hand() -> None:
    assert bootstrap_interval(torch.full((5, 3), 2.0), seed=0) == (2.0, 2.0)
    # one state: only critics vary; two of them, drawn twice, give 0, 1 or 2 with chances 1/4, 1/2, 1/4
    assert bootstrap_interval(torch.tensor([[0.0, 2.0]]), seed=0) == (0.0, 2.0)
    # one critic: the mean of n states has a standard error of sd / sqrt(n)
    states = torch.arange(400.0).remainder(2).unsqueeze(1)
    low, high = bootstrap_interval(states, seed=0)
    assert low == pytest.approx(0.5 - 1.96 * 0.5 / 20, abs=0.01)
    assert high == pytest.approx(0.5 + 1.96 * 0.5 / 20, abs=0.01)


def test_same_seed_same_result_and_no_other_generator_is_touched() -> None:
    dataset, policy = two_state_chain(20), constant_policy(0.5)
    before, own = torch.get_rng_state(), dataset.generator.get_state()
    first, second = (evaluate_policy_off_policy(policy, dataset, FittedQConfig(**TINY), seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(own, dataset.generator.get_state())


def test_rewards_and_observations_are_as_recorded() -> None:
    dataset = two_state_chain(20)
    changed = dataset.with_reward_transform(scale=10.0).with_normalized_observations()
    assert value_of(dataset, 0.5, **TINY) == value_of(changed, 0.5, **TINY)


# -- diagnostics ---------------------------------------------------------------------------------------------------------


def narrow_data(seed: int = 0) -> TransitionDataset:
    """Thirty episodes of ten steps through random states; actions are always near -0.8."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(300, 2)).astype(np.float32)
    return TransitionDataset(
        obs=obs,
        actions=rng.normal(-0.8, 0.05, (300, 1)).clip(-1, 1),
        rewards=rng.normal(size=300),
        next_obs=np.concatenate((obs[1:], obs[:1])),
        dones=np.zeros(300),
        episode_ends=np.arange(10, 301, 10),
    )


def test_bad_pairing_is_told() -> None:
    good, bad = value_of(narrow_data(), -0.8, **TINY), value_of(narrow_data(), 0.9, **TINY)
    assert not any("bad pairing" in warning for warning in good.warnings)
    assert any("bad pairing" in warning for warning in bad.warnings)
    assert good.unsupported_share < 0.1 < 0.9 < bad.unsupported_share
    assert good.near_share > 0.99
    assert bad.near_share == 0
    assert bad.action_distance == pytest.approx(1.7, abs=0.02)


def test_few_initial_states_are_told() -> None:
    warnings = value_of(two_state_chain(5), 0.5, **TINY).warnings
    assert any("few initial states: the data has 5 episodes" in warning for warning in warnings)


def test_a_fit_that_has_not_settled_is_told() -> None:
    chain = one_step_episodes(terminated=False)
    assert any(
        "20 updates are too few for this discount; give it 600" in told for told in value_of(chain, 0.0, **TINY).warnings
    )
    moving = value_of(chain, 0.0, **{**TINY, "tau": 1.0, "learning_rate": 1e-6, "updates": 40}).warnings
    assert any("the mean TD error puts it off by about" in told for told in moving)
    assert not any("not converged" in warning for warning in value_of(chain, 0.0).warnings)


# -- data that will not do -----------------------------------------------------------------------------------------------


def columns(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(40, 3)).astype(np.float32)
    data = {
        "obs": obs,
        "actions": rng.uniform(-2, 2, (40, 1)).astype(np.float32),
        "rewards": rng.normal(size=40),
        "next_obs": np.concatenate((obs[1:], obs[:1])),
        "terminated": np.zeros(40, dtype=bool),
        "truncated": np.arange(40) % 10 == 9,
    }
    return {name: value for name, value in {**data, **changes}.items() if value is not None}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cloned agent for Pendulum that took a moment to make."""
    config = tiny_config("bc", tmp_path_factory.mktemp("agent"), total_timesteps=20, eval_episodes=0, eval_interval=None)
    return train(config).run_dir


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_obs": None, "truncated": np.ones(40, dtype=bool)}, "no row with a next observation of its own"),
        ({"obs": np.zeros((40, 5)), "next_obs": np.zeros((40, 5))}, "5 observation and 1 continuous action dimensions"),
        ({"actions": np.zeros((40, 2), dtype=np.float32)}, "3 observation and 2 continuous action dimensions"),
        ({"actions": np.zeros(40, dtype=np.int64)}, "1 discrete action dimensions"),
        ({"next_obs": np.random.default_rng(1).normal(size=(40, 3))}, "does not tell where episodes start"),
        ({"rewards": None}, "no column for rewards"),
    ],
)
def test_unusable_data_is_refused(
    changes: dict[str, Any], message: str, agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", **columns(**changes))
    assert main(["ope", str(agent), "--dataset", str(tmp_path / "data.npz"), "--updates", "5"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_data_without_episodes_is_refused() -> None:
    chain = two_state_chain(3)
    chain.episode_ends = None
    with pytest.raises(DataError, match="does not tell where episodes start"):
        value_of(chain, 0.5)


# -- the command and the API ---------------------------------------------------------------------------------------------


def test_command_ranks_agents(agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = train(tiny_config("td3", tmp_path, total_timesteps=40, eval_episodes=0, eval_interval=None)).run_dir
    np.savez(tmp_path / "data.npz", **columns())
    line = ["ope", str(agent), str(other), "--dataset", str(tmp_path / "data.npz"), "--updates", "5"]
    assert main([*line, "--json"]) == 0
    ranking = json.loads(capsys.readouterr().out.splitlines()[-1])["ranking"]
    assert {row["algo"] for row in ranking} == {"bc", "td3"}
    assert ranking[0]["fqe_value"] >= ranking[1]["fqe_value"]
    assert [row["agent_td_error"] is None for row in ranking] == [row["algo"] == "bc" for row in ranking]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "few initial states" in shown
    assert agent.name[:10] in shown


def test_an_agent_is_valued_on_its_own_data(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = BC.load(agent).ope(**TINY)
    assert result.fqe_value == evaluate_off_policy(agent, **TINY).fqe_value
    assert (result.algo, result.global_step, result.transitions) == ("bc", 20, 256)
    assert main(["ope", str(agent), "--updates", "5", "--gamma", "1.0"]) == 2
    assert "gamma must be in [0, 1), got 1.0" in capsys.readouterr().err


def test_online_agents_need_a_dataset(tmp_path: Path) -> None:
    run_dir = train(tiny_config("sac", tmp_path, total_timesteps=40, eval_episodes=0, eval_interval=None)).run_dir
    with pytest.raises(ConfigError, match="learnt online, so there is no dataset to evaluate it on"):
        evaluate_off_policy(run_dir, **TINY)


def test_agents_with_other_discounts_or_data_are_not_ranked(agent: Path, tmp_path: Path) -> None:
    small = {"total_timesteps": 5, "eval_episodes": 0, "eval_interval": None}
    other_gamma = train(tiny_config("bc", tmp_path, algo_kwargs={"gamma": 0.5}, **small)).run_dir
    with pytest.raises(ConfigError, match=r"different discounts \(0.5, 0.99\)"):
        rank_checkpoints([agent, other_gamma], **TINY)
    assert len(rank_checkpoints([agent, other_gamma], gamma=0.9, **TINY)) == 2
    other_data = train(tiny_config("bc", tmp_path, dataset={"kind": "random", "size": 250, "seed": 4}, **small)).run_dir
    with pytest.raises(ConfigError, match="different data"):
        rank_checkpoints([agent, other_data], **TINY)


def test_discrete_actions_are_valued_too(tmp_path: Path) -> None:
    run_dir = train(tiny_config("dqn", tmp_path, total_timesteps=40, eval_episodes=0, eval_interval=None)).run_dir
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(60, 4)).astype(np.float32)
    np.savez(
        tmp_path / "data.npz",
        obs=obs,
        actions=rng.integers(2, size=60),
        rewards=np.ones(60),
        next_obs=np.concatenate((obs[1:], obs[:1])),
        terminated=np.arange(60) % 20 == 19,
    )
    result = evaluate_off_policy(run_dir, tmp_path / "data.npz", **TINY)
    assert 0 <= result.near_share <= 1
    assert result.episodes == 3


# -- on the way through a run --------------------------------------------------------------------------------------------


def stopping_settings(output_dir: Path, **changes: Any) -> dict[str, Any]:
    ope = {"interval": 25, **TINY, "hidden_sizes": [8]}
    return tiny_settings("td3_bc", output_dir, ope=ope, **changes)


def test_a_run_logs_off_policy_evaluations(tmp_path: Path) -> None:
    result = train(TrainConfig(**stopping_settings(tmp_path)))
    rows = [row for row in metric_rows(result.run_dir) if "ope/fqe_value" in row]
    assert len(rows) == 4  # at 25, 50 and 75, and at the end, 96
    assert set(OPE_METRICS) <= rows[0].keys()
    assert result.metrics["ope/fqe_value"] == rows[-1]["ope/fqe_value"]
    assert len({row["ope/fqe_value"] for row in rows}) == 4


def test_off_policy_evaluation_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    with_ope = train(TrainConfig(**stopping_settings(tmp_path)))
    without = train(TrainConfig(**{**stopping_settings(tmp_path), "ope": None}))
    rows = [row for row in metric_rows(with_ope.run_dir) if "ope/fqe_value" not in row]
    assert rows == metric_rows(without.run_dir)


def test_early_stopping_by_value_needs_no_environment_and_resumes_exactly(tmp_path: Path) -> None:
    data = {"dataset": {"kind": "npz", "path": str(tmp_path / "data.npz"), "action_low": -2.0, "action_high": 2.0}}
    np.savez(tmp_path / "data.npz", **columns())
    stopping = {"metric": "ope/fqe_value", "mode": "max", "patience": 1, "min_delta": 1e6}  # the first is never improved on
    config = TrainConfig(**stopping_settings(tmp_path, early_stopping=stopping, env_id=None, eval_episodes=0, **data))
    whole = train(config)
    assert whole.metrics["global_step"] == 75  # best at 25, then two evaluations without improvement
    assert "ope/fqe_value has not improved" in (whole.stop_reason or "")
    for step in (40, 60):
        resumed = resume_training(crashed_run(config, step))
        assert_same_run(whole.run_dir, resumed.run_dir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ope": None, "early_stopping": {"metric": "ope/fqe_value"}}, "add a section ope: {interval: ...}"),
        ({"early_stopping": {"metric": "ope/fqe_valu"}}, "did you mean 'ope/fqe_value'?"),
        ({"ope": {"updates": 0}}, "ope.updates must be >= 1, got 0"),
        ({"ope": {"gamma": 1.0}}, "ope.gamma must be in [0, 1), got 1.0"),
        ({"dataset": {"kind": "mix", "parts": [{"kind": "random"}]}}, "which a mixture does not have"),
        ({"algo": "sac", "dataset": None}, "ope is for offline algorithms; sac learns online"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(**{**stopping_settings(tmp_path), **changes})
    assert message in str(refused.value)
