"""d3rlpy as a contestant: the update loop of ``fit``, sampling included; see gate.py."""

from __future__ import annotations

from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from gate import gate_of, job

NAMES = {
    "bc": "BCConfig",
    "td3_bc": "TD3PlusBCConfig",
    "iql": "IQLConfig",
    "cql": "CQLConfig",
    "awac": "AWACConfig",
    "rebrac": "ReBRACConfig",
}


def main() -> None:
    """Fit for ever, through the gate."""
    work: dict[str, Any] = job()
    torch.set_num_threads(work["threads"])
    rows, rng = 100_000, np.random.default_rng(0)
    timeouts = np.zeros(rows)
    timeouts[999::1000] = 1
    dataset = MDPDataset(
        rng.standard_normal((rows, 17), dtype=np.float32),
        rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rng.standard_normal(rows, dtype=np.float32),
        np.zeros(rows),
        timeouts=timeouts,
    )
    settings = dict(work["settings"])
    hidden, layer_norm = settings.pop("hidden_sizes"), settings.pop("layer_norm", False)
    actor = d3rlpy.models.VectorEncoderFactory(hidden)
    critic = d3rlpy.models.VectorEncoderFactory(hidden, use_layer_norm=layer_norm)
    encoders = (
        {"encoder_factory": actor}
        if work["algo"] == "bc"
        else {"actor_encoder_factory": actor, "critic_encoder_factory": critic}
    )
    if work["algo"] == "iql":
        encoders["value_encoder_factory"] = critic
    config = getattr(d3rlpy.algos, NAMES[work["algo"]])(**encoders, **settings)
    gate = gate_of(work)
    config.create(device="cpu:0").fit(
        dataset,
        n_steps=10**9,
        n_steps_per_epoch=10**9,
        show_progress=False,
        logger_adapter=NoopAdapterFactory(),
        callback=lambda algo, epoch, step: gate.tick(),
    )


if __name__ == "__main__":
    main()
