"""The version of the checkpoint format, and how manifests of older versions become manifests of this one.

A change of the format raises ``FORMAT_VERSION`` by one and adds a function here that takes a manifest of the version
before and returns one of the next. Settings that are added to the configuration need none: they have defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from rl_training import __version__
from rl_training.types import CheckpointError

Manifest: TypeAlias = dict[str, Any]

FORMAT_VERSION = 1
MIGRATIONS: dict[int, Callable[[Manifest], Manifest]] = {}
"""By the version that a function starts from."""


class NewerFormatError(CheckpointError):
    """A checkpoint that is not damaged but written by a later version of the package."""


def migrate(manifest: Manifest, *, source: str) -> Manifest:
    """A manifest of any version up to this one, as one of this version."""
    version = manifest["format_version"]
    if type(version) is not int or version < 0:
        raise CheckpointError(f"{source} has format version {version!r}, which is none")
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{source} has format version {version}, written by rl_training {manifest.get('package_version')}; "
            f"rl_training {__version__} reads up to {FORMAT_VERSION}: upgrade the package to use it"
        )
    for step in range(version, FORMAT_VERSION):
        if step not in MIGRATIONS:
            raise CheckpointError(f"{source} has format version {version}, which is no longer read")
        manifest = {**MIGRATIONS[step](manifest), "format_version": step + 1}
    return manifest
