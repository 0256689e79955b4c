"""Configuration files: real presets with damaged lines, and YAML's darker corners."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from rl_training.experiment.presets import find_config, list_presets, load_config
from rl_training.types import ConfigError

from . import byte_mutations
from .configs import use_config
from .kinds import Kind, Recipe

Lines = list[str]

BOMB = "\n".join(
    ["b0: &b0 [x, x, x, x, x, x, x, x, x]", *(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))]
)
MERGE_BOMB = "\n".join(
    ["m0: &m0 {x: 1}", *(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], k{n}: 1}}" for n in range(1, 10))]
)
VALUES = (
    *(
        "",
        "~",
        "[]",
        "{}",
        "- 1",
        "[1, [2, [3]]]",
        "{a: {b: c}}",
        "'unclosed",
        '"\\ud800"',
        '"\\x00"',
        '"\\U0010ffff"',
        "|",
        ">",
        "%",
        "@x",
    ),
    *(
        "!!python/object/apply:os.getcwd []",
        "!!python/name:os.system",
        "!!python/object/new:tuple [[1]]",
        "!<tag:x> 1",
        "!!int x",
    ),
    *(
        "!!float [1]",
        "!!binary aGk=",
        "!!binary é",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!timestamp x",
        "!!bool 7",
    ),
    *("!!map [1]", "!!seq {a: 1}", "!!str [1]", "!!null x", "!!merge <<", "!!value =", "!!python/tuple [1, 2]", "!!yaml x"),
    *(
        "2001-01-01",
        "2001-99-99",
        "2001-01-01t99:00:00Z",
        "1:99:99",
        "0x" + "f" * 4000,
        "9" * 5000,
        "0b2",
        "0o9",
        "1e999",
        "-.inf",
        ".nan",
    ),
    *("190:20:30:" + "59:" * 50 + "1", "0x", "0b", "1__2", "_1", "+", "-", ".", "..", "...", "1e", "=", "<<"),
    *(
        "&a [*a]",
        "&a {k: *a}",
        "*missing",
        "&a &b 1",
        "? x",
        "? [a, b]\n: 1",
        "{[1]: 2}",
        "{{a: 1}: 2}",
        "[" * 900,
        "{a: " * 400,
        "- " * 400,
    ),
    *("\t1", "1 # x", "a: b: c", "[1, 2", "1]", "#", "---", "--- 1\n--- 2", "%YAML 9.9\n---\n1", "%TAG ! x\n--- 1"),
)
PLAUSIBLE = (
    "1",
    "2",
    "1000",
    "0.5",
    "1e-3",
    "true",
    "null",
    "Pendulum-v1",
    "[32, 32]",
    "random",
    "sync",
    "cosine",
    "cpu",
    "x",
)
PIECES = (
    *(
        BOMB,
        MERGE_BOMB,
        f"{BOMB}\nenv_kwargs: {{a: *b11}}",
        f"{BOMB}\nalgo_kwargs: *b11",
        f"{BOMB}\nhidden: *b9",
        "<<: {seed: 1}",
        "<<: 1",
    ),
    *(
        "extends: config.yaml",
        "extends: sac/pendulum",
        "extends: [x]",
        "extends: ..",
        "extends: /dev/zero",
        'extends: "\\0"',
        f"extends: {'x' * 5000}",
        "? [x]\n: 1",
        "1: 2",
        "~: 1",
        "[a]: 1",
        "seed: 1\nseed: 2",
        "\tseed: 1",
        "---",
        "...",
        "- seed",
        "!!python/object:os.x {}",
    ),
    *(
        "env_kwargs: &e {a: 1, b: *e}",
        "algo_kwargs: {<<: *nope}",
        "\ufeff",
        "\x85",
        "\u2028",
        "key: |\n  text\n  text",
        "a: &x 1\nseed: *x",
    ),
)


def _anywhere(lines: Lines, rng: random.Random) -> int:
    return rng.randrange(len(lines)) if lines else 0


def delete_line(lines: Lines, rng: random.Random) -> None:
    if lines:
        del lines[_anywhere(lines, rng)]


def repeat_line(lines: Lines, rng: random.Random) -> None:
    if lines:
        lines.insert(_anywhere(lines, rng), rng.choice(lines))


def swap_lines(lines: Lines, rng: random.Random) -> None:
    if lines:
        one, two = _anywhere(lines, rng), _anywhere(lines, rng)
        lines[one], lines[two] = lines[two], lines[one]


def indent(lines: Lines, rng: random.Random) -> None:
    if lines:
        at = _anywhere(lines, rng)
        lines[at] = rng.choice((" ", "   ", "\t", "- ", "? ", ": ", "")) + rng.choice((lines[at], lines[at].lstrip()))


def change_value(lines: Lines, rng: random.Random) -> None:
    if lines:
        at = _anywhere(lines, rng)
        lines[at] = f"{lines[at].partition(':')[0]}: {rng.choice(rng.choice((VALUES, PLAUSIBLE)))}"


def change_key(lines: Lines, rng: random.Random) -> None:
    if lines:
        at = _anywhere(lines, rng)
        lines[at] = f"{rng.choice((*VALUES, 'lr', 'Seed', 'hidden-sizes'))}:{lines[at].partition(':')[2]}"


def add_piece(lines: Lines, rng: random.Random) -> None:
    at = _anywhere(lines, rng)
    lines[at:at] = rng.choice(PIECES).split("\n")


LINE_MUTATIONS: tuple[Callable[[Lines, random.Random], None], ...] = (
    *(
        delete_line,
        repeat_line,
        swap_lines,
        indent,
        change_value,
        change_value,
        change_value,
        change_key,
        add_piece,
        add_piece,
    ),
)


def mutate(text: bytes, rng: random.Random) -> bytes:
    """Lines changed, and now and then the bytes below them, or the encoding."""
    lines = text.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(LINE_MUTATIONS)(lines, rng)
    joined = rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines) + "\n"
    encoded = joined.encode(rng.choice(("utf-8",) * 12 + ("utf-16", "latin-1")), "replace")
    return byte_mutations.damage(encoded, rng) if rng.random() < 0.2 else encoded


def _prepare(recipe: Recipe, bases: Path, scratch: Path) -> None:
    rng = random.Random(recipe["seed"])
    (scratch / "config.yaml").write_bytes(mutate(find_config(recipe["preset"]).read_bytes(), rng))


def _run(recipe: Recipe, scratch: Path) -> None:
    use_config(load_config(scratch / "config.yaml"))


KINDS = (
    Kind(
        "yaml",
        recipes=st.fixed_dictionaries({"preset": st.sampled_from(list_presets()), "seed": st.integers(0, 2**32 - 1)}),
        prepare=_prepare,
        run=_run,
        allowed=(ConfigError,),
        share=25,
    ),
)
