"""Writing answers to stdout, whoever reads it: a terminal, a file, a pipe that closes early."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memsheet.errors import input_error, without_control_characters

if TYPE_CHECKING:
    from memsheet.report.shared.look import Look

NARROWEST, WIDEST, WITHOUT_TERMINAL = 60, 120, 100
UNITS = {"gib": False, "gb": True}


OWN = re.compile("(\x1b\\[[0-9;]*m|[\\n\\t])")
"""What a terminal may obey: colours, and the ends of lines."""


def write_stdout(text: str) -> None:
    """``text`` to stdout, with nothing in it that a terminal obeys but colours: names in it are a stranger's.

    A reader that has seen enough (``| head``) is no error. Raises InputError where what is said cannot be
    written at all.
    """
    encoding = sys.stdout.encoding or "ascii"
    shown = (
        text
        if text.isprintable()
        else "".join(
            part if OWN.fullmatch(part) else without_control_characters(part) for part in OWN.split(text)
        )
    )
    try:
        sys.stdout.write(shown.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_unflushed_output()
    except OSError as error:
        _discard_unflushed_output()
        raise input_error("stdout", None, f"cannot be written: {error.strerror or 'it is closed'}") from None


def _discard_unflushed_output() -> None:
    """What is left to flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(document: Mapping[str, Any]) -> None:
    """One object: indented for a person, on one line for a program."""
    from memsheet.report.shared.json_text import dump_json_line

    write_stdout(dump_json_line(document, indent=2 if sys.stdout.isatty() else None))


def terminal_width() -> int:
    """Columns as COLUMNS says, else as the terminal has: the rule of shutil, which loads archives."""
    said = os.environ.get("COLUMNS", "")
    columns = int(said) if said.isascii() and said.isdigit() else 0
    if columns <= 0:
        with suppress(AttributeError, ValueError, OSError):  # what a program reads has no width
            terminal: Any = sys.__stdout__
            columns = os.get_terminal_size(terminal.fileno()).columns
    return max(NARROWEST, min(WIDEST, columns or WITHOUT_TERMINAL))


def supports_colour() -> bool:
    """Colour on a terminal that has it, unless NO_COLOR asks for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain_ascii() -> bool:
    """Whether stdout cannot show block characters."""
    try:
        "█·┘".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def wants_decimal_units(units: str) -> bool:
    """Whether sizes are to be shown in GB. Raises InputError for other units."""
    found = UNITS.get(units.lower())
    if found is None:
        raise input_error(
            "units", units, "is not a unit of the screen", "GiB (2^30 bytes) or GB (10^9 bytes)"
        )
    return found


def terminal_look(*, decimal: bool, full: bool, typed: tuple[Any, ...] = ()) -> Look:
    """How an answer looks on this terminal. ``decimal``: sizes in GB; ``full``: every row; ``typed``: the
    options of the line.
    """
    from memsheet.report.shared.look import Look

    return Look(
        width=terminal_width(), decimal=decimal, full=full, colour=supports_colour(), ascii=plain_ascii(), typed=typed
    )  # fmt: skip
