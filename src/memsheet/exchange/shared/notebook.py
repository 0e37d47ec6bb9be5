"""A notebook as the script that its cells make, in order. Read as data, never run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.patterns import late_pattern

MAGIC = late_pattern(r"^(\s*)[%!?]", re.MULTILINE)
OF_PYTHON = ("%%capture", "%%time", "%%timeit", "%%prun")
"""Magics of a cell whose rest is Python; another's is of another language, or is written to a file."""
NOTEBOOK = ".ipynb"


def notebook_script(text: str, name: str, parse: Callable[[str, str], Any]) -> str:
    """The code of a notebook (nbformat 4), with its shell's and its own commands left out. ``parse``: JSON
    from text and a name.
    """
    held = parse(text, name)
    cells = held.get("cells") if isinstance(held, Mapping) else None
    return "\n".join(_code_of_cells(cells)) + "\n" if isinstance(cells, list) else ""


def _code_of_cells(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        first = text.lstrip().partition("\n")[0]
        if not first.startswith("%%") or first.startswith(OF_PYTHON):
            yield MAGIC.sub(r"\1pass  # ", text)
