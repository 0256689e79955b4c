"""A model card: what an agent is, how it came to be and how well it does, as Markdown with the hub's front matter.

Everything comes from the checkpoint and its run directory; directories of the machine it was trained on are left out.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms import ALGORITHMS
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import read_bounded, write_atomically, writing
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.runtime.workflows import config_of, evaluate_checkpoint
from rl_training.types import ConfigError, EnvSpec

LARGEST_LOG = 64 * 2**20
CARD_NAME = "MODEL_CARD.md"


@dataclass(frozen=True)
class Score:
    """One evaluation: returns of its episodes at a step of the run."""

    title: str
    step: int
    episodes: int
    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} +/- {self.spread:.2f}"


def write_model_card(path: str | Path, output: str | Path = CARD_NAME, *, evaluate: int | None = None) -> Path:
    """Write the card of a run or checkpoint; with ``evaluate``, so many fresh episodes are played for it."""
    target = Path(output)
    if target.is_dir():
        raise ConfigError(f"{target} is a directory: name the file to write, e.g. {target / CARD_NAME}")
    text = model_card(find_checkpoint(path), evaluate=evaluate)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    return target


def model_card(checkpoint: Checkpoint, *, evaluate: int | None = None) -> str:
    """The card of a checkpoint, with what its run directory, if it still lies in one, adds."""
    config, run = config_of(checkpoint), _run_of(checkpoint)
    scores = _scores(checkpoint, run)
    if evaluate is not None:
        metrics = evaluate_checkpoint(checkpoint.path, evaluate, seed=config.seed + 1)  # not the run's own episodes
        mean, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
        scores.insert(0, Score("fresh episodes", int(metrics["global_step"]), evaluate, mean, spread))
    metadata = _metadata(run)
    sections = [
        f"---\n{dump_yaml(_front_matter(config, scores))}---",
        f"# {config.spec.title} on {_code(_task(config))}",
        _introduction(checkpoint, config),
        "## Scores\n\n" + _score_table(config, scores),
        "## How to use it\n\n" + _usage(checkpoint, config),
        "## Training\n\n" + _training(checkpoint, config, metadata),
        "## Limitations\n\n" + _limitations(config, scores),
        "## Licence\n\nNone is given yet. Choose one, name it here, and put its identifier in place of `unknown` at the top.",
    ]
    return "\n\n".join(sections) + "\n"


def _run_of(checkpoint: Checkpoint) -> Path | None:
    run = checkpoint.path.absolute().parent.parent
    return run if (run / "config.yaml").is_file() else None


def _metadata(run: Path | None) -> dict[str, Any]:
    if run is not None:
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(read_bounded(run / "metadata.json", LARGEST_LOG))
            return content if isinstance(content, dict) else {}
    return {}


def _scores(checkpoint: Checkpoint, run: Path | None) -> list[Score]:
    """The checkpoint's own evaluation, and the best of the run up to it if that is another one."""
    last, best = checkpoint.manifest["evaluation"]["last"], checkpoint.manifest["evaluation"]["best"]
    scores = []
    if last:
        step = checkpoint.manifest["trainer"]["last_eval_step"]
        episodes, mean, spread = (last[name] for name in ("eval_episodes", "eval_return_mean", "eval_return_std"))
        scores.append(Score("of this checkpoint", int(step), int(episodes), float(mean), float(spread)))
    if best and int(best["global_step"]) != (scores[0].step if scores else None):
        returns = _returns_at(run, int(best["global_step"]))
        if returns:
            scores.append(
                Score(
                    "best of the run", int(best["global_step"]), len(returns), float(np.mean(returns)), float(np.std(returns))
                )
            )
    return scores


def _returns_at(run: Path | None, step: int) -> list[float]:
    """Returns of the episodes that ``evaluations.csv`` has for a step."""
    if run is None:
        return []
    try:
        lines = read_bounded(run / "evaluations.csv", LARGEST_LOG).decode("utf-8", errors="replace").splitlines()
        return [float(row["return"]) for row in csv.DictReader(lines) if row["step"] == str(step)]
    except (OSError, ValueError, KeyError, TypeError):  # a log that somebody edited
        return []


def _front_matter(config: TrainConfig, scores: Sequence[Score]) -> dict[str, Any]:
    """What the Hugging Face hub reads: library, tags, licence and the leading score."""
    tags = ["reinforcement-learning", "deep-reinforcement-learning", config.algo, _task(config)]
    matter: dict[str, Any] = {
        "library_name": "rl-training",
        "license": "unknown",
        "tags": tags + (["offline-reinforcement-learning"] if config.spec.loop == "offline" else []),
    }
    if scores:
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": _task(config), "type": _task(config)},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": str(scores[0]), "verified": False}],
        }
        matter["model-index"] = [{"name": ALGORITHMS[config.algo], "results": [result]}]
    return matter


def _task(config: TrainConfig) -> str:
    return config.env_id or "recorded data"


def _introduction(checkpoint: Checkpoint, config: TrainConfig) -> str:
    spec = EnvSpec.from_dict(checkpoint.manifest["env_spec"])
    actions = (
        f"{spec.num_actions} discrete actions"
        if spec.action_kind == "discrete"
        else f"action of dimension {spec.action_dim}, from {list(spec.action_low)} to {list(spec.action_high)}"
    )
    learnt, unit = ("data alone", "gradient") if config.spec.loop == "offline" else ("interaction", "environment")
    if config.finetune is not None:
        learnt, unit = "interaction, after data", "environment"
    steps = checkpoint.manifest["trainer"]["global_step"]
    return (
        f"An agent for {_code(_task(config))}, trained with {config.spec.title}{_paper(config)} on {learnt} for "
        f"{steps:,} {unit} steps with `rl_training` "
        f"{checkpoint.manifest['package_version']}.\n\nObservation of dimension {spec.obs_dim}; {actions}."
    )


def _paper(config: TrainConfig) -> str:
    """Authors, year and arXiv number as the algorithm's own module names them in its first line."""
    first_line = (sys.modules[config.spec.learner.__module__].__doc__ or "").partition("\n")[0]
    found = re.search(r"\(([^()]*\b\d{4}\b[^()]*)\)", first_line)
    if found is None:
        return ""
    return " (" + re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", found[1]) + ")"


def _score_table(config: TrainConfig, scores: Sequence[Score]) -> str:
    if not scores:
        return "The run was not evaluated."
    rows = [f"| {score.title} | {score.step:,} | {score.episodes} | {score} |" for score in scores]
    return "\n".join(
        [
            "| evaluation | step | episodes | return (mean +/- standard deviation over episodes) |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Deterministic policy, raw rewards, one training run (seed {config.seed}).",
        ]
    )


def _usage(checkpoint: Checkpoint, config: TrainConfig) -> str:
    name, zeros = ALGORITHMS[config.algo], [0.0] * min(EnvSpec.from_dict(checkpoint.manifest["env_spec"]).obs_dim, 64)
    return f"""```bash
pip install rl-training
rl-training eval CHECKPOINT --num-episodes 10
rl-training export CHECKPOINT --format onnx
```

```python
from rl_training import {name}

agent = {name}.load("CHECKPOINT")
action = agent.predict({zeros})
```

`CHECKPOINT` is the directory with `manifest.json` and the `.safetensors` files. Loading it runs no code of its own and checks
every file against its checksum; playing an environment whose id names a module (`module:name`) imports that module."""


def _training(checkpoint: Checkpoint, config: TrainConfig, metadata: Mapping[str, Any]) -> str:
    facts = {"seed": config.seed, "updates": checkpoint.manifest["trainer"]["num_updates"]}
    facts["hours"] = round(checkpoint.manifest["trainer"]["time_elapsed"] / 3600, 3)
    fingerprint = checkpoint.manifest.get("source", {}).get("fingerprint")
    if config.dataset is not None or fingerprint is not None:
        dataset = metadata.get("dataset")
        if isinstance(dataset, Mapping) and dataset.get("fingerprint") == fingerprint:
            facts["rows of data"] = dataset.get("rows", "unknown")
        facts["data fingerprint (SHA-256)"] = fingerprint
    versions = metadata.get("versions")
    if isinstance(versions, Mapping):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    table = ["| | |", "|---|---|", *(f"| {name} | {_code(value)} |" for name, value in facts.items())]
    return "\n".join(table) + f"\n\nEvery setting:\n\n```yaml\n{dump_yaml(_settings(config))}```"


def _settings(config: TrainConfig) -> dict[str, Any]:
    """The configuration without where it ran and whom it told: of paths only the name stays."""
    settings = config.to_dict()
    for name in ("output_dir", "tracking", "tracking_options"):
        settings.pop(name)
    if settings["finetune"]:
        settings["finetune"]["checkpoint"] = Path(settings["finetune"]["checkpoint"]).name
    dataset = settings["dataset"] or {}
    for part in (dataset, *dataset.get("parts", [])):
        part.pop("cache_dir", None)
        if part.get("path"):
            part["path"] = Path(part["path"]).name
    return settings


def _limitations(config: TrainConfig, scores: Sequence[Score]) -> str:
    points = [
        f"Trained and evaluated on {_code(_task(config))} only; nothing is known of it elsewhere.",
        "One training seed says little of the method: scores of deep reinforcement learning vary between seeds.",
    ]
    if config.spec.loop == "offline":
        points.append("It learnt from recorded data, and may act badly in situations that the data does not show.")
    if not scores:
        points.append("No evaluation in the environment is recorded.")
    elif scores[0].episodes < 10:
        points.append(f"The score is from {scores[0].episodes} episode(s); play more before relying on it.")
    points.append("It is no safety-checked controller: do not connect it to real machinery without safeguards of your own.")
    return "\n".join(f"- {point}" for point in points)


def _code(text: object) -> str:
    """Somebody's text, shown as it is: neither markup nor a line of its own."""
    return f"`{' '.join(str(text).replace('`', chr(39)).replace('|', '/').split())}`"
