"""``--format NAME``: what a command found in one of the forms it has."""

from __future__ import annotations

import json
import sys
from typing import Any

from memsheet.cli import screen
from memsheet.errors import input_error


def check_form(command: str, name: str | None) -> None:
    """Before anything takes time: whether a command has that form. ``command``: its row of
    ``report.page.formats``. Raises InputError with those it has.
    """
    if name is None:
        return
    from memsheet.report.page.formats import FORMATS

    if name not in FORMATS[command]:
        known = any(name in forms for forms in FORMATS.values())
        reason = f"is not a form that `memsheet {command}` has" if known else "is no form of an answer"
        raise input_error("format", name, reason, f"one of {', '.join(FORMATS[command])}")


def write_form(command: str, name: str, *found: Any) -> None:
    """What a command found, to stdout. Raises InputError where it has no such form, or nothing to put in
    it.
    """
    from memsheet.report.page.formats import FORMATS

    check_form(command, name)
    text = FORMATS[command][name](*found)
    if name in ("json", "sarif") and sys.stdout.isatty():  # for a person
        screen.write_json(json.loads(text))
    else:
        screen.write_stdout(text)
