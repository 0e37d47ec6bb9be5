"""Which calls of a Python script are made, by the conditions that they stand under: those that the text
decides are taken or left, and of the rest it is told.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_config import call_node, named_calls, values_at_line
from memsheet.exchange.shared.python_module import Module, Tree, attribute_path
from memsheet.exchange.shared.python_values import condition_value, value_of_path
from memsheet.exchange.shared.script_flags import known_flags
from memsheet.exchange.shared.script_places import BRANCH, CLASS, LINE
from memsheet.frozen import NamedTuple
from memsheet.guard.budget import TooMuchError
from memsheet.patterns import late_pattern

MOST_CALLS = 3
"""Calls of the file's own functions in one another whose conditions are followed."""
TRAINS = late_pattern(r"(?:Trainer|TrainingArguments)$|^(?:backward|train_batch|manual_backward)$")
"""Calls that a training has: what they stand under, too, decides whether there is one, and nothing of it."""
MOST_NAMES, MOST_USES = 3, 8
"""Names that an object is given one after another and that are followed to where it is taken, and how many
places each may be read in.
"""
TAKES = late_pattern(
    r"Trainer$|(?:^|\.)(?:get_peft_model|add_adapter|pipeline)$|(?:Model|LM|For[A-Z]\w*)\.from_pretrained$"
)
"""Calls that a configuration of adapters or of fewer bits is given to."""
NAMES_AS_TEXT = late_pattern(r"^(?:globals|locals|vars|eval|exec)$")
"""Calls that reach a name which the text does not read (docs.python.org, Built-in Functions)."""
SHOWS = [["print"], ["pprint"], ["debug"], ["info"], ["warning"]]
"""Calls that only tell what an object is: of the language, and of its ``logging``."""
OPEN_BRANCH = "made under a condition that the text does not decide"


class Way(NamedTuple):
    """Whether what stands there runs (None: the text does not decide), and the flag of the command line at
    whose default it does not.
    """

    runs: bool | None
    flag: str = ""


ALWAYS = Way(runs=True)


def reachable_calls(module: Module, names: Iterable[str]) -> Iterator[Tree]:
    """Every call of some names that is made, with the names of the functions around it; ``BRANCH`` among the
    arguments of one of which that is not decided.
    """
    for held in named_calls(module, names, local=True):
        runs = _way_to_call(module, held).runs
        if runs is not False:
            yield held if runs else {**held, BRANCH: OPEN_BRANCH}


def calls_at_flag(module: Module, names: Iterable[str]) -> dict[str, str]:
    """Calls of some names that are made once a flag is given, and not at its default: the flag by name."""
    named = {held[CLASS]: _way_to_call(module, held) for held in named_calls(module, names, local=True)}
    return {name: way.flag for name, way in named.items() if way.runs is False and way.flag}


def objects_in_use(module: Module, names: Iterable[str]) -> Iterator[Tree]:
    """Objects of some classes that are made and that something takes: those of no name of their own, and
    those whose name is read where it runs; ``BRANCH`` among the arguments of one of which that is open.
    """
    for held in reachable_calls(module, names):
        runs = _way_to_uses(module, call_node(module, held), 0).runs
        if runs is not False:
            yield held if runs else {**held, BRANCH: OPEN_BRANCH}


def unused_objects(module: Module, names: Iterable[str]) -> dict[str, int]:
    """Classes of which a script makes objects and takes none of them: the last one's line by the class."""
    made = {held[CLASS]: int(held[LINE]) for held in reachable_calls(module, names)}
    used = {held[CLASS] for held in objects_in_use(module, made)} if made else set()
    return {name: line for name, line in made.items() if name not in used}


def _way_to_uses(module: Module, made: ast.expr | None, names: int) -> Way:
    """Whether what an expression makes is taken anywhere, under the names that it is given one after another.
    That it is wherever the text could hide it: in a class, in names that are asked for by their text, or in
    a file that does nothing itself which takes one, and that another imports.
    """
    given = _given_names(module.tree).get(made) if made is not None and names < MOST_NAMES else None
    called = [".".join(path) for _, path, _ in module.sites] if given is not None else []
    if given is None or not any(map(TAKES.search, called)) or any(map(NAMES_AS_TEXT.search, called)):
        return ALWAYS
    read = _uses_of_names(module.tree)
    uses = [one for name in sorted(given) for one in read.get(name, ())]
    if len(uses) > MOST_USES or any(isinstance(one, ast.Constant) for one in uses):
        return ALWAYS
    ways: list[Way] = []
    for one in uses:
        ways.append(_first_open(_way_to_node(module, one, 0), _way_to_uses(module, one, names + 1)))
        if ways[-1].runs:
            return ALWAYS
    return next((way for way in ways if way.runs is None), Way(runs=False))


@lru_cache(maxsize=2)
def _given_names(tree: ast.Module) -> dict[ast.expr, set[str]]:
    """The names that statements give what they make, none where they drop it; not of what stands inside of
    something else, or in a class.
    """
    found: dict[ast.expr, set[str]] = {}
    of_class = {id(one) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found[node.value] = set()
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or id(node) in of_class:
            continue
        paths = [
            attribute_path(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        choice = node.value
        for made in (choice.body, choice.orelse) if isinstance(choice, ast.IfExp) else (choice,):
            if all(paths):
                found[made] = {path[-1] for path in paths}
    return found


@lru_cache(maxsize=2)
def _uses_of_names(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Where each name is read, as such, as an attribute or as a text, but for what only shows it."""
    passed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and attribute_path(node.func)[-1:] in SHOWS:
            passed |= {
                id(one) for held in (node.args, node.keywords) for part in held for one in ast.walk(part)
            }
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            passed.add(id(node.value))
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case _ if id(node) in passed:
                continue
            case (
                ast.Name(id=name, ctx=ast.Load())
                | ast.Attribute(attr=name, ctx=ast.Load())
                | ast.Constant(value=str(name))
            ):
                found.setdefault(name, []).append(node)
    return found


def _way_to_call(module: Module, held: Mapping[str, Any]) -> Way:
    node = call_node(module, held)
    return ALWAYS if node is None else _way_to_node(module, node, 0)


def _way_to_node(module: Module, node: ast.AST, calls: int) -> Way:
    """All conditions around a node, and around the calls of the function that it stands in."""
    ways: list[Way] = []
    functions: list[ast.FunctionDef] = []
    for around, before, inner in _path_to_node(module.tree, node):
        if isinstance(around, ast.FunctionDef):
            functions.append(around)
        ways += [_way_under(module, one) for one in _tests_of(around, before, inner)]
    if functions and calls < MOST_CALLS and not _holds_every_training(module, functions[-1]):
        ways.append(_way_to_function(module, functions[-1], calls))
    return _first_open(*ways)


def _first_open(*ways: Way) -> Way:
    """Of ways that all must be open to run: the first that is not, or that nobody knows of."""
    left = next((way for way in ways if way.runs is False), None)
    return left or next((way for way in ways if way.runs is None), ALWAYS)


def _way_to_function(module: Module, function: ast.FunctionDef, calls: int) -> Way:
    """Whether any call of a function runs; of one that nobody calls by its name, that it does."""
    within = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    sites = [node for node, path, _ in module.sites if path == (function.name,) and node.lineno not in within]
    ways = [_way_to_node(module, node, calls + 1) for node in sites]
    if not ways or any(way.runs for way in ways):
        return ALWAYS
    return next((way for way in ways if way.runs is None), ways[0])


def _path_to_node(
    tree: ast.AST, wanted: ast.AST
) -> Iterator[tuple[ast.AST, list[ast.stmt], tuple[str, ast.AST]]]:
    """What stands around a node, from the outside: each, the statements of the same block before the next
    one, and the field that this is in with itself.
    """
    first, last = wanted.lineno, wanted.end_lineno  # type: ignore[attr-defined]
    around: ast.AST = tree
    while around is not wanted:
        found = _part_around(around, wanted, first, last)
        if found is None:
            return
        yield around, *found
        around = found[1][1]


def _part_around(
    around: ast.AST, wanted: ast.AST, first: int, last: int
) -> tuple[list[ast.stmt], tuple[str, ast.AST]] | None:
    for name, held in ast.iter_fields(around):
        parts = held if isinstance(held, list) else [held]
        for at, part in enumerate(parts):
            if not isinstance(part, ast.AST) or not _may_hold(part, first, last):
                continue
            if part is wanted or any(one is wanted for one in ast.walk(part)):
                before = [one for one in parts[:at] if isinstance(one, ast.stmt)]
                return before, (name, part)
    return None


def _may_hold(part: ast.AST, first: int, last: int) -> bool:
    start, end = getattr(part, "lineno", None), getattr(part, "end_lineno", None)
    return start is None or end is None or (start <= first and last <= end)


class Test(NamedTuple):
    """A condition that holds where something runs, how it is decided then, what runs beside it and what runs
    in its place.
    """

    test: ast.expr
    taken: bool
    beside: Sequence[ast.AST]
    instead: Sequence[ast.AST] = ()


def _tests_of(around: ast.AST, before: list[ast.stmt], inner: tuple[str, ast.AST]) -> Iterator[Test]:
    """Conditions of a part of something: its own, and of a function those of earlier statements that return
    from it.
    """
    if isinstance(around, ast.If) and inner[0] in ("body", "orelse"):
        ways = (around.body, around.orelse)
        taken = inner[0] == "body"
        yield Test(around.test, taken, *(ways if taken else ways[::-1]))
    if isinstance(around, ast.IfExp) and inner[0] in ("body", "orelse"):
        yield Test(around.test, inner[0] == "body", ())
    for one in before:
        if isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], ast.Return):
            yield Test(one.test, taken=False, beside=[around], instead=one.body)


def _way_under(module: Module, one: Test) -> Way:
    """Of a condition under which alone there is a training, that it holds; of one under which there is none,
    that nothing of it runs.
    """
    beside, instead = (_holds_training(module, parts) for parts in (one.beside, one.instead))
    if beside and not instead:
        return ALWAYS
    if instead and not beside:
        return Way(runs=False)
    return _way_of_test(module, one.test, taken=one.taken)


def _holds_every_training(module: Module, function: ast.FunctionDef) -> bool:
    """Whether there is no training but in one function: who does not call it has none."""
    within = range(function.lineno, (function.end_lineno or 0) + 1)
    lines = [node.lineno for node, path, _ in module.sites if TRAINS.search(path[-1])]
    return bool(lines) and all(line in within for line in lines)


def _holds_training(module: Module, parts: Sequence[ast.AST], calls: int = 0) -> bool:
    """Whether a call that a training has stands in some parts of a file, or in a function that they call."""
    lines = [range(one.lineno, (one.end_lineno or 0) + 1) for one in parts if isinstance(one, ast.stmt)]
    paths = [path for node, path, _ in module.sites if any(node.lineno in held for held in lines)]
    called = [module.functions[path[0]] for path in paths if len(path) == 1 and path[0] in module.functions]
    return any(TRAINS.search(path[-1]) for path in paths) or (
        calls < MOST_CALLS and any(_holds_training(module, [one], calls + 1) for one in called)
    )


def _way_of_test(module: Module, test: ast.expr, *, taken: bool) -> Way:
    match test:
        case ast.Compare(left=ast.Name(id="__name__")):
            return ALWAYS
    flags = known_flags(module)
    used = [
        path for one in ast.walk(test) if isinstance(one, ast.Attribute) and (path := attribute_path(one))
    ]
    asked = [path for path in used if path[-1] in flags]
    try:
        held = dict(values_at_line(module, test.lineno))
        for path in asked:
            if value_of_path(path, held) == UNSET:
                known = {name: flag.default for name, flag in flags.items()}
                held[path[0]] = {**(one if isinstance(one := held.get(path[0]), dict) else {}), **known}
        value = condition_value(module, test, held)
    except TooMuchError:
        return Way(None)
    if value is None or value is taken:
        return Way(None if value is None else True)
    open_flags = (flags[path[-1]].name for path in asked if path[-1] not in module.given)
    return Way(runs=False, flag=next(open_flags, ""))
