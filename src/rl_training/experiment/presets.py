"""Configuration files: by path, or by the name of a packaged preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.yaml_files import parse_yaml, read_yaml_mapping
from rl_training.types import ConfigError
from rl_training.validation import require_plain_data, shown, suggest

PRESETS = Path(__file__).resolve().parent.parent / "assets" / "configs"


def list_presets() -> list[str]:
    """Names of the packaged presets, e.g. ``sac/pendulum``."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PRESETS.glob("*/*.yaml"))


def find_config(name: str | Path) -> Path:
    """A file that exists, else the packaged preset ``algo/name``, ``configs/algo/name.yaml``, from any directory."""
    path = Path(name)
    if _is_file(path):
        return path
    preset = "/".join(path.with_suffix("").parts[-2:]) if path.suffix in (".yaml", ".yml") else str(name)
    if preset in list_presets():
        return PRESETS / f"{preset}.yaml"
    hint = suggest(preset, list_presets())
    raise ConfigError(f"there is no config file or preset {shown(str(name))}{hint} (rl-training list)")


def _is_file(path: Path) -> bool:
    """Also of a name that no file can have: the system does not answer for one of thousands of characters."""
    try:
        return path.is_file()
    except OSError:
        return False


def load_config(name: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """The checked configuration of a file or preset, with ``key.path=value`` overrides applied."""
    return build_config(read_config(find_config(name)), overrides, source=str(name))


def read_config(path: Path, *, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings of a file on top of those it ``extends``: a file beside it, or a preset."""
    data = read_yaml_mapping(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends must name a preset or a file, got {base!r}")
    parent = path.parent / base if _is_file(path.parent / base) else find_config(base)
    chain = (*below, path.resolve())
    if parent.resolve() in chain:
        raise ConfigError(f"{path}: extends leads in a circle, by way of {base}")
    return _merged(read_config(parent, below=chain), data)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections are merged key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        inherited = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inherited, Mapping):
            value = _merged(inherited, value)
        merged[key] = value
    return merged


def build_config(data: Mapping[str, Any], overrides: Iterable[str] = (), *, source: str) -> TrainConfig:
    """A checked configuration from plain data; problems are told together, under the name of their source."""
    merged = dict(data)
    for override in overrides:
        _apply_override(merged, override)
    try:
        require_plain_data(merged)  # here too: only text can be the name of an argument
        return TrainConfig(**merged)
    except ConfigError as error:
        raise ConfigError(error.problems, source=source) from None


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set takes key.path=value, got {override!r}")
    *sections, name = key.strip().split(".")
    for section in sections:
        value = data.get(section)
        data[section] = dict(value) if isinstance(value, Mapping) else {}
        data = data[section]
    data[name] = parse_yaml(text, source=f"--set {override}")
