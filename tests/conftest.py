"""One thread per test process: the networks of the tests are tiny, and several workers share the machine."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
