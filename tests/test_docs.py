"""What the documents say is true: snippets run, settings load, commands exist, nothing is left out."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import ALGORITHMS, REPOSITORY, random_batch, tiny_spec

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import build_config, list_presets
from rl_training.experiment.registry import get_algorithm_spec

DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for index, text in enumerate(re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)):
            found.append((f"{path.relative_to(REPOSITORY)}#{index}", text))
    return found


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_snippets_run(where: str, code: str, tmp_path: Path) -> None:
    # thousands of steps become a few dozen after the random ones; nothing else is changed
    shorter = re.sub(r"\b(\d)_000\b", lambda match: str(100 + 20 * int(match[1])), code)
    script = tmp_path / "snippet.py"
    script.write_text(shorter)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}\n{done.stderr}"


@pytest.mark.parametrize(("where", "text"), blocks("yaml"), ids=[where for where, _ in blocks("yaml")])
def test_yaml_snippets_are_valid_configs(where: str, text: str) -> None:
    build_config(yaml.safe_load(text.replace("e-", ".0e-")), source=where)


def test_commands_and_their_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    checked = 0
    for where, text in [*blocks("bash"), *blocks("text")]:
        for line in text.splitlines():
            words = line.split("#")[0].split()
            if words[:1] != ["rl-training"] or len(words) < 2:
                continue
            command = words[1:3] if words[1] in ("config", "data", "share") else words[1:2]
            assert main([*command, "--help"]) == 0, f"{where}: {line}"
            help_text = capsys.readouterr().out
            for option in (word for word in words if word.startswith("--")):
                assert option in help_text, f"{where}: {line}"
            if words[1] == "train":
                assert words[2] in list_presets(), f"{where}: {line}"
            checked += 1
    assert checked >= 10


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_algorithm_page_is_complete(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    page = (REPOSITORY / "docs" / "algorithms" / f"{algo}.md").read_text()
    for name in spec.hyperparameters.model_fields:
        assert f"`{name}`" in page, f"hyper-parameter {name} is not described"
    learner = spec.build(tiny_spec(algo), spec.hyperparameters(batch_size=16, hidden_sizes=(8,)))
    for name in learner.update(random_batch(algo)).metrics:
        assert f"`{name}`" in page, f"metric {name} is not described"
    for heading in ("## Hyper-parameters", "## Deviations", "## Metrics", "## Measured"):
        assert heading in page
    assert f"algorithms/{algo}.md" in (REPOSITORY / "mkdocs.yml").read_text()
    assert f"({algo}.md)" in (REPOSITORY / "docs" / "algorithms" / "index.md").read_text()


def test_configuration_page_is_complete() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    for name in TrainConfig.model_fields:
        assert f"`{name}`" in page


def test_readme_names_every_preset() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    named = {preset for pattern in re.findall(r"`([\w{},/]+)`", readme) for preset in _spelled_out(pattern)}
    assert named >= set(list_presets())


def _spelled_out(pattern: str) -> list[str]:
    """``a/{b,c}_d`` as the names it stands for."""
    pieces = [piece.split(",") for piece in re.split(r"[{}]", pattern)]
    return ["".join(parts) for parts in itertools.product(*pieces)]


def test_local_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path}: {target}"
