"""One offline run of one library, for beside_d3rlpy.py: a JSON job as argument, a JSON result as the last line of output.

Both libraries get the same file, networks (two layers of WIDTH), batch, learning rates and method settings, one torch
thread, and are scored by the same loop: the deterministic policy of the last update on 20 episodes of Pendulum-v1 with fixed
seeds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

WIDTH, BATCH = 64, 128
RUNS = Path(__file__).resolve().parents[1] / "runs" / "beside_d3rlpy"
FILES = {"random": "pendulum_random_v1.1.0.h5", "replay": "pendulum_v1.1.0.h5"}
Act = Callable[[np.ndarray], np.ndarray]

SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"learning_rate": 1e-3},
    "td3_bc": {"learning_rate": 1e-3, "bc_alpha": 2.5},
    "iql": {"learning_rate": 1e-3, "expectile": 0.7, "beta": 3.0, "actor_cosine_decay": False},
    "cql": {"learning_rate": 1e-3, "actor_learning_rate": 3e-4, "cql_alpha": 1.0, "num_cql_samples": 4},
    "awac": {"learning_rate": 1e-3, "awac_lambda": 1.0, "weighting": "softmax"},
    "rebrac": {"learning_rate": 1e-3, "actor_bc_weight": 0.001, "critic_bc_weight": 0.01, "layer_norm": True},
}


def data_file(job: dict[str, Any]) -> Path:
    return Path(os.environ["PENDULUM_DATA"]) / FILES[job["data"]]


def ours(job: dict[str, Any]) -> tuple[Act, float]:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.training import train

    config = TrainConfig(
        algo=job["algo"],
        env_id="Pendulum-v1",
        seed=job["seed"],
        total_timesteps=job["updates"],
        eval_episodes=0,
        tensorboard=False,
        torch_threads=1,
        checkpoint_interval=None,
        output_dir=RUNS,
        dataset={"kind": "hdf5", "path": str(data_file(job))},
        algo_kwargs={"batch_size": BATCH, "hidden_sizes": [WIDTH, WIDTH], **SETTINGS[job["algo"]]},
    )
    started = time.process_time()
    result = train(config)
    return Policy.from_checkpoint(result.run_dir).predict, time.process_time() - started


def d3rlpy(job: dict[str, Any]) -> tuple[Act, float]:
    import d3rlpy
    import torch
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.logging import NoopAdapterFactory
    from d3rlpy.preprocessing import MinMaxActionScaler

    torch.set_num_threads(1)
    d3rlpy.seed(job["seed"])
    import h5py

    with h5py.File(data_file(job), "r") as file:
        columns = {name: file[name][:] for name in ("observations", "actions", "rewards", "terminals", "episode_terminals")}
    terminals = columns["terminals"] * columns["episode_terminals"]
    dataset = MDPDataset(
        columns["observations"],
        columns["actions"].reshape(-1, 1),
        columns["rewards"],
        terminals,
        timeouts=columns["episode_terminals"] * (1 - terminals),
    )
    given = SETTINGS[job["algo"]]
    encoder = d3rlpy.models.VectorEncoderFactory([WIDTH, WIDTH])
    critic_encoder = d3rlpy.models.VectorEncoderFactory([WIDTH, WIDTH], use_layer_norm=given.get("layer_norm", False))
    rate = given["learning_rate"]
    common: dict[str, Any] = {"batch_size": BATCH, "action_scaler": MinMaxActionScaler(minimum=-2.0, maximum=2.0)}
    both = {
        "actor_learning_rate": given.get("actor_learning_rate", rate),
        "critic_learning_rate": rate,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": critic_encoder,
    }
    algos = d3rlpy.algos
    config: Any = {
        "bc": lambda: algos.BCConfig(learning_rate=rate, encoder_factory=encoder, **common),
        "td3_bc": lambda: algos.TD3PlusBCConfig(alpha=given["bc_alpha"], **both, **common),
        "iql": lambda: algos.IQLConfig(expectile=given["expectile"], weight_temp=given["beta"], **both, **common),
        "cql": lambda: algos.CQLConfig(
            temp_learning_rate=given["actor_learning_rate"],
            alpha_learning_rate=0.0,
            initial_alpha=1.0,
            conservative_weight=given["cql_alpha"],
            n_action_samples=given["num_cql_samples"],
            **both,
            **common,
        ),
        "awac": lambda: algos.AWACConfig(lam=given["awac_lambda"], **both, **common),
        "rebrac": lambda: algos.ReBRACConfig(
            actor_beta=given["actor_bc_weight"], critic_beta=given["critic_bc_weight"], **both, **common
        ),
    }[job["algo"]]()
    learner = config.create(device="cpu:0")
    started = time.process_time()
    learner.fit(
        dataset,
        n_steps=job["updates"],
        n_steps_per_epoch=job["updates"],
        show_progress=False,
        logger_adapter=NoopAdapterFactory(),
    )
    return lambda obs: learner.predict(obs[None])[0], time.process_time() - started


def score(act: Act, episodes: int) -> float:
    """Mean return on fixed seeds."""
    env, returns = gym.make("Pendulum-v1"), []
    for seed in range(50_000, 50_000 + episodes):
        obs, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Run the job and print its result."""
    job = json.loads(sys.argv[1])
    act, seconds = {"rl_training": ours, "d3rlpy": d3rlpy}[job["library"]](job)
    print(json.dumps({"last": score(act, 20), "seconds": seconds}))


if __name__ == "__main__":
    main()
