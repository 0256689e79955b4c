"""A little of every fault in the quick suite; ``make soak`` does it for as long as asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .damage import checkpoint_steps, damageable, flip_bit, is_intact, remove, truncate
from .processes import CommandLine, Launcher, WarmPython, answer_ctrl_c
from .scenarios import Scenario
from .supervisor import KINDS, Fault, Outcome, possible_kinds, reference_run, run_scenario

SLOWEST_EXIT = 10.0  # seconds from a signal to the end of the process, on a machine that is busy with other tests


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    answer_ctrl_c()
    with WarmPython() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def finished(warm: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reference_run(Scenario("dqn", seed=1), tmp_path_factory.mktemp("finished"), warm)


def ordeal(
    scenario: Scenario, faults: list[Fault], warm: Launcher, directory: Path, launcher: Launcher | None = None
) -> Outcome:
    reference = reference_run(scenario, directory / "reference", warm)
    return run_scenario(
        scenario,
        faults,
        reference=reference,
        directory=directory / "harmed",
        launcher=launcher or warm,
        rng=random.Random(scenario.variant),
    )


PLANS: dict[str, list[Fault]] = {
    "sac, two environments": [
        Fault("kill", "starting"),
        Fault("terminate", "step"),
        Fault("kill", "saving"),
        Fault("interrupt", "evaluating"),
        Fault("two signals", "step"),
    ],
    "dqn, n-step": [Fault("kill", "step"), Fault("second process", "step"), Fault("flip a bit", "finishing")],
    "dqn, tensorboard": [
        Fault("disk full", "step"),
        Fault("writes refused", "step"),
        Fault("read-only", "step"),
        Fault("remove", "finishing"),
    ],
    "iql": [Fault("writes refused", "saving"), Fault("truncate", "finishing")],
}
"""Damage comes late: by then there is an intact checkpoint before the newest."""


@pytest.mark.parametrize("variant", PLANS)
def test_the_run_ends_as_if_nothing_had_happened(variant: str, warm: WarmPython, tmp_path: Path) -> None:
    faults = [fault for fault in PLANS[variant] if fault.kind in possible_kinds()]
    injected: set[str] = set()
    for seed in range(3):  # on a busy machine a run may come to its end before its last fault: then once more
        outcome = ordeal(Scenario(variant, seed), faults, warm, tmp_path / str(seed))
        assert outcome.problem is None
        exits = [fault.seconds_to_exit or 0.0 for fault in outcome.faults if fault.kind in ("terminate", "interrupt")]
        assert max(exits, default=0.0) <= SLOWEST_EXIT
        injected |= {fault.kind for fault in outcome.faults}
        if injected == {fault.kind for fault in faults}:
            return
    pytest.fail(f"only {sorted(injected)} could be injected")


def test_from_the_real_command_line(warm: WarmPython, tmp_path: Path) -> None:
    outcome = ordeal(Scenario("td3_bc", seed=1), [Fault("kill", "step")], warm, tmp_path, CommandLine())
    assert outcome.problem is None
    assert [fault.exit_code for fault in outcome.faults] == [-9]


def test_every_kind_is_in_a_plan() -> None:
    assert {fault.kind for plan in PLANS.values() for fault in plan} == KINDS.keys()


def test_the_harness_notices_a_run_that_differs(warm: WarmPython, finished: Path, tmp_path: Path) -> None:
    other = Scenario("dqn", seed=2)
    outcome = run_scenario(other, [], reference=finished, directory=tmp_path, launcher=warm, rng=random.Random(0))
    assert not outcome.identical


@pytest.mark.parametrize("harm", [truncate, flip_bit, remove])
def test_the_harness_tells_a_damaged_checkpoint(harm: Callable[[Path, random.Random], None], finished: Path) -> None:
    """With a reader of its own, or it would believe whatever the package believes."""
    newest = checkpoint_steps(finished / "checkpoints")[-1]
    assert is_intact(newest)
    for victim in damageable(newest)[:-1]:
        content = victim.read_bytes()
        harm(victim, random.Random(0))
        assert not is_intact(newest)
        victim.write_bytes(content)
