"""A shell's script as text: its commands in order, with variables, arrays, defaults and sums of whole numbers
in their places, and the branches that its own values take. Nothing is run; what is not in the text stays as
it stands.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from memsheet.guard.budget import CHARACTERS, Budget
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.shell_sums import whole_number_sum


NAMED = late_pattern(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
USED = late_pattern(
    r"\$(?:\{(\w+)(?:\[[@*]\]|(:?[-=?])([^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+))?\}|([A-Za-z_]\w*|\d))"
)
OF_EMPTY = (":-", ":=")
"""What stands before a default that is taken of an empty value as of none: ``${A:-b}``, not ``${A-b}``."""
SUM = late_pattern(r"\$\(\(([\d\s+*/%()-]{1,200})\)\)")
_SETS_DEFAULTS = late_pattern(
    r"^([ \t]*):[ \t]+((?:\"?\$\{\w+:?=[^{}\n]*+(?:\{[^{}\n]*+\}[^{}\n]*+)*+\}\"?[ \t;:]*)+)(?=$|#)",
    re.MULTILINE,
)
_SET_DEFAULT = late_pattern(r"\"?\$\{(\w+)(:?)=([^{}\n]*+(?:\{[^{}\n]*+\}[^{}\n]*+)*+)\}(\"?)[ \t;:]*")
NAMED_SUM = late_pattern(r"\$\(\(([\w\s+*/%()-]{1,200})\)\)")
BARE_NAME = late_pattern(r"[A-Za-z_]\w{0,63}")
SPACED_SUM = late_pattern(r"\$\(\(([^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)\)")
EXPRESSION = late_pattern(r"[$`]\(?expr ([^()`\n]+)[)`]")
_QUIET = """
    echo printf mkdir export local declare readonly typeset set unset sleep wait kill rm cp mv cd pushd popd touch cat tee shift return
    continue break exit true false : [ [[ test let read source . trap date hostname ls grep sed awk tr cut head tail wc find chmod ln module
    conda pip pip3 ulimit nvidia-smi which command git wget curl tar unzip scontrol rsync dirname basename realpath jq
"""
QUIET = frozenset(_QUIET.split())
"""Commands that start no job."""
ENDS = (";", "&&", "||", "|", "&")
LEADS = ("export", "then", "do", "else", "local", "readonly", "declare", "time", "set")
MOST_EXPANDED, MOST_HELD, MOST_TEXT = 40_000, 20_000, 2**14
"""Words that all commands of a script come to with their variables in place, that its variables hold, and
characters of one word: a launch is a hundred or two.
"""
DEEPEST, MOST_OPEN = 3, 64
"""Defaults, and conditions, that stand in one another."""
SHORT_WORD = 4
"""Characters of a text to a word of it, at the least, as texts are taken apart."""
COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip


class ShellScript:
    """A script and what its variables are at the command that is read last."""

    __slots__ = ("branches", "budget", "held", "known", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[str, list[str]] = {}
        self.branches: list[
            list[bool]
        ] = []  # of each open condition: whether it is read, and whether one was
        self.budget = Budget(MOST_EXPANDED, "words of variables")
        self.held = Budget(MOST_HELD, "words of variables")

    def commands(self) -> Iterator[list[str]]:
        """Commands in order, with what is known in its place. Raises ValueError for text that is no shell."""
        for words in _split_commands(self.text):
            if self._follows_branch(words) or not all(read for read, _ in self.branches):
                continue
            rest = self._without_assignments(words)
            if rest:
                yield self.words_of(rest)

    def words_of(self, words: Sequence[str]) -> list[str]:
        """Words with variables in their places; one that nobody gave a value stays as it is. Raises
        TooMuchError where they grow too many.
        """
        found: list[str] = []
        for word in words:
            self.budget.spend(1 + len(word) // CHARACTERS)
            whole = USED.fullmatch(word)
            held = self._held_words(whole) if whole else None
            for one in [self.filled_word(word)] if held is None else held:
                self.budget.spend(1 + len(one) // SHORT_WORD)
                found += _split_words(one)
        return found

    def _held_words(self, used: re.Match[str]) -> list[str] | None:
        """What a variable has where it is used; nothing where a default stands for its emptiness, too."""
        held = self.known.get(used[1] or used[4])
        return None if used[2] in OF_EMPTY and held is not None and not any(held) else held

    def filled_word(self, word: str) -> str:
        """A word with variables inside it in place, and sums of whole numbers summed up."""

        def value(found: re.Match[str]) -> str:
            held = self._held_words(found)
            text = (
                " ".join(held)
                if held is not None
                else found[3]
                if found[2] in (":-", "-", ":=", "=")
                else found[0]
            )
            self.budget.spend(1 + len(text) // CHARACTERS)
            return text

        if "$" not in word:
            return word
        for _ in range(DEEPEST):  # a default may name another variable
            word = USED.sub(value, word)[:MOST_TEXT]
        return sums_summed_up(NAMED_SUM.sub(self._sum_of_numbers, word))

    def _sum_of_numbers(self, found: re.Match[str]) -> str:
        """A sum with the variables that it names without a dollar, where they are whole numbers."""
        return with_numbers_named(found, {name: " ".join(held) for name, held in self.known.items()})

    def _without_assignments(self, words: Sequence[str]) -> Sequence[str]:
        """The command without the assignments in front of it, which are kept."""
        at = 0
        while at < len(words):
            named = NAMED.fullmatch(words[at])
            if named is None and words[at] not in LEADS:
                break
            if named is not None and named[3].startswith("("):
                end = next(
                    (n for n in range(at, len(words)) if _ends_list(words[n], opens=n == at)),
                    len(words) - 1,
                )
                inner = [
                    part
                    for part in (
                        " ".join((named[3], *words[at + 1 : end + 1]))[1:].removesuffix(")").split(" ")
                    )
                    if part
                ]
                self._keep_words(named[1], self.words_of(inner), more=bool(named[2]))
                at = end
            elif named is not None:
                self._keep_words(named[1], [self.filled_word(named[3])], more=False)
            at += 1
        return words[at:]

    def _keep_words(self, name: str, words: list[str], *, more: bool) -> None:
        self.known[name] = [*(self.known.get(name, []) if more else []), *words]
        self.held.spend(len(self.known[name]) + sum(map(len, words)) // CHARACTERS)

    def _follows_branch(self, words: Sequence[str]) -> bool:
        """Whether the words open, change or close a condition; one that nobody can tell is taken."""
        first = words[0]
        if first == "if":
            if len(self.branches) >= MOST_OPEN:
                raise ValueError("conditions stand too deep in one another")
            told = self._condition_holds(words[1:])
            self.branches.append([told is not False, told is True])
        elif first == "elif" and self.branches:
            taken, told = self.branches[-1][1], self._condition_holds(words[1:])
            self.branches[-1] = [not taken and told is not False, taken or told is True]
        elif first == "else" and len(words) == 1 and self.branches:
            self.branches[-1][0] = not self.branches[-1][1]
        elif first == "fi" and self.branches:
            self.branches.pop()
        else:
            return False
        return True

    def _condition_holds(self, words: Sequence[str]) -> bool | None:
        """Whether a test of one comparison holds; None where it is another, or of what is not in the text."""
        inside = [self.filled_word(word) for word in words if word not in ("[", "]", "[[", "]]")]
        match inside:
            case ["-z" | "-n" as how, value]:
                return (not value or "$" in value) is (how == "-z")
            case [one, "=" | "==" | "!=" as how, other] if "$" not in one + other and "*" not in other:
                return (one == other) is (how != "!=")
            case [one, how, other] if how in COMPARED and one.isdecimal() and other.isdecimal():
                return COMPARED[how](int(one[:12]), int(other[:12]))
        return None


LOOKED_UP = late_pattern(
    r"\"?\$\((?:which|command -v|type -p)[ \t]+([\w.-]{1,64})(?:[ \t]*2>[ \t]*/dev/null)?[ \t]*\)\"?"
    r"|`which[ \t]+([\w.-]{1,64})[ \t]*`",
    holds=("$(which", "$(command -v", "$(type -p", "`which"),
)


def assigned_defaults(text: str) -> str:
    """A script with the defaults that it gives its names without a use of them (``: "${A:=b}"``) as plain
    assignments (``A="${A:-b}"``).
    """

    def assignments(line: re.Match[str]) -> str:
        named = _SET_DEFAULT.finditer(line[2])
        made = [f"{one[1]}={one[4]}${{{one[1]}{one[2]}-{one[3]}}}{one[4]}" for one in named]
        return f"{line[1]}{'; '.join(made)} "

    return _SETS_DEFAULTS.sub(assignments, text) if "=" in text and ": " in text else text


def ended_comments(text: str) -> str:
    """A script whose lines of comment end with themselves: a shell takes a backslash at their end as part of
    the comment, so that the line below is none.
    """
    if "#" not in text or "\\\n" not in text:
        return text
    lines, goes_on = text.split("\n"), False
    for at, line in enumerate(lines):
        if not goes_on and line.lstrip().startswith("#"):
            lines[at] = line.rstrip("\\")
        goes_on = lines[at].endswith("\\")
    return "\n".join(lines)


def named_programs(text: str) -> str:
    """A text with the names of programs in place of what looks up where they lie (``$(which swift) sft``)."""
    return LOOKED_UP.sub(lambda found: found[1] or found[2], text)


def unix_lines(text: str) -> str:
    """A text with its lines as they end outside of Windows: a shell takes a carriage return into a word."""
    return text.replace("\r\n", "\n")


def _split_commands(text: str) -> Iterator[list[str]]:
    """Commands as words, in order; a list in parentheses is of one command."""
    joined = EXPRESSION.sub(r"$((\1))", text.replace("\\\n", " "))
    joined = squeeze_sums(joined)
    command: list[str] = []
    depth = 0
    for word in shlex.split(_with_words_whole(joined).replace("\n", "\n ; "), comments=True):
        opens = NAMED.fullmatch(word)
        if depth == 0 and opens and opens[3].startswith("(") and not word.endswith(")"):
            depth = 1
        elif depth and _ends_list(word, opens=False):
            depth = 0
        elif word in ENDS or word.endswith(";"):
            if depth and word == ";":
                continue
            command += [word.rstrip(";")] if word.rstrip(";") and word not in ENDS else []
            yield from [command] if command else []
            command = []
            continue
        elif word in ("then", "do", "else") and not command:
            yield [word]
            continue
        command.append(word)
    yield from [command] if command else []


def _ends_list(word: str, *, opens: bool) -> bool:
    """Whether a list in parentheses ends with a word, and not a sum or a command inside it. ``opens``:
    whether the word has the list's own beginning in it.
    """
    return word.endswith(")") and word.count(")") > word.count("(") - opens


def _with_words_whole(text: str) -> str:
    """The text with the signs of comments that stand inside a word (``org/data#500``) kept from beginning
    one.
    """
    return re.sub(r"(?<=[^\s;#\\])#", r"\\#", text)


def _split_words(value: str) -> list[str]:
    if not re.search(r"\s", value.strip()):
        return [value.strip()] if value.strip() or not value else []
    try:
        return [word for word in shlex.split(value) if word not in ENDS]
    except ValueError:
        return [value]


def with_numbers_named(found: re.Match[str], known: Mapping[str, str]) -> str:
    """A sum with the variables that it names without a dollar, where they are whole numbers."""

    def known_number(name: re.Match[str]) -> str:
        held = known.get(name[0], "")
        return held if held.isdecimal() else name[0]

    return f"$(({BARE_NAME.sub(known_number, found[1])}))"


def squeeze_sums(text: str) -> str:
    """The text with each sum as one word."""
    return SPACED_SUM.sub(lambda found: "".join(found[0].split()), text) if "$((" in text else text


def sums_summed_up(word: str) -> str:
    """A word with its sums of whole numbers as what they come to."""
    return SUM.sub(lambda found: _sum_text(found[1], found[0]), word) if "$((" in word else word


def _sum_text(text: str, whole: str) -> str:
    """What a sum of whole numbers comes to, as text; as it stands where it is none."""
    try:
        return str(whole_number_sum(text))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return whole
