"""DQN against numbers worked by hand; its options; n-step returns; epsilon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import assert_same_run, random_batch, tiny_config

from rl_training.algorithms.dqn import DQN, DQNHyperparameters, dqn_loss
from rl_training.data.n_step import NStepQueue
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.models import MLPDuelingQNetwork, MLPQNetwork
from rl_training.models.mlp_dueling_q_network import dueling_values
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training import train
from rl_training.runtime.workflows import resume_training


def make(**hyperparameters: object) -> DQN:
    torch.manual_seed(0)
    return DQN(q_network=MLPQNetwork(3, 2, hidden_sizes=(16, 16)), **hyperparameters)


class FixedValues(torch.nn.Module):
    """A network whose values are given."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))
        self.num_actions = 2

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values + 0 * obs.sum()


def test_loss_worked_by_hand() -> None:
    metrics = dqn_loss(
        {
            "q_values": torch.tensor([[1.0, 5.0], [2.0, 0.0]]),
            "actions": torch.tensor([1, 0]),
            "target_q_values": torch.tensor([5.5, 5.0]),
        }
    )
    assert metrics["loss"] == pytest.approx((0.5 * 0.25 + 2.5) / 2)  # Huber of 0.5 and of 3
    assert metrics["q_value_mean"] == pytest.approx(3.5)
    assert metrics["target_mean"] == pytest.approx(5.25)
    assert metrics["td_error_mean"] == pytest.approx(1.75)


@pytest.mark.parametrize(("double_q", "expected"), [(False, 1 + 0.5 * 9.0), (True, 1 + 0.5 * 3.0)])
def test_double_q_lets_the_online_network_choose(double_q: bool, expected: float) -> None:
    """Online prefers action 0; the target network values it 3, and action 1 at 9."""
    learner = DQN(q_network=FixedValues([[7.0, 1.0]]), double_q=double_q, gamma=0.5)  # type: ignore[arg-type]
    with torch.no_grad():
        learner.target_values.copy_(torch.tensor([3.0, 9.0]))
    batch = {
        "obs": torch.zeros(1, 3),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([1.0]),
        "next_obs": torch.zeros(1, 3),
        "dones": torch.zeros(1),
    }
    assert learner.update(batch).metrics["target_mean"] == pytest.approx(expected)


def test_dueling_takes_off_the_mean() -> None:
    values = dueling_values(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    assert values.tolist() == [[8.0, 9.0, 13.0]]
    network = MLPDuelingQNetwork(3, 4, hidden_sizes=(8,))
    obs = torch.randn(5, 3)
    assert network(obs).shape == (5, 4)
    features = torch.relu(network.trunk(obs))
    torch.testing.assert_close(network(obs).mean(dim=1), network.value(features).squeeze(1))


def test_target_network_is_renewed_by_environment_steps() -> None:
    learner = make(target_update_interval=10)
    renewed = []
    for step in (1, 9, 10, 11, 19, 25, 25, 25, 31):
        before = learner.target_values.clone()
        online = learner.optimizer.values.clone()
        learner.update(random_batch("dqn", seed=step), global_step=step)
        renewed.append(not torch.equal(before, learner.target_values))
        if renewed[-1]:
            assert torch.equal(learner.target_values, online)  # a hard copy, before the step
    assert renewed == [False, False, True, False, False, True, False, False, True]


def test_gradient_norm_is_bounded() -> None:
    learner = make(max_grad_norm=1e-3)
    learner.update({**random_batch("dqn"), "rewards": torch.full((16,), 1e6)})
    norm = torch.cat([p.grad.reshape(-1) for p in learner.q_network.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_epsilon_falls_linearly_and_stays() -> None:
    hp = DQNHyperparameters(epsilon_start=1.0, epsilon_end=0.1, exploration_fraction=0.5).resolved_for(100)
    assert [hp.epsilon(step) for step in (0, 25, 50, 99)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_epsilon_keeps_its_horizon_when_a_run_is_extended(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, algo_kwargs={"exploration_fraction": 0.5})
    assert config.replace(total_timesteps=1000).resolved().algo_kwargs["exploration_steps"] == 500
    assert config.resolved().replace(total_timesteps=1000).resolved().algo_kwargs["exploration_steps"] == 48
    result = train(config)
    extended = resume_training(result.run_dir, 120)
    assert find_checkpoint(extended.run_dir).manifest["config"]["algo_kwargs"]["exploration_steps"] == 48


def test_share_of_random_actions() -> None:
    learner = make(epsilon_start=0.5, epsilon_end=0.5)
    obs = torch.zeros(4000, 3)
    different = (learner.explore(obs, global_step=0) != learner.act(obs)).float().mean().item()
    assert different == pytest.approx(0.25, abs=0.04)  # half random, half of those hit the other action


def queue_output(n_step: int, steps: list[tuple[float, bool, bool]], gamma: float = 0.5) -> list[tuple[float, ...]]:
    """(first obs, reward sum, next obs, terminated, discount) of what comes out; obs t, next obs t + 1."""
    queue, found = NStepQueue(n_step, gamma, num_envs=1), []
    for t, (reward, terminated, truncated) in enumerate(steps):
        ready = queue.add(
            np.array([[t]], dtype=np.float32),
            np.array([t]),
            np.array([reward], dtype=np.float32),
            np.array([[t + 1]], dtype=np.float32),
            np.array([terminated]),
            np.array([truncated]),
        )
        if ready is not None:
            for o, _, r, n, d, g in zip(*ready, strict=True):
                found.append((float(o[0]), float(r), float(n[0]), float(d), float(g)))
    return found


def test_n_step_inside_an_episode() -> None:
    assert queue_output(2, [(1, False, False), (2, False, False), (4, False, False)]) == [
        (0, 1 + 0.5 * 2, 2, 0, 0.25),
        (1, 2 + 0.5 * 4, 3, 0, 0.25),
    ]


def test_n_step_across_termination() -> None:
    assert queue_output(3, [(1, False, False), (2, True, False)]) == [(0, 2.0, 2, 1, 0.25), (1, 2.0, 2, 1, 0.5)]


def test_n_step_across_truncation_bootstraps_with_the_shorter_power() -> None:
    assert queue_output(3, [(1, False, False), (2, False, True)]) == [(0, 2.0, 2, 0, 0.25), (1, 2.0, 2, 0, 0.5)]


def test_n_step_does_not_reach_into_the_next_episode() -> None:
    found = queue_output(2, [(1, False, True), (8, False, False), (8, False, False)])
    assert found == [(0, 1.0, 1, 0, 0.5), (1, 12.0, 3, 0, 0.25)]


def test_one_step_queue_is_the_plain_transition() -> None:
    assert queue_output(1, [(3, False, False)]) == [(0, 3.0, 1, 0, 0.5)]


class Crash(BaseException):
    pass


class CrashAt(Callback):
    def on_update_end(self, trainer: object, result: object) -> None:
        self.run_dir = trainer.run_dir  # type: ignore[attr-defined]
        if trainer.global_step >= 75:  # type: ignore[attr-defined]
            raise Crash


@pytest.mark.parametrize("num_envs", [1, 3])
def test_options_learn_and_resume_exactly(num_envs: int, tmp_path: Path) -> None:
    options = {"double_q": True, "dueling": True, "n_step": 3, "target_update_interval": 17, "exploration_fraction": 0.8}
    config = tiny_config("dqn", tmp_path, num_envs=num_envs, algo_kwargs=options)
    whole, crash = train(config), CrashAt()
    with pytest.raises(Crash):
        train(config, callbacks=[crash])
    assert_same_run(whole.run_dir, resume_training(crash.run_dir).run_dir)
