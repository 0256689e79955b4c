"""Configurations as Python mappings, and ``--set`` overrides of presets."""

from __future__ import annotations

import copy
import datetime
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rl_training.experiment.config import ALIASES, FOREIGN_NAMES, DatasetConfig, TrainConfig
from rl_training.experiment.presets import build_config, find_config, list_presets, load_config, read_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_directory import create_run_directory
from rl_training.experiment.yaml_files import dump_yaml, parse_yaml
from rl_training.types import ConfigError

from .command_line import RefusedByCli, run_cli
from .kinds import Kind, Recipe
from .plain_data import from_plain, to_plain

NUMBERS = (0, 1, -1, 2, 0.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63), 10**400)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
TEXTS = (
    "",
    " ",
    "\x00",
    "a\nb",
    "\ud800",
    "\u202e",
    "É",
    "e\u0301",
    "none",
    "true",
    "1e3",
    "🦆" * 50,
    "../..",
    "~",
    "%s%n",
    "x" * 5000,
)

unprintable = st.just(5000).map(lambda digits: 16**digits)  # longer than what Python turns into decimal digits
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats(allow_nan=False))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    unprintable,
    st.sampled_from(NOT_FINITE),
    st.sampled_from(TEXTS),
    st.text(max_size=12),
    st.binary(max_size=8),
    st.just(datetime.date(2020, 2, 29)),
)
hashable = st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.none(), st.just(1.5), st.just((1, "a")))
wild = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=4),
    ),
    max_leaves=8,
)
plausible = st.one_of(
    st.integers(0, 1000),
    st.floats(0, 1),
    st.booleans(),
    st.none(),
    st.sampled_from(
        ("sync", "async", "max", "min", "linear", "cosine", "auto", "cpu", "Pendulum-v1", "mix", "npz", "softmax", "x")
    ),
    st.lists(st.integers(1, 64), min_size=1, max_size=3),
)
values = st.one_of(plausible, wild)
PRESETS = [read_config(find_config(name)) for name in list_presets()]
FIELDS = tuple(TrainConfig.model_fields)
SECTIONS = {
    "dataset": tuple(DatasetConfig.model_fields),
    "reward": ("scale", "shift", "clip_min", "clip_max"),
    "early_stopping": ("metric", "mode", "patience", "min_delta", "target_value"),
    "learning_rate_schedule": ("type", "start", "end", "warmup_steps", "horizon"),
}


def _hyperparameters(algo: str) -> tuple[str, ...]:
    return tuple(get_algorithm_spec(algo).hyperparameters.model_fields)


@st.composite
def _misspelt(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """A known name with a letter dropped, doubled, changed or put elsewhere."""
    name = draw(st.sampled_from(names))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from("aeiou_ -.É\x00"))
    return draw(
        st.sampled_from((name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name.upper(), f"{name}.{letter}"))
    )


@st.composite
def _mappings(draw: st.DrawFn) -> dict[Any, Any]:
    """A valid configuration after one to three changes for the worse."""
    data: dict[Any, Any] = copy.deepcopy(draw(st.sampled_from(PRESETS)))
    algo = data["algo"]
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        _change(draw, data, _hyperparameters(algo))
    return data


def _change(draw: st.DrawFn, data: dict[Any, Any], hyperparameters: tuple[str, ...]) -> None:
    kwargs = data["algo_kwargs"] if isinstance(data.get("algo_kwargs"), dict) else {}
    choice = draw(
        st.sampled_from(("field", "kwarg", "section", "whole", "alias", "foreign", "misspelt", "drop", "env", "odd key"))
    )
    if choice == "field":
        data[draw(st.sampled_from(FIELDS))] = draw(values)
    elif choice == "kwarg":
        kwargs[draw(st.sampled_from(hyperparameters))] = draw(values)
    elif choice == "section":
        section = draw(st.sampled_from(sorted(SECTIONS)))
        names = draw(st.sampled_from((st.sampled_from(SECTIONS[section]), hashable)))
        fields = draw(st.dictionaries(names, values, max_size=3))
        data[section] = {**(data[section] if isinstance(data.get(section), dict) else {}), **fields}
    elif choice == "whole":
        data[draw(st.sampled_from([*SECTIONS, "algo_kwargs", "env_kwargs"]))] = draw(wild)
    elif choice == "alias":
        kwargs[draw(st.sampled_from(sorted(ALIASES))).removeprefix("algo_kwargs.")] = draw(values)
    elif choice == "env":
        data["env_kwargs"] = draw(st.dictionaries(st.text(max_size=4), wild, max_size=3))
    elif choice == "foreign":
        data[draw(st.sampled_from(sorted(FOREIGN_NAMES)))] = draw(scalars)
    elif choice == "misspelt":
        draw(st.sampled_from((data, kwargs)))[draw(_misspelt(FIELDS + hyperparameters))] = draw(scalars)
    elif choice == "drop" and data:
        del data[draw(st.sampled_from(sorted(data, key=repr)))]
    elif choice == "odd key":
        draw(st.sampled_from((data, kwargs)))[draw(hashable)] = draw(scalars)


def use_config(config: TrainConfig) -> None:
    """What a run does with a configuration before it trains: settle it, write it, read it back, make its directory."""
    settled = config.resolved()
    text = dump_yaml(settled.to_dict())
    again = build_config(parse_yaml(text.encode("utf-8").decode("utf-8"), source="dumped"), source="dumped")
    assert again.to_dict() == settled.to_dict(), "a configuration changed on its way through a file"
    json.dumps(settled.to_dict(), allow_nan=False)
    if not config.output_dir.is_absolute() and ".." not in config.output_dir.parts:  # stay in the scratch directory
        create_run_directory(settled)


def _run_mapping(recipe: Recipe, scratch: Path) -> None:
    use_config(build_config(from_plain(recipe["data"]), source="fuzz"))


# -- overrides ---------------------------------------------------------------------------------------------------------

HYPERPARAMETERS = sorted({name for preset in PRESETS for name in _hyperparameters(preset["algo"])})
known_keys = st.sampled_from(
    [
        *FIELDS,
        *(f"{section}.{name}" for section, names in SECTIONS.items() for name in names),
        *(f"algo_kwargs.{name}" for name in HYPERPARAMETERS),
        *ALIASES,
    ]
)
odd_keys = st.one_of(
    st.sampled_from(("dataset.parts.0", "env_kwargs.a.b.c", "algo.x", ".", "..", "a..b", "seed.", ".seed", "=", "==")),
    _misspelt(FIELDS),
    st.text(max_size=8),
)
plain_texts = st.one_of(
    st.sampled_from(("1", "0", "-1", "1e-3", "0.5", "1000", "true", "null", "x", "cpu", "linear", "random")),
    st.sampled_from(("[1,2]", "[32,32]", "{a: 1}", "[]")),
)
odd_texts = st.one_of(
    st.sampled_from(("nan", ".inf", "~", "[", "'", "-", "%", "*a", "&a [*a]", "2001-99-99", "1e999", "../..", "/dev/null")),
    st.sampled_from(("", '"\\ud800"', '"\\0"', "!!python/object/apply:os.getcwd []", "!!binary x", "!!bool 7")),
    st.just("0x" + "f" * 5000),
    numbers.map(lambda number: str(number) if abs(number) < 10**300 else hex(2**5000)),
    st.text(max_size=12),
)


def mostly(usual: st.SearchStrategy[str], odd: st.SearchStrategy[str], times: int) -> st.SearchStrategy[str]:
    """The usual one so many times as often: a list of settings is refused for its first odd one."""
    return st.sampled_from([usual] * times + [odd]).flatmap(lambda chosen: chosen)


_settings = st.builds("{}={}".format, mostly(known_keys, odd_keys, 5), mostly(plain_texts, odd_texts, 1))
_overrides = mostly(_settings, st.text(max_size=10), 15)


def _run_overrides(recipe: Recipe, scratch: Path) -> None:
    overrides = [from_plain(text) for text in recipe["overrides"]]
    if recipe["cli"]:
        run_cli("config", "show", recipe["preset"], *(part for text in overrides for part in ("--set", text)))
    else:
        use_config(load_config(recipe["preset"], overrides))


KINDS = (
    Kind(
        "config",
        recipes=_mappings().map(lambda data: {"data": to_plain(data)}),
        run=_run_mapping,
        allowed=(ConfigError,),
        share=25,
    ),
    Kind(
        "override",
        recipes=st.fixed_dictionaries(
            {
                "preset": st.sampled_from(list_presets()),
                "overrides": st.lists(_overrides.map(to_plain), min_size=1, max_size=3),
                "cli": st.booleans(),
            }
        ),
        run=_run_overrides,
        allowed=(ConfigError, RefusedByCli),
        share=15,
    ),
)
