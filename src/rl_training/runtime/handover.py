"""What a fine-tuning run takes from the checkpoint it starts from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Algorithm, LearnerState
from rl_training.data.transforms import ObservationNormalizer
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.finetune_config import possible_continuations
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.squashed_gaussian import squashed_from_plain
from rl_training.runtime.policy import UNFIT, normalizer_from_dict
from rl_training.types import CheckpointError, ConfigError, EnvSpec

logger = logging.getLogger("rl_training")

NETWORKS = ("model", "target", "target_critics")
"""What is carried over to another algorithm: the networks and their target copies, under the names that learners use."""


def require_continuable(origin: str, target: str) -> None:
    """Refuse pairs of algorithms between which an agent cannot be handed over."""
    possible = get_algorithm_spec(origin).continues_as
    if target in possible:
        return
    if origin == "bc":
        raise ConfigError(
            "a bc agent has no critic and learns nothing from rewards, so there is nothing to fine-tune; train the same data "
            f"with a method that has one and fine-tune that ({possible_continuations()})"
        )
    if not possible and get_algorithm_spec(origin).loop == "online":
        raise ConfigError(f"the checkpoint is of {origin}, which learns online already: 'rl-training resume' continues it")
    raise ConfigError(f"a {origin} agent cannot go on as {target}: {possible_continuations()}")


def require_fitting_agent(checkpoint: Checkpoint, target: str, env: EnvSpec, *, resuming: bool) -> None:
    """Refuse an agent that cannot go on as ``target`` (when a run begins), or in this environment."""
    try:
        origin, agent = checkpoint.manifest["algo"], EnvSpec.from_dict(checkpoint.manifest["env_spec"])
    except UNFIT as error:
        raise CheckpointError(f"{checkpoint.path} is not a checkpoint of a run: {error}") from None
    if not resuming:
        require_continuable(origin, target)
    facts = {
        "observations of shape": (agent.obs_shape, env.obs_shape),
        "actions that are": (agent.action_kind, env.action_kind),
        "actions of shape": (agent.action_shape, env.action_shape),
        "actions from": (agent.action_low, env.action_low),
        "actions to": (agent.action_high, env.action_high),
    }
    for what, (trained, given) in facts.items():
        if trained != given:
            raise ConfigError(f"the agent was trained for {what} {_plain(trained)}; {env.env_id} has {what} {_plain(given)}")


def _plain(value: Any) -> str:
    return ", ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def normalizer_of(checkpoint: Checkpoint) -> ObservationNormalizer | None:
    """What the agent's observations are normalised by."""
    try:
        return normalizer_from_dict(checkpoint.manifest["normalizer"])
    except UNFIT as error:
        raise CheckpointError(f"{checkpoint.path} has no usable normaliser: {error}") from None


def hand_over(checkpoint: Checkpoint, algorithm: Algorithm, target: str) -> dict[str, Any]:
    """Give a fresh learner what the checkpoint has for it; returns what that was, for the run's metadata.

    Under the same algorithm that is everything but counters and noise; under another one, the networks and their targets.
    """
    origin = checkpoint.manifest["algo"]
    fresh = algorithm.state_dict()
    try:
        stored = checkpoint.tensors("weights")
        if origin == target:
            optimizers = checkpoint.tensors("optimizer")
            algorithm.load_state_dict(LearnerState(stored, optimizers, fresh.generators, fresh.counters))
            carried = [name for name in algorithm.state if name not in fresh.counters]
        else:
            carried = [name for name in algorithm.state if name in NETWORKS]
            networks = {
                name: tensor for name, tensor in _fitted(stored, fresh.weights).items() if name.split(".")[0] in carried
            }
            others = {name: tensor for name, tensor in fresh.weights.items() if name.split(".")[0] not in carried}
            algorithm.load_weights({**networks, **others})
    except UNFIT as error:
        raise CheckpointError(
            f"{checkpoint.path} does not fit a {target} agent of this configuration: {error}; "
            "hidden_sizes, critic_hidden_sizes and layer_norm must be the checkpoint's"
        ) from None
    new = [*(name for name in algorithm.state if name not in carried), "generator"]
    logger.info("%s from %s: carried over %s; fresh %s", target, checkpoint.path, ", ".join(carried), ", ".join(new))
    step = checkpoint.manifest["trainer"]["global_step"]
    return {"checkpoint": str(checkpoint.path), "algo": origin, "step": step, "carried_over": carried, "fresh": new}


def _fitted(stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors as the other algorithm's networks need them: a plain Gaussian actor becomes a squashed one."""
    prefix = "model.actor."
    actor = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    if "log_std" in actor and f"{prefix}log_std" not in expected:
        actor = squashed_from_plain(actor)
    others = {name: tensor for name, tensor in stored.items() if not name.startswith(prefix)}
    return {**others, **{f"{prefix}{name}": tensor for name, tensor in actor.items()}}
