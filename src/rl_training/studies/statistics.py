"""Scores of several seeds and tasks in a few honest numbers.

Agarwal, Schwarzer, Castro, Courville, Bellemare: Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021, arXiv:2108.13264. Numbers agree with the authors' ``rliable`` where it is defined: point estimates to rounding,
intervals to the noise of resampling (``tests/test_statistics.py``).

Scores of a method are given as a mapping of tasks to scores (one a seed; tasks may have different numbers of seeds), as a
matrix ``(seeds, tasks)``, or as a plain sequence of the scores of one task. Every task counts the same, however many seeds it
has; ``rliable`` knows equal numbers only.

How it is computed: a bootstrap sample is a row of weights, how often each score was drawn. So values are sorted once, and ten
thousand samples are a few products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rl_training.types import DataError

Array: TypeAlias = npt.NDArray[np.float64]
Scores: TypeAlias = "Mapping[str, npt.ArrayLike] | npt.ArrayLike"
"""Task to scores of its seeds; or a matrix (seeds, tasks); or the scores of one task."""
StatisticName: TypeAlias = Literal["mean", "median", "iqm", "optimality_gap"]

CONFIDENCE = 0.95
RESAMPLES = 10_000
_LEAST_SEEDS = 2


class Estimate(NamedTuple):
    """A number and its bootstrap confidence interval; without an interval, ``note`` says why there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {key: value for key, value in self._asdict().items() if value is not None or key in ("low", "high")}


class Profile(NamedTuple):
    """A performance profile: at each threshold the fraction of runs above it, and pointwise intervals if there are any."""

    thresholds: Array
    fractions: Array
    low: Array | None
    high: Array | None


class Band(NamedTuple):
    """A mean curve over runs: at each step the mean, its interval (NaN where there is none) and how many runs it is of."""

    mean: Array
    low: Array
    high: Array
    runs: npt.NDArray[np.int64]


def mean(scores: Scores) -> float:
    """Mean over tasks of the mean over seeds. One outstanding task can carry it."""
    return _point("mean", scores)


def median(scores: Scores) -> float:
    """Median over tasks of the mean over seeds, as the field reports it; for a single task it is therefore its mean."""
    return _point("median", scores)


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of the middle half of all runs of all tasks.

    ``floor(n / 4)`` runs are dropped at either end, as in ``scipy.stats.trim_mean``, which ``rliable`` uses: with fewer than
    four runs nothing is dropped. Where tasks have different numbers of seeds, runs are weighted so that every task counts
    the same, and a run at the border of the middle half counts with the part of its weight that lies inside.
    """
    return _point("iqm", scores)


def optimality_gap(scores: Scores, *, target: float = 1.0) -> float:
    """How far runs fall short of ``target`` on average; what exceeds it earns nothing. Smaller is better."""
    return _point("optimality_gap", scores, target=target)


def estimate(
    statistic: StatisticName,
    scores: Scores,
    *,
    target: float = 1.0,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic with its stratified-bootstrap percentile interval: seeds are drawn anew within each task.

    The interval tells how much the number would vary with other seeds on the same tasks. One seed cannot tell: if a task has
    only one, there is no interval.
    """
    pool = _Pool.of(scores)
    function = _statistic(statistic, target)
    value = float(function(pool, pool.once())[0])
    if (note := _no_interval(pool)) is not None:
        return Estimate(value, note=note)
    return Estimate(value, *_percentiles(function(pool, pool.resampled(_generator(seed), resamples)), confidence))


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """The chance that a run of ``x`` scores higher than a run of ``y`` on the same task, averaged over tasks.

    The Mann-Whitney form: the share of all pairs of runs that ``x`` wins, a tie counting half.
    """
    one, two = _Pool.of(x), _Pool.of(y)
    wins = _wins(one, two)
    return float(_improvement(wins, one, two, one.once(), two.once())[0])


def improvement_estimate(
    x: Scores, y: Scores, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """:func:`probability_of_improvement` with its interval: the seeds of either side are drawn anew within each task."""
    one, two = _Pool.of(x), _Pool.of(y)
    wins = _wins(one, two)
    value = float(_improvement(wins, one, two, one.once(), two.once())[0])
    note = _no_interval(one) or _no_interval(two)
    if note is not None:
        return Estimate(value, note=note)
    generator = _generator(seed)
    drawn = _improvement(wins, one, two, one.resampled(generator, resamples), two.resampled(generator, resamples))
    return Estimate(value, *_percentiles(drawn, confidence))


def performance_profile(
    scores: Scores,
    thresholds: npt.ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 2_000,
    seed: int = 0,
) -> Profile:
    """The run-score distribution: for each threshold, the fraction of runs whose score is greater, averaged over tasks.

    One curve that lies above another everywhere belongs to the better method, whatever statistic one likes.
    """
    pool = _Pool.of(scores)
    levels = np.asarray(thresholds, dtype=np.float64)
    above = (pool.values[:, np.newaxis] > levels).astype(np.float64)  # (runs, thresholds)
    shares = pool.shares()
    fractions = (pool.once() * shares @ above)[0]
    if _no_interval(pool) is not None:
        return Profile(levels, fractions, None, None)
    drawn = pool.resampled(_generator(seed), resamples) * shares @ above
    low, high = np.quantile(drawn, _tails(confidence), axis=0)
    return Profile(levels, fractions, low, high)


def mean_curve(values: npt.ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = 2_000, seed: int = 0) -> Band:
    """The mean of curves ``(runs, steps)`` and its pointwise bootstrap band; NaN where a run has no value.

    Whole runs are drawn, so the band keeps together what belongs to one run. Where fewer than two runs have a value there is
    no band.
    """
    curves = np.asarray(values, dtype=np.float64)
    if curves.ndim != 2 or 0 in curves.shape or np.isinf(curves).any():
        raise DataError(f"curves must be a matrix (runs, steps) of finite numbers or NaN, got shape {curves.shape}")
    known = np.isfinite(curves)
    filled, present = np.where(known, curves, 0.0), known.astype(np.float64)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        average = filled.sum(axis=0) / count
    low = np.full(curves.shape[1], np.nan)
    high = low.copy()
    banded = count >= _LEAST_SEEDS
    if banded.any():
        drawn = _counts(_generator(seed), len(curves), resamples)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (drawn @ filled[:, banded]) / (drawn @ present[:, banded])  # NaN: none of the drawn runs gets here
        low[banded], high[banded] = np.nanquantile(means, _tails(confidence), axis=0)
    return Band(average, low, high, count)


def normalized(scores: Mapping[str, npt.ArrayLike], bounds: Mapping[str, tuple[float, float]]) -> dict[str, Array]:
    """Scores on a scale of each task where its two bounds are 0 and 1."""
    scaled = {}
    for task, values in scores.items():
        low, high = bounds[task]
        if not high > low:
            raise DataError(f"{task}: the upper bound of the scale must exceed the lower, got {low} and {high}")
        scaled[task] = (_vector(values, task) - low) / (high - low)
    return scaled


@dataclass(frozen=True)
class _Pool:
    """The scores of all tasks in a row, task after task."""

    values: Array  # (runs,)
    sizes: tuple[int, ...]  # seeds of each task
    names: tuple[str, ...]

    @classmethod
    def of(cls, scores: Scores) -> _Pool:
        if isinstance(scores, Mapping):
            tasks = {str(name): _vector(values, str(name)) for name, values in scores.items()}
        else:
            matrix = _numbers(scores, "scores")
            if matrix.ndim not in (1, 2):
                raise DataError(
                    f"scores must be a list, a matrix (seeds, tasks) or a mapping of tasks, got {matrix.ndim} axes"
                )
            columns = matrix.reshape(len(matrix), -1).T
            tasks = {f"task {index}": _vector(column, f"task {index}") for index, column in enumerate(columns)}
        if not tasks:
            raise DataError("there are no scores: no task was given")
        return cls(np.concatenate(list(tasks.values())), tuple(map(len, tasks.values())), tuple(tasks))

    def slices(self) -> list[slice]:
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def shares(self) -> Array:
        """Each run's share of a mean over tasks of means over seeds: they sum to 1."""
        return np.concatenate([np.full(size, 1.0 / (size * len(self.sizes))) for size in self.sizes])

    def once(self) -> Array:
        """Weights of the sample as it is: every run once. ``(1, runs)``."""
        return np.ones((1, len(self.values)))

    def resampled(self, generator: np.random.Generator, resamples: int) -> Array:
        """Weights of bootstrap samples: within each task, as many seeds as it has, with replacement. ``(resamples, runs)``."""
        return np.concatenate([_counts(generator, size, resamples) for size in self.sizes], axis=1)


def _counts(generator: np.random.Generator, size: int, resamples: int) -> Array:
    """How often each of ``size`` runs is drawn in ``size`` draws, ``resamples`` times."""
    if resamples < 1:
        raise DataError(f"resamples must be >= 1, got {resamples}")
    return generator.multinomial(size, np.full(size, 1.0 / size), size=resamples).astype(np.float64)


def _numbers(values: npt.ArrayLike, what: str) -> Array:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{what} must be numbers, rows of equal length; give a mapping where seeds differ in number") from None
    if array.size == 0:
        raise DataError(f"{what}: there are no scores")
    if not np.isfinite(array).all():
        where = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise DataError(
            f"{what} has the value {array[where]} at {', '.join(map(str, where))}: a run without a score cannot be averaged. "
            "Leave it out and say so, or give it the score it deserves"
        )
    return array


def _vector(values: npt.ArrayLike, task: str) -> Array:
    array = _numbers(values, f"task {task!r}")
    if array.ndim != 1:
        raise DataError(f"task {task!r}: scores must be one number a seed, got shape {array.shape}")
    return array


def _no_interval(pool: _Pool) -> str | None:
    """Why there is no interval, if there is none."""
    lonely = [name for name, size in zip(pool.names, pool.sizes, strict=True) if size < _LEAST_SEEDS]
    if not lonely:
        return None
    return "no interval: one seed" + ("" if len(pool.sizes) == 1 else f" on {', '.join(lonely[:3])}")


def _task_means(pool: _Pool, weights: Array) -> Array:
    columns = [weights[:, part] @ pool.values[part] / size for part, size in zip(pool.slices(), pool.sizes, strict=True)]
    return np.stack(columns, axis=1)  # (samples, tasks)


def _mean(pool: _Pool, weights: Array) -> Array:
    averages: Array = _task_means(pool, weights).mean(axis=1)
    return averages


def _median(pool: _Pool, weights: Array) -> Array:
    medians: Array = np.median(_task_means(pool, weights), axis=1)
    return medians


def _iqm(pool: _Pool, weights: Array) -> Array:
    total = len(pool.values)
    order = np.argsort(pool.values, kind="stable")
    # every task has the same weight; with equal numbers of seeds every run weighs exactly 1, and sums stay exact
    weighed = weights[:, order] * (pool.shares()[order] * total if len(set(pool.sizes)) > 1 else 1.0)
    above = np.cumsum(weighed, axis=1)  # weight up to and including each run
    cut = total // 4
    kept = np.clip(above, cut, total - cut) - np.clip(above - weighed, cut, total - cut)
    averages: Array = kept @ pool.values[order] / kept.sum(axis=1)
    return averages


def _statistic(name: str, target: float) -> Callable[[_Pool, Array], Array]:
    def gap(pool: _Pool, weights: Array) -> Array:
        return target - _mean(_Pool(np.minimum(pool.values, target), pool.sizes, pool.names), weights)

    known = {"mean": _mean, "median": _median, "iqm": _iqm, "optimality_gap": gap}
    if name not in known:
        raise DataError(f"statistic must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def _point(name: StatisticName, scores: Scores, *, target: float = 1.0) -> float:
    pool = _Pool.of(scores)
    return float(_statistic(name, target)(pool, pool.once())[0])


def _wins(one: _Pool, two: _Pool) -> list[Array]:
    """For each task and each pair of runs 1, 1/2 or 0: whether the first scores higher."""
    if sorted(one.names) != sorted(two.names):
        raise DataError(f"both must have scores on the same tasks, got {', '.join(one.names)} and {', '.join(two.names)}")
    parts = dict(zip(two.names, two.slices(), strict=True))
    wins = []
    for name, part in zip(one.names, one.slices(), strict=True):
        difference = one.values[part][:, np.newaxis] - two.values[parts[name]]
        wins.append((np.sign(difference) + 1.0) / 2.0)
    return wins


def _improvement(wins: list[Array], one: _Pool, two: _Pool, first: Array, second: Array) -> Array:
    parts = dict(zip(two.names, two.slices(), strict=True))
    chances = [
        ((first[:, part] @ won) * second[:, parts[name]]).sum(axis=1) / won.size
        for name, part, won in zip(one.names, one.slices(), wins, strict=True)
    ]
    averages: Array = np.mean(chances, axis=0)
    return averages


def _tails(confidence: float) -> list[float]:
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence must be between 0 and 1, got {confidence}")
    return [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]


def _percentiles(drawn: Array, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, _tails(confidence))
    return float(low), float(high)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
