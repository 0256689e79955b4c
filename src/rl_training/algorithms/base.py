"""What every algorithm is: hyper-parameters, a learner with a declared state, and a line in the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.functional import as_floats
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.types import ActionKind, Batch, EnvSpec, Metrics
from rl_training.validation import Settings

LayerSizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=100)]


class Range(Settings):
    """Values that tuning may try: between two bounds, whole numbers if both bounds are, evenly in the logarithm if ``log``."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be < high ({self.high}), got {self.low}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be > 0 on a logarithmic scale, got {self.low}")
        return self


class Choice(Settings):
    """Values that tuning may try: one of a list."""

    values: tuple[Any, ...] = Field(min_length=1)


SearchSpace: TypeAlias = Mapping[str, Range | Choice | None]
"""What tuning may try for each hyper-parameter; ``None`` takes out what a base class declares."""


class Hyperparameters(Settings):
    """What every method can be told; each method adds its own fields.

    ``search_space`` holds what ``rl-training tune`` varies if it is not told otherwise; a subclass only names what it adds.
    """

    search_space: ClassVar[SearchSpace] = {
        "learning_rate": Range(low=1e-5, high=1e-2, log=True),
        "gamma": Choice(values=(0.95, 0.98, 0.99, 0.995)),
        "batch_size": Choice(values=(64, 128, 256, 512)),
    }

    learning_rate: float = Field(3e-4, gt=0, description="step size of Adam for every network")
    gamma: float = Field(0.99, ge=0, le=1, description="discount per step")
    batch_size: int = Field(256, ge=1, description="transitions per gradient step")
    hidden_sizes: LayerSizes = Field((256, 256), description="width of each hidden layer")

    def resolved_for(self, total_timesteps: int) -> Self:
        """The same with everything filled in that depends on the budget; done once, so that extending a run keeps it."""
        return self

    @classmethod
    def whole_search_space(cls) -> dict[str, Range | Choice]:
        """``search_space`` with what the base classes declare."""
        merged: dict[str, Range | Choice | None] = {}
        for owner in reversed(cls.__mro__):
            merged |= vars(owner).get("search_space", {})
        return {name: values for name, values in merged.items() if values is not None}


class OnlineHyperparameters(Hyperparameters):
    """What every method that learns from an environment adds.

    Every ``train_frequency`` environment steps there are ``gradient_updates_per_step`` updates, so the
    update-to-data ratio is ``gradient_updates_per_step / train_frequency``, whatever the number of environments.
    """

    search_space: ClassVar[SearchSpace] = {"gradient_updates_per_step": Choice(values=(1, 2, 4))}

    buffer_capacity: int = Field(1_000_000, ge=1, description="transitions the replay buffer can hold")
    learning_starts: int = Field(
        10_000, ge=0, description="environment steps with uniformly random actions before the first update"
    )
    train_frequency: int = Field(1, ge=1, description="environment steps between rounds of updates")
    gradient_updates_per_step: int = Field(1, ge=1, description="updates in a round")

    @model_validator(mode="after")
    def _buffer_holds_a_batch(self) -> Self:
        if self.buffer_capacity < self.batch_size:
            raise ValueError(f"buffer_capacity must be >= batch_size ({self.batch_size}), got {self.buffer_capacity}")
        return self


class CriticHyperparameters(Hyperparameters):
    """What methods with target critics share."""

    search_space: ClassVar[SearchSpace] = {"tau": Range(low=0.002, high=0.05, log=True)}

    tau: float = Field(0.005, gt=0, le=1, description="share of the online network in each target update")
    critic_hidden_sizes: LayerSizes | None = Field(None, description="critic layers, where they differ from hidden_sizes")
    layer_norm: bool = Field(False, description="LayerNorm in the critics, after each ReLU")

    @property
    def network_options(self) -> dict[str, Any]:
        """The keyword arguments that every actor-critic model takes."""
        return {
            "hidden_sizes": self.hidden_sizes,
            "critic_hidden_sizes": self.critic_hidden_sizes,
            "layer_norm": self.layer_norm,
        }


class ActorCriticHyperparameters(CriticHyperparameters, OnlineHyperparameters):
    """What the online actor-critic methods share."""


class UpdateResult:
    """What one gradient step reports. ``metrics`` becomes plain numbers when it is read, not before.

    A term is a scalar, or a tensor that stands for the mean of its entries.
    """

    __slots__ = ("_metrics", "num_gradient_steps", "terms")

    def __init__(self, metrics: Mapping[str, Tensor | float], num_gradient_steps: int = 1) -> None:
        self.terms = metrics
        self.num_gradient_steps = num_gradient_steps
        self._metrics: Metrics | None = None

    @property
    def metrics(self) -> Metrics:
        """The terms as floats; a term that this step did not compute is absent."""
        if self._metrics is None:
            self._metrics = as_floats(self.terms)
        return self._metrics

    def __repr__(self) -> str:
        return f"UpdateResult({self.metrics}, num_gradient_steps={self.num_gradient_steps})"


@dataclass
class LearnerState:
    """All that a learner has to remember, sorted by the file it goes to."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizers: dict[str, Tensor] = field(default_factory=dict)
    generators: dict[str, Tensor] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


class Algorithm(ABC):
    """A learner: turns batches into better parameters, and observations into actions in [-1, 1] (or indices).

    A subclass names the attributes that make up its state in ``state``: networks, target copies, optimisers,
    tensors, whole-number counters. Saving, loading and learning-rate schedules are derived from that list.
    """

    state: ClassVar[tuple[str, ...]]
    hp: Hyperparameters

    @cached_property
    def generator(self) -> torch.Generator:
        """Source of this learner's own noise, on the device of its networks; saved with its state."""
        device = next(iter(self.networks())).device
        return torch.Generator(device).manual_seed(int(torch.randint(2**63 - 1, ()).item()))

    def networks(self) -> Iterator[Tensor]:
        """Parameters of every network in the state."""
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                yield from value.parameters()

    @abstractmethod
    def update(self, batch: Batch, *, global_step: int = 0) -> UpdateResult:
        """One gradient step on one batch."""

    @abstractmethod
    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """Actions of the current policy, ``(batch, action_dim)`` in [-1, 1], or ``(batch,)`` indices."""

    def explore(self, obs: Tensor, *, global_step: int) -> Tensor:
        """Actions for collecting data at a given step of the run."""
        return self.act(obs, deterministic=False)

    def optimizers(self) -> list[FlatAdam]:
        """The optimisers in the state, in its order."""
        values = (getattr(self, name) for name in self.state)
        return [value for value in values if isinstance(value, FlatAdam)]

    def scale_learning_rate(self, scale: float) -> None:
        """Follow a schedule: every optimiser runs at ``scale`` times its own base rate."""
        for optimizer in self.optimizers():
            optimizer.scale_learning_rate(scale)

    def state_dict(self) -> LearnerState:
        """Everything named in ``state`` and the noise generator; tensors are not copied."""
        state = LearnerState(generators={"generator": self.generator.get_state()})
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                state.weights |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
            elif isinstance(value, FlatAdam):
                state.optimizers |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
            elif isinstance(value, Tensor):
                state.weights[name] = value.detach()
            else:
                state.counters[name] = int(value)
        return state

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put back networks and tensors; all that acting needs. Raises ``ValueError`` where names or shapes differ."""
        expected = self.state_dict().weights
        if missing := sorted(expected.keys() - weights.keys()):
            raise ValueError(f"missing tensors: {', '.join(missing[:3])}")
        if unknown := sorted(weights.keys() - expected.keys()):
            raise ValueError(f"unknown tensors: {', '.join(unknown[:3])}")
        for name, tensor in expected.items():
            if tensor.shape != weights[name].shape:
                raise ValueError(f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}")
            tensor.copy_(weights[name])  # in place: flat buffers and their views stay together

    def load_state_dict(self, state: LearnerState) -> None:
        """Put back what :meth:`state_dict` gave; afterwards the learner continues bit for bit."""
        self.load_weights(state.weights)
        if unknown := sorted(name for name in state.optimizers if name.split(".")[0] not in self.state):
            raise ValueError(f"unknown optimiser states: {', '.join(unknown[:3])}")
        self.generator.set_state(state.generators["generator"].cpu())
        for name in self.state:
            value = getattr(self, name)
            if isinstance(value, FlatAdam):
                prefix = f"{name}."
                value.load_state_dict(
                    {key.removeprefix(prefix): tensor for key, tensor in state.optimizers.items() if key.startswith(prefix)}
                )
            elif not isinstance(value, nn.Module | Tensor):
                if type(state.counters[name]) is not int:
                    raise ValueError(f"{name} must be a whole number, got {state.counters[name]!r}")
                setattr(self, name, state.counters[name])


@dataclass(frozen=True)
class AlgorithmSpec:
    """One line of the registry: all that the rest of the package needs to know of a method.

    ``build_model`` makes the networks for a task; ``model_argument`` is the learner's keyword for them. ``continues_as``
    names the methods under which an agent of this one can be fine-tuned online, ``when_finetuned`` the hyper-parameters
    that a fine-tuning run of this method has unless told otherwise.
    """

    name: str
    title: str
    loop: Literal["online", "offline"]
    actions: ActionKind
    hyperparameters: type[Hyperparameters]
    build_model: Callable[[EnvSpec, Any], nn.Module]
    learner: type[Algorithm]
    model_argument: str = "model"
    continues_as: tuple[str, ...] = ()
    when_finetuned: Mapping[str, Any] = field(default_factory=dict)

    # Training, evaluating and predicting live in layers above this one and are the same for every method, so they are
    # named here, like the entry points of a package, and looked up when used.
    @property
    def train_fn(self) -> Callable[..., Any]:
        """``train_<name>(config, *, callbacks, checkpoint, run_suffix)``."""
        train: Callable[..., Any] = import_module("rl_training.runtime.training").train_function(self.name)
        return train

    @property
    def evaluate_fn(self) -> Callable[..., Any]:
        """``evaluate_checkpoint(path, num_episodes)``."""
        evaluate: Callable[..., Any] = import_module("rl_training.runtime.workflows").evaluate_checkpoint
        return evaluate

    @property
    def predict_fn(self) -> Callable[..., Any]:
        """``predict_checkpoint(path, obs)``."""
        predict: Callable[..., Any] = import_module("rl_training.runtime.workflows").predict_checkpoint
        return predict

    def build(self, env_spec: EnvSpec, hyperparameters: Hyperparameters, *, device: str = "cpu", seed: int = 0) -> Algorithm:
        """A fresh learner, its initial weights decided by ``seed`` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build_model(env_spec, hyperparameters).to(device)
            arguments: dict[str, Any] = {self.model_argument: model, **dict(hyperparameters)}
            learner = self.learner(**arguments)
            learner.generator.manual_seed(seed + 1)
        return learner
