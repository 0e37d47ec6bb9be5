"""Flags of a command by their names, with what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.serve_command import parse_human_number
from memsheet.exchange.shared.serve_script import has_unset_placeholder


def flags_of(words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``--a b``, ``--a=b``, ``--a b c`` and switches by their names with underscores; and the words that
    belong to none.
    """
    found: dict[str, Any] = {}
    left: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = plain_value(value) if equals else True
            name = "" if equals else name
        elif name:
            held = found[name]
            found[name] = (
                plain_value(word)
                if held is True
                else [*(held if isinstance(held, list) else [held]), plain_value(word)]
            )
        else:
            left.append(word)
    return found, tuple(left)


def plain_value(text: str) -> Any:
    """A word as a script's parser reads it: a switch's two words, a number, or a text; ``UNSET`` where a
    variable is left. A path under a folder that a variable names is one whose end is known.
    """
    if has_unset_placeholder(text):
        end = text.rpartition("/")[2]
        return text if end not in ("", text) and not has_unset_placeholder(end) else UNSET
    switch = {"true": True, "false": False}.get(text.lower())
    if switch is not None:
        return switch
    try:
        return parse_human_number(text) if text[-1:] not in "kKmMgGtT" else text
    except ValueError:
        return text
