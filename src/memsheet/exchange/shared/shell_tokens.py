"""The words and signs of a shell's script, each with its place in the text: quotes, commands and lists inside
a word belong to it. One pass over the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

DEEPEST = 12
"""Levels that quotes, commands and loops stand in one another."""
_OPERATOR = late_pattern(r"&>>|&>|>&|<&|>>|>\||<<<|<<-|<<|<>|<|>|&&|\|\||\|&|;;&|;;|;&|;|&|\||\(|\)|\n")
_PLAIN = late_pattern(r"[^\s;&|()<>'\"\\$`]++")
_IN_QUOTES = late_pattern(r"[^\"\\$`]++")
_IN_BACKTICKS = late_pattern(r"[^`\\]++")
_IN_NESTED = late_pattern(r"[^'\"\\$`(){}]++")
_LIST = late_pattern(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=\(")
_SPACE = late_pattern(r"(?:[ \t\r]|\\\n)++")
_COMMENT = late_pattern(r"#[^\n]*+")
WORD, OPERATOR, LIST = "word", "operator", "list"


class NoShellError(ValueError):
    """A text that is no shell's script, as far as its quotes and words go."""


class Token(NamedTuple):
    """A word, an operator, or a list that a name is given; ``held``: the list's words as they stand."""

    kind: str
    text: str
    at: int
    end: int
    held: tuple[str, ...] = ()


def shell_tokens(text: str) -> Iterator[Token]:
    """Raises NoShellError for a text whose quotes do not close."""
    at, documents = 0, list[str]()
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        if text[at] == "#":
            at = _end_of(_COMMENT, text, at)
            continue
        operator = _OPERATOR.match(text, at)
        if operator and text[at : at + 2] not in ("<(", ">(", "(("):
            yield Token(OPERATOR, operator[0], at, operator.end())
            at = operator.end()
            if operator[0] in ("<<", "<<-"):
                at = _end_of(_SPACE, text, at)
                end = _word_end(text, at)
                documents.append(text[at:end].strip("\"'\\"))
                yield Token(WORD, text[at:end], at, end)
                at = end
            elif operator[0] == "\n":
                at = _after_documents(text, at, documents)
                documents.clear()
            continue
        listed = _LIST.match(text, at)
        token = _list_token(text, listed) if listed else None
        end = token.end if token else _word_end(text, at)
        yield token or Token(WORD, text[at:end], at, end)
        at = end


def _list_token(text: str, opened: re.Match[str]) -> Token:
    at, words = opened.end(), list[str]()
    while at < len(text):
        if text[at] in " \t\r\n" or text.startswith("\\\n", at):
            at += 1 if text[at] != "\\" else 2
        elif text[at] == "#":
            at = _end_of(_COMMENT, text, at)
        elif text[at] == ")":
            return Token(LIST, opened["name"] + opened["more"], opened.start(), at + 1, tuple(words))
        else:
            end = _word_end(text, at)
            words.append(text[at:end])
            at = end
    raise NoShellError


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _after_documents(text: str, at: int, ends: Sequence[str]) -> int:
    """Where a script goes on after the texts that it holds itself (``<<EOF``)."""
    for end in ends:
        found = re.compile(rf"^\t*{re.escape(end)}[ \t\r]*$", re.MULTILINE).search(text, at)
        if found is None:
            raise NoShellError
        at = found.end()
    return at


def _word_end(text: str, at: int) -> int:
    began = at
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 2
        elif letter == "'":
            at = _after_sign(text, "'", at + 1)
        elif letter == '"':
            at = _quote_end(text, at + 1, 0)
        elif text[at : at + 2] in ("$(", "<(", ">(", "((") and (letter != "(" or at == began):
            at = _nested_end(text, at + 2 if letter != "(" else at + 1, ")", 0)
        elif text.startswith("${", at):
            at = _nested_end(text, at + 2, "}", 0)
        elif letter == "`":
            at = _backtick_end(text, at + 1)
        elif letter == "$":
            at += 1
        elif (plain := _PLAIN.match(text, at)) is not None:
            at = plain.end()
        else:
            break
    if at == began:
        raise NoShellError
    return min(at, len(text))


def _after_sign(text: str, sign: str, at: int) -> int:
    found = text.find(sign, at)
    if found < 0:
        raise NoShellError
    return found + 1


def _quote_end(text: str, at: int, depth: int) -> int:
    while at < len(text):
        letter = text[at]
        if letter == '"':
            return at + 1
        at = _inner_end(text, at, depth, _IN_QUOTES)
    raise NoShellError


def _backtick_end(text: str, at: int) -> int:
    while at < len(text):
        if text[at] == "`":
            return at + 1
        at = at + 2 if text[at] == "\\" else _end_of(_IN_BACKTICKS, text, at)
    raise NoShellError


def _nested_end(text: str, at: int, closing: str, depth: int) -> int:
    """Where ``$(…)`` or ``${…}`` ends."""
    opens, level = "(" if closing == ")" else "{", 1
    while at < len(text):
        letter = text[at]
        if letter == "'" and closing == ")":
            at = _after_sign(text, "'", at + 1)
        elif letter == '"':
            at = _quote_end(text, at + 1, one_deeper(depth))
        elif letter in (closing, opens):
            level += 1 if letter == opens else -1
            at += 1
            if not level:
                return at
        elif letter in "(){}'":
            at += 1
        else:
            at = _inner_end(text, at, depth, _IN_NESTED)
    raise NoShellError


def _inner_end(text: str, at: int, depth: int, plain: re.Pattern[str]) -> int:
    """Where one piece of a quoted or nested text ends."""
    if text[at] == "\\":
        return at + 2
    if text[at : at + 2] in ("$(", "${"):
        return _nested_end(text, at + 2, ")" if text[at + 1] == "(" else "}", one_deeper(depth))
    if text[at] == "`":
        return _backtick_end(text, at + 1)
    return at + 1 if text[at] == "$" else _end_of(plain, text, at)


def one_deeper(depth: int) -> int:
    """The next level. Raises NoShellError where there are too many."""
    if depth >= DEEPEST:
        raise NoShellError
    return depth + 1
