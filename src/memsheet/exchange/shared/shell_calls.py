"""What functions and started scripts of a shell are given: ``$1``, ``$@`` and ``$#`` of a call as names of
their own. Text in, text out: nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from memsheet.exchange.shared.shell_loops import is_assignment, nodes_below, starts_something
from memsheet.exchange.shared.shell_syntax import Body, Group, Simple
from memsheet.exchange.shared.shell_tokens import LIST, Token
from memsheet.exchange.shared.shell_values import MOST_VALUES, WHOLE_LIST, Names, word_values
from memsheet.patterns import late_pattern

MOST_CALLS = 24
"""Calls of functions that are followed."""
GIVEN = "given"
_ALL = late_pattern(r"\"\$(?:\{[@*]\}|[@*])\"|\$(?:\{[@*]\}|[@*])")
_COUNT = late_pattern(r"\$(?:\{#\}|#(?!\w))")
_ONE = late_pattern(r"\$(?:(?P<bare>[1-9])|\{(?P<name>[1-9]\d?)(?P<rest>[^\w{}][^{}]*)?\})")


def takes_arguments(text: str) -> bool:
    return any(one.search(text) for one in (_ALL, _COUNT, _ONE))


def with_arguments(text: str, given: Sequence[str]) -> str:
    """A text with what it is given in the places of ``$1``, ``$@`` and ``$#``. ``given``: names of values."""

    def one(found: re.Match[str]) -> str:
        at = int(found["bare"] or found["name"])
        name = given[at - 1] if at <= len(given) else f"{GIVEN}_none"
        return f"${{{name}{found['rest'] or (':-' if at > len(given) else '')}}}"

    def every(found: re.Match[str]) -> str:
        quote = found[0][:1].strip("$")
        return " ".join(f"{quote}${{{name}}}{quote}" for name in given)

    return _ONE.sub(one, _COUNT.sub(str(len(given)), _ALL.sub(every, text)))


def argument_words(words: Sequence[Token], names: Names) -> list[str]:
    """The words that a call is given, one each; what the text does not tell stands as it is."""
    found: list[str] = []
    for token in words:
        listed = WHOLE_LIST.fullmatch(token.text)
        told = names.lists.get(listed[1]) if listed else None
        for word in [token.text] if told is None else told:
            if _ALL.fullmatch(word):  # what the script itself is given, which nobody knows
                continue
            values = word_values(word, names)
            found += [word] if values is None else [shlex.quote(value) for value in values]
    return found[:MOST_VALUES]


def called_functions(tree: Body) -> dict[str, Group]:
    """Functions that a script calls by their own names and that start something or give names values."""
    nodes = list(nodes_below(tree))
    called = {node.words[0].text for node in nodes if isinstance(node, Simple)}
    return {
        node.name: node
        for node in nodes
        if isinstance(node, Group)
        and node.name in called
        and (_gives_names(node.body) or starts_something(node.body))
    }


def _gives_names(body: Body) -> bool:
    return any(
        token.kind == LIST or is_assignment(token)
        for node in nodes_below(body)
        if isinstance(node, Simple)
        for token in node.words
    )
