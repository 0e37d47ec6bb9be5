"""How a shell's script is built: its words, commands, conditions and loops, each with its place in the text.
One pass over the text, nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memsheet.exchange.shared.shell_tokens import (
    LIST,
    OPERATOR,
    WORD,
    NoShellError,
    Token,
    one_deeper,
    shell_tokens,
)
from memsheet.frozen import dataclass
from memsheet.guard.budget import MOST_SCRIPT

MOST_TEXT = 2 * MOST_SCRIPT
"""Characters of a script, with what its loops and calls make of it."""
BETWEEN = ("\n", ";", "&")
JOINS = ("&&", "||", "|", "|&")
ARM_ENDS = (";;", ";&", ";;&")
REDIRECTS = ("&>>", "&>", ">&", "<&", ">>", ">|", "<<<", "<<-", "<<", "<>", "<", ">")


@dataclass(frozen=True, slots=True)
class Body:
    """Commands in order, and where they stand."""

    nodes: tuple[Node, ...]
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Simple:
    """One command with the assignments before it."""

    words: tuple[Token, ...]
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands that depend on one another (``a && b``, ``a | b``); ``joins``: what stands before each but the
    first.
    """

    parts: tuple[Node, ...]
    joins: tuple[str, ...]
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Branch:
    """``if``: conditions with what follows each; ``other``: what holds else."""

    arms: tuple[tuple[Body, Body], ...]
    other: Body | None
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Loop:
    """``for name in words`` or ``while condition``; ``words``: None where it goes over the script's arguments
    or counts.
    """

    name: str
    words: tuple[Token, ...] | None
    condition: Body | None
    body: Body
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Choice:
    """``case``: patterns with what follows each."""

    word: str
    arms: tuple[tuple[tuple[str, ...], Body], ...]
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces or parentheses; ``name``: of the function that they are."""

    name: str
    body: Body
    at: int
    end: int


Node = Simple | Chain | Branch | Loop | Choice | Group


def parse_shell(text: str) -> Body:
    """The commands of a script. Raises NoShellError for what is none."""
    if len(text) > MOST_TEXT:
        raise NoShellError
    cursor = _Cursor(text, list(shell_tokens(text)))
    body = _parse_body(cursor, (), 0)
    if cursor.peek() is not None:
        raise NoShellError
    return body


class _Cursor:
    """Tokens, and which of them comes next."""

    __slots__ = ("at", "text", "tokens")

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next_text(self) -> str:
        token = self.peek()
        return token.text if token is not None and token.kind != LIST else ""

    def take(self, *wanted: str) -> Token:
        token = self.peek()
        if token is None or (wanted and (token.kind == LIST or token.text not in wanted)):
            raise NoShellError
        self.at += 1
        return token

    def skip(self, texts: Sequence[str]) -> None:
        while self.next_text() in texts and self.peek() is not None:
            self.at += 1

    def place(self) -> int:
        """Where the token that comes next begins."""
        token = self.peek()
        return token.at if token is not None else len(self.text)


def _parse_body(cursor: _Cursor, ends: Sequence[str], depth: int) -> Body:
    """Commands up to one of the words that end them, which is left."""
    at = cursor.tokens[cursor.at - 1].end if cursor.at else 0
    nodes: list[Node] = []
    while True:
        cursor.skip(BETWEEN)
        if cursor.peek() is None or cursor.next_text() in ends:
            return Body(tuple(nodes), at, cursor.place())
        nodes.append(_parse_chain(cursor, depth))


def _parse_chain(cursor: _Cursor, depth: int) -> Node:
    parts, joins = [_parse_command(cursor, depth)], list[str]()
    while cursor.next_text() in JOINS:
        joins.append(cursor.take().text)
        cursor.skip(("\n",))
        parts.append(_parse_command(cursor, depth))
    return parts[0] if not joins else Chain(tuple(parts), tuple(joins), parts[0].at, parts[-1].end)


def _parse_command(cursor: _Cursor, depth: int) -> Node:
    how = COMPOUND.get(cursor.next_text())
    if how is not None:
        node = how(cursor, one_deeper(depth))
        _skip_redirects(cursor)
        return node
    return _parse_simple(cursor, depth)


def _skip_redirects(cursor: _Cursor) -> None:
    while cursor.next_text() in REDIRECTS or cursor.next_text().isdecimal():
        cursor.take()
        if cursor.peek() is not None and cursor.next_text() not in (*BETWEEN, *JOINS):
            cursor.take()


def _parse_simple(cursor: _Cursor, depth: int) -> Node:
    words: list[Token] = []
    tested = cursor.next_text() == "[["
    while (token := cursor.peek()) is not None:
        if token.kind == OPERATOR and token.text not in REDIRECTS and not tested:
            break
        words.append(cursor.take())
        tested = tested and token.text != "]]"
    if not words:
        raise NoShellError
    if len(words) == 1 and cursor.next_text() == "(":
        return _parse_function(cursor, words[0], depth)
    return Simple(tuple(words), words[0].at, words[-1].end)


def _parse_function(cursor: _Cursor, name: Token, depth: int) -> Group:
    cursor.take("(")
    cursor.take(")")
    cursor.skip(("\n",))
    inner = _parse_block(cursor, depth)
    return Group(name.text, inner.body, name.at, inner.end)


def _parse_block(cursor: _Cursor, depth: int) -> Group:
    opened = cursor.take("{", "(")
    closes = "}" if opened.text == "{" else ")"
    body = _parse_body(cursor, (closes,), one_deeper(depth))
    return Group("", body, opened.at, cursor.take(closes).end)


def _parse_named_function(cursor: _Cursor, depth: int) -> Group:
    at = cursor.take("function").at
    name = cursor.take().text
    cursor.skip(("(", ")", "\n"))
    inner = _parse_block(cursor, depth)
    return Group(name, inner.body, at, inner.end)


def _parse_branch(cursor: _Cursor, depth: int) -> Branch:
    at = cursor.place()
    arms: list[tuple[Body, Body]] = []
    while cursor.next_text() in ("if", "elif"):
        cursor.take()
        condition = _parse_body(cursor, ("then",), depth)
        cursor.take("then")
        arms.append((condition, _parse_body(cursor, ("elif", "else", "fi"), depth)))
    other = None
    if cursor.next_text() == "else":
        cursor.take()
        other = _parse_body(cursor, ("fi",), depth)
    return Branch(tuple(arms), other, at, cursor.take("fi").end)


def _parse_for(cursor: _Cursor, depth: int) -> Loop:
    at = cursor.take("for", "select").at
    name, words = cursor.take().text, list[Token]()
    cursor.skip(("\n",))
    given = cursor.next_text() == "in"
    if given:
        cursor.take()
        while (token := cursor.peek()) is not None and token.kind == WORD:
            words.append(cursor.take())
    cursor.skip((";", "\n"))
    cursor.take("do")
    body = _parse_body(cursor, ("done",), depth)
    return Loop(name, tuple(words) if given else None, None, body, at, cursor.take("done").end)


def _parse_while(cursor: _Cursor, depth: int) -> Loop:
    at = cursor.take("while", "until").at
    condition = _parse_body(cursor, ("do",), depth)
    cursor.take("do")
    body = _parse_body(cursor, ("done",), depth)
    return Loop("", None, condition, body, at, cursor.take("done").end)


def _parse_case(cursor: _Cursor, depth: int) -> Choice:
    at = cursor.take("case").at
    word = cursor.take().text
    cursor.skip(("\n",))
    cursor.take("in")
    arms: list[tuple[tuple[str, ...], Body]] = []
    cursor.skip(("\n",))
    while cursor.next_text() != "esac":
        cursor.skip(("(",))
        patterns: list[str] = []
        while cursor.next_text() != ")":
            patterns += [token.text] if (token := cursor.take()).kind == WORD else []
        cursor.take(")")
        arms.append((tuple(patterns), _parse_body(cursor, (*ARM_ENDS, "esac"), depth)))
        cursor.skip((*ARM_ENDS, "\n"))
    return Choice(word, tuple(arms), at, cursor.take("esac").end)


COMPOUND: dict[str, Callable[[_Cursor, int], Node]] = {
    "if": _parse_branch, "for": _parse_for, "select": _parse_for, "while": _parse_while, "until": _parse_while,
    "case": _parse_case, "{": _parse_block, "(": _parse_block, "function": _parse_named_function,
}  # fmt: skip
"""Words and signs that begin more than one command."""
