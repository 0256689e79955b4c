"""The configuration of a run: typed, strict, and complete before anything else happens."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import AlgorithmSpec, Hyperparameters
from rl_training.experiment.finetune_config import FinetuneConfig, finetune_problems
from rl_training.experiment.ope_config import OPE_METRICS, OPEConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.types import ConfigError, Problem
from rl_training.validation import Settings, describe_problems, nearest, odd_values, require_plain_data, shown, suggest

ALIASES = {
    "algo_kwargs.eval_interval": "eval_interval",
    "algo_kwargs.early_stopping": "early_stopping",
    "algo_kwargs.max_updates": "max_updates",
    "algo_kwargs.learning_rate_schedule": "learning_rate_schedule",
    "algo_kwargs.warmup_steps": "learning_rate_schedule.warmup_steps",
    "algo_kwargs.max_epochs": "max_epochs",
    "algo_kwargs.dataset_kind": "dataset.kind",
    "algo_kwargs.dataset_path": "dataset.path",
    "algo_kwargs.dataset_id": "dataset.path",
    "algo_kwargs.dataset_size": "dataset.size",
    "algo_kwargs.dataset_seed": "dataset.seed",
    "algo_kwargs.dataset_mix": "dataset.parts",
    "algo_kwargs.dataset_mix_size": "dataset.size",
    "algo_kwargs.dataset_mix_seed": "dataset.seed",
    "algo_kwargs.reward_scale": "reward.scale",
    "algo_kwargs.reward_shift": "reward.shift",
    "algo_kwargs.reward_clip_min": "reward.clip_min",
    "algo_kwargs.reward_clip_max": "reward.clip_max",
}
"""Older spellings and where their values live now. Nothing else is accepted under another name."""

FOREIGN_NAMES = {
    "env": "env_id",
    "n_envs": "num_envs",
    "lr": "algo_kwargs.learning_rate",
    "buffer_size": "algo_kwargs.buffer_capacity",
    "train_freq": "algo_kwargs.train_frequency",
    "gradient_steps": "algo_kwargs.gradient_updates_per_step",
    "utd_ratio": "algo_kwargs.gradient_updates_per_step",
    "discount": "algo_kwargs.gamma",
    "discount_factor": "algo_kwargs.gamma",
    "ent_coef": "algo_kwargs.alpha",
    "net_arch": "algo_kwargs.hidden_sizes",
    "policy_kwargs": "algo_kwargs.hidden_sizes",
    "eval_freq": "eval_interval",
    "n_eval_episodes": "eval_episodes",
    "save_freq": "checkpoint_interval",
    "n_steps": "total_timesteps",
    "tensorboard_log": "output_dir",
    "verbose": "progress_bar of learn()",
}
"""Names that other libraries use, for the error message only."""


class RewardTransform(Settings):
    """What the learner sees of a reward: ``clip(scale * reward + shift, clip_min, clip_max)``. Scores stay raw."""

    scale: float = Field(1.0, description="factor of every reward")
    shift: float = Field(0.0, description="added after scaling")
    clip_min: float | None = Field(None, description="lower bound after shifting")
    clip_max: float | None = Field(None, description="upper bound after shifting")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.clip_min is not None and self.clip_max is not None and self.clip_min >= self.clip_max:
            raise ValueError(f"clip_min must be < clip_max ({self.clip_max}), got {self.clip_min}")
        return self


class EarlyStoppingConfig(Settings):
    """Stop when a metric reaches a value, or has not improved for more than ``patience`` evaluations."""

    metric: str = Field("eval_return_mean", description="name of an evaluation, training or ope/ metric")
    mode: Literal["max", "min"] = Field("max", description="whether larger or smaller is better")
    patience: int = Field(10, ge=0, description="evaluations without improvement that are tolerated")
    min_delta: float = Field(0.0, ge=0, description="a change must exceed this to count as improvement")
    target_value: float | None = Field(None, description="stop as soon as the metric is this good")


class ScheduleConfig(Settings):
    """Scale of the learning rate as a function of the absolute step."""

    type: Literal["constant", "linear", "cosine"] = Field("constant", description="shape between start and end")
    start: float = Field(1.0, ge=0, description="scale at step 0, after the warm-up")
    end: float = Field(0.0, ge=0, description="scale at the horizon and beyond (linear and cosine)")
    warmup_steps: int = Field(0, ge=0, description="steps over which the rate rises linearly from 0")
    horizon: int | None = Field(None, ge=1, description="step at which end is reached; total_timesteps of the first start")


class DatasetSource(Settings):
    """Where transitions come from, and what their columns mean."""

    kind: Literal["random", "npz", "pt", "hdf5", "minari"] = Field(description="a recipe, a kind of file, or Minari")
    path: str | None = Field(None, description="the file; for Minari a local dataset id or its directory")
    size: int | None = Field(None, ge=1, description="transitions of the random recipe (20,000 if none)")
    seed: int | None = Field(None, ge=0, description="seed of the random recipe (0 if none)")
    columns: dict[str, str] = Field(default_factory=dict, description="which column of the file is obs, actions, rewards, ...")
    time_limit: int | None = Field(
        None, ge=1, description="an episode of this many steps was cut, whatever the file's flag says"
    )
    action_low: float | list[float] | None = Field(None, description="action bounds of the data; the environment's if none")
    action_high: float | list[float] | None = Field(None, description="action bounds of the data; the environment's if none")
    clip_actions: bool = Field(False, description="clip actions outside the bounds instead of refusing them")
    memory_map: bool | None = Field(
        None, description="rows in a mapped file instead of memory; none: if they take more than half of what is available"
    )
    cache_dir: str | None = Field(
        None, description="where mapped files are kept; $RL_TRAINING_CACHE or ~/.cache/rl_training if none"
    )

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            names = {"dataset_path": "path", "dataset_id": "path", "dataset_size": "size", "dataset_seed": "seed"}
            data = {names.get(name, name): value for name, value in data.items()}
        return data

    @model_validator(mode="after")
    def _file_is_named(self) -> Self:
        if (self.kind == "random") == (self.path is not None):
            raise ValueError("path names a file: the random recipe has none, every other kind needs one")
        if self.kind != "random" and (self.size is not None or self.seed is not None):
            raise ValueError("size and seed are of the random recipe and of mixtures; a file has neither")
        if self.kind == "random" and (self.memory_map is not None or self.cache_dir is not None):
            raise ValueError("memory_map and cache_dir are of files; the random recipe is in memory")
        if (self.action_low is None) != (self.action_high is None):
            raise ValueError("action_low and action_high go together")
        return self


class DatasetPart(DatasetSource):
    """One part of a mixture."""

    weight: float = Field(1.0, gt=0, description="chance of a transition to come from this part, relative to the others")


class DatasetConfig(DatasetSource):
    """The data of an offline run: one source, or (kind ``mix``) several by weight."""

    kind: Literal["random", "npz", "pt", "hdf5", "minari", "mix"] = Field(  # type: ignore[assignment]
        "random", description="a recipe, a kind of file, Minari, or a mixture"
    )
    size: int | None = Field(
        None, ge=1, description="transitions of the random recipe; of a mixture that is put together once instead of lazily"
    )
    parts: list[DatasetPart] = Field(default_factory=list, description="the sources of a mixture")
    normalize_observations: bool = Field(False, description="standardise by the data's mean and std; kept with the agent")
    normalize_rewards: bool = Field(
        False, description="scale rewards by 1000 / (largest - smallest episode return), before the reward transform"
    )

    @model_validator(mode="after")
    def _file_is_named(self) -> Self:
        if (self.kind == "mix") != bool(self.parts):
            raise ValueError("parts and kind: mix go together")
        if self.kind == "mix" and self.normalize_rewards:
            raise ValueError("normalize_rewards looks at whole episodes, which a mixture does not have")
        if self.kind == "mix" and self.size is None and (self.normalize_observations or self.seed is not None):
            raise ValueError("normalize_observations and seed need a mixture that is put together once: set its size")
        if self.kind == "mix" and (self.memory_map is not None or self.cache_dir is not None):
            raise ValueError("memory_map and cache_dir of a mixture are set in its parts")
        return self if self.kind == "mix" else super()._file_is_named()  # type: ignore[operator]


class TrackingOptions(Settings):
    """How a run appears in the services named by ``tracking``."""

    project: str = Field("rl-training", min_length=1, description="project of W&B, experiment of MLflow")
    group: str | None = Field(None, description="group of W&B, a tag of MLflow")
    tags: tuple[str, ...] = Field((), description="words to find the run by")
    entity: str | None = Field(None, description="user or team of W&B; the login's own if none")
    mlflow_uri: str | None = Field(
        None, description="MLflow's store; $MLFLOW_TRACKING_URI, or mlflow.db beside the run directory, if none"
    )


class TrainConfig(Settings):
    """Everything that defines a run. Same configuration and same thread count: same bits."""

    algo: str = Field(description="name of the algorithm")
    env_id: str | None = Field(
        None, description="Gymnasium id, or module:callable that returns an environment; offline runs can do without"
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the environment")
    seed: int = Field(0, ge=0, description="root of every random stream of the run")
    total_timesteps: int = Field(ge=1, description="environment steps (online) or gradient steps (offline)")
    algo_kwargs: dict[str, Any] = Field(default_factory=dict, description="hyper-parameters of the algorithm")

    dataset: DatasetConfig | None = Field(None, description="transitions that an offline algorithm learns from")
    finetune: FinetuneConfig | None = Field(None, description="go on online from the checkpoint of an offline agent")
    num_envs: int = Field(1, ge=1, description="environments stepped together")
    vectorization: Literal["sync", "async"] = Field("sync", description="in this process, or one process each")
    reward: RewardTransform = Field(default_factory=RewardTransform, description="rewards as the learner sees them")

    eval_interval: int | None = Field(5_000, ge=1, description="steps between evaluations; none: only at the end")
    eval_episodes: int = Field(10, ge=0, description="episodes of an evaluation; 0 turns evaluation off")
    record_video: bool = Field(False, description="film an episode of each evaluation, to videos/ in the run directory")
    ope: OPEConfig | None = Field(None, description="evaluate by fitted Q evaluation on the way (offline)")
    early_stopping: EarlyStoppingConfig | None = Field(None, description="when to stop before the budget is spent")
    max_updates: int | None = Field(None, ge=1, description="budget of gradient steps, besides total_timesteps")
    max_epochs: float | None = Field(None, gt=0, description="budget in passes over the dataset (offline), besides the others")
    learning_rate_schedule: ScheduleConfig = Field(
        default_factory=ScheduleConfig, description="a type by name, or {type, start, end, warmup_steps}"
    )

    output_dir: Path = Field(Path("runs"), description="where run directories are made")
    checkpoint_interval: int | None = Field(10_000, ge=1, description="steps between checkpoints; none: only at the end")
    keep_last: int = Field(2, ge=1, description="checkpoints kept besides the best one")
    on_save_error: Literal["stop", "continue"] = Field(
        "continue", description="when a checkpoint or log row cannot be written: end the run, or warn and try again later"
    )
    log_interval: int = Field(500, ge=1, description="steps between rows of metrics.jsonl")
    tensorboard: bool = Field(True, description="also write TensorBoard events")
    tracking: tuple[Literal["wandb", "mlflow"], ...] = Field((), description="also send metrics there: wandb, mlflow, or both")
    tracking_options: TrackingOptions = Field(default_factory=TrackingOptions, description="project, group, tags and so on")

    device: str = Field("auto", description="auto takes the CPU for MLP-sized work; cpu, cuda, cuda:N, mps")
    torch_threads: int | None = Field(None, ge=1, description="intra-op threads; part of reproducibility")

    def __init__(self, /, **data: Any) -> None:
        require_plain_data(data)
        data, problems = _move_aliases(data)
        algo = data.get("algo")
        spec = get_algorithm_spec(algo) if isinstance(algo, str) and algo in ALGORITHMS else None
        data, unknown = _drop_unknown_keys(data, spec)
        problems += unknown
        problems += _loop_problems(data, spec)
        try:
            BaseModel.__init__(self, **data)
        except ValidationError as error:
            problems += describe_problems(type(self), error)
        try:
            if spec is not None and isinstance(data.get("algo_kwargs", {}), Mapping):
                spec.hyperparameters(**data.get("algo_kwargs", {}))
        except ConfigError as error:
            problems += [problem.under("algo_kwargs") for problem in error.problems]
        if problems:
            raise ConfigError(problems)

    @field_validator("algo")
    @classmethod
    def _algo_is_registered(cls, name: str) -> str:
        if name not in ALGORITHMS:
            raise ValueError(f"{name!r} is not a known algorithm{suggest(name, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
        return name

    @field_validator("env_id")
    @classmethod
    def _env_id_is_text(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError("must name an environment, got ''")
        return name

    @field_validator("env_kwargs")
    @classmethod
    def _env_kwargs_can_be_saved(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        for value in odd_values(kwargs):
            raise ValueError(
                f"must hold text, finite numbers, lists and mappings, which checkpoints can keep; got {shown(value)}"
            )
        return kwargs

    @field_validator("tracking", mode="before")
    @classmethod
    def _one_name_alone(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("tracking")
    @classmethod
    def _named_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"must not name one twice, got {', '.join(names)}")
        return names

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", name):
            raise ValueError(f"must be auto, cpu, cuda, cuda:N or mps, got {name!r}")
        return name

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        stopping = self.early_stopping
        if stopping is not None and stopping.metric.startswith("ope/"):
            if stopping.metric not in OPE_METRICS:
                known = suggest(stopping.metric, OPE_METRICS)
                raise ValueError(f"early_stopping.metric {stopping.metric!r} is not measured{known}")
            if self.ope is None:
                raise ValueError(
                    f"early_stopping.metric {stopping.metric!r} is measured by off-policy evaluation: add a section "
                    "ope: {interval: ...}"
                )
        elif stopping is not None and (self.eval_interval is None or self.eval_episodes == 0):
            raise ValueError("early_stopping looks at evaluations: set eval_interval and eval_episodes >= 1")
        if self.ope is not None and self.finetune is not None:
            raise ValueError("ope is for runs that learn from data alone; fine-tuning plays its environment")
        if self.ope is not None and self.dataset is not None and self.dataset.kind == "mix":
            raise ValueError("ope values a policy at the starts of episodes, which a mixture does not have")
        for name, value in self.finetune.loop_settings.items() if self.finetune else ():
            if (given := self.algo_kwargs.get(name, value)) != value:
                raise ValueError(
                    f"algo_kwargs.{name} must be {value}, as the finetune section has it, or left out, got {given}"
                )
        return self

    @property
    def spec(self) -> AlgorithmSpec:
        """The registered algorithm."""
        return get_algorithm_spec(self.algo)

    @property
    def hyperparameters(self) -> Hyperparameters:
        """``algo_kwargs`` as the algorithm's typed hyper-parameters, defaults filled in."""
        return self.spec.hyperparameters(**self.algo_kwargs)

    def resolved(self) -> TrainConfig:
        """The configuration as a run begins: what depends on the budget is fixed, so that extending the run keeps it."""
        schedule = self.learning_rate_schedule
        if schedule.horizon is None:
            schedule = schedule.model_copy(update={"horizon": self.total_timesteps})
        hyperparameters, finetune, updates = self.hyperparameters, self.finetune, self.total_timesteps
        settled: dict[str, Any] = {}
        if finetune is not None:
            finetune = finetune.model_copy(update={"offline_share": finetune.offline_share.resolved_for(updates)})
            updates *= finetune.updates_per_step
            settled = {name: value for name, value in finetune.loop_settings.items() if hasattr(hyperparameters, name)}
        settled |= {
            name: value
            for name, value in dict(hyperparameters.resolved_for(updates)).items()
            if value != getattr(hyperparameters, name)
        }
        return self.replace(learning_rate_schedule=schedule, finetune=finetune, algo_kwargs={**self.algo_kwargs, **settled})

    def replace(self, **changes: Any) -> TrainConfig:
        """A checked copy with some fields changed."""
        return TrainConfig(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain data; ``TrainConfig(**config.to_dict())`` is the same run."""
        data = self.model_dump(mode="json")
        data["algo_kwargs"] = self.hyperparameters.model_dump(mode="json")
        return data


def _move_aliases(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Bring older spellings to where they live now; both at once is a problem, not a guess."""
    moved, problems = copy.deepcopy(dict(data)), []
    kwargs = moved.get("algo_kwargs")
    if isinstance(kwargs, dict) and "dataset_mix" in kwargs:
        kwargs.setdefault("dataset_kind", "mix")
    if isinstance(moved.get("learning_rate_schedule"), str):
        moved["learning_rate_schedule"] = {"type": moved["learning_rate_schedule"]}
    for old, new in ALIASES.items():
        section, key = old.split(".")
        source = moved.get(section)
        if not isinstance(source, dict) or key not in source:
            continue
        value = source.pop(key)
        if new == "learning_rate_schedule" and isinstance(value, str):
            value = {"type": value}
        *home, name = new.split(".")
        target = moved
        for part in home:
            if target.get(part) is None:  # absent, or explicitly none
                target[part] = {}
            target = target[part]
        if isinstance(target, Settings):
            target = dict(target)
            moved[home[0]] = target
        if not isinstance(target, dict):
            continue  # validation of the section tells what is wrong with it
        if name in target:
            problems.append(Problem(old, f"and {new} are the same setting; keep {new}"))
        else:
            target[name] = value
    return moved, problems


def _loop_problems(data: Mapping[str, Any], spec: AlgorithmSpec | None) -> list[Problem]:
    """Settings that only make sense for the other kind of learning."""
    if spec is None:
        return []
    if data.get("finetune") is not None:
        return finetune_problems(data, spec)
    if spec.loop == "online":
        problems = [] if "env_id" in data and data["env_id"] is not None else [Problem("env_id", "is required")]
        offline_only = [name for name in ("dataset", "max_epochs", "ope") if data.get(name) is not None]
        return problems + [Problem(name, f"is for offline algorithms; {spec.name} learns online") for name in offline_only]
    online_only = [name for name, idle in (("num_envs", 1), ("vectorization", "sync")) if data.get(name, idle) != idle]
    return [Problem(name, f"is for online algorithms; {spec.name} learns from data") for name in online_only]


def _drop_unknown_keys(data: dict[str, Any], spec: AlgorithmSpec | None) -> tuple[dict[str, Any], list[Problem]]:
    """Refuse unknown keys here, where both the run's and the algorithm's settings are known, for a better hint."""
    top, own = set(TrainConfig.model_fields), set(spec.hyperparameters.model_fields) if spec else set()
    homes = {name: f"algo_kwargs.{name}" for name in own} | {name: name for name in top}
    problems = []

    def check(section: str, key: str) -> None:
        home = FOREIGN_NAMES.get(key) or homes.get(key) or homes.get(nearest(key, homes) or "")
        hint = f"; did you mean {home!r}?" if home else ""
        of = f" of {spec.name}" if section and spec else ""
        problems.append(Problem(f"{section}{key}", f"is not a known key{of}{hint}"))

    for key in [key for key in data if key not in top]:
        check("", key)
        del data[key]
    kwargs = data.get("algo_kwargs")
    if spec is not None and isinstance(kwargs, dict):
        for key in [key for key in kwargs if key not in own]:
            check("algo_kwargs.", str(key))
        data["algo_kwargs"] = {key: value for key, value in kwargs.items() if key in own}
    return data, problems
