"""`memsheet explain`."""

from __future__ import annotations

import textwrap

from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.questions.explain import Term, all_terms
from memsheet.questions.explain import explain as find_term


def explain(asked: Given) -> int:
    """What a word on a sheet means, in short, with its source. TERM: a component, an instant, a word, an
    engine, a formula.
    """
    if not asked.term:
        return _print_term_list(json=asked.json)
    found = find_term(asked.term)
    if asked.json:
        screen.write_json(
            {
                "schema": "memsheet/explain/1",
                "term": found.name,
                "kind": found.kind,
                "text": found.text,
                "source": found.source,
            }
        )
    else:
        screen.write_stdout(_term_page(found))
    return 0


def _term_page(term: Term) -> str:
    text = textwrap.fill(term.text, width=screen.terminal_width())
    source = (
        textwrap.fill(f"Source: {term.source}", width=screen.terminal_width(), subsequent_indent="  ")
        if term.source
        else ""
    )
    also = (
        textwrap.fill(f"Also: {', '.join(term.also)}", width=screen.terminal_width(), subsequent_indent="  ")
        if term.also
        else ""
    )
    return "\n".join(part for part in (f"{term.name} ({term.kind})", text, also, source) if part) + "\n"


def _print_term_list(*, json: bool) -> int:
    terms = all_terms()
    groups = dict.fromkeys((term.kind, term.group) for term in terms)
    if json:
        rows = [
            {"kind": kind, "group": group, "names": [t.name for t in terms if t.group == group]}
            for kind, group in groups
        ]
        screen.write_json({"schema": "memsheet/terms/1", "terms": rows})
        return 0
    shown = [
        (group, [t.name for t in terms if t.group == group]) for kind, group in groups if kind != "formula"
    ]
    formulas = sum(term.kind == "formula" for term in terms)
    paragraphs = [f"{group}\n{_indent_filled_text(', '.join(names))}" for group, names in shown]
    last = (
        f"{formulas} formulas too, each by its name (`memsheet explain --json` lists them); other "
        "words for a term do as well."
    )
    screen.write_stdout("\n".join([*paragraphs, textwrap.fill(last, width=screen.terminal_width())]) + "\n")
    return 0


def _indent_filled_text(text: str) -> str:
    return textwrap.indent(textwrap.fill(text, width=screen.terminal_width() - 2), "  ")
