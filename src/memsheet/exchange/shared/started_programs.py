"""Programs that a shell's script starts, whatever stands before them (``ray job submit … -- python3 -m …``):
the words of their commands, with variables, arrays and what Slurm gives in place. Read as text, never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.exchange.shared.shell_text import ShellScript
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

READ_INTO = late_pattern(
    r"^[ \t]*read(?:[ \t]+-[rd]+(?:[ \t]+(?:''|\"\"))?)*[ \t]+(\w{1,64})[ \t]*"
    r"<<-?[ \t]*['\"]?(\w{1,40})['\"]?[ \t]*\n"
    r"(.*?)^[ \t]*\2[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
"""``read -r -d '' name <<EOF``: the text up to its end is the variable's (bash(1), read)."""
OUTPUT = late_pattern(r"(\d?|&)>.*|<.*|\|")
"""What ends the words of a command that its program is given."""
MOST_SWITCHES = 4
LAUNCHERS = frozenset({"deepspeed", "torchrun"})
Finds = Callable[[Sequence[str]], int | None]


class Started(NamedTuple):
    """A start of a program: words before its name, the name, and what it is given."""

    before: Sequence[str]
    program: str
    given: Sequence[str]


def started_programs(text: str, finds: Finds) -> Iterator[Started]:
    """Starts in order. ``finds``: where a program's name stands among the words of a command."""
    for words in _script_commands(text, finds):
        at = finds(words)
        if at is not None:
            yield Started(words[:at], words[at], list(before_output(words[at + 1 :])))


def before_output(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if OUTPUT.fullmatch(word):
            return
        yield word


def module_index(words: Sequence[str], module: re.Pattern[str], file: re.Pattern[str]) -> int | None:
    """Where a program's name stands: a module after ``-m``, or a script after an interpreter or launcher."""
    for at, word in enumerate(words):
        if at and words[at - 1] in ("-m", "--module") and module.fullmatch(word):
            return at
        if at and file.fullmatch(word) and (_starts_python(words[:at]) or _launches_first(words[:at])):
            return at
    return None


def _starts_python(before: Sequence[str]) -> bool:
    """Whether words end with an interpreter and its switches (``python3 -u``)."""
    rest = [word for word in before[-MOST_SWITCHES:] if not re.fullmatch(r"-[a-zA-Z]{1,3}", word)]
    return bool(rest) and rest[-1].rpartition("/")[2].startswith("python")


def _launches_first(before: Sequence[str]) -> bool:
    """Whether words start a launcher of processes, and no script stands among them yet."""
    names = [word.rpartition("/")[2] for word in before]
    launched = LAUNCHERS & set(names) or ("accelerate", "launch") in pairwise(names)
    return bool(launched) and not any(name.endswith(".py") for name in names)


def _script_commands(text: str, finds: Finds) -> Iterator[list[str]]:
    """Commands with variables in their places: by the whole script, else line by line where it is no shell
    to its end.
    """
    whole = READ_INTO.sub(_as_assignment, text)
    try:
        found = list(ShellScript(whole).commands())
    except ValueError:
        found = []
    if any(finds(words) is not None for words in found):
        yield from found
    else:
        yield from filled_commands(whole)


def _as_assignment(found: re.Match[str]) -> str:
    """A variable that is read of lines in the script, as it would be assigned."""
    held = found[3].replace("\\\n", " ").replace("\n", " ")
    return f'{found[1]}="{held}"' if '"' not in held else found[0]
