"""Failures that were caught: what a program says around them, and that it goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memsheet.diagnose.cleaned import Log

_RAISED = re.compile(r"(?:[\w.]{1,120}(?:Error|Exception)\b|Traceback )")
"""How a line begins that a traceback ends with, or begins with."""
_HANDLED = re.compile(
    r"\b(?:skip(?:ping|ped)?|caught|retry(?:ing)?|decreas(?:e|ing)|reduc(?:e|ing)|halv(?:e|ing)|lower(?:ing)?"
    r"|ran out of memory with exception|(?:batch size|trial) \d{1,9} failed|trying (?:again|with|batch))\b",
    re.IGNORECASE,
)
_SMALLER_BATCH = re.compile(
    r"\b(?:decreas|reduc|halv|lower|retry|trying|training with)\w{0,4}\b"
    r".{0,40}?\bbatch(?:[ _-]?size)?\b|\bbatch size \d{1,9} failed\b",
    re.IGNORECASE,
)
"""What a program says that runs its whole training again with a smaller batch (accelerate's and transformers'
search of one: "Currently training with a batch size of").
"""
_PROGRESS = re.compile(
    r"\bloss\b['\"]?\W{0,4}\d|\bthroughput\b.{0,20}?\d|\btrial \d{1,9} finished\b", re.IGNORECASE
)
"""A step of a training, a line of a server at work, a trial of a search."""
_END = re.compile(
    r"train_runtime|\btraining (?:is )?(?:finished|completed?|done)\b|\bdone training\b|\bmodel saved\b"
    r"|\bapplication startup complete\b|\bserver is listening\b",
    re.IGNORECASE,
)
BEHIND = 3
"""Lines behind a message in which a program says what it does about it."""


def goes_on_behind(line: int, log: Log) -> bool:
    """Whether the program says that it handles the failure of a message, and goes on: two steps, or the
    end of the training. One that is raised, at the end of a traceback, is another's to handle: it counts as
    fatal, unless a smaller batch is said right behind it, with which the program trains.
    """
    lines = log.lines
    if line >= len(lines):
        return False
    if _RAISED.match(lines[line]):
        said = next(
            (
                n
                for n in range(line + 1, min(line + 1 + BEHIND, len(lines)))
                if _SMALLER_BATCH.search(lines[n])
            ),
            None,
        )
        return said is not None and any(_PROGRESS.search(each) for each in lines[said + 1 :])
    if not any(_HANDLED.search(each) for each in lines[line : line + 1 + BEHIND]):
        return False
    return goes_on(lines[line + 1 :])


def tries_smaller(line: int, log: Log) -> bool:
    """Whether a program says right behind a message that it tries a smaller batch."""
    return any(_SMALLER_BATCH.search(each) for each in log.lines[line : line + 1 + BEHIND])


def goes_on(after: Sequence[str]) -> bool:
    """Whether lines show a program at work: two steps, or the end of the training."""
    return sum(bool(_PROGRESS.search(each)) for each in after) > 1 or any(_END.search(each) for each in after)
