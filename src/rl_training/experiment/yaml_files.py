"""YAML in and out: safe, with ``3e-4`` read as a number and a repeated key refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.files import read_bounded
from rl_training.types import ConfigError
from rl_training.validation import LARGEST_CONTENT, shown

LARGEST_FILE = 1_000_000
"""Bytes of YAML that are read; a configuration has about a thousand."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads every spelling of a float and does not let a later key silently win."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count_entries(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {shown(key)} appears twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _count_entries(node: yaml.Node, counted: dict[yaml.Node, int | None]) -> int:
    """Entries a node stands for, aliases followed: a few lines may stand for billions. Refuses too many, and endless ones."""
    if node in counted:
        known = counted[node]
        if known is None:
            raise yaml.constructor.ConstructorError(None, None, "an alias refers to what it is part of", node.start_mark)
        return known
    counted[node] = None
    children = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    count = 1 + sum(_count_entries(child, counted) for child in children)
    if count > LARGEST_CONTENT:
        raise yaml.constructor.ConstructorError(None, None, f"more than {LARGEST_CONTENT} entries", node.start_mark)
    counted[node] = count
    return count


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
    except (RecursionError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        # absurd nesting, impossible dates, unhashable keys; PyYAML does not check scalars with an explicit tag (!!bool 7)
        raise ConfigError(f"{source} is not valid YAML: {type(error).__name__}: {error}") from None


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """A YAML file whose content is a mapping."""
    try:
        text = read_bounded(path, LARGEST_FILE).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    data = parse_yaml(text, source=str(path))
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{path} must hold a mapping of settings, got {type(data).__name__}")
    return data


def dump_yaml(data: Any) -> str:
    """Plain YAML in the order given."""
    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    return text
