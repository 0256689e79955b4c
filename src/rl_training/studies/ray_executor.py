"""Runs on a Ray cluster: one of our own on this machine, or an existing one. Imported only when it is asked for.

Every machine of a cluster needs this package, the environments, and the study's directory under the same path. Ray carries
nothing but the JSON of specs and outcomes, and does not retry: a lost run goes on from its own checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from rl_training.studies.executors import STOP_SECONDS, Event, NextRun, Resubmissions, concluded, cores
from rl_training.studies.spec import ExecutorSettings, RunSpec
from rl_training.studies.worker import surroundings, work_for
from rl_training.types import ConfigError

OBJECT_STORE_BYTES = 100 * 2**20
"""Ray would take a third of the memory; specs and outcomes are a few kilobytes."""
HANDED_ON = ("RL_TRAINING_NO_USER_CODE", "RL_TRAINING_CACHE")
"""Environment variables that hold on other machines too."""


def import_ray() -> Any:
    """The package, or a ``ConfigError`` that says how to get it."""
    try:
        import ray
    except ImportError:
        raise ConfigError('the ray executor needs Ray: pip install "rl-training[ray]"') from None
    return ray


class RayExecutor:
    """Several runs at a time, each a Ray task."""

    def __init__(self, settings: ExecutorSettings, *, threads: int = 1) -> None:
        self._settings = settings
        self._wanted = {"CPU": settings.cpus_per_run or float(threads), "GPU": settings.gpus_per_run}
        self._ray = import_ray()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Connected to a cluster that can hold a run; a Ray that was started here is also stopped here."""
        with connected(self._ray, self._settings.ray_address):
            room_for(self._wanted, self._ray.nodes())
            yield

    def run(self, next_run: NextRun) -> Generator[Event, None, None]:
        """Do the runs, as many at a time as the cluster holds or as ``workers`` says."""
        limit = self._settings.workers or room_for(self._wanted, self._ray.nodes())
        ray, lost = self._ray, Resubmissions(self._settings.retries)
        under_way: dict[Any, RunSpec] = {}
        task = self._task()
        around = json.dumps(surroundings())
        try:
            while True:
                while len(under_way) < limit and (spec := lost.next_before(next_run)) is not None:
                    under_way[task.remote(json.dumps(spec), around)] = spec
                    yield Event("started", spec)
                if not under_way:
                    return
                for reference in ray.wait(list(under_way), timeout=1.0)[0]:
                    yield self._outcome(reference, under_way.pop(reference), lost)
        finally:
            self._stop(list(under_way))

    def _task(self) -> Any:
        options: dict[str, Any] = {
            "num_cpus": self._wanted["CPU"],
            "num_gpus": self._wanted["GPU"],
            "max_retries": 0,  # Ray would start over silently; we resume, and say so
        }
        if handed_on := {name: os.environ[name] for name in HANDED_ON if name in os.environ}:
            options["runtime_env"] = {"env_vars": handed_on}
        return self._ray.remote(**options)(work_for)

    def _outcome(self, reference: Any, spec: RunSpec, lost: Resubmissions) -> Event:
        errors = self._ray.exceptions
        try:
            outcome = json.loads(self._ray.get(reference))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:  # before our code could catch anything
            return Event("failed", spec, message=str(error), bug=True)
        except errors.RayError as error:
            return lost.lost(spec, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return lost.lost(spec, "it was told to stop") if outcome["status"] == "interrupted" else concluded(spec, outcome)

    def _stop(self, references: list[Any]) -> None:
        """Have runs save and end: Ray's cancelling arrives in the task as SIGINT, which a run answers by saving."""
        if not references:
            return
        for reference in references:
            with contextlib.suppress(Exception):  # a cluster that is gone cannot be told anything
                self._ray.cancel(reference, force=False)
        with contextlib.suppress(Exception):
            self._ray.wait(references, num_returns=len(references), timeout=STOP_SECONDS)


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to the cluster: the one this process has, the one at ``address``, or a new one on this machine."""
    if ray.is_initialized():
        yield
        return
    own = {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    with _same_signal_handler():
        try:
            # never without an address: Ray would join whatever cluster it finds, somebody else's perhaps
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.WARNING,
                **({} if address else own),
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ConfigError(f"Ray cannot be reached at {address or 'this machine'}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _same_signal_handler() -> Iterator[None]:
    """Ray installs its own answer to SIGTERM; the command's own has exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def room_for(wanted: Mapping[str, float], nodes: list[dict[str, Any]]) -> int:
    """How many runs the cluster holds at once; a ``ConfigError`` if no machine ever could: Ray would wait for one for ever."""
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    room = sum(
        min(int(machine.get(name, 0) / amount + 1e-9) for name, amount in wanted.items() if amount > 0) for machine in machines
    )
    if room == 0:
        largest = ", ".join(f"{max((m.get(name, 0) for m in machines), default=0):g} {name}s" for name in wanted)
        asked = " and ".join(f"{amount:g} {name}s" for name, amount in wanted.items() if amount > 0)
        raise ConfigError(
            f"a run asks for {asked}, and no machine of the Ray cluster has that ({len(machines)} machines, "
            f"at most {largest} each): lower cpus_per_run or gpus_per_run"
        )
    return room
