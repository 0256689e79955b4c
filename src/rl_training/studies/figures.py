"""Learning curves, intervals and profiles as inline SVG, drawn by matplotlib in colours that the page chooses."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.studies import statistics
from rl_training.studies.curves import (
    align_curves,
    shorten,
)
from rl_training.studies.evidence import Aggregate, GroupEvidence, Reference
from rl_training.studies.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Colours that stand for others: after drawing, each becomes a CSS colour, which the page sets for light and dark mode.
_INK, _FAINT, _FIRST_SERIES = "#000001", "#000002", 16
SERIES_COLOURS = 10
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))  # once colours repeat, dashes tell series apart
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.parse_math": False,
}
_WIDTH = 4.8  # inches; 346 points, about the width of a phone, so that text is readable there and larger elsewhere


def _colour(series: int) -> str:
    return f"#0000{_FIRST_SERIES + series % SERIES_COLOURS:02x}"


def _dash(series: int) -> Any:
    return _DASHES[series // SERIES_COLOURS % len(_DASHES)]


def _new_figure(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _to_svg(figure: Figure, name: str) -> str:
    """An SVG element for an HTML page: sized by the page, coloured by it, with names of its own."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    size = re.search(r'viewBox="([^"]+)"', svg)
    assert size is not None  # matplotlib's always has one
    svg = re.sub(r"<svg[^>]*>", f'<svg viewBox="{size[1]}" class="plot" aria-hidden="true" focusable="false">', svg, count=1)
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="series-(\d+)(?:-\w+)?"', r'data-series="\1"', svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = svg.replace(_INK, "currentColor").replace(_FAINT, "var(--faint)")
    return re.sub(r"#0000([12][0-9a-f])\b", lambda found: f"var(--s{int(found[1], 16) - _FIRST_SERIES})", svg)


def draw_curves(
    groups: Sequence[GroupEvidence], references: Mapping[str, Reference] | None = None, *, name: str = "curves"
) -> str | None:
    """Mean returns of evaluations over steps with 95 % bands, as an SVG element. None if nothing was evaluated."""
    import matplotlib
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(3.0)
        drawn = [_draw_curve(axes, found) for found in groups]
        if not any(drawn):
            return None
        for algo, reference in (references or {}).items():
            series = [found.series for found in groups if found.group.algo == algo]
            colour = _colour(series[0]) if len(series) == 1 else _INK
            line = axes.axhline(reference.score, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            line.set_gid(f"series-{series[0]}-published" if len(series) == 1 else "published")
        axes.set_xlabel("gradient steps" if groups[0].group.runs[0].learns_from_data else "environment steps")
        axes.set_ylabel("evaluation return")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
        axes.margins(x=0.02)
        axes.grid(axis="x", visible=False)
        return _to_svg(figure, name)


def _draw_curve(axes: Axes, found: GroupEvidence) -> bool:
    steps, values = align_curves(found.group.runs)
    if not len(steps):
        return False
    band, colour = statistics.mean_curve(values), _colour(found.series)
    everyone = band.runs == len(values)
    marker = "o" if len(steps) <= 12 else None
    options: dict[str, Any] = {"color": colour, "linewidth": 1.6, "marker": marker, "markersize": 2.6}
    whole = np.where(everyone, band.mean, np.nan)
    (line,) = axes.plot(steps, whole, linestyle=_dash(found.series), **options)
    line.set_gid(f"series-{found.series}-line")
    if not everyone.all():  # dotted where some runs are missing, joined to the solid part
        beside = everyone.copy()
        beside[:-1] &= everyone[1:]
        beside[1:] &= everyone[:-1]
        (rest,) = axes.plot(steps, np.where(beside, np.nan, band.mean), linestyle=":", **{**options, "linewidth": 1.2})
        rest.set_gid(f"series-{found.series}-rest")
    if len(values) > 1:
        area = axes.fill_between(steps, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
        area.set_gid(f"series-{found.series}-band")
    return True


def _thousands(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def draw_intervals(estimates: Mapping[str, Estimate], series: Mapping[str, int], *, name: str = "intervals") -> str:
    """Values and intervals of one statistic, a row a label, as an SVG element."""
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(0.45 + 0.38 * len(estimates))
        for row, (label, found) in enumerate(estimates.items()):
            colour = _colour(series[label])
            if found.low is not None and found.high is not None:
                (bar,) = axes.plot([found.low, found.high], [row, row], color=colour, linewidth=6, alpha=0.4)
                bar.set_solid_capstyle("butt")
                bar.set_gid(f"series-{series[label]}-interval")
            (dot,) = axes.plot([found.value], [row], marker="|", markersize=10, markeredgewidth=2.2, color=colour)
            dot.set_gid(f"series-{series[label]}-value")
            text = axes.text(0, row - 0.28, shorten(label, 44), transform=axes.get_yaxis_transform(), va="bottom", fontsize=8)
            text.set_gid(f"series-{series[label]}-label")
            told = axes.text(
                1, row - 0.28, _told(found), transform=axes.get_yaxis_transform(), va="bottom", ha="right", fontsize=8
            )
            told.set_gid(f"series-{series[label]}-told")
        axes.set_ylim(len(estimates) - 0.5, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.04)
        return _to_svg(figure, name)


def _told(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.3g}"
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def draw_profile(aggregate: Aggregate, series: Mapping[str, int], *, name: str = "profile") -> str:
    """Performance profiles with their bands, as an SVG element."""
    import matplotlib

    every = np.concatenate([values for by_task in aggregate.scores.values() for values in by_task.values()])
    low, high = float(min(every.min(), 0.0)), float(max(every.max(), 1.0))
    thresholds = np.linspace(low - 0.02 * (high - low), high, 160)
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _new_figure(2.7)
        for label in aggregate.labels:
            profile = statistics.performance_profile(aggregate.scores[label], thresholds)
            colour, number = _colour(series[label]), series[label]
            (line,) = axes.plot(
                thresholds, profile.fractions, color=colour, linewidth=1.6, linestyle=_dash(number), drawstyle="steps-post"
            )
            line.set_gid(f"series-{number}-line")
            if profile.low is not None and profile.high is not None:
                area = axes.fill_between(
                    thresholds, profile.low, profile.high, color=colour, alpha=0.18, linewidth=0, step="post"
                )
                area.set_gid(f"series-{number}-band")
        axes.set_xlabel("normalised score")
        axes.set_ylabel("fraction of runs above it")
        axes.set_ylim(-0.03, 1.03)
        return _to_svg(figure, name)
