"""``python -m tests.fuzz.run --cases 20000 --seed 0``: many cases, counted by kind and outcome."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from .kinds import Kind, Recipe, all_kinds, fuzzed_kinds
from .outcomes import Outcome
from .supervisor import Supervisor

Counts = dict[str, Counter[str]]


def fast_directory() -> Path | None:
    """Memory instead of a disk for the many small files, where the system offers it."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


def cases_per_kind(total: int) -> dict[str, int]:
    """Cases of each kind by its share, at least one each, at least ``total`` together."""
    kinds = fuzzed_kinds()
    shares = sum(kind.share for kind in kinds.values())
    return {name: max(1, -(-total * kind.share // shares)) for name, kind in kinds.items()}


def explore(kind: Kind, count: int, use: Callable[[Recipe], None], *, seed: int) -> None:
    """Draw ``count`` different recipes of a kind with hypothesis and use each; the same seed draws the same ones."""
    drawn: set[str] = set()

    def use_one(recipe: Recipe) -> None:
        text = json.dumps(recipe, sort_keys=True)
        if len(drawn) < count and text not in drawn:
            drawn.add(text)
            use(recipe)

    options = settings(
        max_examples=count,
        database=None,
        deadline=None,  # the supervisor has its own, which can also end a hang
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    test = options(given(kind.recipes)(use_one))
    for attempt in range(100):  # hypothesis draws some cases more than once, and may stop early
        if len(drawn) < count:
            hypothesis.seed(1000 * seed + attempt)(test)()


def save_reproducer(directory: Path, supervisor: Supervisor, kind: str, recipe: Recipe, outcome: Outcome, seed: int) -> Path:
    """Keep a failed case: its recipe, and its input files as they are, because base files differ between sessions."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        supervisor.prepare(kind, recipe, Path(scratch))
        files = pack(Path(scratch))
    number = len(list(directory.glob("*.json")))
    path = directory / f"{kind}_{outcome.name}_{number:04d}.json"
    content = {"kind": kind, "seed": seed, "outcome": outcome.name, "detail": outcome.detail[:5000], "recipe": recipe}
    path.write_text(json.dumps({**content, "files": files}, indent=1) + "\n")
    return path


def pack(directory: Path) -> list[dict[str, Any]]:
    """Files, links and directories as JSON."""
    entries: list[dict[str, Any]] = []
    for parent, folders, files in os.walk(directory):
        for name in sorted((*folders, *files)):
            path = Path(parent, name)
            entry: dict[str, Any] = {"path": str(path.relative_to(directory))}
            if path.is_symlink():
                entry["link"] = os.readlink(path)
            elif path.is_file():
                entry["base64"] = base64.b64encode(path.read_bytes()).decode()
            entries.append(entry)
    return entries


def unpack(entries: list[dict[str, Any]], directory: Path) -> None:
    """The reverse of :func:`pack`."""
    for entry in entries:
        path = directory / entry["path"]
        if "link" in entry:
            path.symlink_to(entry["link"])
        elif "base64" in entry:
            path.write_bytes(base64.b64decode(entry["base64"]))
        else:
            path.mkdir()


def replay(file: Path, supervisor: Supervisor) -> Outcome:
    """Run a kept case again, on its own files."""
    case = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as inputs:
        unpack(case["files"], Path(inputs))
        return supervisor.run(case["kind"], case["recipe"], inputs=Path(inputs))


def fuzz(total: int, *, seed: int, failures: Path, only: list[str], supervisor: Supervisor) -> dict[str, Any]:
    """A whole run: counts by kind and outcome, and the reproducers of what must not be."""
    counts: Counter[str] | Counts = {}
    kept: list[str] = []
    seconds: dict[str, float] = {}
    for name, count in cases_per_kind(total).items():
        if only and name not in only:
            continue
        tally = counts[name] = Counter()

        def use(recipe: Recipe, name: str = name, tally: Counter[str] = tally) -> None:
            outcome = supervisor.run(name, recipe)
            tally[outcome.name] += 1
            if outcome.forbidden:
                path = save_reproducer(failures, supervisor, name, recipe, outcome, seed)
                kept.append(path.name)
                print(f"FORBIDDEN {path}: {outcome.detail.splitlines()[0][:300]}", flush=True)

        start = time.monotonic()
        explore(all_kinds()[name], count, use, seed=seed)
        seconds[name] = round(time.monotonic() - start, 1)
        print(f"{name:12} {sum(tally.values()):6} cases {seconds[name]:7.1f} s  {dict(tally.most_common())}", flush=True)
    return {
        "cases": sum(sum(tally.values()) for tally in counts.values()),
        "forbidden": len(kept),
        "seed": seed,
        "outcomes": {name: dict(sorted(tally.items())) for name, tally in counts.items()},
        "seconds": seconds,
        "reproducers": kept,
    }


def main(argv: list[str] | None = None) -> int:
    """0: no forbidden outcome, 1: at least one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", default=[], help="only this kind; may be repeated")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--failures", type=Path, default=Path("runs/fuzz_failures"), help="where failed cases are kept")
    parser.add_argument("--replay", type=Path, help="run one kept case again")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=fast_directory()) as directory, Supervisor(Path(directory)) as supervisor:
        if options.replay:
            outcome = replay(options.replay, supervisor)
            print(f"{outcome.name}\n{outcome.detail}")
            return int(outcome.forbidden)
        print(f"seed {options.seed}", flush=True)
        result = fuzz(options.cases, seed=options.seed, failures=options.failures, only=options.kind, supervisor=supervisor)
    print(f"{result['cases']} cases, {result['forbidden']} forbidden outcomes, seed {options.seed}")
    if options.json:
        options.json.write_text(
            json.dumps({"command": f"python -m tests.fuzz.run {' '.join(sys.argv[1:])}", **result}, indent=2) + "\n"
        )
    return int(result["forbidden"] > 0)


if __name__ == "__main__":
    sys.exit(main())
