"""``rl-training report`` and ``rl-training compare``: what runs show, as a page and on the terminal."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import Json, NoUserCode

if TYPE_CHECKING:
    from rl_training.studies.comparison import Comparison
    from rl_training.studies.evidence import Summary

app = typer.Typer()


class Score(str, Enum):
    """Which evaluation of a run is its score."""

    last = "last"
    best = "best"


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN|STUDY...", help="Run directories, or directories above some.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    video: Annotated[bool, typer.Option("--video/--no-video", help="Show the best agents at play.")] = True,
    references: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Published scores to draw: environment, algorithm, score and source."),
    ] = None,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file: curves, scores with intervals, settings, timing, runs."""
    from rl_training.studies.report import write_report

    evidence = write_report(paths, output, title=title, video=video, references=references)
    if as_json:
        print(json.dumps({"report": str(output), **evidence.to_dict()}))
        return
    counted = sum(run.counts for run in evidence.runs)
    print(f"{counted} of {len(evidence.runs)} runs counted, in {len(evidence.groups)} groups")
    for note in evidence.notes:
        print(f"note        {note}")
    print(f"report      {output}")


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="A B...", help="Runs, studies or directories of runs.")],
    metric: Annotated[Score, typer.Option(help="The evaluation at the end, or the best on the way.")] = Score.last,
    as_json: Json = False,
) -> None:
    """Scores side by side, and the probability that A is better; of a single study, its groups."""
    from rl_training.studies.comparison import compare as compare_paths

    found = compare_paths(paths, metric="last" if metric is Score.last else "best")
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    _print(found, several=len(paths) > 1)


def _print(found: Comparison, *, several: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for task, rows in found.rows.items():
        table = Table(title=Text(f"{task} ({found.metric} evaluation)"), title_justify="left")
        for name in (*(["from"] if several else []), "group"):
            table.add_column(name, overflow="fold")
        for name in ("seeds", "mean ± sd", "IQM [95 % interval]"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            names = [row.side, row.group.label] if several else [row.group.label]
            cells = [*names, str(len(row.summary.scores)), *_cells(row.summary)]
            table.add_row(*(Text(cell) for cell in cells))  # Text: a name in brackets is no markup
        console.print(table)
    for finding in found.findings:
        console.print(Text(finding.sentence()), soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _cells(summary: Summary) -> tuple[str, str]:
    spread = "" if summary.sd is None else f" ± {summary.sd:.4g}"
    low, high = summary.iqm.low, summary.iqm.high
    interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    return f"{summary.mean:.4g}{spread}", f"{summary.iqm.value:.4g}{interval}"
