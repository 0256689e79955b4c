"""A few hundred cases of every kind, always the same ones; and proof that each forbidden outcome is noticed.

``FUZZ_CASES`` sets how many. ``make fuzz`` runs 20,000 with a seed, and says how to run a failed one again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from safetensors.torch import load, save

from rl_training.experiment.checkpointing import Checkpoint
from rl_training.runtime.workflows import resume_training
from rl_training.types import CheckpointError

from . import checkpoints
from .configs import wild
from .kinds import Recipe, all_kinds, fuzzed_kinds
from .outcomes import FORBIDDEN
from .plain_data import from_plain, to_plain
from .run import cases_per_kind, explore, fuzz, pack, replay, save_reproducer, unpack
from .supervisor import Supervisor

CASES = int(os.environ.get("FUZZ_CASES", "400"))


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    with Supervisor(tmp_path_factory.mktemp("fuzz")) as started:
        yield started


@pytest.mark.parametrize("kind", fuzzed_kinds())
def test_every_case_ends_well_or_is_refused(kind: str, supervisor: Supervisor, tmp_path: Path) -> None:
    tally: Counter[str] = Counter()
    failures: list[str] = []

    def use(recipe: Recipe) -> None:
        outcome = supervisor.run(kind, recipe)
        tally[outcome.name] += 1
        if outcome.forbidden:
            path = save_reproducer(tmp_path / "failures", supervisor, kind, recipe, outcome, seed=0)
            failures.append(f"{outcome.name}: {outcome.detail}\npython -m tests.fuzz.run --replay {path}")

    explore(all_kinds()[kind], cases_per_kind(CASES)[kind], use, seed=0)
    assert not failures, "\n\n".join(failures)
    assert len(tally) > 1 or sum(tally.values()) < 20, f"cases that all end alike test little: {tally}"


# -- the harness itself ------------------------------------------------------------------------------------------------

PROVOKED = {
    "raise": "exception",
    "panic": "exception",
    "spin": "hang",
    "segfault": "crash",
    "allocate": "allocation",
    "claim": "exception",  # a MemoryError, because the worker's address space is limited
    "half-written": "leftovers",
    "temporary": "leftovers",
    "silent": "message",
    "verbose": "message",
    "refuse": "ConfigError",
    "well": "success",
}


@pytest.mark.parametrize(("how", "expected"), PROVOKED.items())
def test_forbidden_outcomes_are_noticed(how: str, expected: str, supervisor: Supervisor) -> None:
    outcome = supervisor.run("bad", {"how": how}, deadline=1.5 if expected == "hang" else None)
    assert outcome.name == expected, outcome
    assert outcome.forbidden == (expected in FORBIDDEN)
    if expected == "hang":
        assert "bad_kinds.py" in outcome.detail, "the report says where it hung"


def test_every_forbidden_outcome_is_provoked() -> None:
    assert set(FORBIDDEN) <= set(PROVOKED.values())


def test_a_failed_case_is_kept_and_fails_again(supervisor: Supervisor, tmp_path: Path) -> None:
    recipe = {"how": "raise"}
    path = save_reproducer(tmp_path, supervisor, "bad", recipe, supervisor.run("bad", recipe), seed=5)
    assert replay(path, supervisor).name == "exception"
    assert json.loads(path.read_text())["seed"] == 5


def test_files_of_a_case_can_be_packed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_bytes(b"\x00\xff")
    (source / "link").symlink_to("folder/file")
    target.mkdir()
    unpack(pack(source), target)
    assert (target / "link").read_bytes() == b"\x00\xff"
    assert (target / "link").is_symlink()


def test_the_same_seed_draws_the_same_cases() -> None:
    def drawn(seed: int) -> list[Recipe]:
        recipes: list[Recipe] = []
        explore(all_kinds()["checkpoint"], 20, recipes.append, seed=seed)
        return recipes

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert len(drawn(3)) == 20


def test_a_run_counts_every_case(supervisor: Supervisor, tmp_path: Path) -> None:
    result = fuzz(60, seed=1, failures=tmp_path, only=["override"], supervisor=supervisor)
    assert result["cases"] == sum(result["outcomes"]["override"].values()) == cases_per_kind(60)["override"]
    assert result["forbidden"] == 0
    assert sum(cases_per_kind(20_000).values()) >= 20_000


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(wild)
def test_values_survive_the_file_of_a_case(value: object) -> None:
    assert repr(to_plain(from_plain(json.loads(json.dumps(to_plain(value)))))) == repr(to_plain(value))


def test_sealed_checkpoints_pass_their_checksums(supervisor: Supervisor, tmp_path: Path) -> None:
    """Otherwise every edited manifest would be refused for its checksum, and nothing behind it would be tested."""
    supervisor.build("checkpoint")
    path = checkpoints.newest(shutil.copytree(supervisor.bases / "sac", tmp_path / "sac"))
    manifest = json.loads((path / "manifest.json").read_text())
    assert checkpoints.checksum(manifest) == manifest["checksum"]
    manifest["trainer"]["stop_reason"] = "edited"
    checkpoints.seal(path, manifest)
    Checkpoint(path).verify()
    assert Checkpoint(path).manifest["trainer"]["stop_reason"] == "edited"


@pytest.mark.parametrize(("column", "value"), [("actions", 100), ("rewards", float("nan")), ("obs", float("inf"))])
def test_steps_held_back_for_n_step_returns_are_checked(
    column: str, value: float, supervisor: Supervisor, tmp_path: Path
) -> None:
    """Found by a case: an action that there is not came through the queue of n-step returns, past the replay's check."""
    supervisor.build("checkpoint")
    path = checkpoints.newest(shutil.copytree(supervisor.bases / "dqn", tmp_path / "dqn"))
    part = path / "episodes.safetensors"
    tensors = load(part.read_bytes())
    tensors[f"n_step.0.{column}"][:] = value
    part.write_bytes(save(tensors))
    checkpoints.seal(path)
    with pytest.raises(CheckpointError, match=r"replay has actions|held back"):
        resume_training(path, total_timesteps=checkpoints.STEPS + 8)
