"""Would a native operator for ensembles of MLPs pay? Builds native_mlp.cpp and times updates with and without it, in turns.

    python benchmarks/experiments/native_mlp.py            # needs a C++ compiler and ninja; about three minutes

Losses must agree; the ratio is that of the median update times (above 1: the native operator is faster). The table goes into
docs/performance.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.cpp_extension import load

from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import mlp
from rl_training.types import EnvSpec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from jobs import ROOT, write_section  # noqa: E402

TASK = EnvSpec("HalfCheetah-v5", (17,), "continuous", (6,), "float32", (-1.0,) * 6, (1.0,) * 6)
UPDATES, ROUNDS = 40, 11
Forward = Callable[..., Any]


def layers_of(net: mlp.MLP) -> tuple[list[Tensor], list[Tensor]]:
    """Weights as (in, out) views, and biases."""
    return [layer.weight.t() for layer in net.layers], [layer.bias for layer in net.layers]  # type: ignore[misc]


def native_forwards(ensemble: Callable[..., Tensor]) -> dict[type, Forward]:
    """Replacements for the networks' ``forward``."""

    def mlp_forward(self: mlp.MLP, x: Tensor) -> Tensor:
        return ensemble(x, *layers_of(self), 1)[0]

    def twin_forward(self: mlp.TwinCritics, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        (weights1, biases1), (weights2, biases2) = layers_of(self.q1.net), layers_of(self.q2.net)
        q1, q2 = ensemble(torch.cat((obs, actions), dim=-1), weights1 + weights2, biases1 + biases2, 2).squeeze(-1)
        return q1, q2

    def ensemble_forward(self: mlp.EnsembleMLP, x: Tensor, members: Tensor | None = None) -> Tensor:
        chosen = range(self.num_members) if members is None else members.tolist()
        weights = [weight.unbind(0) for weight in self.weights]
        biases = [bias.squeeze(1).unbind(0) for bias in self.biases]
        flat_weights = [weight[member] for member in chosen for weight in weights]
        return ensemble(x, flat_weights, [bias[member] for member in chosen for bias in biases], len(chosen))

    return {mlp.MLP: mlp_forward, mlp.TwinCritics: twin_forward, mlp.EnsembleMLP: ensemble_forward}


def compare(algo: str, threads: int, forwards: dict[str, dict[type, Forward]]) -> str:
    """A row: updates per second of both, and the ratio."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    spec = get_algorithm_spec(algo)
    batch = {
        "obs": torch.randn(256, 17), "actions": torch.rand(256, 6) * 2 - 1, "rewards": torch.randn(256),
        "dones": torch.zeros(256), "next_obs": torch.randn(256, 17),
    }  # fmt: skip
    learners = {name: spec.build(TASK, spec.hyperparameters(), seed=1) for name in forwards}
    seconds: dict[str, list[float]] = {name: [] for name in forwards}
    losses = {}
    for turn in range(ROUNDS + 1):  # the first one warms up
        for name in list(forwards)[:: 1 if turn % 2 else -1]:
            for network, forward in forwards[name].items():
                network.forward = forward  # type: ignore[attr-defined]
            started = time.perf_counter()
            for _ in range(UPDATES):
                result = learners[name].update(batch)
            seconds[name].append((time.perf_counter() - started) / UPDATES)
            if turn == 0:
                losses[name] = result.metrics["critic_loss"]
    ratio = statistics.median(a / b for a, b in zip(seconds["torch"][1:], seconds["native"][1:], strict=True))
    rates = [f"{1 / statistics.median(seconds[name][1:]):.0f}" for name in ("torch", "native")]
    assert abs(losses["torch"] - losses["native"]) < 1e-3 * abs(losses["torch"]), losses
    return f"| {algo} | {threads} | {' | '.join(rates)} | {ratio:.2f} |"


def main() -> None:
    """Build, compare, print a table."""
    build = HERE.parents[1] / "build" / "native_mlp"
    build.mkdir(parents=True, exist_ok=True)
    flags = ["-O3", "-march=native", "-fno-math-errno"]
    extension = load("native_mlp", [str(HERE / "native_mlp.cpp")], extra_cflags=flags, build_directory=str(build))
    networks = (mlp.MLP, mlp.TwinCritics, mlp.EnsembleMLP)
    plain: dict[type, Forward] = {network: network.forward for network in networks}
    forwards = {"torch": plain, "native": native_forwards(extension.ensemble)}
    lines = ["| algorithm | threads | torch, updates/s | native | ratio |", "|---|---|---|---|---|"]
    for algo in ("sac", "td3", "redq"):
        for threads in (1, 2):
            lines.append(compare(algo, threads, forwards))
            print(lines[-1], flush=True)
    write_section(ROOT / "docs" / "performance.md", "native", "\n".join(lines))


if __name__ == "__main__":
    main()
