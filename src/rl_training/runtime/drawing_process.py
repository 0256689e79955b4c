"""Drawing in a process of its own: libraries for it may crash, hang, print, and look at variables only once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rl_training.types import UserError

_GRAPHICS = re.compile(r"OpenGL|EGL|GLFW|OSMesa|_gl\b|\bglGet", re.IGNORECASE)


def draw_elsewhere(function: str, arguments: Mapping[str, Any], *, patience: float | None = None) -> dict[str, Any]:
    """Call ``module:function`` of this package elsewhere with plain arguments; its plain result, or ``{"problem": why}``.

    If OpenGL is the problem, it is tried again with the libraries that need no screen. ``patience`` is in seconds.
    """
    code = "import sys; from rl_training.runtime.drawing_process import main; main(*sys.argv[1:])"
    search = os.pathsep.join([*(path for path in sys.path if path), os.getcwd()])
    facts: dict[str, Any] = {}
    for library in (None,) if "MUJOCO_GL" in os.environ else (None, "egl", "osmesa"):
        variables = {**os.environ, "PYTHONPATH": search, **({"MUJOCO_GL": library} if library else {})}
        with tempfile.TemporaryDirectory() as folder:  # where MuJoCo may leave its log
            try:
                done = subprocess.run(
                    [sys.executable, "-c", code, function, json.dumps(dict(arguments))],
                    cwd=folder,
                    env=variables,
                    capture_output=True,
                    text=True,
                    timeout=patience,
                    check=False,
                )
                facts = json.loads((done.stdout.splitlines() or ["{}"])[-1])
            except subprocess.TimeoutExpired:
                return {"problem": f"rendering took longer than {patience:.0f} s"}
            except ValueError:
                facts = {}
        if not facts:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            facts = {"problem": f"rendering ended abruptly: {last[:200]}"}
        if "problem" not in facts or not _GRAPHICS.search(str(facts["problem"])):
            return facts
    hint = "no OpenGL library works here: set MUJOCO_GL to one that does (egl, osmesa, glfw), or install one"
    return {"problem": f"{hint} ({facts['problem']})"}


def main(function: str, arguments: str) -> None:
    """The other side: call, and print what came of it as JSON."""
    module, _, name = function.partition(":")
    try:
        facts = getattr(import_module(module), name)(**json.loads(arguments))
    except UserError as error:
        facts = {"problem": str(error)}
    except Exception as error:  # an environment's or a drawing library's; who asked decides what becomes of it
        facts = {"problem": f"{type(error).__name__}: {error}"}
    print(json.dumps(facts))
