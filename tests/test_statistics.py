"""Statistics over seeds: values worked by hand, agreement with rliable, and what cannot be averaged."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_config

from rl_training.runtime.training import train
from rl_training.studies import statistics
from rl_training.studies.statistics import (
    estimate,
    improvement_estimate,
    mean_curve,
    normalized,
    performance_profile,
    probability_of_improvement,
)
from rl_training.types import DataError

NAMES = ("mean", "median", "iqm", "optimality_gap")


def some_scores(seeds: int = 7, tasks: int = 5, *, seed: int = 0, shift: float = 0.0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.gamma(2.0, 0.4, size=(seeds, tasks)) + shift + np.linspace(0, 1, tasks)


def test_one_task_by_hand() -> None:
    scores = [5.0, 1.0, 2.0, 3.0, 100.0]
    assert statistics.mean(scores) == pytest.approx(22.2)
    assert statistics.iqm(scores) == pytest.approx((2 + 3 + 5) / 3)  # floor(5 / 4) = 1 is dropped at either end
    assert statistics.median(scores) == pytest.approx(22.2)  # over tasks, of which there is one
    assert statistics.optimality_gap(scores, target=4.0) == pytest.approx(4 - (4 + 1 + 2 + 3 + 4) / 5)


def test_fewer_than_four_runs_are_not_trimmed() -> None:
    assert statistics.iqm([1.0, 2.0, 6.0]) == 3.0


def test_several_tasks_by_hand() -> None:
    scores = {"a": [0.0, 2.0], "b": [4.0, 6.0], "c": [10.0, 30.0]}
    assert statistics.mean(scores) == pytest.approx((1 + 5 + 20) / 3)
    assert statistics.median(scores) == 5.0
    assert statistics.iqm(scores) == pytest.approx((2 + 4 + 6 + 10) / 4)


def test_every_task_counts_the_same_however_many_seeds_it_has() -> None:
    few, many = {"a": [1.0, 2.0], "b": [5.0, 7.0]}, {"a": [1.0, 2.0] * 3, "b": [5.0, 7.0]}
    for name in ("mean", "median", "optimality_gap"):
        assert getattr(statistics, name)(many) == pytest.approx(getattr(statistics, name)(few)), name
    # 8 runs of total weight 8: those of a weigh 2/3, those of b weigh 2; 2 are cut at either end: 2 and 5 remain
    assert statistics.iqm(many) == pytest.approx(3.5)
    assert statistics.iqm(few) == pytest.approx(3.5)
    assert probability_of_improvement(many, few) == pytest.approx(0.5)


def test_probability_of_improvement_counts_a_tie_half() -> None:
    assert probability_of_improvement([1.0, 2.0], [0.0, 0.5]) == 1.0
    assert probability_of_improvement([1.0, 2.0], [2.0, 3.0]) == pytest.approx((0 + 0 + 0.5 + 0) / 4)
    assert probability_of_improvement({"a": [1.0], "b": [0.0]}, {"b": [1.0], "a": [0.0]}) == 0.5


def test_an_interval_is_reproducible_and_contains_its_value() -> None:
    scores = some_scores()
    for name in NAMES:
        first, second = estimate(name, scores, seed=3), estimate(name, scores, seed=3)
        assert first == second
        assert first.low is not None
        assert first.high is not None
        assert first.low < first.value < first.high
        wider = estimate(name, scores, confidence=0.99)
        assert wider.high - wider.low > first.high - first.low  # type: ignore[operator]
        assert estimate(name, scores, seed=4) != first


def test_equal_scores_have_an_interval_without_width() -> None:
    assert estimate("iqm", [2.0, 2.0, 2.0])[:3] == (2.0, 2.0, 2.0)


def test_seeds_are_resampled_within_their_task() -> None:
    """No spread within tasks, much between them: an interval that mixed tasks would be wide."""
    scores = {"a": [0.0, 0.0, 0.0], "b": [100.0, 100.0, 100.0]}
    assert estimate("mean", scores)[:3] == (50.0, 50.0, 50.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator, covered = np.random.default_rng(0), 0
    for _ in range(300):
        found = estimate("mean", generator.normal(size=20), resamples=500)
        covered += found.low <= 0.0 <= found.high  # type: ignore[operator]
    assert 0.88 < covered / 300 < 0.98


def test_one_seed_has_no_interval_and_says_so() -> None:
    assert estimate("iqm", [3.0]) == (3.0, None, None, "no interval: one seed")
    found = estimate("mean", {"a": [1.0, 2.0], "b": [3.0]})
    assert (found.value, found.low) == (2.25, None)
    assert found.note == "no interval: one seed on b"
    assert improvement_estimate([1.0, 2.0], [0.0]).note == "no interval: one seed"
    assert performance_profile([3.0], [0.0]).low is None
    assert found.to_dict() == {"value": 2.25, "low": None, "high": None, "note": "no interval: one seed on b"}


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, np.nan], "has the value nan at 1"),
        ({"a": [1.0], "b": [np.inf, 1.0]}, "task 'b' has the value inf at 0"),
        (np.array([[1.0, np.nan]]), "has the value nan at 0, 1"),
        ([], "there are no scores"),
        ({}, "no task was given"),
        ({"a": []}, "task 'a': there are no scores"),
        ([[1.0], [1.0, 2.0]], "give a mapping where seeds differ in number"),
        (["one"], "must be numbers"),
        ({"a": [[1.0]]}, "one number a seed"),
        (np.zeros((2, 2, 2)), "got 3 axes"),
    ],
)
def test_what_cannot_be_averaged_is_refused(scores: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        statistics.iqm(scores)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(DataError, match="statistic must be one of mean"):
        estimate("mode", [1.0])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="confidence must be between 0 and 1"):
        estimate("mean", [1.0, 2.0], confidence=95)
    with pytest.raises(DataError, match="resamples must be >= 1"):
        estimate("mean", [1.0, 2.0], resamples=0)
    with pytest.raises(DataError, match="on the same tasks, got a and b"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(DataError, match="upper bound of the scale"):
        normalized({"a": [1.0]}, {"a": (2.0, 2.0)})


def test_normalized() -> None:
    assert normalized({"a": [0.0, 50.0, 150.0]}, {"a": (0.0, 100.0)})["a"].tolist() == [0.0, 0.5, 1.5]


def test_performance_profile() -> None:
    found = performance_profile({"a": [0.0, 1.0], "b": [1.0, 2.0, 2.0]}, [-1.0, 0.0, 1.0, 2.0])
    assert found.fractions.tolist() == pytest.approx([1.0, 0.75, 1 / 3, 0.0])  # strictly greater
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.fractions).all()
    assert (found.high >= found.fractions).all()


def test_mean_curve_where_runs_end_at_different_steps() -> None:
    found = mean_curve([[0.0, 1.0, 2.0, np.nan], [2.0, 3.0, np.nan, np.nan], [4.0, 5.0, 6.0, 9.0]])
    assert found.mean.tolist() == [2.0, 3.0, 4.0, 9.0]
    assert found.runs.tolist() == [3, 3, 2, 1]
    assert (found.low[:3] < found.mean[:3]).all()
    assert (found.high[:3] > found.mean[:3]).all()
    assert np.isnan([found.low[3], found.high[3]]).all()
    with pytest.raises(DataError, match="matrix"):
        mean_curve([1.0, 2.0])


# -- beside rliable ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_scores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Evaluations of short real runs: five seeds, and as tasks the evaluations on the way."""
    rows = []
    for seed in range(5):
        run = train(tiny_config("sac", tmp_path_factory.mktemp("runs"), seed=seed, eval_interval=24))
        with (run.run_dir / "evaluations.csv").open() as file:
            rows.append([float(row["return"]) for row in csv.DictReader(file)])
    scores = np.array(rows)
    return (scores - scores.min(axis=0)) / (scores.max(axis=0) - scores.min(axis=0))


@pytest.fixture(scope="module")
def rliable() -> Any:
    """Its library and metrics. It needs arch < 8, which calls a private function of pandas that pandas 3 changed."""
    if importlib.util.find_spec("rliable") is None:
        pytest.skip("rliable is not installed")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decorators = importlib.import_module("pandas.util._decorators")
        patch.setattr(decorators, "deprecate_kwarg", lambda *arguments, **options: lambda function: function)
        return importlib.import_module("rliable.library"), importlib.import_module("rliable.metrics")


def functions_of(metrics: Any) -> dict[str, Any]:
    return {
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "iqm": metrics.aggregate_iqm,
        "optimality_gap": metrics.aggregate_optimality_gap,
    }


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (1, 6), (3, 4), (5, 5), (10, 3), (11, 7)])
def test_point_estimates_are_those_of_rliable(shape: tuple[int, int], rliable: Any) -> None:
    _, metrics = rliable
    for seed in range(5):
        scores, others = some_scores(*shape, seed=seed), some_scores(shape[0] + 1, shape[1], seed=100 + seed, shift=0.1)
        for name, function in functions_of(metrics).items():
            assert getattr(statistics, name)(scores) == pytest.approx(float(function(scores)), abs=1e-6), name
        tied = np.round(scores, 1), np.round(others, 1)
        for x, y in ((scores, others), (others, scores), tied, (scores, scores)):
            assert probability_of_improvement(x, y) == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-6)


def test_point_estimates_on_real_curves_are_those_of_rliable(real_scores: Any, rliable: Any) -> None:
    _, metrics = rliable
    for name, function in functions_of(metrics).items():
        assert getattr(statistics, name)(real_scores) == pytest.approx(float(function(real_scores)), abs=1e-6), name


@pytest.mark.parametrize("which", ["made up", "real"])
def test_intervals_are_those_of_rliable_up_to_the_noise_of_resampling(which: str, real_scores: Any, rliable: Any) -> None:
    library, metrics = rliable
    scores = some_scores(6, 4) if which == "made up" else real_scores
    np.random.seed(0)  # rliable draws from the global generator
    for name, function in functions_of(metrics).items():
        _, theirs = library.get_interval_estimates(
            {"x": scores}, lambda values, function=function: np.array([function(values)]), reps=4_000
        )
        low, high = theirs["x"].ravel()
        ours = estimate(name, scores, resamples=40_000)  # type: ignore[arg-type]
        width = high - low
        assert ours.low == pytest.approx(low, abs=0.06 * width), name
        assert ours.high == pytest.approx(high, abs=0.06 * width), name


def test_improvement_interval_is_that_of_rliable_up_to_noise(rliable: Any) -> None:
    library, metrics = rliable
    x, y = some_scores(5, 3), some_scores(8, 3, seed=1, shift=-0.2)
    np.random.seed(0)
    _, theirs = library.get_interval_estimates(
        {"x": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=1_500
    )
    low, high = theirs["x"].ravel()
    ours = improvement_estimate(x, y, resamples=40_000)
    assert ours.low == pytest.approx(low, abs=0.04)
    assert ours.high == pytest.approx(high, abs=0.04)


def test_performance_profile_is_that_of_rliable(rliable: Any) -> None:
    library, _ = rliable
    scores, levels = some_scores(5, 4), np.linspace(0, 2, 21)
    np.random.seed(0)
    profiles, intervals = library.create_performance_profile({"x": scores}, levels, reps=1_500)
    ours = performance_profile(scores, levels)
    np.testing.assert_allclose(ours.fractions, profiles["x"], atol=1e-6)
    np.testing.assert_allclose(np.array([ours.low, ours.high]), intervals["x"], atol=0.08)


def test_statistics_do_not_touch_the_global_generator(tmp_path: Path) -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr,index]
    estimate("iqm", some_scores())
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr,index]
