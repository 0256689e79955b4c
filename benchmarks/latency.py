"""How long one observation takes: Policy.predict, the exported files, and Stable-Baselines3's predict, p50 and p99.

python benchmarks/latency.py [--rounds 10] [--calls 1000] [--write]

SAC with 256-256 networks and HalfCheetah's sizes, untrained (the numbers in a network do not change its speed), one thread
each, one process per contestant; rounds take turns, so that a busy moment of the machine hits all of them. --write puts the
table into docs/export.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TITLES = {
    "predict": "`Policy.predict`",
    "onnx": "exported ONNX, onnxruntime",
    "torch": "exported TorchScript",
    "sb3": "Stable-Baselines3 `predict`",
}


def contestant(kind: str, home: Path) -> Callable[[Any], Any]:
    """From an observation as the environment gives it (float64) to an action as it takes it."""
    if kind == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(home / "policy.onnx"), options, providers=["CPUExecutionProvider"])
        return lambda obs: session.run(None, {"observation": obs[np.newaxis].astype(np.float32)})[0][0]
    import torch

    torch.set_num_threads(1)
    if kind == "torch":
        program = torch.jit.load(home / "policy.pt")

        def act(obs: Any) -> Any:
            with torch.inference_mode():
                return program(torch.from_numpy(obs[np.newaxis].astype(np.float32))).numpy()[0]

        return act
    if kind == "sb3":
        from stable_baselines3 import SAC

        model = SAC("MlpPolicy", "HalfCheetah-v5", policy_kwargs={"net_arch": [256, 256]}, buffer_size=1000, device="cpu")
        return lambda obs: model.predict(obs, deterministic=True)[0]
    from rl_training.runtime.policy import Policy

    return Policy.from_checkpoint(home / "run").predict


def work(kind: str, home: Path) -> None:
    """Answer each number of calls on standard input with their times in microseconds."""
    act = contestant(kind, home)
    observations = np.random.default_rng(0).standard_normal((1000, 17))
    for line in sys.stdin:
        times = []
        for index in range(int(line)):
            obs = observations[index % len(observations)]
            started = time.perf_counter_ns()
            act(obs)
            times.append((time.perf_counter_ns() - started) / 1000)
        print(json.dumps(times), flush=True)


def prepare(home: Path) -> None:
    """A checkpoint of HalfCheetah's size, and what is exported from it."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.exporting import export_policy
    from rl_training.runtime.training import train

    config = TrainConfig(
        algo="sac", env_id="HalfCheetah-v5", total_timesteps=16, eval_episodes=0, tensorboard=False, torch_threads=1
    )
    train(config, run_dir=home / "run")
    for name in ("policy.onnx", "policy.pt"):
        export_policy(home / "run", home / name)


def measure(home: Path, *, rounds: int, calls: int) -> dict[str, list[float]]:
    """Times of every contestant, in microseconds."""
    from peers import python_of

    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    workers = {}
    for kind in TITLES:
        python = python_of("sb3") if kind == "sb3" else sys.executable
        command = [python, "-W", "ignore", __file__, "--worker", kind, "--home", str(home)]
        workers[kind] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
    times: dict[str, list[float]] = {kind: [] for kind in TITLES}
    try:
        for turn in range(rounds + 1):  # the first one warms up
            for kind, worker in workers.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(f"{calls}\n")
                worker.stdin.flush()
                answer = json.loads(worker.stdout.readline())
                times[kind] += answer if turn else []
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return times


def table(times: dict[str, list[float]]) -> str:
    lines = ["| one observation | p50, microseconds | p99, microseconds |", "|---|---|---|"]
    for kind, title in TITLES.items():
        median, tail = np.percentile(times[kind], [50, 99])
        lines.append(f"| {title} | {median:.0f} | {tail:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="put the table into docs/export.md")
    parser.add_argument("--worker", choices=TITLES, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.home)
        return
    with tempfile.TemporaryDirectory() as home:
        prepare(Path(home))
        text = table(measure(Path(home), rounds=arguments.rounds, calls=arguments.calls))
    print(text)
    if arguments.write:
        from jobs import write_section

        write_section(ROOT / "docs" / "export.md", "latency", text)


if __name__ == "__main__":
    main()
