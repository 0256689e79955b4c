"""Every public name is where people import it from."""

from __future__ import annotations

from importlib import import_module

import pytest
from support import ALGORITHMS

import rl_training
from rl_training.algorithms import ALGORITHMS as CLASS_NAMES
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec

NAMES = {
    "rl_training.algorithms.base": ["Algorithm", "UpdateResult"],
    "rl_training.models": [
        "MLPSACModel",
        "MLPTD3Model",
        "MLPDDPGModel",
        "MLPREDQModel",
        "MLPTQCModel",
        "MLPQNetwork",
        "MLPDuelingQNetwork",
        "MLPBCModel",
        "MLPIQLModel",
    ],
    "rl_training.runtime.workflows": ["evaluate_checkpoint", "resume_training", "predict_checkpoint"],
    "rl_training.runtime.controls": ["build_control_callbacks", "EarlyStoppingConfig", "EarlyStoppingCallback"],
    "rl_training.runtime.trainer": ["TrainResult", "TrainerState"],
    "rl_training.experiment.config": ["TrainConfig"],
    "rl_training.experiment.registry": ["AlgorithmSpec", "get_algorithm_spec", "list_algorithms"],
    "rl_training.experiment.default_manager": ["DefaultExperimentManager"],
    "rl_training.data": [
        "ReplayBuffer",
        "TransitionDataset",
        "load_transition_dataset",
        "mix_transition_datasets",
        "compute_discounted_returns_to_go",
    ],
    "rl_training.cli": ["main", "load_config"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_name_exists(module: str, name: str) -> None:
    assert getattr(import_module(module), name)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_algorithm_is_everywhere(algo: str) -> None:
    class_name = CLASS_NAMES[algo]
    module = import_module(f"rl_training.algorithms.{algo}")
    learner = getattr(module, class_name)
    assert callable(getattr(module, f"{algo}_loss"))
    algorithms = import_module("rl_training.algorithms")
    assert getattr(algorithms, class_name) is getattr(algorithms, f"{class_name}Algorithm") is learner
    assert getattr(rl_training, class_name) is getattr(import_module("rl_training.api"), class_name)
    assert getattr(rl_training, class_name).algo == algo
    assert class_name in rl_training.__all__
    assert callable(getattr(import_module(f"rl_training.runtime.{algo}_trainer"), f"train_{algo}"))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_spec(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    assert isinstance(spec, AlgorithmSpec)
    assert spec.name == algo
    assert callable(spec.train_fn)
    assert callable(spec.evaluate_fn)
    assert callable(spec.predict_fn)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError):
        _ = rl_training.Nonsense
    with pytest.raises(AttributeError):
        _ = rl_training.nonsense
    with pytest.raises(ValueError, match="did you mean 'sac'"):
        get_algorithm_spec("sacc")
