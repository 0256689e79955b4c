"""SAC on Pendulum-v1 through the Python API: train, evaluate, predict, resume.

python examples/sac_pendulum_reference.py --total-timesteps 5000 --eval-episodes 20
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rl_training import SAC, TrainConfig


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-timesteps", type=int, default=5_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()

    config = TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        seed=arguments.seed,
        total_timesteps=arguments.total_timesteps,
        eval_interval=1_000,
        eval_episodes=arguments.eval_episodes,
        output_dir=arguments.output_dir,
        algo_kwargs={"learning_rate": 1e-3, "tau": 0.02, "learning_starts": 100, "buffer_capacity": 100_000},
    )
    agent = SAC(config)
    result = agent.learn()
    print(f"run directory: {result.run_dir}")
    print(f"mean return:   {result.metrics['eval_return_mean']:.1f} after {arguments.total_timesteps} steps")

    upright = [1.0, 0.0, 0.0]  # cos, sin, angular velocity
    print(f"torque when upright and at rest: {agent.predict(upright)}")

    again = SAC.load(result.run_dir)
    print(f"the same agent, loaded: {again.evaluate(num_episodes=arguments.eval_episodes)['eval_return_mean']:.1f}")


if __name__ == "__main__":
    main()
