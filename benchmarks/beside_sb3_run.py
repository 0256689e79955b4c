"""One run of one library, for beside_sb3.py: a JSON job as argument, a JSON result as the last line of output.

Both libraries get the same environment, networks (256-256), learning rate 3e-4, batch 256, replay 1e6, 10,000 random steps,
one update a step, one torch thread, and are scored by the same loop: the deterministic policy on 20 episodes with fixed seeds.
The curve is each library's own evaluation, ten episodes every 5,000 steps. Run directories of ours are kept in runs/mujoco.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

RANDOM_STEPS, EVAL_EVERY, EVAL_EPISODES = 10_000, 5_000, 10
RUNS = Path(__file__).resolve().parents[1] / "runs" / "mujoco"
Act = Callable[[np.ndarray], np.ndarray]
Curve = list[tuple[int, float]]


def score(env_id: str, act: Callable[[np.ndarray], np.ndarray], episodes: int) -> float:
    """Mean return on fixed seeds."""
    env, returns = gym.make(env_id), []
    for seed in range(50_000, 50_000 + episodes):
        obs, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def ours(job: dict[str, Any]) -> tuple[Act, Curve, float]:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.training import train

    config = TrainConfig(
        algo=job["algo"],
        env_id=job["env_id"],
        seed=job["seed"],
        total_timesteps=job["steps"],
        eval_interval=EVAL_EVERY,
        eval_episodes=EVAL_EPISODES,
        tensorboard=False,
        torch_threads=1,
        checkpoint_interval=None,
        output_dir=RUNS,
        algo_kwargs={"learning_starts": RANDOM_STEPS, "learning_rate": 3e-4, **job["overrides"]},
    )
    started = time.process_time()
    result = train(config)
    seconds = time.process_time() - started
    rows = [json.loads(line) for line in (Path(result.run_dir) / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["step"], row["eval/mean_reward"]) for row in rows if "eval/mean_reward" in row]
    return Policy.from_checkpoint(result.run_dir).predict, curve, seconds


def sb3(job: dict[str, Any]) -> tuple[Act, Curve, float]:
    import torch
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    env = gym.make(job["env_id"])
    common: dict[str, Any] = {
        "learning_rate": 3e-4,
        "batch_size": 256,
        "buffer_size": 1_000_000,
        "learning_starts": RANDOM_STEPS,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [256, 256]},
        "seed": job["seed"],
        "device": "cpu",
    }
    if job["algo"] == "td3":
        size = env.action_space.shape[0]
        model: Any = TD3("MlpPolicy", env, action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)), **common)
    else:
        model = SAC("MlpPolicy", env, **common)
    started = time.process_time()
    evaluation = EvalCallback(Monitor(gym.make(job["env_id"])), n_eval_episodes=EVAL_EPISODES, eval_freq=EVAL_EVERY, verbose=0)
    model.learn(job["steps"], callback=_recorded(evaluation, curve := []))
    seconds = time.process_time() - started
    return lambda obs: model.predict(obs, deterministic=True)[0], curve, seconds


def _recorded(evaluation: Any, curve: Curve) -> Any:
    """SB3's evaluation callback, noting every mean return."""
    plain = evaluation._on_step

    def step() -> bool:
        goes_on = bool(plain())
        if evaluation.n_calls % evaluation.eval_freq == 0:
            curve.append((evaluation.num_timesteps, float(evaluation.last_mean_reward)))
        return goes_on

    evaluation._on_step = step
    return evaluation


def main() -> None:
    """Run the job and print its result."""
    job = json.loads(sys.argv[1])
    act, curve, seconds = {"rl_training": ours, "sb3": sb3}[job["library"]](job)
    print(json.dumps({"last": score(job["env_id"], act, 20), "curve": curve, "seconds": seconds}))


if __name__ == "__main__":
    main()
