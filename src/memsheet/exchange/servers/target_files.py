"""Servers in the targets of make and just, and in PowerShell's scripts: their lines as those of a shell
(gnu.org make manual, Variables Simplified and Variables in Recipes; just.systems man; PowerShell
about_Special_Characters).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_pods import starts_a_server
from memsheet.patterns import late_pattern

MAKE, JUST, POWERSHELL = (
    late_pattern(r"(?:GNUm|[Mm])akefile(?:\.\w+)?|.*\.mk"),
    late_pattern(r"\.?[Jj]ustfile|.*\.just"),
    late_pattern(r".*\.ps1", re.IGNORECASE),
)
MOST_LINES = 2000
_OF_MAKE = late_pattern(
    r"(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*(?P<how>\?=|::?=|=)[ \t]*(?P<value>.*)"
)
_OF_JUST = late_pattern(r"(?:export[ \t]+)?(?P<name>[A-Za-z_][\w-]*)[ \t]*:=[ \t]*(?P<value>.*)")
_TARGET = late_pattern(r"@?(?P<name>[A-Za-z_][\w./-]*)[^=:\n]*:(?!=)")
_USED = late_pattern(r"\$\((?P<make>[A-Za-z_]\w*)\)|\{\{[ \t]*(?P<just>[A-Za-z_][\w-]*)[ \t]*\}\}")


def target_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The servers that a file's targets start, by the targets' names; none of files of other names."""
    del parse
    last = name.rpartition("/")[2]
    if POWERSHELL.fullmatch(last):
        joined = re.sub(r"`[ \t]*\r?\n", " ", text)
        return [NamedServer("script", joined)] if starts_a_server(joined) else []
    just = JUST.fullmatch(last) is not None
    if not just and not MAKE.fullmatch(last):
        return []
    variables, targets = _variables_and_targets(text, just=just)
    scripts = {at: "\n".join([*variables, *lines]) for at, lines in targets.items()}
    return [NamedServer(at, script) for at, script in scripts.items() if starts_a_server(script)]


def _variables_and_targets(text: str, *, just: bool) -> tuple[list[str], dict[str, list[str]]]:
    """Variables as a shell's assignments, and lines of recipes by their targets."""
    variables, targets = list[str](), dict[str, list[str]]()
    own: list[str] | None = None
    for line in re.sub(r"\\\r?\n[ \t]*", " ", text).splitlines()[:MOST_LINES]:
        if line[:1] in ("\t", " ") and own is not None:
            own.append(_as_shell(line.strip().lstrip("@-+")))
        elif told := (_OF_JUST if just else _OF_MAKE).fullmatch(line):
            variables += _assigned_line(told["name"], told["value"], usual=not just and told["how"] == "?=")
        elif target := _TARGET.match(line):
            own = targets.setdefault(target["name"], [])
    return variables, targets


def _assigned_line(name: str, value: str, *, usual: bool) -> Iterator[str]:
    """What a variable is given; one that is only given where nobody else does keeps its default in sight."""
    held = re.split(r"[ \t]#", value)[0].strip().strip("\"'")
    at, plain = _shell_name(name), _as_shell(held)
    if usual and re.fullmatch(r"[^{}\"\\`$]*", plain):
        yield f'{at}="${{{at}:-{plain}}}"'
    elif "$" in plain and "`" not in plain:
        yield f'{at}="{plain}"'
    elif "`" not in plain and not re.search(r"\w\(", plain):
        yield f"{at}={shlex.quote(plain)}"


def _shell_name(name: str) -> str:
    return name.replace("-", "_")


def _as_shell(text: str) -> str:
    """A line with variables as a shell has them; a doubled dollar is the shell's own."""
    put = _USED.sub(lambda found: f"${{{_shell_name(found['make'] or found['just'])}}}", text)
    return put.replace("$$", "$")
