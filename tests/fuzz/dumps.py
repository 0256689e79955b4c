"""What a run that met a NaN left behind, damaged, and ``rl-training doctor`` asked to explain it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from rl_training.runtime.numerics import dump_non_finite

from . import byte_mutations
from .checkpoints import JSON_VALUES, edit_json
from .command_line import RefusedByCli, run_cli
from .kinds import Kind, Recipe


def build(bases: Path) -> None:
    """One dump of a loss and one of an observation."""
    batch = {
        "obs": torch.full((4, 3), 1e4),
        "rewards": torch.tensor([1.0, float("nan"), 0.0, 2.0]),
        "actions": torch.zeros(4, 1),
    }
    common = {"tensor": "critic_loss", "value": "nan", "step": 7, "update": 3}
    metrics = {"q_mean": 1e9, "learning_rate": 3e-4, "value_loss": 2.0}
    reports = {"loss": {**common, "kind": "loss", "metrics": metrics}}
    reports["observation"] = {**common, "tensor": "obs[1]", "kind": "observation", "environment": 0}
    for name, report in reports.items():
        dump_non_finite(bases / f"dump_{name}", report, weights={"net.weight": torch.ones(3, 3)}, batch=batch)


def prepare(recipe: Recipe, bases: Path, scratch: Path) -> None:
    rng, dump = random.Random(recipe["seed"]), scratch / "dump"
    shutil.copytree(bases / f"dump_{recipe['base']}", dump)
    file = rng.choice(sorted(dump.iterdir()))
    if recipe["mutation"] == "bytes":
        file.write_bytes(byte_mutations.damage(file.read_bytes(), rng))
    elif recipe["mutation"] == "remove":
        file.unlink()
        if rng.random() < 0.5:
            file.mkdir()
    elif recipe["mutation"] == "report":
        report = json.loads((dump / "report.json").read_text())
        for _ in range(rng.choice((1, 2, 3))):
            edit_json(report, rng)
        report.setdefault("metrics", rng.choice(JSON_VALUES))
        (dump / "report.json").write_text(json.dumps(report))
    else:
        odd = (torch.zeros(0), torch.tensor(float("inf")), torch.ones(2, dtype=torch.bool), torch.full((2, 2), float("nan")))
        save_file(
            {rng.choice(("obs", "rewards", "x")): rng.choice(odd)},
            dump / rng.choice(("batch.safetensors", "weights.safetensors")),
        )


def run(recipe: Recipe, scratch: Path) -> None:
    run_cli("doctor", str(scratch / "dump"), *(["--json"] if recipe["seed"] % 2 else []))


KINDS = (
    Kind(
        "dump",
        recipes=st.fixed_dictionaries(
            {
                "base": st.sampled_from(("loss", "observation")),
                "mutation": st.sampled_from(("bytes", "remove", "report", "report", "tensors")),
                "seed": st.integers(0, 2**32 - 1),
            }
        ),
        run=run,
        prepare=prepare,
        build=build,
        allowed=(RefusedByCli,),
        share=4,
    ),
)
