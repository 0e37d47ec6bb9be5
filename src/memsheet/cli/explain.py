"""`memsheet explain`."""

from __future__ import annotations

import textwrap

from memsheet.cli import screen
from memsheet.cli.flags import Debug, Json
from memsheet.report.terms import Term, find_term, term_names


def explain(term: str = "", /, *, json: Json = False, debug: Debug = False) -> int:
    """What a word on a sheet means, in short, with its source. TERM: a component, an instant, a word, an engine, a formula."""
    del debug  # read from the command line itself
    if not term:
        return _list(json=json)
    found = find_term(term)
    if json:
        screen.write_json(
            {"schema": "memsheet/explain/1", "term": found.name, "kind": found.kind, "text": found.text, "source": found.source}
        )
    else:
        screen.write(_page(found))
    return 0


def _page(term: Term) -> str:
    text = textwrap.fill(term.text, width=screen.width())
    source = textwrap.fill(f"Source: {term.source}", width=screen.width(), subsequent_indent="  ") if term.source else ""
    return "\n".join(part for part in (f"{term.name} ({term.kind})", text, source) if part) + "\n"


def _list(*, json: bool) -> int:
    if json:
        screen.write_json({"schema": "memsheet/terms/1", "terms": [{"kind": kind, "names": names} for kind, names in term_names().items()]})
        return 0
    paragraphs = (
        f"{kind}\n{textwrap.indent(textwrap.fill(', '.join(names), width=screen.width() - 2), '  ')}"
        for kind, names in term_names().items()
    )
    screen.write("\n".join(paragraphs) + "\n")
    return 0
