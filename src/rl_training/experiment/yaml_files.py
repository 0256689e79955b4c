"""YAML in and out: safe, with ``3e-4`` read as a number and a repeated key refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rl_training.types import ConfigError


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads every spelling of a float and does not let a later key silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot and a signed exponent ("3.0e-4"); people write 3e-4, 1e6, 1E-3.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text, or a ``ConfigError`` with line and column."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{where}: {getattr(error, 'problem', None) or error}") from None
    except (RecursionError, ValueError, TypeError) as error:  # absurd nesting, impossible dates, unhashable keys
        raise ConfigError(f"{source} is not valid YAML: {error}") from None


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """A YAML file whose content is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    data = parse_yaml(text, source=str(path))
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{path} must hold a mapping of settings, got {type(data).__name__}")
    return data


def dump_yaml(data: Any) -> str:
    """Plain YAML in the order given."""
    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    return text
