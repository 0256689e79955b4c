"""The package as a whole: version, import cost, layers, files that must be there."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import REPOSITORY

import rl_training

SOURCE = REPOSITORY / "src" / "rl_training"

# types <- models, data, envs <- algorithms <- experiment <- runtime <- manager, api, cli
LAYERS = {
    "__init__": 0,
    "types": 0,
    "seeding": 0,
    "validation": 1,
    "models": 2,
    "data": 2,
    "envs": 2,
    "algorithms": 3,
    "experiment": 4,
    "runtime": 5,
    "experiment.default_manager": 6,
    "studies": 6,
    "api": 6,
    "cli": 6,
    "__main__": 7,
}


def layer(module: str) -> int:
    """The layer of a dotted name below ``rl_training``: of its longest listed prefix."""
    parts = module.split(".")
    return next(LAYERS[".".join(parts[:n])] for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in LAYERS)


def imports_of(path: Path) -> set[tuple[str, str]]:
    """``(module, name)`` for each import of this package in a file, except those for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training"):
            found |= {((node.module or "").removeprefix("rl_training").strip(".") or "__init__", a.name) for a in node.names}
        if isinstance(node, ast.Import):
            found |= {(a.name.removeprefix("rl_training."), "") for a in node.names if a.name.startswith("rl_training.")}
    return found


def test_imports_follow_the_layers() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for module, _ in imports_of(path):
            checked += 1
            assert layer(module) <= layer(name), f"{name} (layer {layer(name)}) imports {module} (layer {layer(module)})"
    assert checked > 100


def test_models_data_and_envs_do_not_know_each_other() -> None:
    for package in ("models", "data", "envs"):
        for path in (SOURCE / package).rglob("*.py"):
            for module, _ in imports_of(path):
                assert module.split(".")[0] not in {"models", "data", "envs"} - {package}, f"{path} imports {module}"


def test_nobody_imports_private_names() -> None:
    for path in SOURCE.rglob("*.py"):
        for module, name in imports_of(path):
            assert not name.startswith("_") or name == "__version__", f"{path} imports {name} from {module}"


def test_version() -> None:
    assert rl_training.__version__ == "0.1.0"


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def fastest(*arguments: str, tries: int = 4) -> float:
    """Seconds of the fastest of a few tries, less the time Python itself takes to start."""

    def once(*words: str) -> float:
        started = time.perf_counter()
        run_python(*words)
        return time.perf_counter() - started

    return min(once(*arguments) for _ in range(tries)) - min(once("-c", "pass") for _ in range(tries))


def test_import_is_cheap_and_without_torch() -> None:
    run_python("-c", "import sys, rl_training; assert not {'torch', 'gymnasium', 'numpy', 'pydantic'} & set(sys.modules)")
    assert fastest("-c", "import rl_training") < 0.3


def test_help_is_quick_and_without_torch() -> None:
    run_python("-c", "import sys, rl_training.cli; assert 'torch' not in sys.modules")
    assert fastest("-m", "rl_training", "--help") < 0.7


@pytest.mark.parametrize(
    "name",
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "constraints.txt", "src/rl_training/py.typed", ".ci/run"],
)
def test_repository_has(name: str) -> None:
    assert (REPOSITORY / name).is_file()


def test_top_level_configs_are_the_packaged_ones() -> None:
    for path in (SOURCE / "assets" / "configs").rglob("*.yaml"):
        copy = REPOSITORY / "configs" / path.relative_to(SOURCE / "assets" / "configs")
        assert copy.read_text() == path.read_text()
