"""An engine is one room: what differs from engine to engine is a field of its facts, so that nobody else asks
it its name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from memsheet.plan.check import RULES
from memsheet.plan.engine_registry import MODELLED
from parsed_files import PACKAGE, files_with

NAMES = frozenset({*MODELLED, *RULES["engine"].choices})
ROOMS = ("engines/", "exchange/", "catalog/", "jobs/templates/")
"""Each engine's own folder; files in the words of others; data; jobs of frameworks."""
WORD_LISTS = (
    "plan/aliases.py",  # other people's words
    "plan/engine_registry.py",  # the list of engines, and the few that are taken where nobody names one
    "plan/packages.py",  # names of distributions
    "references.py",  # titles
)
KINDS = ("Sharding",)
"""Types whose values are as good as an engine's name: they alone may ask which value they are."""
IDENTITY = ("engine", "server")


QUOTED = tuple(part for name in sorted(NAMES) for part in (f'"{name}', f"'{name}", f'{name}"', f"{name}'"))
ASKING = (*(f".{field}" for field in IDENTITY), "engine.name", *(f"{kind}." for kind in KINDS))
"""What stands in the text of every file that may break one law or the other: none else is parsed."""


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _generic_files(words: tuple[str, ...]) -> Iterator[tuple[str, ast.Module]]:
    for path in files_with(words):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ROOMS) and name not in WORD_LISTS:
            yield name, _parsed(path)


def _docstrings(tree: ast.AST) -> set[int]:
    """Strings that stand by themselves: of modules, classes, functions and the constant above them."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def named_engines(tree: ast.AST) -> list[int]:
    """Lines of string literals that are an engine's name, docstrings apart."""
    docs = _docstrings(tree)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in docs
    ]


def compared_engines(tree: ast.AST) -> list[int]:
    """Lines where what an engine is called, is served by or shards by is compared with something fixed."""
    own = {
        id(node)
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and kind.name in KINDS
        for node in ast.walk(kind)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if (
            id(node) not in own
            and (isinstance(node, ast.Compare) and _compares_identity([node.left, *node.comparators]))
        )
        or (isinstance(node, ast.MatchValue) and _is_kind(node.value))
    ]


def _compares_identity(sides: list[ast.expr]) -> bool:
    return any(map(_is_kind, _parts(sides))) or (
        any(map(_is_identity, sides)) and any(map(_is_fixed, _parts(sides)))
    )


def _parts(sides: list[ast.expr]) -> Iterator[ast.expr]:
    for side in sides:
        yield from side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,)


def _is_identity(side: ast.expr) -> bool:
    """``plan.engine``, ``engine.name``, ``plan.engine.name``, ``engine.server``."""
    if not isinstance(side, ast.Attribute):
        return False
    owner = side.value
    owned = (
        owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    )
    return side.attr in IDENTITY or (side.attr == "name" and owned.endswith("engine"))


def _is_fixed(side: ast.expr) -> bool:
    """A literal or a constant, not another plan's engine."""
    named = side.id if isinstance(side, ast.Name) else side.attr if isinstance(side, ast.Attribute) else ""
    return named.isupper() or (isinstance(side, ast.Constant) and isinstance(side.value, str))


def _is_kind(side: ast.expr) -> bool:
    """``Sharding.X``."""
    return isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id in KINDS


def lines_by_file(lines: Callable[[ast.AST], list[int]], words: tuple[str, ...]) -> dict[str, list[int]]:
    """Files where a field of the engine's facts is to say what differs, with the lines."""
    return {name: sorted(at) for name, tree in _generic_files(words) if (at := lines(tree))}


def test_no_string_outside_the_rooms_is_an_engines_name():
    assert lines_by_file(named_engines, QUOTED) == {}


def test_nobody_asks_an_engine_its_name():
    assert lines_by_file(compared_engines, ASKING) == {}


def test_what_counts_as_a_name():
    names = ['x = "vllm"', 'f(engine="fsdp2")', 'T = {"sglang": 1}', 'x = y in ("deepspeed", "other")']
    assert all(len(named_engines(ast.parse(text))) == 1 for text in names)
    others = ['"""vllm"""', 'def f():\n    "vllm"', 'x = 1\n"""vllm"""', 'x = "vllm serve"', "x = vllm"]
    assert not any(named_engines(ast.parse(text)) for text in others)


def test_what_counts_as_asking():
    asks = (
        'plan.engine == "a"', 'plan.engine in ("a", "b")', "plan.engine in SERVERS", "plan.engine not in of.SERVERS", 'engine.name != "a"', "ONE_GPU == plan.engine",
        'space.engine.name == "a"', 'engine.server == "a"', "engine.sharding is Sharding.FSDP2", "sharding in (one, Sharding.A)",
    )  # fmt: skip
    assert [text for text in asks if not compared_engines(ast.parse(text))] == []
    matches = "match sharding:\n    case Sharding.A | Sharding.B:\n        pass"
    assert compared_engines(ast.parse(matches))
    others = ("one.engine == other.engine", "plan.engine == asked", "plan.engine is None", "engine.name in there", 'model.name == "a"', "engine.runner is Runner.A")  # fmt: skip
    assert [text for text in others if compared_engines(ast.parse(text))] == []
