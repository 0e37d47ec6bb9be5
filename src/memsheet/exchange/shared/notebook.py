"""A notebook as the script that its cells make, in order. Read as data, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.patterns import late_pattern

MAGIC = late_pattern(r"^([ \t]*)([%!?])((?:[^\\\n]|\\.)*(?:\\\n(?:[^\\\n]|\\.)*)*)", re.MULTILINE)
MARIMO = late_pattern(r"^app = marimo\.App\(", re.MULTILINE)
LEFT = "pass  # "
"""What stands in the place of a command that is not Python's, which follows as a comment."""
_LINE = late_pattern(
    rf"^[ \t]*{LEFT}!(?P<command>.*)$"
    r"|^(?P<name>[A-Za-z_]\w{0,63})[ \t]*=[ \t]*(?:(?P<quote>[\"'])(?P<text>[^\"'\\\n]{0,400})(?P=quote)"
    r"|(?P<number>\d[\d_.e-]{0,20}))[ \t]*(?:#.*)?$"
    r"|^[ \t]*(?P<other>[A-Za-z_]\w{0,63})[ \t]*[-+*/|&%]{0,2}=(?!=)",
    re.MULTILINE,
)
"""A command, a plain value that a cell gives a name, or any other."""
_PLACE = late_pattern(r"(?<!\$)\{([A-Za-z_]\w{0,63})\}|\$([A-Za-z_]\w{0,63})\b")
OF_PYTHON = ("%%capture", "%%time", "%%timeit", "%%prun")
"""Magics of a cell whose rest is Python; another's is of another language, or is written to a file."""


def notebook_script(text: str, name: str, parse: Callable[[str, str], Any]) -> str:
    """The code of a notebook (nbformat 4), with its shell's and its own commands left out, and the cells that
    are no Python: they stop where they are run, and the others do not. ``parse``: JSON from text and a name.
    """
    held = parse(text, name)
    cells = held.get("cells") if isinstance(held, Mapping) else None
    return "\n".join(_code_of_cells(cells)) + "\n" if isinstance(cells, list) else ""


def marimo_script(text: str) -> str:
    """The code of a notebook of marimo, whose cells are functions (marimo-team/marimo, ``@app.cell``): their
    statements at the top of the file, on the lines that they stand on. Any other script as it is.
    """
    if not MARIMO.search(text) or not _is_python(text):
        return text
    lines = text.splitlines()
    for cell in ast.parse(text).body:
        if not isinstance(cell, ast.FunctionDef) or not cell.decorator_list:
            continue
        first, last = cell.body[0].lineno, cell.end_lineno or cell.lineno
        returned = [
            (one.lineno, one.end_lineno or one.lineno) for one in cell.body if isinstance(one, ast.Return)
        ]
        gone = [(cell.decorator_list[0].lineno, first - 1), *returned]
        for line in range(gone[0][0], last + 1):
            left_out = any(start <= line <= end for start, end in gone)
            lines[line - 1] = "" if left_out else lines[line - 1].removeprefix(" " * cell.body[0].col_offset)
    script = "\n".join(lines) + "\n"
    return script if _is_python(script) else text


def _code_of_cells(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        first = text.lstrip().partition("\n")[0]
        if not first.startswith("%%") or first.startswith(OF_PYTHON):
            script = MAGIC.sub(_commented_command, text)
            yield script if _is_python(script) else ""


def _commented_command(found: re.Match[str]) -> str:
    """A command in one line of comment, in as many lines as it had."""
    lines = found[3].split("\\\n")
    return f"{found[1]}{LEFT}{found[2]}{' '.join(lines)}" + "\n" * (len(lines) - 1)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def notebook_commands(script: str) -> str:
    """What a notebook's script gives a shell, as a script of the shell's, with the values of plain names in
    their places (``{name}``, ``$name``: ipython.readthedocs.io, System shell access).
    """
    known: dict[str, str] = {}
    lines: list[str] = []
    for found in _LINE.finditer(script):
        if found["name"]:
            known[found["name"]] = found["text"] or found["number"] or ""
        elif found["other"]:
            known.pop(found["other"], None)
        else:
            lines.append(
                _PLACE.sub(lambda place: known.get(place[1] or place[2], place[0]), found["command"])
            )
    return "\n".join(lines)
