"""One self-contained HTML file that asks the network for nothing.

Numbers come from :mod:`rl_training.studies.evidence`. Jinja fills the page in with everything escaped: names of runs and
settings are somebody's text.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rl_training import __version__
from rl_training.experiment.files import write_atomically, writing
from rl_training.studies.animation import Animation, animate_best
from rl_training.studies.curves import (
    differing,
    short_name,
    show,
)
from rl_training.studies.evidence import (
    FEW_SEEDS,
    STATISTIC_TITLES,
    Evidence,
    Reference,
    gather_evidence,
    read_references,
    references_on,
)
from rl_training.studies.figures import SERIES_COLOURS, draw_curves, draw_intervals, draw_profile
from rl_training.types import ConfigError

if TYPE_CHECKING:
    pass


def write_report(
    paths: Sequence[str | Path],
    output: str | Path = "report.html",
    *,
    title: str | None = None,
    video: bool = True,
    references: str | Path | None = None,
) -> Evidence:
    """Read runs, and write what they show into one HTML file that needs nothing else. Returns what is in it."""
    _require_extra()
    target = Path(output)
    if target.is_dir():
        raise ConfigError(f"{target} is a directory: name the file to write, e.g. {target / 'report.html'}")
    evidence = gather_evidence(paths, references=None if references is None else read_references(references))
    animations = animate_best(evidence) if video else []
    text = render_html(
        evidence, title=title or _title(paths), base=target.absolute().parent, animations=animations, paths=paths
    )
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    return evidence


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'a report needs {" and ".join(missing)}: pip install "rl-training[report]"')


def _title(paths: Sequence[str | Path]) -> str:
    return Path(paths[0]).absolute().name if len(paths) == 1 else f"{len(paths)} studies or runs"


def render_html(
    evidence: Evidence,
    *,
    title: str,
    base: Path,
    animations: Sequence[Animation] = (),
    paths: Sequence[str | Path] = (),
) -> str:
    """The page; links to runs are relative to ``base``, the directory it will lie in."""
    import jinja2
    from markupsafe import Markup

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, duration=_duration, integrity=_integrity, show=show, setting=short_name)
    series = {label: index for index, label in enumerate(evidence.labels)}
    tasks = [
        {
            "name": task,
            "groups": evidence.on(task),
            "curves": _markup(draw_curves(evidence.on(task), _published(evidence, task), name=f"c{index}")),
            "published": _published(evidence, task),
        }
        for index, task in enumerate(evidence.tasks)
    ]
    aggregates = [
        {
            "of": aggregate,
            "intervals": [
                (STATISTIC_TITLES[statistic], Markup(draw_intervals(found, series, name=f"a{index}{statistic}")))
                for statistic, found in aggregate.estimates.items()
            ],
            "profile": Markup(draw_profile(aggregate, series, name=f"p{index}")),
        }
        for index, aggregate in enumerate(evidence.aggregates)
    ]
    settings = [found.group.settings for found in evidence.groups]
    keys = [key for key in differing(settings) if key not in ("algo", "env_id")] if len(settings) > 1 else []
    shared = {key: value for key, value in (settings[0] if settings else {}).items() if key not in differing(settings)}
    return environment.get_template("report_template.html.j2").render(
        title=title,
        evidence=evidence,
        tasks=tasks,
        aggregates=aggregates,
        series=series,
        colours=SERIES_COLOURS,
        differing=keys,
        shared=shared,
        animations=animations,
        links={run.path: _link(run.path, base) for run in evidence.runs},
        label_of={run.path: (found.series, found.group.label) for found in evidence.groups for run in found.group.runs},
        version=__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["rl-training", "report", *map(str, paths)]) if paths else "",
        few_seeds=FEW_SEEDS,
    )


def _markup(svg: str | None) -> Any:
    from markupsafe import Markup

    return None if svg is None else Markup(svg)


def _published(evidence: Evidence, task: str) -> Mapping[str, Reference]:
    return references_on(evidence.references, evidence.on(task)[0].group)


def _link(run: Path, base: Path) -> str:
    """A relative address, every odd character quoted: the name of a directory cannot become a scheme or a query."""
    try:
        relative = os.path.relpath(run.absolute(), base)
    except ValueError:  # another drive
        return run.absolute().as_uri()
    return quote(f"./{Path(relative).as_posix()}/")


def _integrity(script: str) -> str:
    """What the page's policy admits: this script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _number(value: float | None) -> str:
    """As many digits as a score has use for."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash in a table
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"  # noqa: RUF001
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
