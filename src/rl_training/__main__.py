"""``python -m rl_training``."""

import sys

from rl_training.cli import main

sys.exit(main())
