"""Benchmarks as lists of jobs: each in a process of its own, results kept as they come, a table written into the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Job = dict[str, Any]
Result = dict[str, Any]
_lock = threading.Lock()


def load(path: Path) -> list[Result]:
    """Results so far."""
    return json.loads(path.read_text()) if path.exists() else []


def run_missing(
    jobs: Iterable[Job], *, results: Path, script: Path, interpreter: Callable[[Job], str], workers: int | None = None
) -> list[Result]:
    """Run the jobs that have no result yet, each as ``<interpreter> <script> <job as JSON>`` whose last line is its result."""

    def run(job: Job) -> None:
        command = [interpreter(job), str(script), json.dumps(job)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            print(f"{job} failed:\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return
        result = {**job, **json.loads(done.stdout.splitlines()[-1])}
        with _lock:
            results.parent.mkdir(exist_ok=True)
            results.write_text(json.dumps([*load(results), result], indent=1) + "\n")
        print(" ".join(str(value) for value in job.values() if value), f"-> {result['last']:.1f}", flush=True)

    have = load(results)
    missing = [job for job in jobs if not any(job.items() <= result.items() for result in have)]
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        list(pool.map(run, missing))
    return load(results)


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- /name -->`` on a page of the docs."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    content = page.read_text()
    if not marked.search(content):
        raise SystemExit(f"{page} has no section {name}")
    page.write_text(marked.sub(lambda match: f"{match[1]}{text}\n{match[2]}", content))
