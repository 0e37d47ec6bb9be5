"""What stands between Python's interpreter and what it runs (``python -u -W ignore -m …``)."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.patterns import late_pattern

PYTHON_NAME = late_pattern(r"python[\d.]*")
_VALUED = late_pattern(r"-[bBdEhiIOPqRsSuvVx?]*[WX]|--check-hash-based-pycs")
_ALONE = late_pattern(r"-[bBdEhiIOPqRsSuvVx?]+|-[bBdEhiIOPqRsSuvVx?]*[WX].+")
"""Its own switches: letters together, and those of a value with it beside or attached (docs.python.org
using/cmdline.html#command-line).
"""
SWITCHES = r"(?:[ ]+-(?:[bBdEhiIOPqRsSuvVx]+|[WX][ ]?\S+))*"
"""The same in a pattern of a line of text."""


def last_switch_index(words: Sequence[str], at: int) -> int:
    """The place of the last word of the interpreter's own switches, or of the interpreter, which is at
    ``at``.
    """
    if PYTHON_NAME.fullmatch(words[at].rpartition("/")[2]) is None:
        return at
    while at + 1 < len(words):
        if _VALUED.fullmatch(words[at + 1]):
            at += 2
        elif _ALONE.fullmatch(words[at + 1]):
            at += 1
        else:
            break
    return min(at, len(words) - 1)
