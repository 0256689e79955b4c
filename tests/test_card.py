"""Model cards: what a checkpoint and its run tell, as Markdown that the hub understands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ALGORITHMS, REPOSITORY, tiny_config

from rl_training.cli import main
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.runtime.model_card import model_card, write_model_card
from rl_training.runtime.training import train
from rl_training.types import ConfigError

GOLDEN = REPOSITORY / "tests" / "golden" / "0.1.0"


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    content = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_has_a_card(algo: str) -> None:
    card = model_card(find_checkpoint(GOLDEN / algo))
    matter = front_matter(card)
    assert (matter["library_name"], matter["license"]) == ("rl-training", "unknown")
    assert {"reinforcement-learning", algo} <= set(matter["tags"])
    (model,) = matter["model-index"]
    (result,) = model["results"]
    assert result["metrics"][0]["value"].count("+/-") == 1
    assert f"from rl_training import {model['name']}" in card
    assert "arxiv.org/abs/" in card or algo in ("dqn", "bc")  # a paper in a journal, and one from 1989
    for heading in ("## Scores", "## How to use it", "## Training", "## Limitations", "## Licence"):
        assert heading in card
    assert "`rl_training` 0.1.0" in card


def test_a_card_of_an_offline_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tiny_config("td3_bc", tmp_path / "secret_place", eval_episodes=2)).run_dir
    target = tmp_path / "cards" / "card.md"
    assert main(["card", str(run), "-o", str(target), "--evaluate", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"card": str(target)}
    card, metadata = target.read_text(), json.loads((run / "metadata.json").read_text())
    assert metadata["dataset"]["fingerprint"] in card
    assert "| rows of data | `256` |" in card
    assert "| of this checkpoint | 96 | 2 |" in card
    assert "| fresh episodes | 96 | 1 |" in card
    assert f"torch {metadata['versions']['torch']}" in card
    assert "secret_place" not in card
    assert "(seed 7)" in card


def test_the_best_evaluation_is_told_if_it_is_another(tmp_path: Path) -> None:
    run = train(tiny_config("sac", tmp_path)).run_dir
    evaluation = find_checkpoint(run).manifest["evaluation"]
    best = int(evaluation["best"]["global_step"])
    assert ("best of the run" in model_card(find_checkpoint(run))) == (best != 96)
    (run / "evaluations.csv").write_bytes(b"\xff\x00 not a log")  # then it is left out
    (run / "metadata.json").write_text("[]")
    assert "best of the run" not in model_card(find_checkpoint(run))


def test_a_checkpoint_on_its_own_and_one_without_scores(tmp_path: Path) -> None:
    alone = shutil.copytree(GOLDEN / "sac" / "checkpoints" / "step_000000040", tmp_path / "alone")
    card = write_model_card(alone, tmp_path / "card.md").read_text()
    assert "| of this checkpoint | 40 |" in card
    run = train(tiny_config("bc", tmp_path, eval_episodes=0)).run_dir
    card = model_card(find_checkpoint(run))
    assert "The run was not evaluated." in card
    assert "model-index" not in front_matter(card)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        write_model_card(GOLDEN / "sac", tmp_path)
    assert main(["card", str(tmp_path / "nowhere"), "-o", str(tmp_path / "card.md")]) == 2
    assert main(["card", str(GOLDEN / "sac"), "-o", str(tmp_path / "card.md"), "--evaluate", "0"]) == 2
    assert "num_episodes must be >= 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
