"""What a word on a sheet means: the terms of the catalogue, every engine's facts, and every formula by its
own docstring.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from memsheet import references
from memsheet.catalog import glossary_terms, glossary_terms_about
from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.references import FORMULAS, Reference
from memsheet.sheet import Cited, Evidence, FromCode


@dataclass(frozen=True, slots=True)
class Term:
    """One explained word. ``kind``: component, instant, word, engine or formula; ``group``: its heading in
    the list.
    """

    name: str
    kind: str
    group: str
    text: str
    source: str = ""
    also: tuple[str, ...] = ()


def explain(name: str) -> Term:
    """The term of that name, of another word for it, or of a formula (its dotted name where several share the
    last part).

    Case, dashes and spaces do not matter. Raises InputError with the nearest names.
    """
    if not isinstance(name, str):
        raise input_error("term", name, "is not text", "`memsheet explain` lists the terms")
    key = _term_key(name)
    found = _catalog_term(key) or _terms_by_word().get(key) or _formula_terms().get(key)
    if found is not None:
        return found
    alike = [formula for formula in _formula_terms() if formula.endswith(f".{key}")]
    if alike:
        raise input_error("term", name, "names several formulas", f"one of {', '.join(alike)}")
    import difflib

    near = difflib.get_close_matches(key, [*_terms_by_word(), *_formula_terms()], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise input_error("term", name, "is not explained here", f"{hint}`memsheet explain` lists the terms")


def all_terms() -> tuple[Term, ...]:
    """Every term once: words by their groups, then engines, then formulas."""
    words = {(term.kind, term.name): term for term in _terms_by_word().values()}
    return (*words.values(), *_formula_terms().values())


def _term_key(name: str) -> str:
    return re.sub(r"[\s/-]+", "_", name.strip().lower())


def _citation_text(reference: Reference | None, at: str = "") -> str:
    if reference is None:
        return ""
    return f"{reference.title}, {reference.where}" + (f"; {at}" if at else "")


def _terms_by_word() -> dict[str, Term]:
    """Terms by name and by every other word for them; a term's own name comes before another's other word."""
    return _index_terms((*_catalog_terms(), *_engine_terms()))


def _index_terms(terms: Iterable[Term]) -> dict[str, Term]:
    entries = tuple(terms)
    named = {_term_key(term.name): term for term in entries}
    return named | {
        key: term for term in entries for word in term.also if (key := _term_key(word)) not in named
    }


def _catalog_term(key: str) -> Term | None:
    """The catalogue's own term of that name, read alone."""
    tables = glossary_terms_about(lambda line: key in _term_key(line))
    return _index_terms(_catalog_terms(tables)).get(key)


def _catalog_terms(tables: dict[str, Any] | None = None) -> Iterator[Term]:
    for kind, group, name, entry in _flatten_term_tables(glossary_terms() if tables is None else tables):
        source = _citation_text(getattr(references, entry["cites"])) if "cites" in entry else ""
        yield Term(name, kind, group, entry["text"], source, tuple(entry.get("also", ())))


def _flatten_term_tables(tables: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(kind, group, name, entry) of each entry; words are in groups of their own."""
    for kind, table in tables.items():
        groups = table if kind == "word" else {kind: table}
        for group, entries in groups.items():
            yield from ((kind, group, name, entry) for name, entry in entries.items())


def _engine_terms() -> Iterator[Term]:
    for engine in map(find_engine, MODELLED):
        if engine is not None:
            text = (
                f"Read at {engine.tested}. Tasks: {', '.join(engine.tasks)}. Mesh: {', '.join(engine.axes)}. "
                f"Zero: {', '.join(map(str, engine.zero))}. Precisions: {', '.join(engine.precisions)} "
                f"(default {engine.default_precision}). "
                f"Offload: {', '.join(engine.offload) or 'none'}."
            )
            source = "; ".join(
                f"{what}: {_evidence_text(evidence)}" for what, evidence in engine.evidence.items()
            )
            yield Term(engine.name, "engine", "engine", text, source)


def _evidence_text(evidence: Evidence) -> str:
    match evidence:
        case Cited(reference, at):
            return _citation_text(reference, at)
        case FromCode(project, commit, file, line):
            return f"{project} {file}:{line} at {commit}"
        case _:
            return str(evidence)


def _formula_terms() -> dict[str, Term]:
    """Every formula by the shortest dotted end of its name that no word and no other formula has."""
    from inspect import getdoc

    functions = dict(_formula_functions())
    ends = _shortest_ends(list(functions), taken=set(_terms_by_word()))
    return {
        end: Term(
            end,
            "formula",
            "formula",
            _formula_text(name, getdoc(functions[name]) or ""),
            _citation_text(*FORMULAS[name][:2]),
        )
        for name, end in ends.items()
    }


WHOLE_NUMBERS = "It chooses by counts, and answers for one plan at a time."
"""What is said of formulas that take whole numbers alone."""


def _formula_text(name: str, doc: str) -> str:
    _, at, counts = FORMULAS[name]
    return " ".join([*(doc or at).split(), *([WHOLE_NUMBERS] if counts == "int" else [])])


def formula_modules() -> Iterator[str]:
    """Modules that may hold formulas: what is published, what is generic, and each engine's own."""
    from pkgutil import walk_packages

    yield "memsheet.textbook"
    for package in ("memsheet.formulas", "memsheet.engines"):
        yield from (found.name for found in walk_packages(import_module(package).__path__, f"{package}."))


def _formula_functions() -> Iterator[tuple[str, Any]]:
    modules = {name: import_module(name) for name in formula_modules()}
    for qualified in FORMULAS:
        module, _, name = qualified.rpartition(".")
        yield qualified, getattr(modules[module], name, None)


def _shortest_ends(names: list[str], taken: set[str]) -> dict[str, str]:
    """Each dotted name's shortest end that no other name ends in and that is not ``taken``; a leading
    underscore is not said.
    """
    ends = {name: [_dotted_end(name, parts) for parts in range(1, name.count(".") + 2)] for name in names}
    used: dict[str, int] = {}
    for candidates in ends.values():
        for end in candidates:
            used[end] = used.get(end, 0) + 1
    return {
        name: next(end for end in candidates if used[end] == 1 and end not in taken)
        for name, candidates in ends.items()
    }


def _dotted_end(name: str, parts: int) -> str:
    return ".".join(part.lstrip("_") for part in name.lower().split(".")[-parts:])
