"""The command line, in this process."""

from __future__ import annotations

import contextlib
import io

from rl_training.cli import main
from rl_training.types import UserError


class RefusedByCli(UserError):
    """Exit code 2: the mistake was told as it should be."""


def run_cli(*arguments: str) -> None:
    """Run a command; raises ``RefusedByCli`` for exit code 2 and an ``AssertionError`` for anything but 0 and 2."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")  # as strict as a real terminal
    messages = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        code = main(arguments)
    told = messages.getvalue()
    assert code in (0, 2), f"exit code {code}: {' '.join(told.splitlines()[-2:-1])}\n{told}"  # the exception first
    assert "Traceback" not in told, told
    if code == 2:
        raise RefusedByCli(told)
