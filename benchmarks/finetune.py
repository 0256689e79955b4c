"""Offline to online: an agent trained on data, its fine-tuned self, and agents from scratch with as many environment steps.

    python benchmarks/finetune.py --data DIR                    # DIR has d3rlpy's pendulum_random*.h5; minutes
    python benchmarks/finetune.py --hopper runs/hopper_offline/medium.hdf5    # half an hour of a core

Every job is one process with one thread: it trains offline and fine-tunes that agent with ``rl-training finetune``'s defaults
for the method, or trains from scratch; all are scored over the same 20 unseen episodes. Of the Pendulum set only the first
episodes are used: all 500 are enough to solve the task offline, and leave nothing to learn online.
Results are kept in benchmarks/results/finetune.json as they come; the table and the figures of docs/finetuning.md are
rewritten at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jobs import ROOT, load, run_missing, write_section

RUNS = ROOT / "runs" / "finetune"
RESULTS = ROOT / "benchmarks" / "results" / "finetune.json"
IMAGES = ROOT / "docs" / "images"
DATA = "RL_TRAINING_FINETUNE_DATA"  # where the data are is no part of a job, nor of its result
EPISODES, SEED_OF_SCORES = 20, 987_654

SMALL = {"hidden_sizes": [64, 64], "batch_size": 256, "learning_rate": 1e-3}
WIDE = {"hidden_sizes": [128, 128], "batch_size": 256}
SCRATCH = {"learning_starts": 100, "tau": 0.02}
TASKS: dict[str, dict[str, Any]] = {
    "pendulum": {
        "env_id": "Pendulum-v1",
        "normalize_observations": True,
        "episodes": 5,
        "updates": 5_000,
        "steps": 2_000,
        "evaluations": 10,
        "methods": {
            "iql": SMALL,
            "awac": {**SMALL, "weighting": "softmax", "awac_lambda": 1.0},
            "rebrac": SMALL,
            "cql": {**SMALL, "actor_learning_rate": 3e-4, "cql_alpha": 1.0, "num_cql_samples": 4},
            "td3_bc": SMALL,
        },
        "handovers": {"td3_bc": "td3"},
        "scratch": {"sac": {**SMALL, **SCRATCH}, "td3": {**SMALL, **SCRATCH}},
    },
    "hopper": {
        "env_id": "Hopper-v5",
        "normalize_observations": False,
        "updates": 20_000,
        "steps": 10_000,
        "evaluations": 10,
        "methods": {"rebrac": {**WIDE, "tau": 0.02, "actor_bc_weight": 0.05, "critic_bc_weight": 0.001}},
        "handovers": {},
        "scratch": {"sac": {**WIDE, "learning_starts": 1_000, "tau": 0.02}},
    },
}


def jobs_of(task: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Scratch agents, offline agents that go on as themselves, and those that are handed over."""
    settings = TASKS[task]
    pairs = [*((None, name) for name in settings["scratch"]), *((name, name) for name in settings["methods"])]
    pairs += settings["handovers"].items()
    budget = {"updates": settings["updates"], "steps": settings["steps"]}
    return [{"task": task, "origin": origin, "algo": algo, "seed": seed, **budget} for seed in seeds for origin, algo in pairs]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One agent from scratch, or one offline agent and its fine-tuned self."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.finetuning import finetune
    from rl_training.runtime.training import train
    from rl_training.runtime.workflows import evaluate_checkpoint

    task, origin = TASKS[job["task"]], job["origin"]
    interval = job["steps"] // task["evaluations"]
    common: dict[str, Any] = {
        "env_id": task["env_id"],
        "seed": job["seed"],
        "eval_episodes": EPISODES,
        "checkpoint_interval": None,
        "tensorboard": False,
        "torch_threads": 1,
        "output_dir": str(RUNS),
    }

    def score(run_dir: Path) -> float:
        return evaluate_checkpoint(run_dir, EPISODES, seed=SEED_OF_SCORES)["eval_return_mean"]

    if origin is None:
        kwargs = task["scratch"][job["algo"]]
        config = TrainConfig(
            algo=job["algo"], total_timesteps=job["steps"], eval_interval=interval, algo_kwargs=kwargs, **common
        )
        result = train(config)
        return {"last": score(result.run_dir), "curve": curve(result.run_dir)}
    dataset = {"kind": "hdf5", "path": os.environ[DATA], "normalize_observations": task["normalize_observations"]}
    config = TrainConfig(
        algo=origin,
        total_timesteps=job["updates"],
        eval_interval=None,
        dataset=dataset,
        algo_kwargs=task["methods"][origin],
        **common,
    )
    offline = train(config)
    result = finetune(offline.run_dir, total_timesteps=job["steps"], algo=job["algo"], eval_interval=interval)
    return {"offline": score(offline.run_dir), "last": score(result.run_dir), "curve": curve(result.run_dir)}


def first_episodes(path: Path, count: int) -> Path:
    """A file with the first episodes of one in d3rlpy's layout."""
    import h5py

    target = RUNS / f"{path.stem}_{count}_episodes.h5"
    RUNS.mkdir(parents=True, exist_ok=True)
    with h5py.File(path) as source, h5py.File(target, "w") as small:
        rows = int(np.flatnonzero(source["episode_terminals"][:])[count - 1]) + 1
        for name, column in source.items():
            small[name] = column[:rows] if column.shape else column[()]
    return target


def curve(run_dir: Path) -> list[list[float]]:
    """Step and mean return of each evaluation."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [[row["step"], row["eval/mean_reward"]] for row in rows if "eval/mean_reward" in row]


def name_of(origin: str | None, algo: str) -> str:
    """How table and figure call an agent."""
    if origin is None:
        return f"{algo} from scratch"
    return algo if origin == algo else f"{origin} as {algo}"


def grouped(results: list[dict[str, Any]], task: str) -> dict[tuple[str | None, str], list[dict[str, Any]]]:
    """The results of each agent of a task, a result a seed."""
    groups: dict[tuple[str | None, str], list[dict[str, Any]]] = {}
    for result in results:
        if result["task"] == task:
            groups.setdefault((result["origin"], result["algo"]), []).append(result)
    return groups


def table(results: list[dict[str, Any]], task: str) -> str:
    """A row an agent: offline, lowest evaluation on the way, fine-tuned."""
    steps, env_id = TASKS[task]["steps"], TASKS[task]["env_id"]
    lines = [
        f"| {env_id} | seeds | offline agent | lowest on the way | after {steps:,} environment steps | each seed |",
        "|---|---|---|---|---|---|",
    ]
    for (origin, algo), group in grouped(results, task).items():
        last = [result["last"] for result in group]
        start, low = "-", "-"
        if origin is not None:
            start = f"{np.mean([result['offline'] for result in group]):.0f}"
            low = f"{np.mean([min(value for _, value in result['curve']) for result in group]):.0f}"
        each = ", ".join(f"{score:.0f}" for score in last)
        cells = [name_of(origin, algo), str(len(group)), start, low, f"**{np.mean(last):.0f}**", each]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], task: str) -> Path:
    """Mean curves over seeds with their range; agents from scratch are dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (origin, algo), group in grouped(results, task).items():
        steps = [step for step, _ in group[0]["curve"]]
        values = np.array([[value for _, value in result["curve"]] for result in group])
        (line,) = axes.plot(steps, values.mean(axis=0), "--" if origin is None else "-", label=name_of(origin, algo))
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.12, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="mean return of 20 episodes", title=TASKS[task]["env_id"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    path = IMAGES / f"finetune_{task}.png"
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    """Run what is missing, then write tables and figures of all there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with d3rlpy's pendulum_random*.h5")
    parser.add_argument("--hopper", type=Path, help="an HDF5 file of medium data of Hopper-v5")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    files = {}
    if arguments.data is not None:
        found = sorted(arguments.data.rglob("pendulum_random*.h5"))
        if not found:
            raise SystemExit(f"{arguments.data} has no pendulum_random*.h5")
        files["pendulum"] = first_episodes(found[0], TASKS["pendulum"]["episodes"])
    if arguments.hopper is not None:
        files["hopper"] = arguments.hopper
    for task, path in files.items():
        os.environ[DATA] = str(path.absolute())
        run_missing(
            jobs_of(task, arguments.seeds),
            results=RESULTS,
            script=Path(__file__),
            interpreter=lambda _: sys.executable,
            workers=arguments.workers,
        )
    results = load(RESULTS)
    parts = []
    for task in TASKS:
        if grouped(results, task):
            image = draw(results, task)
            parts.append(f"{table(results, task)}\n\n![{TASKS[task]['env_id']}](images/{image.name})")
    write_section(ROOT / "docs" / "finetuning.md", "finetune", "\n\n".join(parts) or "Not yet measured.")


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        print(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        main()
