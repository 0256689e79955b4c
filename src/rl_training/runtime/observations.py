"""Observations as people give them, brought to the one form that policies take. Imports no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rl_training.types import DataError


def as_batch(obs: npt.ArrayLike, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float32], bool]:
    """Observations ``(batch, *shape)``, and whether a single one was given; refuses other shapes and what is not finite."""
    try:
        array = np.array(obs, dtype=np.float32)
    except (TypeError, ValueError):
        raise DataError(f"an observation must be numbers of shape {shape}, got {str(obs)[:80]}") from None
    if array.shape == shape:
        array, single = array[np.newaxis], True
    elif array.ndim == len(shape) + 1 and array.shape[1:] == shape:
        single = False
    else:
        raise DataError(f"observation has shape {array.shape}, expected {shape}, or (batch, {shape[0]}) for a batch")
    if not np.isfinite(array).all():
        row, column = (int(index) for index in np.argwhere(~np.isfinite(array))[0])
        raise DataError(f"observation {row} has the value {array[row, column]} at index {column}")
    return array, single
