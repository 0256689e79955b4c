"""A process that has imported everything and forks a copy of itself for each training run that is asked for.

Starting Python and importing torch takes two seconds, a fork ten milliseconds. The copy runs ``rl-training ...`` in a
process of its own, in a session of its own, and is killed by real signals. Questions come as lines of JSON on standard
input, answers go to standard output:

    {"start": [ARGUMENTS], "messages": FIFO}  ->  {"pid": PID}        {"poll": PID}  ->  {"code": null or exit code}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import sys

import numpy as np

from rl_training.cli import main

LATE_IMPORTS = (
    "gymnasium.envs.classic_control",
    "rl_training.runtime.progress",
    "rl_training.runtime.workflows",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",  # the first optimiser imports it, in more time than all the rest
)


def serve() -> list[str] | None:
    """Answer until the input ends. In the parent returns None; in each copy the arguments of the run it is to be."""
    running: set[int] = set()
    try:
        for line in sys.stdin:
            question = json.loads(line)
            if "start" in question:
                pid = os.fork()
                if pid == 0:
                    running.clear()
                    become_a_run(question["messages"])
                    return list(question["start"])
                running.add(pid)
                answer: dict[str, int | None] = {"pid": pid}
            else:
                pid, status = os.waitpid(question["poll"], os.WNOHANG)
                running.discard(pid)
                answer = {"code": os.waitstatus_to_exitcode(status) if pid else None}
            print(json.dumps(answer), flush=True)
    finally:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    return None


def become_a_run(messages: str) -> None:
    """A fresh process as a shell would start it: own session, own standard streams, own global random numbers."""
    os.setsid()
    nothing, errors = os.open(os.devnull, os.O_RDWR), os.open(messages, os.O_WRONLY)
    for source, target in ((nothing, 0), (nothing, 1), (errors, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(errors)
    random.seed()
    np.random.seed()  # a run that drew from the global generators would be found out


if __name__ == "__main__":
    for module in LATE_IMPORTS:
        importlib.import_module(module)
    gc.freeze()  # so that no copy goes through all that was imported once more when it ends
    arguments = serve()
    sys.exit(0 if arguments is None else main(arguments))
