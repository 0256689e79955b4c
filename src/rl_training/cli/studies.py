"""``rl-training sweep`` and ``tune``: many runs, shown as one table."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rl_training.cli.options import (
    CpusPerRun,
    DryRun,
    GpusPerRun,
    Imports,
    Json,
    Kind,
    NoUserCode,
    Overrides,
    Quiet,
    RayAddress,
    StudyName,
    StudyParent,
    StudySource,
    Workers,
)
from rl_training.types import ConfigError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rl_training.studies.executors import Event
    from rl_training.studies.spec import ExecutorSettings, RunSpec
    from rl_training.studies.study import StudyPlan, StudyResult
    from rl_training.studies.tuning import TunePlan, TuningResult

REFRESHES_PER_SECOND = 1.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(sweep)
    app.command()(tune)


def sweep(
    source: StudySource = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of every setting: 1-10 or 1,2,5.")] = None,
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="KEY=A,B", help="Values to try, e.g. algo_kwargs.tau=0.005,0.02.")
    ] = [],  # noqa: B006 - typer wants a plain default
    overrides: Overrides = [],  # noqa: B006
    executor: Kind = None,
    workers: Workers = None,
    output_dir: StudyParent = None,
    name: StudyName = None,
    imports: Imports = [],  # noqa: B006
    ray_address: RayAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Run many settings and seeds; on a study that is there, only what is missing."""
    from rl_training.studies.spec import parse_grid, parse_overrides
    from rl_training.studies.study import Study, StudyPlan, plan_from

    plan = plan_from(
        _required(source),
        seeds=seeds,
        grid=parse_grid(grid),
        overrides=parse_overrides(overrides),
        imports=imports,
        name=name,
        output_dir=output_dir,
    )
    settings = _executor(plan.executor, executor, workers, ray_address, cpus_per_run, gpus_per_run)
    plan = StudyPlan(plan.spec, plan.directory, settings).with_earlier()
    if dry_run:
        _show_plan(plan, as_json)
        return
    study = Study.from_plan(plan)
    with _watching(study.runs(), quiet=quiet) as watch:
        result = study.run(settings, on_event=watch)
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _tell_study(result)
    raise typer.Exit(result.exit_code)


def tune(
    source: StudySource = None,
    trials: Annotated[int | None, typer.Option(help="Trials in total, those that are there included.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of a trial (3).")] = None,
    space: Annotated[
        list[str],
        typer.Option("--space", metavar="KEY=VALUES", help="What to try: tau=0.002:0.05:log or batch_size=64,256."),
    ] = [],  # noqa: B006
    only: Annotated[str | None, typer.Option(metavar="KEY,KEY", help="Tune these alone.")] = None,
    objective: Annotated[str | None, typer.Option(help="mean or iqm, over the seeds' last evaluations (mean).")] = None,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none: when to give up a trial (median).")] = None,
    sampler_seed: Annotated[int | None, typer.Option(help="Seed of the proposals (0).")] = None,
    confirm: Annotated[bool, typer.Option(help="Compare the best setting with the base on fresh seeds.")] = True,
    overrides: Overrides = [],  # noqa: B006
    executor: Kind = None,
    workers: Workers = None,
    output_dir: StudyParent = None,
    name: StudyName = None,
    imports: Imports = [],  # noqa: B006
    ray_address: RayAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    no_user_code: NoUserCode = False,
    as_json: Json = False,
) -> None:
    """Look for better hyper-parameters with Optuna, and write the best as a configuration."""
    from rl_training.studies.search_space import parse_space
    from rl_training.studies.spec import parse_overrides
    from rl_training.studies.tuning import TunePlan, Tuning, plan_tuning, require_same_tuning

    plan = plan_tuning(
        _required(source),
        trials=trials,
        seeds=seeds,
        space=parse_space(space),
        only=None if only is None else [key.strip() for key in only.split(",")],
        objective=objective,
        pruner=pruner,
        sampler_seed=sampler_seed,
        overrides=parse_overrides(overrides),
        imports=imports,
        name=name,
        output_dir=output_dir,
    )
    settings = _executor(plan.executor, executor, workers, ray_address, cpus_per_run, gpus_per_run)
    if plan.trials is None or plan.trials < 1:
        raise ConfigError(f"--trials must be >= 1, got {plan.trials}" if plan.trials is not None else "give --trials N")
    plan = TunePlan(plan.spec, plan.directory, plan.trials, settings)
    require_same_tuning(plan)
    if dry_run:
        _show_tuning_plan(plan, as_json)
        return
    tuning = Tuning.from_plan(plan)
    with _watching([], quiet=quiet) as watch:
        result = tuning.run(plan.trials or 0, settings, confirm=confirm, on_event=watch)
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _tell_tuning(result, tuning.importances(), plan.trials or 0)
    raise typer.Exit(result.exit_code)


T = TypeVar("T")


def _required(source: T | None) -> T:
    if source is None:
        raise ConfigError("give a preset, a YAML file or the directory of a study; 'rl-training list' shows the presets")
    return source


def _executor(
    base: ExecutorSettings,
    kind: str | None,
    workers: int | None,
    ray_address: str | None,
    cpus_per_run: float | None,
    gpus_per_run: float | None,
) -> ExecutorSettings:
    """The file's executor with the command line's changes."""
    from rl_training.studies.spec import ExecutorSettings

    given = {
        "kind": kind,
        "workers": workers,
        "ray_address": ray_address,
        "cpus_per_run": cpus_per_run,
        "gpus_per_run": gpus_per_run,
    }
    settings = ExecutorSettings(**{**base.model_dump(), **{key: value for key, value in given.items() if value is not None}})
    if settings.kind != "ray" and (settings.ray_address or settings.cpus_per_run or settings.gpus_per_run):
        raise ConfigError(f"--ray-address, --cpus-per-run and --gpus-per-run are for --executor ray, not {settings.kind}")
    return settings


# -- showing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _watching(runs: list[RunSpec], *, quiet: bool) -> Iterator[Callable[[Event], None] | None]:
    """What shows events as they come: a live table on a terminal, a line for each ended run elsewhere, nothing if quiet."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    table = RunTable(runs, console)
    if not console.is_terminal:
        yield table.tell
        return
    with Live(get_renderable=table.render, console=console, refresh_per_second=REFRESHES_PER_SECOND):
        yield table.note


class RunTable:
    """Every run with its status, step, last evaluation and speed; those under way first, as many as fit the screen."""

    ORDER = ("running", "lost", "failed", "waiting", "finished")

    def __init__(self, runs: list[RunSpec], console: Console) -> None:
        from rl_training.studies.worker import state_of

        self._console = console
        self._started = time.monotonic()
        self._runs = {spec["run_dir"]: spec for spec in runs}
        self._total = len(runs)  # 0: not known before, as in tuning
        self._status = {path: "finished" if state_of(Path(path)).status == "finished" else "waiting" for path in self._runs}

    def note(self, event: Event) -> None:
        """Keep what happened."""
        path = event.run["run_dir"]
        self._runs[path] = event.run
        self._status = {**self._status, path: "running" if event.kind == "started" else event.kind}  # read by another thread

    def tell(self, event: Event) -> None:
        """Keep what happened, and print a line if a run has ended or was lost."""
        self.note(event)
        if event.kind == "started":
            return
        finished = sum(status == "finished" for status in self._status.values())
        count = f"[{finished}/{self._total}]" if self._total else f"[{finished}]"
        said = event.message.strip().splitlines()[-1:] or [""]
        if event.kind == "finished" and event.result is not None:
            metrics = event.result["metrics"]
            said = [f"step {metrics.get('global_step', 0):.0f}, evaluation {_number(metrics.get('eval_return_mean'))}"]
        self._console.print(
            f"{count} {event.run['name']} {event.kind}: {said[0]}", highlight=False, markup=False, soft_wrap=True
        )

    def render(self) -> RenderableType:
        """The table as it stands now."""
        from rich.table import Table

        from rl_training.studies.worker import progress_of

        status = self._status
        table = Table(title=self._headline(status), title_justify="left", box=None, pad_edge=False)
        for heading in ("setting", "seed", "status"):
            table.add_column(heading)
        for heading in ("step", "evaluation", "steps/s"):
            table.add_column(heading, justify="right")
        ordered = sorted(status, key=lambda path: self.ORDER.index(status[path]))
        for path in ordered[: max(3, self._console.height - 5)]:
            progress, config = progress_of(Path(path)), self._runs[path]["config"]
            setting, _, seed = self._runs[path]["name"].rpartition("/seed")
            speed = _number(progress.speed, 0) if status[path] == "running" else ""
            step = f"{progress.step:,}/{config['total_timesteps']:,}"
            table.add_row(setting, seed, status[path], step, _number(progress.evaluation), speed)
        return table

    def _headline(self, status: dict[str, str]) -> str:
        counts = {kind: sum(one == kind for one in status.values()) for kind in self.ORDER}
        parts = [f"{count} {kind}" for kind, count in counts.items() if count]
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{len(status)} runs: {', '.join(parts)} ({minutes}:{seconds:02d})"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _show_plan(plan: StudyPlan, as_json: bool) -> None:
    from rl_training.studies.worker import state_of

    runs = plan.spec.run_specs(plan.directory)
    states = {spec["name"]: state_of(Path(spec["run_dir"])).status for spec in runs}
    if as_json:
        print(json.dumps({"study_dir": str(plan.directory), "executor": plan.executor.model_dump(), "runs": runs}))
        return
    missing = sum(state != "finished" for state in states.values())
    print(f"study       {plan.directory}")
    print(f"executor    {plan.executor.kind}")
    print(f"runs        {len(runs)} ({len(plan.spec.settings)} settings x {len(plan.spec.seeds)} seeds), {missing} to do")
    for name, state in states.items():
        print(f"  {name:60} {state}")


def _show_tuning_plan(plan: TunePlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"study_dir": str(plan.directory), "trials": plan.trials, **plan.spec.model_dump(mode="json")}))
        return
    spec = plan.spec
    print(f"study       {plan.directory}")
    print(f"trials      {plan.trials} x {spec.seeds} seeds, {spec.objective}, pruner {spec.pruner}")
    for key, values in spec.space.items():
        print(f"  {key:44} {', '.join(f'{name} {value}' for name, value in values.model_dump().items())}")


def _tell_study(result: StudyResult) -> None:
    _tell_failures(result)
    rows = result.summary()
    width = max(len(row["setting"]) for row in rows)
    print(f"{'setting':{width}}  seeds  last evaluation (mean +/- sd over seeds)")
    for row in rows:
        score = "-" if row["mean"] is None else f"{row['mean']:.1f} +/- {row['std']:.1f}"
        print(f"{row['setting']:{width}}  {row['finished']}/{row['seeds']:<3}  {score}")
    print(f"study       {result.directory}")
    print("next")
    if result.exit_code:
        print(f"  rl-training sweep {result.directory}")
    print(f"  rl-training report {result.directory}")


def _tell_failures(result: StudyResult) -> None:
    """Each kind of failure once, with the runs that met it."""
    failed: dict[str, list[str]] = {}
    for run in result.runs:
        if run.status == "failed":
            failed.setdefault(run.message.strip(), []).append(f"{run.setting}/seed{run.seed}")
    for message, names in failed.items():
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        typer.echo(f"failed: {', '.join(names[:3])}{others}\n  " + message.replace("\n", "\n  "), err=True)


def _tell_tuning(result: TuningResult, importances: dict[str, float], wanted: int) -> None:
    for message in dict.fromkeys(trial["message"].strip() for trial in result.trials if trial["message"]):
        typer.echo(f"failed: {message}", err=True)
    counts = {status: sum(t["status"] == status for t in result.trials) for status in ("finished", "pruned", "failed")}
    print(f"trials      {', '.join(f'{count} {status}' for status, count in counts.items())}")
    if result.best is not None:
        print(f"best        trial {result.best['number']}: {result.best['value']:.1f}")
        for key, value in result.best["values"].items():
            weight = f"   (importance {importances[key]:.0%})" if key in importances else ""
            print(f"  {key} = {value}{weight}")
    for row in result.confirmed.summary() if result.confirmed else []:
        if row["mean"] is not None:
            print(f"fresh seeds {row['setting']}: {row['mean']:.1f} +/- {row['std']:.1f} ({row['finished']} seeds)")
    print(f"study       {result.directory}")
    print("next")
    if result.exit_code:
        print(f"  rl-training tune {result.directory} --trials {wanted}")
    if result.best_file is not None:
        print(f"  rl-training train {result.best_file}")
    if result.confirmed is not None:
        print(f"  rl-training report {result.directory / 'confirm'}")
