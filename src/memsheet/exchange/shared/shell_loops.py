"""What stands inside a script's loops and conditions: whether it starts anything, and which names it
gives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from memsheet.exchange.shared.shell_syntax import Body, Branch, Chain, Choice, Group, Loop, Node, Simple
from memsheet.exchange.shared.shell_text import QUIET
from memsheet.exchange.shared.shell_tokens import LIST, WORD, Token
from memsheet.patterns import late_pattern

ASSIGNED = late_pattern(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARGUMENTS = late_pattern(r"\$(?:#|[@*]|\d|\{\d)|\bgetopts?\b")
ALONE_NAME = late_pattern(r"\$(?:\{(?=\w+\}))?([A-Za-z_]\w*)\}?")
RUNS_TEXTS = frozenset({"eval", "ssh", "tmux", "screen", "pdsh", "su", "sbatch", "script", "gcloud"})
"""Programs that are given commands as texts, beside shells (``bash -c``), which every reader knows."""
SHELLS = frozenset({"bash", "sh", "zsh"})
DEEPEST_TEXT = 3
"""Texts of commands that stand in one another."""


def is_assignment(token: Token) -> bool:
    return token.kind == LIST or ASSIGNED.fullmatch(token.text) is not None


def goes_through_arguments(node: Loop, text: str, quiet: Collection[str] = ()) -> bool:
    """Whether a loop goes through what the script itself is given (``while [ $# -gt 0 ]; do case "$1"``).
    ``quiet``: functions of the script that start nothing (``usage``).
    """
    head = text[node.at : node.body.at]
    choice = next((one for one in nodes_below(node.body) if isinstance(one, Choice)), None)
    told = choice is not None and _ARGUMENTS.search(f"{head} {choice.word}") is not None
    return told and not starts_something(node.body, quiet)


def bodies_of(node: Node) -> list[Body]:
    match node:
        case Branch():
            return [held for arm in node.arms for held in arm] + ([node.other] if node.other else [])
        case Choice():
            return [held for _, held in node.arms]
        case Loop() | Group():
            return [node.body]
    return []


def nodes_below(body: Body) -> Iterator[Node]:
    """Every command of a body and of what is inside it."""
    waiting: list[Node] = list(body.nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.parts if isinstance(node, Chain) else ()
        waiting += [one for held in bodies_of(node) for one in held.nodes]


def quiet_functions(tree: Body) -> frozenset[str]:
    """Functions of a script that start nothing, nor do those that they call (``usage``, ``die``)."""
    held = {node.name: node.body for node in nodes_below(tree) if isinstance(node, Group) and node.name}
    found = frozenset[str]()
    for _ in range(DEEPEST_TEXT):
        more = frozenset(name for name, body in held.items() if not starts_something(body, found))
        if more == found:
            break
        found = more
    return found


def starts_something(body: Body, quiet: Collection[str] = ()) -> bool:
    """Whether a loop runs anything but assignments and commands that start no job. ``quiet``: further
    commands that start none.
    """
    for node in nodes_below(body):
        if isinstance(node, Simple):
            first = next((token for token in node.words if not is_assignment(token)), None)
            silent = first is None or first.text in QUIET or first.text in quiet
            if first is not None and not silent and not first.text.startswith("(("):
                return True
    return False


def names_given(node: Node) -> Iterator[str]:
    """Names that are given a value inside a node, but for what is added to them."""
    for one in (below for body in bodies_of(node) for below in nodes_below(body)):
        for token in one.words if isinstance(one, Simple) else ():
            found = ASSIGNED.fullmatch(token.text) if token.kind == WORD else None
            if found and not found[2] and not adds_to_itself(found[1], found[3]):
                yield found[1]


def adds_to_itself(name: str, value: str) -> bool:
    """Whether a value begins with what the name had before (``A="$A more"``)."""
    return re.match(rf"\"?\$(?:\{{{name}[}}:]|{name}\b)", value) is not None


def reckons_with_itself(name: str, value: str) -> bool:
    """Whether a value is reckoned of what the name had before (``N=$((N - 1))``)."""
    return value.lstrip('"').startswith("$((") and re.search(rf"\b{name}\b", value) is not None


def quoted_text(word: str) -> str | None:
    """What stands between a word's quotes, as a script of its own; None of a word that is not one quote."""
    inner = word[1:-1]
    if len(word) > 2 and word[0] == word[-1] == '"' and '"' not in inner.replace('\\"', ""):
        return inner.replace('\\"', '"').replace("\\$", "$")
    if len(word) > 2 and word[0] == word[-1] == "'" and "'" not in inner:
        return inner
    return word if ALONE_NAME.fullmatch(word) else None
