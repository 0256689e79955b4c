"""The matrix multiplies of one update and nothing else: what any implementation on this BLAS has to pay; see gate.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from gate import gate_of, job

Shape = tuple[int, int, int]
"""(m, k, n) of an (m, k) by (k, n) product."""


def forward(batch: int, sizes: Sequence[int]) -> list[Shape]:
    """Through a network."""
    return [(batch, given, made) for given, made in pairwise(sizes)]


def backward(batch: int, sizes: Sequence[int], *, weights: bool, inputs: bool) -> list[Shape]:
    """Back through it: gradients of the weights, and of the inputs of every layer (of the first one only if asked for)."""
    shapes: list[Shape] = []
    for index, (given, made) in enumerate(pairwise(sizes)):
        if weights:
            shapes.append((given, batch, made))
        if index > 0 or inputs:
            shapes.append((batch, made, given))
    return shapes


def sac(batch: int, obs: int, actions: int, hidden: Sequence[int], critics: int = 2) -> list[Shape]:
    """SAC: targets, critics, actor. 45 products with two critics of two hidden layers."""
    actor, critic = [obs, *hidden, 2 * actions], [obs + actions, *hidden, 1]
    return [
        *forward(batch, actor),
        *forward(batch, critic) * critics,
        *forward(batch, critic) * critics,
        *backward(batch, critic, weights=True, inputs=False) * critics,
        *forward(batch, actor),
        *forward(batch, critic) * critics,
        *backward(batch, critic, weights=False, inputs=True) * critics,
        *backward(batch, actor, weights=True, inputs=False),
    ]


def main() -> None:
    """Multiply for ever, through the gate."""
    work = job()
    torch.set_num_threads(work["threads"])
    shapes = sac(work["batch"], 17, 6, work["hidden_sizes"], work.get("critics", 2))
    operands = [(torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)) for m, k, n in shapes]
    gate = gate_of(work)
    with torch.inference_mode():
        while True:
            for left, right, out in operands:
                torch.mm(left, right, out=out)
            gate.tick()


if __name__ == "__main__":
    main()
