"""Files that carry code: refused with exit code 2 and one message, and the code never runs.

Every bomb is also set off once on purpose, by the unsafe function that people use, to prove that it would go off.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from support import REPOSITORY, newest_checkpoint, tiny_config

from rl_training.cli import main
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.runtime.numerics import dump_non_finite
from rl_training.runtime.training import train
from rl_training.types import CheckpointError

SOURCE = REPOSITORY / "src" / "rl_training"


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("sac", tmp_path_factory.mktemp("trained"), total_timesteps=40, checkpoint_interval=20)
    return train(config).run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def assert_refused(arguments: list[str], canary: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Exit code 2, one message without a traceback, nothing executed."""
    capsys.readouterr()
    code = main(arguments)
    printed = capsys.readouterr()
    assert not canary.exists(), f"{arguments} executed what is in the file"
    assert code == 2, printed.err
    assert "Traceback" not in printed.err
    assert printed.err.count("error: ") == 1, printed.err
    return printed.err


def overrides(*settings: str) -> list[str]:
    """``--set`` options; the budget is small, should the run begin after all."""
    return [part for text in (*settings, "total_timesteps=3", "eval_episodes=0") for part in ("--set", text)]


def columns(rows: int = 6) -> dict[str, Any]:
    t = np.arange(rows, dtype=np.float32)
    ends = np.zeros(rows, dtype=bool)
    ends[-1] = True
    return {"observations": np.stack([t, t, t], 1), "actions": t[:, None] / 10, "rewards": t, "terminals": ends}


# -- datasets ----------------------------------------------------------------------------------------------------------


def pickled(bomb: Bomb, path: Path) -> None:
    path.write_bytes(pickle.dumps(bomb))


def saved_by_torch(bomb: Bomb, path: Path) -> None:
    torch.save({"obs": bomb, **{name: torch.from_numpy(value) for name, value in columns().items()}}, path)


def saved_by_torch_before_zip(bomb: Bomb, path: Path) -> None:
    torch.save({"obs": bomb}, path, _use_new_zipfile_serialization=False)


def pickle_in_zip(bomb: Bomb, path: Path) -> None:
    """A torch archive whose pickle was exchanged."""
    import zipfile

    torch.save({name: torch.from_numpy(value) for name, value in columns().items()}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, pickle.dumps(bomb, 2) if name.endswith("data.pkl") else content)


def object_array(bomb: Bomb, path: Path) -> None:
    np.savez(path, **{**columns(), "observations": np.array([[bomb]] * 6, dtype=object)})


def object_array_alone(bomb: Bomb, path: Path) -> None:
    np.save(path, np.array([bomb], dtype=object), allow_pickle=True)


def object_array_renamed(bomb: Bomb, path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([bomb], dtype=object), allow_pickle=True)
    path.write_bytes(buffer.getvalue())


def hdf5_with_pickles(bomb: Bomb, path: Path) -> None:
    """Pickles wherever HDF5 can keep bytes: an opaque column, text, an attribute."""
    with h5py.File(path, "w") as file:
        for name, value in {**columns(), "observations": np.array([np.void(pickle.dumps(bomb))] * 6)}.items():
            file[name] = value
        file.attrs["pickled"] = np.void(pickle.dumps(bomb))
        file["rewards"].attrs["code"] = f"__import__('os').system('touch {bomb.canary}')"


def hdf5_of_text(bomb: Bomb, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, value in columns().items():
            file[name] = value
        del file["rewards"]
        code = [f"__import__('os').system('touch {bomb.canary}')"] * 6
        file.create_dataset("rewards", data=code, dtype=h5py.string_dtype())


HOSTILE_DATA: list[tuple[str, Callable[[Bomb, Path], None]]] = [
    ("a.pt", pickled),
    ("a.pth", saved_by_torch),
    ("a.pt", saved_by_torch_before_zip),
    ("a.pt", pickle_in_zip),
    ("a.npz", object_array),
    ("a.npz", pickled),
    ("a.npz", object_array_renamed),
    ("a.npy", object_array_alone),
    ("a.pkl", pickled),
    ("a.hdf5", hdf5_with_pickles),
    ("a.h5", hdf5_of_text),
    ("a.h5", pickled),
]


@pytest.mark.parametrize(("name", "write"), HOSTILE_DATA, ids=lambda value: getattr(value, "__name__", value))
def test_a_dataset_that_carries_code(
    name: str, write: Callable[[Bomb, Path], None], tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / name, tmp_path / "output"
    write(Bomb(canary), path)
    output.mkdir()
    assert str(path) in assert_refused(["data", "inspect", str(path)], canary, capsys)
    assert_refused(["data", "convert", str(path), str(output / "converted.npz")], canary, capsys)
    kind = {".npy": "npz", ".pkl": "pt"}.get(path.suffix, {".pth": "pt", ".h5": "hdf5"}.get(path.suffix, path.suffix[1:]))
    settings = [f"output_dir={output}", f"dataset={{kind: {kind}, path: {path}}}"]
    assert_refused(["train", "td3_bc/pendulum", *overrides(*settings)], canary, capsys)
    assert list(output.iterdir()) == [], "a refused command leaves nothing behind"


def test_a_minari_dataset_that_carries_code(tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "dataset-v0"
    (directory / "data").mkdir(parents=True)
    hdf5_with_pickles(Bomb(canary), directory / "data" / "main_data.hdf5")
    (directory / "data" / "metadata.json").write_text(
        json.dumps({"ref_min_score": f"!!python/object/apply:os.system ['touch {canary}']"})
    )
    assert_refused(["data", "inspect", str(directory)], canary, capsys)


@pytest.mark.parametrize(
    "metadata", ["pickle", '{"ref_min_score": "__import__(\'os\')", "ref_max_score": 1}', "[[", '"text"', "[1]", "[" * 10**5]
)
def test_minari_metadata_that_is_no_metadata(
    metadata: str, tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, output = tmp_path / "dataset-v0", tmp_path / "output"
    (directory / "data").mkdir(parents=True)
    output.mkdir()
    with h5py.File(directory / "data" / "main_data.hdf5", "w") as file:
        for name, value in columns().items():
            file[f"episode_0/{name.replace('terminals', 'terminations')}"] = value if name == "observations" else value[:5]
        file["episode_0/truncations"] = np.zeros(5, dtype=bool)
    content = pickle.dumps(Bomb(canary)) if metadata == "pickle" else metadata.encode()
    (directory / "data" / "metadata.json").write_bytes(content)
    assert main(["data", "inspect", str(directory)]) == 0, "the episodes themselves are fine"
    settings = [f"output_dir={output}", f"dataset={{kind: minari, path: {directory}}}"]
    message = assert_refused(["train", "td3_bc/pendulum", *overrides(*settings)], canary, capsys)
    assert "metadata.json" in message
    assert list(output.iterdir()) == []


# -- configurations ----------------------------------------------------------------------------------------------------

YAML_BOMBS = [
    "!!python/object/apply:os.system ['touch CANARY']",
    "!!python/object/new:os.system ['touch CANARY']",
    "!!python/object/apply:subprocess.check_call [[touch, CANARY]]",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object:collections.Counter {}",
]


@pytest.mark.parametrize("tag", YAML_BOMBS)
def test_a_configuration_that_carries_code(
    tag: str, tmp_path: Path, run_dir: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tag.replace("CANARY", str(canary))
    path = tmp_path / "config.yaml"
    path.write_text(
        f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 10\noutput_dir: {tmp_path}/output\nenv_kwargs: {code}\n"
    )
    assert "python/" in assert_refused(["train", str(path)], canary, capsys)
    assert_refused(["config", "show", str(path)], canary, capsys)
    assert_refused(["train", "sac/pendulum", "--dry-run", "--set", f"env_kwargs={code}"], canary, capsys)
    shutil.rmtree(run_dir / "checkpoints")  # a run that has no checkpoint yet is started from its config.yaml
    (run_dir / "checkpoints").mkdir()
    shutil.copyfile(path, run_dir / "config.yaml")
    assert_refused(["resume", str(run_dir)], canary, capsys)
    assert not (tmp_path / "output").exists()


# -- checkpoints -------------------------------------------------------------------------------------------------------


def seal(checkpoint: Path, change: Callable[[dict[str, Any]], None] = lambda manifest: None) -> None:
    """Change a manifest and put its checksums right, as an attacker would."""
    from rl_training.experiment.checkpointing import _checksum
    from rl_training.experiment.files import sha256_of

    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum")
    for name, entry in manifest["files"].items():
        entry.update(bytes=(checkpoint / name).stat().st_size, sha256=sha256_of(checkpoint / name))
    change(manifest)
    path.write_text(json.dumps({**manifest, "checksum": _checksum(manifest)}))


COMMANDS = (["eval", "-n", "1"], ["predict", "--obs", "[0, 0, 0]"], ["resume", "--total-timesteps", "50"])


@pytest.mark.parametrize("part", ["weights", "optimizer", "replay", "rng", "episodes"])
def test_a_checkpoint_whose_tensors_were_exchanged_for_a_pickle(
    part: str, run_dir: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = newest_checkpoint(run_dir)
    (checkpoint / f"{part}.safetensors").write_bytes(pickle.dumps(Bomb(canary)))
    with pytest.raises(CheckpointError, match="damaged"):
        find_checkpoint(checkpoint).verify()
    seal(checkpoint)
    find_checkpoint(checkpoint).verify()
    for command, *options in COMMANDS:
        if part == "weights" or command == "resume":
            assert_refused([command, str(checkpoint), *options], canary, capsys)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["files"].update(
            {"../../../weights.safetensors": manifest["files"].pop("weights.safetensors")}
        ),
        lambda manifest: manifest["files"].update({"/etc/passwd": {"bytes": 1, "sha256": "0"}}),
        lambda manifest: manifest.update(algo="../../../../tmp/evil"),
        lambda manifest: manifest.update(algo="os"),
        lambda manifest: manifest["config"].update(algo="os.system"),
        lambda manifest: manifest["env_spec"].update(action_dtype="O"),
        lambda manifest: manifest["env_spec"].update(action_dtype="f4,(1000000000,)f8"),
        lambda manifest: manifest["env_spec"].update(obs_shape=[10**12]),
        lambda manifest: manifest["config"]["algo_kwargs"].update(hidden_sizes=[10**9, 10**9]),
        lambda manifest: manifest["config"].update(env_kwargs={"__reduce__": "x"}),
        lambda manifest: manifest.update(normalizer="__import__('os')"),
        lambda manifest: manifest.update(trainer=[]),
        lambda manifest: manifest.update(config=None),
        lambda manifest: manifest.clear(),
    ],
)
def test_a_manifest_with_odd_content(
    change: Callable[[dict[str, Any]], None], run_dir: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = newest_checkpoint(run_dir)
    seal(checkpoint, change)
    refused = 0
    for command, *options in COMMANDS:
        capsys.readouterr()
        code = main([command, str(checkpoint), *options])
        message = capsys.readouterr().err
        assert code in (0, 2), message
        refused += code == 2
    assert refused, "at least the command that needs the entry refuses it"
    assert not canary.exists()


def test_a_manifest_that_is_a_pickle_or_leads_elsewhere(
    run_dir: Path, tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = newest_checkpoint(run_dir)
    intact = shutil.copytree(checkpoint, tmp_path / "elsewhere")
    (checkpoint / "manifest.json").write_bytes(pickle.dumps(Bomb(canary)))
    assert_refused(["eval", str(checkpoint)], canary, capsys)
    shutil.copyfile(intact / "manifest.json", checkpoint / "manifest.json")
    (checkpoint / "weights.safetensors").unlink()
    (checkpoint / "weights.safetensors").symlink_to(intact / "weights.safetensors")
    assert "link" in assert_refused(["predict", str(checkpoint), "--obs", "[0, 0, 0]"], canary, capsys)
    (run_dir / "checkpoints" / "best").write_text(f"{intact}\n")
    assert_refused(["eval", str(run_dir / "checkpoints" / "best")], canary, capsys)


@pytest.mark.parametrize("name", ["report.json", "weights.safetensors", "batch.safetensors"])
def test_a_dump_that_carries_code(name: str, tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "nonfinite_step_4"
    report = {"tensor": "loss", "kind": "loss", "value": "nan", "step": 4, "update": 1}
    dump_non_finite(dump, report, weights={"w": torch.ones(2)}, batch={"obs": torch.ones(2, 3)})
    assert main(["doctor", str(dump)]) == 0
    pickled(Bomb(canary), dump / name)
    assert_refused(["doctor", str(dump)], canary, capsys)


# -- code on purpose ---------------------------------------------------------------------------------------------------


@pytest.fixture
def user_module(tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that creates the canary when it is imported."""
    (tmp_path / "users_own.py").write_text(
        f"import pathlib, gymnasium\npathlib.Path({str(canary)!r}).touch()\ndef make(): return gymnasium.make('Pendulum-v1')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "users_own"
    sys.modules.pop("users_own", None)


@pytest.mark.parametrize("env_id", ["users_own:make", "users_own:Pendulum-v1"])
@pytest.mark.parametrize("by", ["option", "variable"])
def test_user_code_can_be_switched_off(
    env_id: str,
    by: str,
    user_module: str,
    tmp_path: Path,
    run_dir: Path,
    canary: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch = ["--no-user-code"] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("RL_TRAINING_NO_USER_CODE", "1")
    settings = overrides(f"env_id={env_id}", f"output_dir={tmp_path}/output")
    assert env_id in assert_refused([*switch, "train", "sac/pendulum", *settings], canary, capsys)
    seal(newest_checkpoint(run_dir), lambda manifest: manifest["config"].update(env_id=env_id))
    for command, *options in COMMANDS:
        if command != "predict":  # which needs no environment
            assert_refused([*switch, command, str(newest_checkpoint(run_dir)), *options], canary, capsys)
    target = ["data", "collect", str(tmp_path / "collected.npz"), "--env", env_id, "--steps", "3"]
    assert_refused([*switch, *target], canary, capsys)


def test_user_code_runs_where_it_is_asked_for(user_module: str, tmp_path: Path, canary: Path) -> None:
    assert main(["data", "collect", str(tmp_path / "collected.npz"), "--env", "users_own:make", "--steps", "3"]) == 0
    assert canary.exists()


@pytest.mark.parametrize("command", [["data", "inspect", "a.pt"], ["config", "show", "a.yaml"]])
def test_in_a_process_of_its_own(command: list[str], tmp_path: Path, canary: Path) -> None:
    pickled(Bomb(canary), tmp_path / "a.pt")
    (tmp_path / "a.yaml").write_text(f"algo: !!python/object/apply:os.system ['touch {canary}']\n")
    run = subprocess.run(
        [sys.executable, "-m", "rl_training", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("error: ")
    assert not canary.exists()


# -- the bombs do go off -----------------------------------------------------------------------------------------------


def _load_object_array(path: Path) -> Any:
    with np.load(path, allow_pickle=True) as archive:
        return archive["observations"]


UNSAFE: dict[str, tuple[Callable[[Bomb, Path], Any], Callable[[Path], Any]]] = {
    "pickle": (pickled, lambda path: pickle.loads(path.read_bytes())),  # noqa: S301 - on purpose
    "torch": (saved_by_torch, lambda path: torch.load(path, weights_only=False)),
    "torch zip": (pickle_in_zip, lambda path: torch.load(path, weights_only=False)),
    "npz": (object_array, _load_object_array),
    "yaml": (
        lambda bomb, path: path.write_text(YAML_BOMBS[0].replace("CANARY", str(bomb.canary))),
        lambda path: yaml.unsafe_load(path.read_text()),
    ),
}


@pytest.mark.parametrize("how", UNSAFE)
def test_the_bombs_go_off_where_files_are_executed(how: str, tmp_path: Path, canary: Path) -> None:
    write, load = UNSAFE[how]
    path = tmp_path / ("a.npz" if how == "npz" else "a")
    write(Bomb(canary), path)
    load(path)
    assert canary.exists()


# -- the source --------------------------------------------------------------------------------------------------------

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "runpy",
    "code",
    "ctypes",
}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {
    *("os.system", "os.popen", "os.execv", "os.execvp", "os.execl", "os.spawnv", "os.startfile", "subprocess.getoutput"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "np.lib.format.read_array", "pd.read_pickle"),
    *("importlib.import_module", "import_module", "importlib.util.spec_from_file_location"),
}
REQUIRED_ARGUMENTS = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
ALLOWED = {
    ("data/file_readers.py", "import pickle"): "for the name of an exception, pickle.UnpicklingError, and nothing else",
    ("data/file_readers.py", "import_module"): "optional packages, by names that are written in the source",
    ("experiment/yaml_files.py", "yaml.load"): "with a subclass of SafeLoader, see the test below",
    ("experiment/registry.py", "importlib.import_module"): "an algorithm, after its name was found in the registry",
    ("algorithms/__init__.py", "import_module"): "an algorithm's class, after its name was found in the registry",
    ("runtime/drawing_process.py", "import_module"): "a function of the package, by a name that is written in the source",
    ("runtime/exporting.py", "torch.jit.load"): "the file that was written a moment before, to compare it with the policy",
    ("studies/__init__.py", "import_module"): "a module of the package, by a name that is written in the source",
    (
        "studies/worker.py",
        "importlib.import_module",
    ): "a study's imports, user code on purpose, and own callbacks",
    ("envs/factory.py", "importlib.import_module"): "module:callable, the one deliberate way to run user code",
}


def dangers(source: str) -> set[str]:
    """Constructs of a module that could execute data, by what the parser sees: comments and texts do not matter."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found |= {f"import {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle" and node.attr != "UnpicklingError":
            found.add(f"pickle.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_BUILTINS:
            found.add(node.id)
        elif isinstance(node, ast.Call):
            found |= _dangers_of_call(node)
    return found


def _dangers_of_call(node: ast.Call) -> set[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
    if name in FORBIDDEN_CALLS:
        harmless = name.endswith("import_module") and node.args and isinstance(node.args[0], ast.Constant)
        return set() if harmless else {name}
    if name in REQUIRED_ARGUMENTS:
        argument, value = REQUIRED_ARGUMENTS[name]
        return set() if given.get(argument) == str(value) else {f"{name} without {argument}={value}"}
    return {f"{name} with a shell"} if given.get("shell", "False") != "False" else set()


def test_nothing_in_the_source_executes_data() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    found = {(path.relative_to(SOURCE).as_posix(), danger) for path in files for danger in dangers(path.read_text("utf-8"))}
    assert len(files) > 50
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "what is no longer used must not stay allowed"


def test_the_yaml_loader_is_a_safe_one() -> None:
    from rl_training.experiment.yaml_files import _Loader

    assert issubclass(_Loader, yaml.SafeLoader)
    assert not issubclass(_Loader, yaml.FullLoader | yaml.UnsafeLoader)
    assert not any("python" in str(tag) for tag in [*_Loader.yaml_constructors, *_Loader.yaml_multi_constructors])


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from pickle import loads", "import dill as d", "import marshal", "from joblib import load"),
        *("pickle.loads(x)", "pickle.Unpickler(x)", "eval(x)", "exec(x)", "f = eval", "compile(x, y, z)", "__import__(x)"),
        *("os.system(x)", "os.popen(x)", "subprocess.run(x, shell=True)", "Popen(x, shell=flag)", "import_module(x)"),
        *("yaml.load(x, Loader)", "yaml.unsafe_load(x)", "torch.load(x)", "torch.load(x, weights_only=False)"),
        *("torch.load(x, weights_only=flag)", "np.load(x)", "np.load(x, allow_pickle=True)", "np.load(x, allow_pickle=flag)"),
    ],
)
def test_dangers_are_seen(source: str) -> None:
    assert dangers(source)


@pytest.mark.parametrize(
    "source",
    [
        *("# pickle.loads(x)", "'eval(x)'", "re.compile(x)", "model.eval()", "subprocess.run([x])", "json.load(x)"),
        *(
            "torch.load(x, weights_only=True)",
            "np.load(x, allow_pickle=False)",
            "import_module('json')",
            "pickle.UnpicklingError",
        ),
    ],
)
def test_harmless_code_is_not_suspected(source: str) -> None:
    assert not dangers(source)


# -- what the interpreter itself reports ---------------------------------------------------------------------------------

AUDITED = """
import pickle, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_hostile_files import Watch, load_everything

directory = Path({directory!r})
load_everything(directory)  # once unwatched: what is imported when it is first needed is imported now
watch = Watch(directory)
load_everything(directory)
print("seen:", watch.suspicions)
pickle.loads((directory / "provoked.pkl").read_bytes())
print("provoked:", watch.suspicions)
"""

NEVER = (
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "marshal.loads",
    "ctypes.dlopen",
)


class Watch:
    """An audit hook that notes every event by which data could have been executed."""

    def __init__(self, data: Path) -> None:
        self.data, self.suspicions = str(data), list[str]()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in NEVER:
            self.suspicions.append(f"{event} {arguments!r:.200}")
        elif event == "exec":
            self.suspicions.append(f"exec of code from {arguments[0].co_filename}")
        elif event == "import" and arguments[1] and str(arguments[1]).startswith(self.data):
            self.suspicions.append(f"import of {arguments[0]} from the data")
        elif event == "compile" and str(arguments[1]).startswith(self.data):
            self.suspicions.append(f"compile of {arguments[1]}")


def load_everything(directory: Path) -> None:
    """A configuration, a checkpoint and a dataset of every kind, the honest ones used and the hostile ones refused."""
    from rl_training.data import load_transition_dataset
    from rl_training.experiment.presets import load_config
    from rl_training.runtime.policy import Policy
    from rl_training.types import UserError

    load_config(directory / "honest.yaml")
    Policy.from_checkpoint(directory / "run").predict([0.0, 0.0, 0.0])
    for name in ("honest.npz", "honest.pt", "honest.hdf5", "honest-v0"):
        load_transition_dataset(dataset_path=directory / name).sample(4)
    attempts: list[Callable[[], Any]] = [lambda: load_config(directory / "hostile.yaml")]
    attempts += [lambda: Policy.from_checkpoint(newest_checkpoint(directory / "hostile_run"))]
    for name in sorted(path.name for path in directory.glob("hostile_*.*")):
        attempts.append(lambda name=name: load_transition_dataset(dataset_path=directory / name).sample(4))  # type: ignore[misc]
    for attempt in attempts:
        try:
            attempt()
        except UserError:
            continue
        raise AssertionError(f"attempt {attempts.index(attempt)} was not refused")


@pytest.fixture(scope="module")
def files_of_every_kind(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("everything")
    bomb, data = Bomb(directory / "canary"), columns()
    shutil.copytree(trained, directory / "run")
    (directory / "honest.yaml").write_text("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 10\n")
    np.savez(directory / "honest.npz", **data)
    torch.save({name: torch.from_numpy(value) for name, value in data.items()}, directory / "honest.pt")
    (directory / "honest-v0" / "data").mkdir(parents=True)
    with (
        h5py.File(directory / "honest.hdf5", "w") as flat,
        h5py.File(directory / "honest-v0/data/main_data.hdf5", "w") as minari,
    ):
        for name, value in data.items():
            flat[name] = value
            minari[f"episode_0/{name.replace('terminals', 'terminations')}"] = value if name == "observations" else value[:5]
        minari["episode_0/truncations"] = np.zeros(5, dtype=bool)
    shutil.copytree(trained, directory / "hostile_run")
    pickled(bomb, newest_checkpoint(directory / "hostile_run") / "weights.safetensors")
    seal(newest_checkpoint(directory / "hostile_run"))
    (directory / "hostile.yaml").write_text(f"algo: {YAML_BOMBS[0].replace('CANARY', str(bomb.canary))}\n")
    for number, (name, write) in enumerate(HOSTILE_DATA):
        write(bomb, directory / f"hostile_{number}{Path(name).suffix}")
    (directory / "provoked.pkl").write_bytes(pickle.dumps(Path("harmless")))
    return directory


def test_the_interpreter_sees_nothing_executed(files_of_every_kind: Path) -> None:
    script = AUDITED.format(path=[str(REPOSITORY / "tests")], directory=str(files_of_every_kind))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    seen, provoked = run.stdout.splitlines()
    assert seen == "seen: []"
    assert "pickle.find_class" in provoked, "the watch sees what it is there for"
    assert not (files_of_every_kind / "canary").exists()
