"""What the reference scripts share: train a preset through the Python API, then use the agent."""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training.api import ManagedAlgorithm
from rl_training.experiment.presets import load_config


def run_reference(agent_class: type[ManagedAlgorithm], preset: str, description: str | None) -> None:
    """Train, evaluate, act, load again."""
    config = load_config(preset)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--total-timesteps", type=int, default=config.total_timesteps)
    parser.add_argument("--eval-episodes", type=int, default=config.eval_episodes)
    parser.add_argument("--seed", type=int, default=config.seed)
    parser.add_argument("--output-dir", type=Path, default=config.output_dir)
    arguments = parser.parse_args()

    agent = agent_class(
        config.replace(
            total_timesteps=arguments.total_timesteps,
            eval_episodes=arguments.eval_episodes,
            seed=arguments.seed,
            output_dir=arguments.output_dir,
        )
    )
    result = agent.learn()
    print(f"run directory: {result.run_dir}")
    print(f"mean return:   {result.metrics['eval_return_mean']:.1f} after {arguments.total_timesteps} steps")

    obs, _ = gym.make(config.env_id).reset(seed=0)
    print(f"action for {obs.round(2).tolist()}: {agent.predict(obs)}")

    again = agent_class.load(result.run_dir)
    print(f"the same agent, loaded: {again.evaluate(num_episodes=arguments.eval_episodes)['eval_return_mean']:.1f}")
