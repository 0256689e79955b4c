"""Does off-policy evaluation rank agents as playing them does? SAC along one run, and cloning, on Pendulum.

    python benchmarks/ope_ranking.py --data pendulum_random_v1.1.0.h5 pendulum_v1.1.0.h5     # rewrites the table and figure
    python benchmarks/ope_ranking.py --data pendulum_random_v1.1.0.h5 --dry                  # writes nothing

The agents: SAC checkpoints every 500 steps of one run, the first before any update, and BC on random data. The data files
are d3rlpy's Pendulum sets (see docs/ope.md). Exit code 1 if no dataset ranks the agents with a Spearman correlation of 0.8.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from jobs import write_section

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.ope.checkpoints import rank_checkpoints
from rl_training.runtime.policy import Policy
from rl_training.runtime.training import train

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ope_ranking.json"
PAGE, FIGURE = ROOT / "docs" / "ope.md", ROOT / "docs" / "images" / "ope_ranking.png"
DEMANDED = 0.8
EPISODES, HORIZON = 50, 200


def make_agents(directory: Path) -> dict[str, Path]:
    """Checkpoints by name: one SAC run at several steps, and a clone of random behaviour."""
    small = {"env_id": "Pendulum-v1", "seed": 1, "eval_episodes": 0, "eval_interval": None, "tensorboard": False}
    small |= {"torch_threads": 1, "output_dir": directory}
    sac = TrainConfig(
        algo="sac",
        total_timesteps=5000,
        checkpoint_interval=500,
        keep_last=20,
        algo_kwargs={"hidden_sizes": [64, 64], "batch_size": 128, "learning_starts": 500, "learning_rate": 1e-3},
        **small,
    )
    clone = TrainConfig(
        algo="bc", total_timesteps=1000, dataset={"kind": "random"}, algo_kwargs={"hidden_sizes": [64, 64]}, **small
    )
    run = train(sac).run_dir
    steps = (500, 1500, 2000, 2500, 3000, 4000, 4500, 5000)
    agents = {f"SAC, {step:,} steps": run / "checkpoints" / f"step_{step:09d}" for step in steps}
    return {**agents, "BC on random data": train(clone).run_dir}


def play(checkpoint: Path, gamma: float) -> dict[str, float]:
    """Mean return of 200 steps, and mean discounted return, of the same episodes."""
    policy = Policy.from_checkpoint(checkpoint)
    env, returns, discounted = gym.make("Pendulum-v1"), [], []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        rewards = []
        for _ in range(HORIZON):
            obs, reward, _, _, _ = env.step(policy.predict(obs))
            rewards.append(float(reward))
        returns.append(sum(rewards))
        discounted.append(float(np.dot(rewards, gamma ** np.arange(HORIZON))))
    env.close()
    return {"return": float(np.mean(returns)), "discounted_return": float(np.mean(discounted))}


def spearman(x: list[float], y: list[float]) -> float:
    """Correlation of ranks; there are no ties among floats like these."""
    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def judge(agents: dict[str, Path], data: Path, played: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Every agent's value on one dataset beside what it really gets."""
    started = time.process_time()
    names = {str(path): name for name, path in agents.items()}
    rows = [
        {"agent": names[result.name], **played[names[result.name]], **result.metrics, "warnings": list(result.warnings)}
        for result in rank_checkpoints(list(agents.values()), data)
    ]
    correlation = spearman([row["return"] for row in rows], [row["fqe_value"] for row in rows])
    seconds = time.process_time() - started
    return {"data": data.name, "spearman": correlation, "cpu_seconds_per_agent": seconds / len(rows), "rows": rows}


def table(found: list[dict[str, Any]]) -> str:
    """The Markdown of the docs: an agent per row, the best first."""
    by_data = [{row["agent"]: row for row in one["rows"]} for one in found]
    agents = sorted(by_data[0], key=lambda agent: -by_data[0][agent]["return"])
    heads = [f"value on `{one['data']}` | unlike any" for one in found]
    lines = [f"| agent | return | discounted | {' | '.join(heads)} |", f"|---|---|---|{'---|---|' * len(found)}"]
    for agent in agents:
        first = by_data[0][agent]
        cells = [f"{first['return']:.0f}", f"{first['discounted_return']:.0f}"]
        for rows in by_data:
            row = rows[agent]
            cells += [
                f"{row['fqe_value']:.0f} [{row['fqe_low']:.0f}, {row['fqe_high']:.0f}]",
                f"{row['unsupported_share']:.0%}",
            ]
        lines.append(f"| {agent} | {' | '.join(cells)} |")
    cells = [f"**{one['spearman']:.2f}** | " for one in found]
    lines.append(f"| **Spearman correlation with the return** | | | {' | '.join(cells)} |")
    seconds = max(one["cpu_seconds_per_agent"] for one in found)
    return "\n".join([*lines, "", f"{seconds:.0f} seconds of one core per agent and dataset at most."])


def draw(found: list[dict[str, Any]]) -> None:
    """Values against discounted returns, an axis per dataset."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4.6 * len(found), 4.2), squeeze=False, layout="constrained")
    for axis, one in zip(axes[0], found, strict=True):
        x = [row["discounted_return"] for row in one["rows"]]
        y = [row["fqe_value"] for row in one["rows"]]
        ends = [
            [row["fqe_value"] - row["fqe_low"] for row in one["rows"]],
            [row["fqe_high"] - row["fqe_value"] for row in one["rows"]],
        ]
        axis.errorbar(x, y, yerr=np.clip(ends, 0, None), fmt="o", capsize=3)
        limits = [min(*x, *y) - 40, max(*x, *y) + 40]
        axis.plot(limits, limits, linestyle=":", color="grey")
        axis.set_title(f"{one['data']}\nSpearman {one['spearman']:.2f}", fontsize=10)
        axis.set_xlabel("discounted return when played")
        axis.set_ylabel("fqe_value")
    figure.savefig(FIGURE, dpi=110)


def main() -> int:
    """Train, play, evaluate; 1 if the ranking is not good enough on any dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="dataset files of Pendulum-v1")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        agents = make_agents(Path(directory))
        played = {name: play(path, gamma=0.99) for name, path in agents.items()}
        found = [judge(agents, data, played) for data in arguments.data]
    print(text := table(found))
    if not arguments.dry:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        draw(found)
        write_section(PAGE, "ope", text)
    return 0 if max(one["spearman"] for one in found) >= DEMANDED else 1


if __name__ == "__main__":
    raise SystemExit(main())
