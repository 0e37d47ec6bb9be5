"""Exit codes, so that a scheduler or CI can gate on an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.errors import InputError

if TYPE_CHECKING:
    from memsheet.diagnose.verdict import Diagnosis
    from memsheet.report.shared.checked import Checked

BAD_INPUT, BROKEN = 2, 70
"""BROKEN: an error that is memsheet's own (EX_SOFTWARE of sysexits.h)."""
NO_START, REFUSED = "does not start", "bad input"
"""What an error is called as JSON."""
SERVING_EXIT = (0, 11, 10)
"""Of a search for serving whose best plan holds the load, may, or does not (``search.serve.load.Holds``)."""
EXIT = {Result.FITS: 0, Result.DOES_NOT_FIT: 10, Result.UNCERTAIN: 11}


def checked_exit_code(checked: Checked) -> int:
    """Of files that were read: a job that does not start is as sure not to run as one that does not fit; bad
    input where no sheet can be made.
    """
    if checked.stops:
        return EXIT[Result.DOES_NOT_FIT]
    if checked.answer is None and (checked.why_not or checked.no_model) and not checked.keys_alone:
        return BAD_INPUT
    return EXIT[checked.result] if checked.result else 0


def refusal_exit_code(error: InputError) -> tuple[str, int]:
    """What an error is called as JSON and its exit code: of a question whose every problem the engine stops
    at, too, that it does not start.
    """
    return (NO_START, EXIT[Result.DOES_NOT_FIT]) if error.refused else (REFUSED, BAD_INPUT)


def diagnosis_exit_code(found: Diagnosis) -> int:
    """Of a job that died: undecided is uncertain, all else is answered."""
    return EXIT[Result.UNCERTAIN] if found.undecided else 0
