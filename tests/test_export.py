"""Exported policies: they act as the checkpoint does, without this package, and nothing half-made is left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from support import ALGORITHMS, REPOSITORY, newest_checkpoint

from rl_training import SAC
from rl_training.cli import main
from rl_training.data.transforms import ObservationNormalizer
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime import exporting
from rl_training.runtime.exporting import export_policy, largest_difference, random_observations
from rl_training.runtime.onnx_policy import OnnxPolicy
from rl_training.runtime.policy import Policy
from rl_training.types import CheckpointError, ConfigError, EnvSpec

GOLDEN = REPOSITORY / "tests" / "golden" / "0.1.0"  # small trained agents of every algorithm, some with a normaliser


@pytest.fixture(scope="module")
def sac_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_policy(GOLDEN / "sac", tmp_path_factory.mktemp("exported") / "policy.onnx").path


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_onnx_acts_as_the_policy_does(algo: str, tmp_path: Path) -> None:
    exported = export_policy(GOLDEN / algo, tmp_path / "policy.onnx")
    policy, program = Policy.from_checkpoint(GOLDEN / algo), OnnxPolicy(exported.path)
    observations = random_observations(policy, seed=1)
    assert len(observations) == 1_000
    expected, actions = policy.predict(observations), program.predict(observations)
    assert actions.dtype == expected.dtype
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(program.predict(observations[0]), expected[0], rtol=0, atol=1e-5)
    assert type(program.predict(observations[0])) is type(policy.predict(observations[0]))
    assert program.metadata["algo"] == algo
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]  # no second file with the weights, no temporary one


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_torch_acts_as_the_policy_does(algo: str, tmp_path: Path) -> None:
    assert export_policy(GOLDEN / algo, tmp_path / "policy.pt").format == "torch"
    policy, extra = Policy.from_checkpoint(GOLDEN / algo), {"metadata.json": ""}
    program = torch.jit.load(tmp_path / "policy.pt", _extra_files=extra)
    observations = random_observations(policy, seed=1)
    np.testing.assert_allclose(program(torch.from_numpy(observations)), policy.predict(observations), rtol=0, atol=1e-5)
    assert json.loads(extra["metadata.json"])["algo"] == algo
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def odd_policy(spec: EnvSpec, normalizer: ObservationNormalizer | None = None) -> Policy:
    algorithm = get_algorithm_spec("sac" if spec.action_kind == "continuous" else "dqn")
    learner = algorithm.build(spec, algorithm.hyperparameters(hidden_sizes=(16, 16)))
    return Policy(learner, spec, normalizer=normalizer)


ODD_TASKS = [
    EnvSpec("wide", (4,), "continuous", (2, 2), "float64", (-1.0, 0.0, -500.0, 2.0), (1.0, 3.0, 20.0, 2.0)),
    EnvSpec("shifted", (4,), "discrete", (), "int32", num_actions=3, action_start=-1),
]


@pytest.mark.parametrize("spec", ODD_TASKS, ids=lambda spec: spec.env_id)
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_bounds_shapes_types_and_normalisers_are_inside(spec: EnvSpec, form: Any, tmp_path: Path) -> None:
    normalizer = ObservationNormalizer(torch.tensor([5.0, -3.0, 0.0, 100.0]), torch.tensor([0.1, 2.0, 1.0, 30.0]))
    policy = odd_policy(spec, normalizer)
    act = exporting._WRITERS[form](policy, tmp_path / "policy", {})
    assert largest_difference(policy, act) <= 1e-5  # which compares shapes and types too
    assert act(np.zeros((3, 4), dtype=np.float32)).shape == (3, *spec.action_shape)


def test_metadata_tells_what_the_file_is_and_no_path(sac_file: Path) -> None:
    model = onnx.load(sac_file)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    spec = json.loads(facts["env_spec"])
    assert (facts["env_id"], facts["rl_training"], facts["global_step"]) == ("Pendulum-v1", "0.1.0", "40")
    assert (spec["obs_shape"], spec["action_low"], spec["action_high"]) == ([3], [-2.0], [2.0])
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": exporting.OPSET}
    assert str(REPOSITORY).encode() not in sac_file.read_bytes()


def test_a_file_that_acts_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skewed(policy: Policy, path: Path, metadata: dict[str, str]) -> Any:
        act = exporting._write_torch(policy, path, metadata)
        return lambda obs: act(obs) + np.float32(1e-3)

    monkeypatch.setitem(exporting._WRITERS, "torch", skewed)
    (tmp_path / "policy.pt").write_text("the one from before")
    with pytest.raises(CheckpointError, match=r"off by up to 0\.0005"):
        export_policy(GOLDEN / "sac", tmp_path / "policy.pt")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("policy.pt", "the one from before")]


def test_ties_between_discrete_actions_are_no_difference() -> None:
    policy = odd_policy(ODD_TASKS[1])
    for parameter in policy.algorithm.networks():
        parameter.data.zero_()  # every action has the same value: rounding alone would decide
    with pytest.raises(CheckpointError, match="off by"):
        largest_difference(policy, lambda obs: policy.predict(obs) + np.int32(1))  # here it cannot: the first one wins
    flipped = odd_policy(ODD_TASKS[1])
    observations = random_observations(flipped)
    scaled = flipped.predict(observations * np.float32(1 + 1e-5))
    assert largest_difference(flipped, lambda obs: scaled[: len(obs)]) == 0


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(GOLDEN / "sac", tmp_path / "run")
    weights = newest_checkpoint(run) / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    for where in (run, newest_checkpoint(run)):
        assert main(["export", str(where), "-o", str(tmp_path / "policy.onnx")]) == 2
        assert "damaged" in capsys.readouterr().err
    assert not (tmp_path / "policy.onnx").exists()


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        export_policy(GOLDEN / "sac", tmp_path, format="torch")
    with pytest.raises(ConfigError, match="say the format"):
        export_policy(GOLDEN / "sac", tmp_path / "policy.bin")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        export_policy(GOLDEN / "sac", tmp_path / "file" / "policy.pt")


def test_the_command_and_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(GOLDEN / "td3"), "--format", "torch", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["format"], told["observations"]) == ("policy.pt", "torch", 1_000)
    assert told["largest_difference"] <= 1e-5
    assert SAC.load(GOLDEN / "sac").export("agent.pt").path == Path("agent.pt")
    assert main(["export", str(GOLDEN / "td3"), "-o", "policy.pt"]) == 0  # replaced
    assert "checked on 1,000 observations" in capsys.readouterr().out


def test_predict_runs_an_onnx_file(sac_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for where in (sac_file, GOLDEN / "sac"):
        assert main(["predict", str(where), "--obs", "[[1, 0, 0.5], [0, 1, 2]]", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["action"])
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-5)


def test_predict_refuses_what_is_no_policy(sac_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    info = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 8, 8])
    other = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["image"], ["y"])], "g", [info], [_renamed(info, "y")])
    model = onnx.helper.make_model(other, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "image.onnx")
    for where, obs, message in (
        (tmp_path / "text.onnx", "[1, 2, 3]", "is not an ONNX file that can be run"),
        (tmp_path / "image.onnx", "[1, 2, 3]", "is no exported policy: it takes image"),
        (tmp_path / "none.onnx", "[1, 2, 3]", "does not exist"),
        (sac_file, "[1, 2]", r"observation has shape (2,), expected (3,)"),
        (sac_file, "[1, 2, NaN]", "observation 0 has the value nan"),
    ):
        assert main(["predict", str(where), "--obs", obs]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", str(sac_file), "--obs", "[1, 2, 3]", "--stochastic"]) == 2


def _renamed(info: Any, name: str) -> Any:
    copy = type(info)()
    copy.CopyFrom(info)
    copy.name = name
    return copy


def test_the_example_serves_it_without_torch(sac_file: Path, tmp_path: Path) -> None:
    script = REPOSITORY / "examples" / "serve_onnx.py"
    assert len(script.read_text().splitlines()) <= 20
    code = f"""
import runpy, sys
sys.modules["torch"] = sys.modules["rl_training"] = None  # importing them raises
sys.argv = ["serve_onnx.py", {str(sac_file)!r}]
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("return -")
