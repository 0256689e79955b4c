"""Looking for good hyper-parameters: Optuna proposes settings, an executor runs them on several seeds, the best is confirmed.

    <study>/tune.json                       what is tuned, and how
    <study>/trials.journal                  Optuna's record of the trials, a line an entry; plain text
    <study>/runs/trial_<n>/seed<k>/         run directories, as ``train`` makes them
    <study>/confirm/                        a study of its own: the best and the base settings on fresh seeds
    <study>/best.yaml                       the best setting, for ``rl-training train``

A trial is one setting on every seed, one seed after the other; a trial that is pruned ends there, without its other seeds.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from rl_training import __version__
from rl_training.algorithms.base import Choice, Range
from rl_training.experiment.files import read_bounded, reason_of, write_atomically, write_json
from rl_training.experiment.presets import build_config
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.studies.executors import Event, Executor, make_executor
from rl_training.studies.search_space import build_space, contains, encoded, parse_values, suggest_values, value_at
from rl_training.studies.spec import (
    PLACED_BY_STUDY,
    CallbackSpec,
    ExecutorSettings,
    RunSpec,
    Setting,
    StudySpec,
    base_settings,
    differing,
    is_study_file,
    read_settings_file,
    run_spec,
    settled_config,
    shortened,
    with_values,
)
from rl_training.studies.study import (
    OUTPUT_DIR,
    STUDY_FILE,
    Observer,
    Study,
    StudyResult,
    default_name,
    read_study,
    require_environments,
    require_free,
    study_lock,
)
from rl_training.studies.trials import (
    PRUNED,
    STARTUP_TRIALS,
    PruneTrial,
    import_optuna,
    make_pruner,
    open_trials,
    repair_journal,
)
from rl_training.types import ConfigError
from rl_training.validation import Settings

TUNE_FILE, JOURNAL, BEST_FILE = "tune.json", "trials.journal", "best.yaml"
FORMAT_VERSION = 1
_LARGEST_FILE = 16 * 2**20


class TuneSpec(Settings):
    """What ``tune.json`` holds: all that decides which trials are made. How many is not part of it."""

    name: str
    source: str
    config: dict[str, Any]
    space: dict[str, Range | Choice]
    seeds: int = Field(3, ge=1, le=1000, description="seeds of a trial: 1, 2, ...")
    objective: Literal["mean", "iqm"] = Field("mean", description="over the seeds' last evaluations")
    pruner: Literal["median", "hyperband", "none"] = Field("median", description="when to give up a trial early")
    sampler_seed: int = Field(0, ge=0, description="seed of the proposals")
    imports: tuple[str, ...] = ()

    @property
    def trial_seeds(self) -> range:
        """The seeds that every trial is run on."""
        return range(1, self.seeds + 1)

    @property
    def fresh_seeds(self) -> range:
        """As many seeds that no trial has seen."""
        return range(self.seeds + 1, 2 * self.seeds + 1)


class TuneFile(Settings):
    """A ``tune.yaml``."""

    base: str = Field(description="a preset, or a configuration file (relative to this one)")
    set: dict[str, Any] = Field(default_factory=dict, description="settings that differ from the base, by key path")
    space: dict[str, Any] = Field(default_factory=dict, description="low:high, low:high:log or a list, by key")
    only: list[str] | None = Field(None, description="keys to tune, of the algorithm's own search space and of space")
    trials: int | None = Field(None, ge=1, description="trials in total")
    seeds: int | None = Field(None, description="seeds of a trial")
    objective: str | None = Field(None, description="mean or iqm")
    pruner: str | None = Field(None, description="median, hyperband or none")
    sampler_seed: int | None = Field(None, description="seed of the proposals")
    name: str | None = Field(None, description="name of the study's directory")
    output_dir: str | None = Field(None, description="where that directory is made")
    executor: ExecutorSettings = Field(default_factory=ExecutorSettings, description="a kind, or {kind, workers, ...}")
    imports: list[str] = Field(default_factory=list, description="modules that register environments")

    @field_validator("executor", mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class TunePlan:
    """A checked tuning study that may not be on disk yet, and how it is to be run."""

    spec: TuneSpec
    directory: Path
    trials: int | None
    executor: ExecutorSettings


@dataclass(frozen=True)
class TuningResult:
    """What came of tuning. ``confirmed`` compares the best and the base settings on fresh seeds."""

    directory: Path
    trials: list[dict[str, Any]]
    best: dict[str, Any] | None
    best_file: Path | None = None
    confirmed: StudyResult | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0: done; 130: interrupted, to be continued; 1: a run met a bug; 2: no trial came to an end."""
        if self.interrupted or (self.confirmed is not None and self.confirmed.interrupted):
            return 130
        if any(trial["bug"] for trial in self.trials):
            return 1
        return 2 if self.best is None else self.confirmed.exit_code if self.confirmed else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "study_dir": str(self.directory),
            "interrupted": self.exit_code == 130,
            "trials": self.trials,
            "best": self.best,
            "best_file": str(self.best_file) if self.best_file else None,
            "confirmed": self.confirmed.summary() if self.confirmed else None,
        }


# -- a tuning study --------------------------------------------------------------------------------------------------


class Tuning:
    """A tuning study in a directory."""

    def __init__(self, directory: Path, spec: TuneSpec) -> None:
        self.directory, self.spec = directory.absolute(), spec

    @classmethod
    def create(cls, source: str | Path | Mapping[str, Any], **options: Any) -> Tuning:
        """The tuning study of a preset, a configuration or a ``tune.yaml``; the one that is there, if it is the same.

        Options: ``overrides``, ``space``, ``only``, ``seeds``, ``objective``, ``pruner``, ``sampler_seed``, ``imports``,
        ``name``, ``output_dir``. Everything is checked before the directory is made.
        """
        tuning = cls.from_plan(plan_tuning(source, **options))
        tuning.write()
        return tuning

    @classmethod
    def from_plan(cls, plan: TunePlan) -> Tuning:
        """A tuning study as planned and checked; :meth:`run` makes its directory."""
        import_optuna()
        require_same_tuning(plan)
        if plan.executor.ray_address is None:  # what another machine has is not known here
            base = Setting(label="base", changes={}, config=settled_config(plan.spec.config))
            require_environments([base], plan.spec.imports)
        return cls(plan.directory, plan.spec)

    @classmethod
    def open(cls, path: str | Path) -> Tuning:
        """A tuning study that is there."""
        return cls(Path(path), read_tuning(Path(path)))

    def write(self) -> None:
        """Have ``tune.json`` say what the study is."""
        content = {"format_version": FORMAT_VERSION, "package_version": __version__, **self.spec.model_dump(mode="json")}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / TUNE_FILE, content)
        except OSError as error:
            raise ConfigError(f"output_dir {str(self.directory.parent)!r} cannot be written: {reason_of(error)}") from None

    def run(
        self,
        trials: int,
        executor: str | ExecutorSettings | Executor = "process",
        *,
        confirm: bool = True,
        on_event: Observer | None = None,
        **options: Any,
    ) -> TuningResult:
        """Go on to so many trials in total, then write ``best.yaml`` and confirm the best setting on fresh seeds.

        Trials that were under way when tuning was interrupted are continued.
        """
        if trials < 1:
            raise ConfigError(f"trials must be >= 1, got {trials}")
        if isinstance(executor, str):
            executor = ExecutorSettings(**{"kind": executor, **options})
        if isinstance(executor, ExecutorSettings):
            threads = int(self.spec.config["torch_threads"])
            executor = make_executor(executor, log_dir=self.directory / "logs", threads=threads)
        with executor.ready():
            self.write()
            with study_lock(self.directory):
                interrupted = self._run_trials(trials, executor, on_event)
                told = self.trials()
                best = best_of(told)
                if interrupted or best is None:
                    return TuningResult(self.directory, told, best, interrupted=interrupted)
                path = self._write_best(best, told, None)
                confirmed = self._confirmation(best).run(executor, on_event=on_event) if confirm else None
                if confirmed is not None and confirmed.exit_code == 0:
                    self._write_best(best, told, confirmed)
        return TuningResult(self.directory, told, best, path, confirmed)

    def _run_trials(self, trials: int, executor: Executor, on_event: Observer | None) -> bool:
        """Do the trials that are missing; whether that was interrupted."""
        repair_journal(self.directory / JOURNAL)
        work = _Trials(self, trials)
        try:
            with contextlib.closing(executor.run(work.next_run)) as events:
                for event in events:
                    work.take(event)
                    if on_event is not None:
                        on_event(event)
        except KeyboardInterrupt:
            return True
        return False

    def trials(self) -> list[dict[str, Any]]:
        """What the trials are and how they went, in order."""
        return [_told(trial, self.spec.space) for trial in self.optuna_study().get_trials(deepcopy=False)]

    def importances(self) -> dict[str, float]:
        """How much each key mattered, by Optuna's estimate; empty while there are too few trials to tell."""
        optuna = import_optuna()
        try:
            return dict(optuna.importance.get_param_importances(self.optuna_study()))
        except (ValueError, RuntimeError):
            return {}

    def optuna_study(self) -> Any:
        """The trials as Optuna has them."""
        return open_trials(self.directory / JOURNAL, self.spec.name, make_pruner(**self.pruner_options()))

    def pruner_options(self) -> dict[str, Any]:
        """The arguments of :func:`make_pruner`."""
        config = self.spec.config
        return {
            "kind": self.spec.pruner,
            "total_timesteps": config["total_timesteps"],
            "eval_interval": config["eval_interval"],
            "seeds": self.spec.seeds,
        }

    def config_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The whole configuration of a trial, but for seed and place."""
        return settled_config(with_values(self.spec.config, values))

    def trial_run(self, number: int, config: Mapping[str, Any], seed_index: int) -> RunSpec:
        """The run of a trial on one of its seeds."""
        label = f"trial_{number}"
        earlier = [self.directory / "runs" / label / f"seed{seed}" for seed in self.spec.trial_seeds[:seed_index]]
        prune: CallbackSpec = {
            "use": f"{PruneTrial.__module__}:{PruneTrial.__name__}",
            "options": {
                "journal": str(self.directory / JOURNAL),
                "study": self.spec.name,
                "trial": number,
                "seed_index": seed_index,
                "earlier": [str(path) for path in earlier],
                "pruner": self.pruner_options(),
            },
        }
        callbacks = [] if self.spec.pruner == "none" else [prune]
        seed = self.spec.trial_seeds[seed_index]
        return run_spec(self.directory, label, config, seed, imports=self.spec.imports, callbacks=callbacks)

    def _confirmation(self, best: Mapping[str, Any]) -> Study:
        """The study of the best setting beside the base on fresh seeds; what was confirmed before stays in it."""
        directory = self.directory / "confirm"
        base = Setting(label="base", changes={}, config=settled_config(self.spec.config))
        chosen = Setting(label=f"trial_{best['number']}", changes=best["values"], config=self.config_of(best["values"]))
        compared = (chosen,) if chosen.config == base.config else (base, chosen)
        settings = {setting.label: setting for setting in compared}
        if (directory / STUDY_FILE).exists():
            settings = {setting.label: setting for setting in read_study(directory).settings} | settings
        spec = StudySpec(
            name=f"{self.spec.name}-confirm",
            source=self.spec.source,
            grid={},
            seeds=tuple(self.spec.fresh_seeds),
            imports=self.spec.imports,
            settings=tuple(settings.values()),
        )
        study = Study(directory, spec)
        study.write()
        return study

    def _write_best(self, best: Mapping[str, Any], told: list[dict[str, Any]], confirmed: StudyResult | None) -> Path:
        """``best.yaml``: the setting as a configuration that can be run, and how it was found as a comment."""
        spec = self.spec
        values = ", ".join(f"{key} = {value}" for key, value in best["values"].items())
        lines = [
            f"Best of {len(told)} trials of {spec.source}: trial {best['number']}, {values}.",
            f"{spec.objective} over seeds 1-{spec.seeds} of the last evaluation: {best['value']:.6g}.",
        ]
        for row in confirmed.summary() if confirmed else []:
            seeds = f"fresh seeds {spec.fresh_seeds[0]}-{spec.fresh_seeds[-1]}"
            if row["mean"] is not None:
                lines.append(f"On {seeds}, {row['setting']}: {row['mean']:.6g} +/- {row['std']:.3g}.")
        config = {**self.config_of(best["values"]), "seed": spec.trial_seeds[0], "output_dir": "runs"}
        path = self.directory / BEST_FILE
        write_atomically(path, "".join(f"# {line}\n" for line in lines) + dump_yaml(config))
        return path


class _Trials:
    """What is to be run next, and what its outcome means for its trial."""

    def __init__(self, tuning: Tuning, wanted: int) -> None:
        self._tuning, self._spec, self._wanted = tuning, tuning.spec, wanted
        self._optuna = import_optuna()
        self._study = tuning.optuna_study()
        self._ready: deque[RunSpec] = deque()
        self._trials: dict[int, Any] = {}
        self._scores: dict[int, list[float]] = {}
        running = self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,))
        self._unfinished = deque(self._optuna.trial.Trial(self._study, trial._trial_id) for trial in running)

    def next_run(self) -> RunSpec | None:
        """The next seed of a trial, else the first of one that was interrupted, else of a new one, else None."""
        while not self._ready:
            if self._unfinished:
                self._begin(self._unfinished.popleft())
            elif self._begun() < self._wanted:
                self._begin(self._ask())
            else:
                return None
        return self._ready.popleft()

    def _ask(self) -> Any:
        number = self._begun()
        self._seed_sampler(number)
        if number == 0:
            self._enqueue_base()
        return self._study.ask()

    def _begun(self) -> int:
        waiting = self._optuna.trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self._study.get_trials(deepcopy=False))

    def _seed_sampler(self, number: int) -> None:
        """A sampler of its own for each trial: proposals depend on the trials before, not on how often tuning was resumed."""
        seed = int(np.random.SeedSequence([self._spec.sampler_seed, number]).generate_state(1)[0])
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)

    def _enqueue_base(self) -> None:
        """The first trial is the base setting, if it is one of those to be tried."""
        values = {key: value_at(self._spec.config, key) for key in self._spec.space}
        if all(contains(allowed, values[key]) for key, allowed in self._spec.space.items()):
            self._study.enqueue_trial({key: encoded(value) for key, value in values.items()})

    def _begin(self, trial: Any) -> None:
        self._trials[trial.number], self._scores[trial.number] = trial, []
        self._seed_sampler(trial.number)
        values = suggest_values(trial, self._spec.space)
        try:
            config = self._tuning.config_of(values)
        except ConfigError as error:  # valid one by one, but not together
            self._give_up(trial.number, str(error), bug=False)
            return
        self._ready.append(self._tuning.trial_run(trial.number, config, 0))

    def take(self, event: Event) -> None:
        """Learn what became of a run."""
        number = int(event.run["name"].split("/")[0].removeprefix("trial_"))
        if event.kind == "failed":
            self._give_up(number, event.message, bug=event.bug)
        elif event.kind == "finished":
            assert event.result is not None
            self._take_score(number, event.run, event.result)

    def _take_score(self, number: int, run: RunSpec, result: Mapping[str, Any]) -> None:
        scores = self._scores[number]
        scores.append(float(result["metrics"]["eval_return_mean"]))
        if (result["stop_reason"] or "").startswith(PRUNED):
            self._conclude(number, state=self._optuna.trial.TrialState.PRUNED)
        elif len(scores) < self._spec.seeds:
            self._ready.append(self._tuning.trial_run(number, run["config"], len(scores)))
        else:
            self._conclude(number, values=objective_of(scores, self._spec.objective))

    def _give_up(self, number: int, message: str, *, bug: bool) -> None:
        """A setting that cannot be trained (a NaN, say) is a bad one, and the sampler learns that; a bug teaches nothing."""
        self._trials[number].set_user_attr("bug" if bug else "problem", message)
        states = self._optuna.trial.TrialState
        self._conclude(number, state=states.FAIL if bug else states.PRUNED)

    def _conclude(self, number: int, **outcome: Any) -> None:
        self._trials[number].set_user_attr("scores", self._scores[number])
        self._study.tell(self._trials[number], **outcome)


def objective_of(scores: list[float], objective: str) -> float:
    """What is maximised: a statistic over seeds."""
    from rl_training.studies import statistics

    value: float = getattr(statistics, objective)(scores)
    return value


def _told(trial: Any, space: Mapping[str, Range | Choice]) -> dict[str, Any]:
    """A trial as plain data."""
    state = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, "unfinished")
    codes = {key: {encoded(v): v for v in values.values} for key, values in space.items() if isinstance(values, Choice)}
    message = trial.user_attrs.get("bug") or trial.user_attrs.get("problem") or ""
    return {
        "number": trial.number,
        "status": "failed" if state == "pruned" and message else state,
        "value": trial.value if state == "finished" else None,
        "values": {key: codes[key][value] if key in codes else value for key, value in trial.params.items()},
        "scores": trial.user_attrs.get("scores", []),
        "message": message,
        "bug": "bug" in trial.user_attrs,
    }


def best_of(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The finished trial with the greatest objective; the earlier of two equals."""
    finished = [trial for trial in told if trial["value"] is not None and not math.isnan(trial["value"])]
    return max(finished, key=lambda trial: trial["value"], default=None)


# -- planning --------------------------------------------------------------------------------------------------------


def plan_tuning(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    only: Iterable[str] | None = None,
    imports: Iterable[str] = (),
    name: str | None = None,
    output_dir: str | Path | None = None,
    trials: int | None = None,
    **options: Any,
) -> TunePlan:
    """The plan for a preset, a configuration, a ``tune.yaml`` or the directory of a tuning study; arguments come first.

    ``options`` are ``seeds``, ``objective``, ``pruner`` and ``sampler_seed``.
    """
    options = {key: value for key, value in options.items() if value is not None}
    if not isinstance(source, Mapping) and (Path(source) / TUNE_FILE).is_file():
        if options or overrides or space or only or name or output_dir or list(imports):
            raise ConfigError(f"{source} is a tuning study: only --trials can be given to it")
        return TunePlan(read_tuning(Path(source)), Path(source).absolute(), trials, ExecutorSettings())
    file, beside = TuneFile(base=""), None
    if not isinstance(source, Mapping) and is_study_file(source):
        file, beside = read_settings_file(Path(source), TuneFile), Path(source).parent
    settings = dict(source) if isinstance(source, Mapping) else base_settings(file.base or source, beside=beside)
    title = "a configuration" if isinstance(source, Mapping) else str(source)
    config = build_config(with_values(settings, {**file.set, **(overrides or {})}), source=title)
    config = config.replace(torch_threads=config.torch_threads or 1)
    if config.eval_episodes == 0 or config.env_id is None:
        raise ConfigError("tuning looks at evaluations: set env_id and eval_episodes >= 1")
    changes = {key: parse_values(key, values) for key, values in {**file.space, **(space or {})}.items()}
    chosen = name or file.name or f"tune-{default_name(settings if isinstance(source, Mapping) else source)}"
    given = {key: getattr(file, key) for key in ("seeds", "objective", "pruner", "sampler_seed")}
    spec = TuneSpec(
        **{
            **{key: value for key, value in given.items() if value is not None},
            **options,
            "name": chosen,
            "source": title,
            "config": {key: value for key, value in config.to_dict().items() if key not in PLACED_BY_STUDY},
            "space": build_space(config, changes, file.only if only is None else only),
            "imports": (*file.imports, *imports),
        }
    )
    directory = (Path(output_dir or file.output_dir or OUTPUT_DIR) / chosen).absolute()
    return TunePlan(spec, directory, file.trials if trials is None else trials, file.executor)


def require_same_tuning(plan: TunePlan) -> None:
    """Refuse a directory that holds something else, and name the difference."""
    if not (plan.directory / TUNE_FILE).exists():
        require_free(plan.directory)
        return
    there, here = read_tuning(plan.directory).model_dump(mode="json"), plan.spec.model_dump(mode="json")
    # by way of the model, so that a setting which came with a later version has its default
    there["config"], here["config"] = (build_config(s["config"], source=TUNE_FILE).to_dict() for s in (there, here))
    if found := differing("", {**there, "source": None}, {**here, "source": None}):
        raise ConfigError(
            f"{plan.directory} is a tuning study of another kind (give this one another name):\n"
            + "\n".join(f"  - {line}" for line in shortened(found))
        )


def read_tuning(directory: Path) -> TuneSpec:
    """The content of ``tune.json``, or a ``ConfigError`` that says what is wrong with it."""
    path = directory / TUNE_FILE
    try:
        content = json.loads(read_bounded(path, _LARGEST_FILE))
    except OSError as error:
        raise ConfigError(f"{directory} is not a tuning study: {path} cannot be read: {reason_of(error)}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not valid JSON: the study is damaged") from None
    if not isinstance(content, dict) or not isinstance(content.pop("format_version", None), int):
        raise ConfigError(f"{path} is not the file of a tuning study")
    content.pop("package_version", None)
    try:
        return TuneSpec(**content)
    except ConfigError as error:
        raise ConfigError(error.problems, source=str(path)) from None
