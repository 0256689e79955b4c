"""One thread per test process: the networks of the tests are tiny, and several workers share the machine."""

from __future__ import annotations

import os
import random
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would the runs in tests


@pytest.fixture(autouse=True)
def same_luck_every_time() -> None:
    """Networks and data that a test draws without a seed of its own are the same in every run, on every worker."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
