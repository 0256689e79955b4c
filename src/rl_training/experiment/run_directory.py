"""The directory of a run: its name, its config and its metadata."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import write_atomically, write_json
from rl_training.experiment.yaml_files import dump_yaml
from rl_training.types import ConfigError


def create_run_directory(config: TrainConfig, *, suffix: str | None = None, path: Path | None = None) -> Path:
    """Make ``<algo>__<env>__seed<k>__<UTC stamp>[__suffix]`` or ``path``, with config and metadata, whole or not at all."""
    parent, name = (config.output_dir, _run_name(config, suffix)) if path is None else (path.parent, path.name)
    temporary = parent / f".{name}.{os.getpid()}.tmp"
    try:
        (temporary / "checkpoints").mkdir(parents=True)
        write_config(temporary, config)
        write_json(temporary / "metadata.json", describe_run(config))
        for attempt in range(1, 1000 if path is None else 2):
            directory = parent / (name if attempt == 1 else f"{name}_{attempt}")
            try:
                temporary.rename(directory)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return directory.absolute()
        raise ConfigError(f"output_dir {parent}: too many runs named {name}" if path is None else f"{path} is there already")
    except OSError as error:
        raise ConfigError(f"output_dir {str(parent)!r} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_name(config: TrainConfig, suffix: str | None) -> str:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    parts = [config.algo, _file_name(config.env_id or "data"), f"seed{config.seed}", stamp]
    return "__".join([*parts, _file_name(suffix)] if suffix else parts)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)


def write_config(directory: Path, config: TrainConfig) -> None:
    """``config.yaml``: every setting, runnable as it is."""
    write_atomically(directory / "config.yaml", dump_yaml(config.to_dict()))


def describe_run(config: TrainConfig) -> dict[str, Any]:
    """What produced a run: versions, machine, threads, source revision, command."""
    return {
        "status": "running",
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor_count": os.cpu_count(),
        "torch_threads": config.torch_threads,
        "versions": {"rl_training": __version__, **installed_versions("torch", "gymnasium", "numpy", "mujoco", "safetensors")},
        "git": _git_revision(),
    }


def installed_versions(*names: str) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _git_revision() -> dict[str, Any] | None:
    """Commit of the working directory, if it is in a repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def update_metadata(directory: Path, **changes: Any) -> None:
    """Change some entries of ``metadata.json``."""
    path = directory / "metadata.json"
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        metadata = {}
    write_json(path, {**metadata, **changes})
