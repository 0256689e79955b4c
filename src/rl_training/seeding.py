"""One tree of seeds: every random stream of a run has its own branch of the run's seed.

A branch is found by its path, not by the order of calls, so adding a stream or an episode changes no other.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

Stream: TypeAlias = Literal["init", "explore", "sample", "episode", "evaluate", "data", "ope"]
_STREAMS: dict[Stream, int] = {"init": 0, "explore": 1, "sample": 2, "episode": 3, "evaluate": 4, "data": 5, "ope": 6}


def stream_seed(seed: int, stream: Stream, *path: int) -> int:
    """The 32-bit seed at one branch, e.g. ``stream_seed(1, "episode", env_index, episode)``."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(_STREAMS[stream], *path))
    return int(sequence.generate_state(1)[0])
