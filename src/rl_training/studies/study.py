"""A study on disk: many settings and seeds, each an ordinary run directory.

    <study>/study.json                      what it is
    <study>/runs/<setting>/seed<k>/         run directories, as ``train`` makes them
    <study>/logs/worker_<n>.log             what worker processes printed

Running it does what is missing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training import __version__
from rl_training.experiment.files import read_bounded, reason_of, write_json
from rl_training.experiment.lock import run_lock
from rl_training.experiment.yaml_files import read_yaml_mapping
from rl_training.studies.executors import Event, Executor, make_executor, one_by_one
from rl_training.studies.spec import (
    ExecutorSettings,
    RunSpec,
    Setting,
    StudyFile,
    StudySpec,
    base_settings,
    config_differences,
    differences,
    is_study_file,
    parse_seeds,
    plan_study,
    read_settings_file,
    with_values,
)
from rl_training.studies.worker import import_modules, state_of
from rl_training.types import CheckpointError, ConfigError

STUDY_FILE = "study.json"
FORMAT_VERSION = 1
OUTPUT_DIR = "studies"
_LARGEST_STUDY_FILE = 64 * 2**20

Observer = Callable[[Event], None]


@dataclass(frozen=True)
class RunReport:
    """Where one run of a study stands."""

    setting: str
    seed: int
    status: Literal["finished", "failed", "unfinished"]
    run_dir: Path
    evaluation: float | None = None
    step: int = 0
    message: str = ""
    bug: bool = False


@dataclass(frozen=True)
class StudyResult:
    """What came of running a study."""

    directory: Path
    runs: list[RunReport]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0: every run finished; 130: interrupted, to be continued; 1: some run met a bug; 2: some run was a mistake."""
        failed = [run for run in self.runs if run.status == "failed"]
        if self.interrupted:
            return 130
        return 1 if any(run.bug for run in failed) else 2 if failed else 0

    def summary(self) -> list[dict[str, Any]]:
        """Per setting: how many seeds finished, mean and standard deviation over them of the last evaluation."""
        rows = []
        for setting in dict.fromkeys(run.setting for run in self.runs):
            mine = [run for run in self.runs if run.setting == setting]
            scores = [run.evaluation for run in mine if run.status == "finished" and run.evaluation is not None]
            rows.append(
                {
                    "setting": setting,
                    "seeds": len(mine),
                    "finished": sum(run.status == "finished" for run in mine),
                    "mean": float(np.mean(scores)) if scores else None,
                    "std": float(np.std(scores)) if scores else None,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        runs = [{**vars(run), "run_dir": str(run.run_dir)} for run in self.runs]
        return {
            "study_dir": str(self.directory),
            "interrupted": self.interrupted,
            "summary": self.summary(),
            "runs": runs,
        }


@dataclass(frozen=True)
class StudyPlan:
    """A checked study that may not be on disk yet, and how it is to be run."""

    spec: StudySpec
    directory: Path
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    def with_earlier(self) -> StudyPlan:
        """The same with the seeds that are there already; a ``ConfigError`` if what is there is another study."""
        if not (self.directory / STUDY_FILE).exists():
            require_free(self.directory)
            return self
        there = read_study(self.directory)
        if found := differences(there, self.spec):
            raise ConfigError(
                f"{self.directory} is a study of another configuration (give this one another name):\n"
                + "\n".join(f"  - {line}" for line in found)
            )
        return StudyPlan(_with_more_seeds(there, self.spec.seeds), self.directory, self.executor)


class Study:
    """Settings x seeds in a directory."""

    def __init__(self, directory: Path, spec: StudySpec) -> None:
        self.directory, self.spec = directory.absolute(), spec

    @classmethod
    def create(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        seeds: Any = None,
        grid: Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        imports: Iterable[str] = (),
        name: str | None = None,
        output_dir: str | Path | None = None,
    ) -> Study:
        """The study of a preset, a configuration (file or mapping) or a ``study.yaml``; the same one continues.

        A study that has fewer seeds is extended by the new ones. Everything is checked before the directory is made.
        """
        plan = plan_from(
            source, seeds=seeds, grid=grid, overrides=overrides, imports=imports, name=name, output_dir=output_dir
        )
        study = cls.from_plan(plan)
        study.write()
        return study

    @classmethod
    def from_plan(cls, plan: StudyPlan) -> Study:
        """A study as planned and checked; :meth:`run` makes its directory."""
        plan = plan.with_earlier()
        if plan.executor.ray_address is None:  # what another machine has is not known here
            require_environments(plan.spec.settings, plan.spec.imports)
        study = cls(plan.directory, plan.spec)
        study.require_own_runs()
        return study

    @classmethod
    def open(cls, path: str | Path) -> Study:
        """A study that is there."""
        return cls(Path(path), read_study(Path(path)))

    def write(self) -> None:
        """Have ``study.json`` say what the study is."""
        content = {"format_version": FORMAT_VERSION, "package_version": __version__, **self.spec.model_dump(mode="json")}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / STUDY_FILE, content)
        except OSError as error:
            raise ConfigError(f"output_dir {str(self.directory.parent)!r} cannot be written: {reason_of(error)}") from None

    def runs(self) -> list[RunSpec]:
        """The specs of all runs."""
        return self.spec.run_specs(self.directory)

    def unfinished(self) -> list[RunSpec]:
        """The specs of the runs that are not finished."""
        return [spec for spec in self.runs() if state_of(Path(spec["run_dir"])).result is None]

    def require_own_runs(self) -> None:
        """Refuse run directories that were made with another configuration than the study's."""
        for spec in self.runs():
            path = Path(spec["run_dir"]) / "config.yaml"
            if path.is_file() and (found := config_differences(read_yaml_mapping(path), spec["config"])):
                raise ConfigError(f"{path.parent} was run with another configuration: {found[0]}. Move it away or rename it")

    def run(
        self, executor: str | ExecutorSettings | Executor = "process", *, on_event: Observer | None = None, **options: Any
    ) -> StudyResult:
        """Do what is missing: runs that never began, were interrupted, lost or failed.

        ``executor`` is ``serial``, ``process`` or ``ray`` (with ``options`` such as ``workers``), or one of your own.
        Ctrl-C and SIGTERM have the runs under way save; the result then says ``interrupted``, and running again goes on.
        """
        if isinstance(executor, str):
            executor = ExecutorSettings(**{"kind": executor, **options})
        if isinstance(executor, ExecutorSettings):
            threads = max(setting.config["torch_threads"] for setting in self.spec.settings)
            executor = make_executor(executor, log_dir=self.directory / "logs", threads=threads)
        failed: dict[str, Event] = {}
        interrupted = False
        with executor.ready():
            self.write()
            with study_lock(self.directory):
                try:
                    with contextlib.closing(executor.run(one_by_one(self.unfinished()))) as events:
                        for event in events:
                            if event.kind == "failed":
                                failed[event.run["name"]] = event
                            if on_event is not None:
                                on_event(event)
                except KeyboardInterrupt:
                    interrupted = True
        return StudyResult(self.directory, [_report(spec, failed.get(spec["name"])) for spec in self.runs()], interrupted)

    def result(self) -> StudyResult:
        """Where the study stands, without running anything."""
        return StudyResult(self.directory, [_report(spec, None) for spec in self.runs()])


def _report(spec: RunSpec, failure: Event | None) -> RunReport:
    run_dir = Path(spec["run_dir"])
    state = state_of(run_dir)
    metrics = state.result["metrics"] if state.result else {}
    failed = failure is not None or state.status == "failed"
    return RunReport(
        setting=run_dir.parent.name,
        seed=spec["config"]["seed"],
        status="finished" if state.result else "failed" if failed else "unfinished",
        run_dir=run_dir,
        evaluation=metrics.get("eval_return_mean"),
        step=int(metrics.get("global_step", 0)),
        message=failure.message if failure else state.reason or "",
        bug=failure.bug if failure else False,
    )


# -- planning --------------------------------------------------------------------------------------------------------


def plan_from(
    source: str | Path | Mapping[str, Any],
    *,
    seeds: Any = None,
    grid: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    imports: Iterable[str] = (),
    name: str | None = None,
    output_dir: str | Path | None = None,
) -> StudyPlan:
    """The plan for a preset, a configuration, a ``study.yaml`` or the directory of a study; arguments come before the file."""
    if not isinstance(source, Mapping) and (Path(source) / STUDY_FILE).is_file():
        return _plan_of_directory(Path(source), seeds, changed=bool(grid or overrides or name or output_dir or list(imports)))
    file, beside = StudyFile(base=("",)), None
    title = "a configuration" if isinstance(source, Mapping) else str(source)
    if not isinstance(source, Mapping) and is_study_file(source):
        file, beside = read_settings_file(Path(source), StudyFile), Path(source).parent
    if isinstance(source, Mapping):
        bases = {"": dict(source)}
    else:
        bases = {base: base_settings(base or source, beside=beside) for base in file.base}
    chosen = name or file.name or default_name(source)
    changes = {**file.set, **(overrides or {})}
    spec = plan_study(
        {base: with_values(settings, changes) for base, settings in bases.items()},
        source=title,
        name=chosen,
        seeds=file.seeds if seeds is None else seeds,
        grid={**file.grid, **(grid or {})},
        imports=[*file.imports, *imports],
    )
    parent = Path(output_dir or file.output_dir or OUTPUT_DIR)
    return StudyPlan(spec, (parent / chosen).absolute(), file.executor)


def _plan_of_directory(directory: Path, seeds: Any, *, changed: bool) -> StudyPlan:
    if changed:
        raise ConfigError(f"{directory} is a study: only --seeds can be given to it, to add some")
    there = read_study(directory)
    return StudyPlan(there if seeds is None else _with_more_seeds(there, parse_seeds(seeds)), directory.absolute())


def default_name(source: str | Path | Mapping[str, Any]) -> str:
    """A file name for a study: of its preset or file, or of algorithm and environment."""
    if isinstance(source, Mapping):
        text = f"{source.get('algo')}-{source.get('env_id') or 'data'}"
    else:
        path = Path(source)
        text = path.stem if path.is_file() else str(path.with_suffix("") if path.suffix in (".yaml", ".yml") else path)
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.") or "study"


def _with_more_seeds(there: StudySpec, seeds: Iterable[int]) -> StudySpec:
    more = tuple(seed for seed in seeds if seed not in there.seeds)
    return there.model_copy(update={"seeds": (*there.seeds, *more)})


def read_study(directory: Path) -> StudySpec:
    """The content of ``study.json``, or a ``ConfigError`` that says what is wrong with it."""
    path = directory / STUDY_FILE
    try:
        content = json.loads(read_bounded(path, _LARGEST_STUDY_FILE))
    except OSError as error:
        raise ConfigError(f"{directory} is not a study: {path} cannot be read: {reason_of(error)}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not valid JSON: the study is damaged") from None
    version = content.pop("format_version", None) if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise ConfigError(f"{path} is not the file of a study")
    if version > FORMAT_VERSION:
        raise ConfigError(f"{path} was written by a later rl_training ({content.get('package_version')}): upgrade the package")
    content.pop("package_version", None)
    try:
        return StudySpec(**content)
    except ConfigError as error:
        raise ConfigError(error.problems, source=str(path)) from None


def require_free(directory: Path) -> None:
    """Refuse a directory that holds something else."""
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise ConfigError(f"{directory} is there already and is not a study: give another name or output_dir")


def require_environments(settings: Iterable[Setting], imports: tuple[str, ...]) -> None:
    """Make each environment once and look for trackers: what is missing is told before a run begins, not by every run."""
    from rl_training.envs.factory import make_env
    from rl_training.envs.spec import describe_env, require_actions
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.tracking import require_trackers

    import_modules(imports)
    seen: set[str] = set()
    for setting in settings:
        config = setting.config
        require_trackers(config.get("tracking", ()))  # of an older study none
        task = json.dumps([config["algo"], config["env_id"], config["env_kwargs"]], sort_keys=True)
        if config["env_id"] is None or task in seen:
            continue
        seen.add(task)
        env = make_env(config["env_id"], config["env_kwargs"])
        try:
            spec = describe_env(config["env_id"], env.observation_space, env.action_space)
        finally:
            env.close()
        require_actions(spec, get_algorithm_spec(config["algo"]).actions, config["algo"])


@contextlib.contextmanager
def study_lock(directory: Path) -> Iterator[None]:
    """Hold a study, so that two commands do not do the same runs."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(run_lock(directory))
        except CheckpointError as error:
            holder = re.search(r"in use by (.*?)\. Wait", str(error))
            raise ConfigError(f"{directory} is being run by {holder[1]}" if holder else str(error)) from None
        yield
