"""How a peak is said: its bytes, its instant, and the allocation that made it. Names come from a stranger's
model.
"""

from __future__ import annotations

from memsheet.errors import printable_line
from memsheet.report.shared.words import INSTANTS, component_name
from memsheet.timeline import Peak, Storage
from memsheet.units import format_bytes

LONGEST = 84
"""Characters of a line."""


def peak_lines(found: Peak, *, decimal: bool = False) -> list[str]:
    """A line for its bytes and instant; then, where an allocation made it, its operation and size, its module
    path, the user's line.
    """
    first = f"{format_bytes(found.bytes, decimal=decimal)} at the peak, in {INSTANTS[found.instant]}"
    return [
        elide_middle(line)
        for line in (first, *(made_by(found.storage, decimal=decimal) if found.storage else ()))
    ]


def made_by(storage: Storage, *, decimal: bool = False) -> list[str]:
    """What asked for a storage: the operation and its bytes, the module path, the user's line; what is not
    known is left out.
    """
    size = format_bytes(storage.bytes, decimal=decimal)
    where = (("in", storage.path), ("from", storage.line))
    return [
        f"made by {printable_line(storage.op)}: {size} of {component_name(storage.component)}",
        *(f"{w} {printable_line(at)}" for w, at in where if at),
    ]


def elide_middle(text: str, most: int = LONGEST) -> str:
    """``text`` with its middle left out where it is too long: of a path, the two ends say most."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"
