"""Flags of a command by their names, with what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.serve_command import parse_human_number
from memsheet.exchange.shared.serve_script import ARGUMENTS, OPEN_WORD, has_unset_placeholder


def flags_of(words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``--a b``, ``--a=b``, ``--a b c`` and switches by their names with underscores; and the words that
    belong to none. A variable that nobody set, and that is no flag's first value, holds further arguments.
    """
    found: dict[str, Any] = {}
    left: list[str] = []
    name, filled = "", False
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name, filled = name.replace("-", "_"), False
            found[name] = plain_value(value) if equals else True
            name = "" if equals else name
        elif (not name or filled) and OPEN_WORD.fullmatch(word):
            found[MORE] = word
        elif word in ARGUMENTS or (filled and not word):
            continue
        elif not name:
            left.append(word)
        elif filled:
            held = found[name]
            found[name] = [*(held if isinstance(held, list) else [held]), plain_value(word)]
        else:
            found[name], filled = plain_value(word), True
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
