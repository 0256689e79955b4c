"""Faults on purpose: real training processes, interrupted in every way at hand, must lose nothing.

``supervisor`` does it, ``soak`` does it for as long as asked, ``test_faults`` does a little of each in the quick suite.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `support`, also when started with python -m tests.faults.soak
