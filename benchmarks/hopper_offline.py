"""An offline benchmark made with this package from end to end: agents on Hopper-v5, their data, six methods on each set.

    python benchmarks/hopper_offline.py                  # trains the agent first; hours of a core
    python benchmarks/hopper_offline.py --agent RUN      # takes a run that exists

1. ``rl-training train``: one REDQ agent. Its best checkpoint is the expert; the last that earned between a third and two
   thirds of that is medium, about where D4RL's medium policies stand.
2. ``rl-training data collect``: 100,000 steps of each, actions sampled, into runs/hopper_offline/{medium,expert}.hdf5; both
   one after the other are the third set, as D4RL's medium-expert is.
3. Every offline method on each set, with the published settings for D4RL's hopper-medium but for what CPU_SIZED changes:
   30,000 updates are a thirtieth of what those are for, so critics follow their targets faster and actors stay nearer to
   the data. Scored over 20 unseen episodes. Results are kept in benchmarks/results/hopper_offline.json as they come; the
   table in docs/benchmarks.md is rewritten at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jobs import ROOT, load, run_missing, write_section

RUNS = ROOT / "runs" / "hopper_offline"
RESULTS = ROOT / "benchmarks" / "results" / "hopper_offline.json"
ALGORITHMS = ("bc", "td3_bc", "iql", "awac", "rebrac", "cql")
SMALL: dict[str, Any] = {"hidden_sizes": [128, 128], "batch_size": 256}
SETTLED: dict[str, Any] = {**SMALL, "tau": 0.02, "layer_norm": True}
CPU_SIZED: dict[str, dict[str, Any]] = {
    "bc": SMALL,
    "td3_bc": SETTLED,
    "iql": {**SETTLED, "learning_rate": 1e-3, "beta": 1.0},
    "awac": {**SETTLED, "awac_lambda": 2.0},
    "rebrac": {**SETTLED, "actor_bc_weight": 0.05, "critic_bc_weight": 0.001},
    "cql": {**SETTLED, "num_cql_samples": 4, "actor_learning_rate": 1e-4},
}
AGENT = {
    "total_timesteps": 70_000,
    "eval_interval": 5_000,
    "checkpoint_interval": 5_000,
    "keep_last": 40,
    "torch_threads": 1,
    "tensorboard": "false",
    "algo_kwargs.hidden_sizes": "[128,128]",
    "algo_kwargs.num_critics": 5,
    "algo_kwargs.batch_size": 128,
    "algo_kwargs.gradient_updates_per_step": 4,
    "output_dir": RUNS,
}
COLLECTED = ("medium", "expert")
SETS = ("medium", "medium_expert", "expert")


def cli(*arguments: str) -> dict[str, Any]:
    """One command of the package, its JSON answer."""
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def checkpoints(run: Path | None) -> dict[str, Path]:
    """The checkpoints whose data are collected, of a run that exists or of one that is made now."""
    if run is None:
        settings = [part for name, value in AGENT.items() for part in ("--set", f"{name}={value}")]
        run = Path(cli("train", "redq/hopper", *settings)["run_dir"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {row["step"]: row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row}
    saved = {int(path.name.removeprefix("step_")): path for path in (run / "checkpoints").glob("step_*")}
    best = max(scores.values())
    medium = max((step for step in saved if 1 / 3 <= scores.get(step, 0.0) / best <= 2 / 3), default=None)
    if medium is None:
        raise SystemExit(f"no checkpoint of {run} earned between a third and two thirds of the best, {best:.0f}")
    return {"medium": saved[medium], "expert": run / "checkpoints" / "best"}


def make_data(agent: Path | None, steps: int) -> dict[str, dict[str, Any]]:
    """All sets, made once, and what ``inspect`` says of them."""
    RUNS.mkdir(parents=True, exist_ok=True)
    paths = {name: RUNS / f"{name}.hdf5" for name in SETS}
    if not all(paths[name].exists() for name in COLLECTED):
        for name, checkpoint in checkpoints(agent).items():
            collect = ("data", "collect", str(paths[name]), "--checkpoint", str(checkpoint), "--steps", str(steps))
            cli(*collect, "--stochastic", "--seed", "1")
    if not paths["medium_expert"].exists():
        join([paths[name] for name in COLLECTED], paths["medium_expert"])
    return {name: cli("data", "inspect", str(path)) for name, path in paths.items()}


def join(parts: list[Path], whole: Path) -> None:
    """The rows of several files, one after the other."""
    import h5py

    with contextlib.ExitStack() as stack, h5py.File(whole, "w") as target:
        files = [stack.enter_context(h5py.File(part)) for part in parts]
        for name in files[0]:
            target[name] = np.concatenate([file[name][:] for file in files])


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One method on one set."""
    from rl_training.experiment.presets import load_config
    from rl_training.runtime.training import train
    from rl_training.runtime.workflows import evaluate_checkpoint

    config = load_config(f"{job['algo']}/hopper_medium")
    assert config.dataset is not None
    config = config.replace(
        seed=job["seed"],
        total_timesteps=job["updates"],
        eval_interval=job["updates"] // 5,
        tensorboard=False,
        torch_threads=1,
        output_dir=RUNS,
        dataset={**config.dataset.model_dump(), "kind": "hdf5", "path": str(RUNS / f"{job['data']}.hdf5")},
        algo_kwargs={**config.algo_kwargs, **CPU_SIZED[job["algo"]]},
    )
    result = train(config)
    score = evaluate_checkpoint(result.run_dir, 20, seed=987_654)
    return {"last": score["eval_normalized_score"], "return": score["eval_return_mean"]}


def table(results: list[dict[str, Any]], facts: dict[str, dict[str, Any]]) -> str:
    """A row a method; scores in percent of D4RL's expert."""
    sets = [
        f"{name} (data: {fact['return_mean']:.0f} ± {fact['return_std']:.0f}, {fact['rows']:,} rows)"
        for name, fact in facts.items()
    ]
    lines = [f"| method | {' | '.join(sets)} |", "|---|" + "---|" * len(sets)]
    for algo in ALGORITHMS:
        cells = []
        for name in facts:
            scores = [result["last"] for result in results if (result["algo"], result["data"]) == (algo, name)]
            each = f" ({', '.join(f'{score:.0f}' for score in scores)})" if len(scores) > 1 else ""
            cells.append(f"**{np.mean(scores):.1f}**{each}" if scores else "-")
        lines.append(f"| {algo} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make the data, run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, help="a run that exists; trained if none")
    parser.add_argument("--steps", type=int, default=100_000, help="transitions of each set")
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    facts = make_data(arguments.agent, arguments.steps)
    jobs = [
        {"algo": algo, "data": name, "seed": seed, "updates": arguments.updates}
        for seed in arguments.seeds
        for name in SETS
        for algo in ALGORITHMS
    ]
    run_missing(jobs, results=RESULTS, script=Path(__file__), interpreter=lambda _: sys.executable, workers=arguments.workers)
    write_section(ROOT / "docs" / "benchmarks.md", "hopper-offline", table(load(RESULTS), facts))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        print(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        main()
