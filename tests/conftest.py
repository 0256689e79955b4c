"""One thread per test process: the networks of the tests are tiny, and several workers share the machine."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would the runs in tests
