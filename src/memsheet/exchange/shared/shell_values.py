"""What a script's words and conditions come to by the values that it gives its own names; None where the text
does not tell. Nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice

from memsheet.exchange.shared.shell_syntax import Body, Chain, Node, Simple
from memsheet.exchange.shared.shell_text import COMPARED, sums_summed_up
from memsheet.exchange.shared.shell_tokens import LIST, Token
from memsheet.frozen import dataclass, field
from memsheet.guard.budget import CHARACTERS, Budget
from memsheet.patterns import late_pattern

MOST_VALUES, MOST_SPENT = 64, 40_000
"""Values that one word comes to, and words that a script's come to in all."""
DEEPEST, MOST_TESTED, MOST_TEXT = 3, 24, 2**12
"""Defaults that stand in one another, words of one test, and characters of one value."""
WHOLE_LIST = late_pattern(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
COUNTED = late_pattern(r"\$\{#(\w+)\[[@*]\]\}")
_USED = late_pattern(
    r"\$(?:\{(?P<name>\w+)(?:\[(?P<index>\d{1,4})\])?"
    r"(?:(?P<empty>:?)[-=](?P<default>[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+))?\}|(?P<bare>[A-Za-z_]\w*))"
)
_PRINTED = late_pattern(
    r"\"?(?:\$\(\s*(?P<how>seq|echo)\s+(?P<a>[^()`]*)\)|`\s*(?P<too>seq|echo)\s+(?P<b>[^()`]*)`)\"?"
)
_BRACES = late_pattern(r"([\w./-]*)\{([\w.,/-]+)\}([\w./-]*)")
_RANGE = late_pattern(r"(\d{1,6})\.\.(\d{1,6})")
_SUM_NAME = late_pattern(r"\$?\b([A-Za-z_]\w{0,63})")
_ARITHMETIC = late_pattern(r"\(\(\s*(\$?\w+|\$\{\w+\})\s*(==|!=|>=|<=|>|<)\s*(\$?\w+|\$\{\w+\})\s*\)\)")
_SIGNS = {"==": "-eq", "!=": "-ne", ">": "-gt", ">=": "-ge", "<": "-lt", "<=": "-le"}
_POSITIONAL = late_pattern(r"\"?\$(?:\d|\{\d(?::?[-=])?\}|[@*])\"?")


@dataclass(frozen=True, slots=True)
class Names:
    """``texts``: what names are given, None where the text does not tell; ``lists``: their words as they
    stand.
    """

    texts: dict[str, str | None] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: Budget(MOST_SPENT, "words of a script"))


def word_values(word: str, names: Names) -> list[str] | None:
    """The words that a word comes to."""
    names.budget.spend(1 + len(word) // CHARACTERS)
    if whole := WHOLE_LIST.fullmatch(word):
        return _all_values(names.lists.get(whole[1]), names)
    if printed := _PRINTED.fullmatch(word):
        return _printed_values(printed["how"] or printed["too"], printed["a"] or printed["b"], names)
    if "$" not in word and "`" not in word:
        braces = _BRACES.fullmatch(word)
        return _brace_values(*braces.groups()) if braces else _unquoted(word)
    filled = text_with_names(word, names)
    if filled is None:
        return None
    quoted = word[:1] == '"' == word[-1:]
    found = _unquoted(filled)
    return found if quoted or found is None else [one for part in found for one in part.split()]


def text_with_names(word: str, names: Names) -> str | None:
    """A word with the names in their places, and its sums summed up."""
    open_names: list[str] = []

    def value(found: re.Match[str]) -> str:
        name = found["name"] or found["bare"]
        if name in names.lists:
            held = _unquoted(" ".join(names.lists[name][int(found["index"] or 0) :][:1])) or [""]
            text: str | None = held[0]
        else:
            text = names.texts[name] if name in names.texts else found["default"]
            if text == "" and found["empty"]:  # a default that is taken of an empty value, too
                text = found["default"]
        if text is None:
            open_names.append(name)
        names.budget.spend(1 + len(text or "") // CHARACTERS)
        return text or ""

    def count(found: re.Match[str]) -> str:
        return str(len(names.lists.get(found[1], ())))

    if len(word) > MOST_TEXT or ("'" in word and "$" in word.partition("'")[2]):
        return None
    for _ in range(DEEPEST):
        word = _USED.sub(value, COUNTED.sub(count, word))
        if open_names or len(word) > MOST_TEXT:
            return None
        if "$" not in word:
            return word
    word = sums_summed_up(_with_sum_names(word, names))
    return None if "$" in word or "`" in word else word


def _with_sum_names(word: str, names: Names) -> str:
    """Sums with the whole numbers that they name without a dollar."""

    def number(found: re.Match[str]) -> str:
        held = names.texts.get(found[1])
        return held if held is not None and held.isdecimal() else found[0]

    return _SUM_NAME.sub(number, word) if "$((" in word else word


def _all_values(words: Sequence[str] | None, names: Names) -> list[str] | None:
    found: list[str] = []
    for word in words or ():
        held = word_values(word, names)
        if held is None:
            return None
        found += held
    return found if words is not None else None


def list_values(words: Sequence[Token], names: Names) -> list[str] | None:
    """What a loop goes over, at most ``MOST_VALUES``."""
    found = _all_values([token.text for token in words], names)
    return found if found and len(found) <= MOST_VALUES else None


def _printed_values(how: str, told: str, names: Names) -> list[str] | None:
    """What ``seq`` or ``echo`` prints."""
    try:
        given = _all_values(shlex.split(told), names)
    except ValueError:
        return None
    if how == "echo" or given is None:
        return None if given is None or any(one.startswith("-") for one in given) else given
    if not 1 <= len(given) <= 3 or not all(re.fullmatch(r"-?\d{1,6}", one) for one in given):
        return None
    first, *_, last = (1, *map(int, given)) if len(given) == 1 else map(int, given)
    step = int(given[1]) if len(given) == 3 else 1
    if not step:
        return None
    return [str(one) for one in islice(range(first, last + (1 if step > 0 else -1), step), MOST_VALUES + 1)]


def _brace_values(before: str, inner: str, after: str) -> list[str]:
    counted = _RANGE.fullmatch(inner)
    if counted:
        first, last = int(counted[1]), int(counted[2])
        step = 1 if last >= first else -1
        return [f"{before}{one}{after}" for one in islice(range(first, last + step, step), MOST_VALUES + 1)]
    if "," in inner:
        return [f"{before}{one}{after}" for one in inner.split(",")]
    return [f"{before}{{{inner}}}{after}"]


def _unquoted(word: str) -> list[str] | None:
    """A word as the shell gives it on."""
    if not set(word) & set("\"'\\"):
        return [word]
    try:
        return ["".join(shlex.split(word))] if word[:1] not in "\"'" else [" ".join(shlex.split(word))]
    except ValueError:
        return None


# ---- conditions --------------------------------------------------------------------------------------------


def body_holds(body: Body, names: Names) -> bool | None:
    """Whether the last command of a condition succeeds."""
    return node_holds(body.nodes[-1], names) if body.nodes else None


def node_holds(node: Node, names: Names) -> bool | None:
    """Whether a test succeeds, by the script's own values alone."""
    if isinstance(node, Chain):
        told = node_holds(node.parts[0], names)
        for join, part in zip(node.joins, node.parts[1:], strict=True):
            if join not in ("&&", "||"):
                return None
            told = _joined((told, node_holds(part, names)), join)
        return told
    if not isinstance(node, Simple) or any(token.kind == LIST for token in node.words):
        return None
    words = [token.text for token in node.words]
    if words[0] == "!":
        told = words_hold(words[1:], names)
        return None if told is None else not told
    return words_hold(words, names)


def _joined(told: tuple[bool | None, bool | None], join: str) -> bool | None:
    decisive = join == "||"
    if decisive in told:
        return decisive
    return None if None in told else not decisive


def words_hold(words: Sequence[str], names: Names) -> bool | None:
    """Whether ``[ … ]``, ``[[ … ]]``, ``(( … ))``, ``true``, ``false`` or a name for one of these holds."""
    match list(words):
        case ["[", *inside, "]"] | ["[[", *inside, "]]"] | ["test", *inside]:
            return _test_holds(inside, names)
        case [only] if found := _ARITHMETIC.fullmatch(only):
            one, other = (_number_of(held, names) for held in (found[1], found[3]))
            return None if one is None or other is None else COMPARED[_SIGNS[found[2]]](one, other)
        case [only]:
            told = word_values(only, names)
            return {"true": True, "false": False}.get(told[0]) if told and len(told) == 1 else None
    return None


def _number_of(word: str, names: Names) -> int | None:
    bare = word.lstrip("$").strip("{}")
    held = bare if bare.isdecimal() else names.texts.get(bare)
    return int(held) if held is not None and held.isdecimal() and len(held) < 12 else None


def _test_holds(inside: list[str], names: Names) -> bool | None:
    if len(inside) > MOST_TESTED:
        return None
    for joins in (("||", "-o"), ("&&", "-a")):
        at = next((at for at, word in enumerate(inside) if word in joins), None)
        if at is not None:
            parts = _test_holds(inside[:at], names), _test_holds(inside[at + 1 :], names)
            return _joined(parts, joins[0])
    match inside:
        case ["!", *rest]:
            told = _test_holds(rest, names)
            return None if told is None else not told
        case ["-z" | "-n" as how, word]:
            empty = _is_empty(word, names)
            return None if empty is None else empty is (how == "-z")
        case [word]:
            empty = _is_empty(word, names)
            return None if empty is None else not empty
        case [one, how, other]:
            return _compared(one, how, other, names)
    return None


def _is_empty(word: str, names: Names) -> bool | None:
    """Whether a word is empty; a variable that the script gives nothing is, as its arguments are."""
    if _POSITIONAL.fullmatch(word):
        return True
    used = _USED.fullmatch(word.strip('"'))
    name = (used["name"] or used["bare"]) if used else None
    if used and used["default"] is None and name not in names.texts and name not in names.lists:
        return True
    told = text_with_names(word, names)
    return None if told is None else not told.strip("\"'")


def _compared(one: str, how: str, other: str, names: Names) -> bool | None:
    left, right = (word_values(word, names) for word in (one, other))
    if left is None or right is None:
        return None
    first, second = " ".join(left), " ".join(right)
    if how in COMPARED:
        whole = first.isdecimal() and second.isdecimal() and max(len(first), len(second)) < 12
        return COMPARED[how](int(first), int(second)) if whole else None
    if how in ("=", "==", "!="):
        pattern = "*" in other and other[:1] not in "\"'"
        same = fnmatchcase(first, second[:64]) if pattern and second.count("*") < 3 else first == second
        return same is (how != "!=")
    return None


GPUS = frozenset({"gpu", "cuda", "nvidia"})


def arm_of_gpus(arms: Sequence[tuple[tuple[str, ...], Body]]) -> int | None:
    """The arm of a choice between kinds of devices that is for GPUs, the only one of them."""
    found = [
        at for at, (patterns, _) in enumerate(arms) if GPUS & {one.lower().strip("\"'") for one in patterns}
    ]
    return found[0] if len(found) == 1 and len(arms) > 1 else None


def chosen_arm(word: str, arms: Sequence[tuple[tuple[str, ...], Body]], names: Names) -> int | None:
    """Which arm of a choice is taken; -1 for none, None where the text does not tell."""
    told = word_values(word, names)
    if told is None:
        return None
    for at, (patterns, _) in enumerate(arms):
        for pattern in patterns:
            plain = _unquoted(pattern)
            if plain is None or "$" in pattern or pattern.count("*") > 2:
                return None
            if fnmatchcase(" ".join(told), plain[0][:64]):
                return at
    return -1
