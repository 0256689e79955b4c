"""What a dataset larger than it should be costs: inspect, first and second opening, drawing batches.

    python benchmarks/large_data.py                             # 10 million rows; rewrites the table in the docs
    python benchmarks/large_data.py --rows 200000 --print-only  # a quick look

Writes a file in D4RL's layout (17 observation and 6 action dimensions, episodes of 1,000 steps) block by block, and measures
each step in a process of its own. "Memory of its own" is the peak of RssAnon, what the process allocated; the peak of all
pages it had (VmHWM) also counts those of mapped files, which the system takes back when it needs them. Linux only.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "large_data.json"
PAGE = ROOT / "docs" / "datasets.md"
OBS_DIM, ACTION_DIM, EPISODE, BATCH = 17, 6, 1_000, 256


def write_file(path: Path, rows: int) -> None:
    """Random numbers in episodes, of which every tenth terminates and the others are cut."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        shapes = {"observations": (OBS_DIM,), "next_observations": (OBS_DIM,), "actions": (ACTION_DIM,), "rewards": ()}
        columns = {name: file.create_dataset(name, (rows, *shape), np.float32) for name, shape in shapes.items()}
        flags = {name: file.create_dataset(name, (rows,), bool) for name in ("terminals", "timeouts")}
        for start in range(0, rows, 100_000):
            end = min(start + 100_000, rows)
            steps = np.arange(start, end)
            last, terminates = steps % EPISODE == EPISODE - 1, (steps // EPISODE) % 10 == 9
            obs = rng.standard_normal((end - start + 1, OBS_DIM), dtype=np.float32)
            columns["observations"][start:end] = obs[:-1]
            columns["next_observations"][start:end] = obs[1:] + last[:, None]  # not the next episode's first
            columns["actions"][start:end] = rng.uniform(-1, 1, (end - start, ACTION_DIM))
            columns["rewards"][start:end] = rng.standard_normal(end - start)
            flags["terminals"][start:end], flags["timeouts"][start:end] = last & terminates, last & ~terminates


# -- one step, in a process of its own -------------------------------------------------------------------------------


def memory(field: str) -> float:
    """A field of this process's status, in MB."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


class PeakMemory(threading.Thread):
    """Looks at RssAnon every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.stopped = 0.0, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.005):
            self.peak = max(self.peak, memory("RssAnon"))


def inspect(path: Path, cache: Path) -> dict[str, Any]:
    from rl_training.data.dataset_loaders import open_transitions
    from rl_training.data.inspection import describe_transitions

    with open_transitions(dataset_path=path, cache_dir=cache) as raw:
        return {"rows": describe_transitions(raw)["rows"]}


def open_mapped(path: Path, cache: Path) -> dict[str, Any]:
    from rl_training.data import load_transition_dataset

    return {"rows": len(load_transition_dataset(dataset_path=path, memory_map=True, cache_dir=cache))}


def sample(path: Path, cache: Path) -> dict[str, Any]:
    """Microseconds a batch from the first hundredth, the first tenth and all of the rows, every page touched before.

    By the clock and of the processor: on a busy machine the first is mostly waiting for a turn.
    """
    from rl_training.data import TransitionDataset, load_transition_dataset

    whole = load_transition_dataset(dataset_path=path, memory_map=True, cache_dir=cache)
    for piece in whole.rows.split(65_536):
        piece.sum()
    parts = [TransitionDataset.from_rows(whole.rows[: len(whole) // share], whole.layout) for share in (100, 10, 1)]
    clocks = {"clock": time.perf_counter, "processor": time.process_time}
    times: dict[str, dict[str, list[float]]] = {str(len(part)): {name: [] for name in clocks} for part in parts}
    for _ in range(15):  # interleaved, so that a slow moment of the machine hits all of them
        for part in parts:
            started = {name: read() for name, read in clocks.items()}
            for _ in range(200):
                part.sample(BATCH)
            for name, read in clocks.items():
                times[str(len(part))][name].append((read() - started[name]) / 200 * 1e6)
    medians = {rows: {name: statistics.median(seen) for name, seen in by.items()} for rows, by in times.items()}
    return {"batch_microseconds": medians}


STEPS = {"inspect": inspect, "first_open": open_mapped, "second_open": open_mapped, "sample": sample}


def measure(step: str, path: Path, cache: Path) -> dict[str, Any]:
    """What the step took, without the imports that every process needs."""
    import rl_training.data  # noqa: F401

    before, watch = memory("RssAnon"), PeakMemory()
    watch.start()
    started = time.perf_counter()
    facts = STEPS[step](path, cache)
    seconds = time.perf_counter() - started
    watch.stopped.set()
    watch.join()
    own = {"start_mb": before, "own_peak_mb": max(watch.peak, memory("RssAnon")), "all_peak_mb": memory("VmHWM")}
    return {"seconds": seconds, **own, **facts}


# -- all of them -----------------------------------------------------------------------------------------------------


def run_steps(rows: int, directory: Path) -> dict[str, Any]:
    """Make the file, measure every step, and say how large things were."""
    path, cache = directory / "large.hdf5", directory / "cache"
    write_file(path, rows)
    results: dict[str, Any] = {"rows": rows, "file_mb": path.stat().st_size / 2**20}
    for step in STEPS:
        command = [sys.executable, __file__, "--step", step, "--dir", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[step] = json.loads(done.stdout)
        print(step, results[step], flush=True)
    results["cache_mb"] = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / 2**20
    return results


def table(results: dict[str, Any]) -> str:
    """The Markdown table of the docs."""
    names = {"inspect": "`data inspect`", "first_open": "first opening, rows are built", "second_open": "second opening"}
    lines = [
        f"{results['rows']:,} rows, a file of {results['file_mb']:,.0f} MB, rows of {results['cache_mb']:,.0f} MB:",
        "",
        "| step | seconds | memory of its own, peak | with mapped pages, peak |",
        "|---|---|---|---|",
    ]
    for step, name in names.items():
        facts = results[step]
        own = f"{facts['own_peak_mb']:,.0f} MB ({facts['start_mb']:,.0f} MB of it before the start)"
        lines.append(f"| {name} | {facts['seconds']:.3g} | {own} | {facts['all_peak_mb']:,.0f} MB |")
    times = results["sample"]["batch_microseconds"]
    fewest = next(iter(times.values()))
    lines += [
        "",
        f"| rows drawn from | microseconds a batch of {BATCH} | of the processor | against the fewest |",
        "|---|---|---|---|",
    ]
    for rows, took in times.items():
        ratios = " and ".join(f"{took[name] / fewest[name]:.2f}" for name in ("clock", "processor"))
        lines.append(f"| {int(rows):,} | {took['clock']:.0f} | {took['processor']:.0f} | {ratios} |")
    return "\n".join(lines)


def publish(results: dict[str, Any]) -> None:
    """Keep the numbers, and put the table where the docs want it."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    marked = re.compile(r"(<!-- large-data -->\n).*?(<!-- /large-data -->)", re.DOTALL)
    PAGE.write_text(marked.sub(lambda match: f"{match[1]}{table(results)}\n{match[2]}", PAGE.read_text()))


def main() -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dir", type=Path, help="where the file and the cache are made; a temporary directory if none")
    parser.add_argument("--print-only", action="store_true", help="leave results and docs as they are")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(measure(arguments.step, arguments.dir / "large.hdf5", arguments.dir / "cache")))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="large-data-") as directory:
        results = run_steps(arguments.rows, Path(directory))
    print(table(results))
    if not arguments.print_only:
        publish(results)


if __name__ == "__main__":
    main()
