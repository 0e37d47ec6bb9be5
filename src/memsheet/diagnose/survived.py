"""Failures that were caught: what a program says around them, and that it goes on."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log

_RAISED = re.compile(r"(?:[\w.]{1,120}(?:Error|Exception)\b|Traceback )")
"""How a line begins that a traceback ends with, or begins with."""
_HANDLED = re.compile(
    r"\b(?:skip(?:ping|ped)?|caught|retry(?:ing)?|decreas(?:e|ing)|reduc(?:e|ing)|halv(?:e|ing)|lower(?:ing)?"
    r"|ran out of memory with exception|batch size \d{1,9} failed|trying (?:again|with|batch))\b",
    re.IGNORECASE,
)
_PROGRESS = re.compile(r"\bloss\b['\"]?\W{0,4}\d", re.IGNORECASE)
_END = re.compile(
    r"train_runtime|\btraining (?:is )?(?:finished|completed?|done)\b|\bdone training\b|\bmodel saved\b",
    re.IGNORECASE,
)
BEHIND = 3
"""Lines behind a message in which a program says what it does about it."""


def goes_on_behind(line: int, log: Log) -> bool:
    """Whether the program says that it handles the failure of a message, and trains on: two losses, or the
    end of the training. One that is raised, at the end of a traceback, is another's to handle: it counts as
    fatal.
    """
    lines = log.lines
    if line >= len(lines) or _RAISED.match(lines[line]):
        return False
    if not any(_HANDLED.search(each) for each in lines[line : line + 1 + BEHIND]):
        return False
    after = lines[line + 1 :]
    return sum(bool(_PROGRESS.search(each)) for each in after) > 1 or any(_END.search(each) for each in after)
