"""A run that becomes another: what says that steps of a training stand before a message, and that more is
trained, or something else, from a step on.
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.survived import goes_on

_STEP_NUMBER = re.compile(
    r"\b(?:update|num_updates|global_step|iteration|iter|step)s?\b[\s:=#|'\"]{1,6}(\d[\d,]{0,11})",
    re.IGNORECASE,
)
_TRAINED = re.compile(
    r"\b(?:learning_rate|train_loss)['\"]?\s{0,3}[:=]|\bgrad_?norm['\"]?\s{0,3}[:=]|\blr\s{0,3}[:=]\s{0,3}\d"
    r"|[\"']loss[\"']: [^\n{}]{1,200}[\"']epoch[\"']:"
    r"|Running training"
    r"|^(?![^\n]{0,200}(?:eval|valid|test))[^\n]{0,200}\b(?:epoch|step|iter(?:ation)?)s?\b"
    r"[\s:=\[#]{0,4}\d[^\n]{0,120}?\bloss[\"']?[\s:=]{1,4}\d",
    re.IGNORECASE | re.MULTILINE,
)
"""What a step of a training prints, and no evaluation."""
_THAWS = re.compile(r"\bun-?freez(?:ing|ed)\b|\bunfroze\b|\bthaw(?:ing|ed)\b", re.IGNORECASE)
"""What a run says that trains more from here on: its own words, no setting's name."""
_COUNTED = r"(\d[\d,]{0,15}(?:\.\d{1,6})?)\s?([KMB]?)"
_TRAINABLE = re.compile(
    rf"\btrainable[ _]param(?:eter)?s?\b.{{0,20}}?{_COUNTED}\s?(?:->|→|=>)\s?{_COUNTED}", re.IGNORECASE
)
"""The same by how many parameters are trained before and from there on."""
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
_LATER = re.compile(
    r"\b(?:epoch|step|iter(?:ation)?|stage|phase)s?\b[\s:=\[#]{0,4}(?!0+\b|1\b)\d", re.IGNORECASE
)
"""An epoch, a step or a stage of a run that is not its first."""
_CHANGE_AT = re.compile(
    r"\b((?:freeze|frozen|unfreeze|curriculum|switch|stage)\w*(?:updates|steps|iters|"
    r"iterations|step|iter))"
    r"[\"']?\s{0,3}[:=]\s{0,3}[\"']?(\d{1,12})\b",
    re.IGNORECASE,
)


def trained_before(log: Log, line: int, *, saves: bool) -> bool:
    """Whether steps of a training stand in the log before a message, of which the traceback shows no
    function. ``saves``: whether it shows one that saves, which a numbered step alone does not.
    """
    before = "\n".join(log.lines[:line])
    stepped = saves and any(int(number.replace(",", "")) > 0 for number in _STEP_NUMBER.findall(before))
    return stepped or bool(_TRAINED.search(before))


def thawing_words(log: Log, line: int) -> str:
    """By which words a run said before a message that it trains more from there on, where it had trained less
    before and no two steps stand between.
    """
    before = log.lines[:line]
    places = range(len(before) - 1, -1, -1)
    place, words = next(((each, said) for each in places if (said := _words_of_line(before[each]))), (0, ""))
    if not words or goes_on(before[place + 1 :]):
        return ""
    earlier = "\n".join(before[: place + 1])
    return words if _LATER.search(earlier) or _TRAINED.search(earlier) else ""


def _words_of_line(line: str) -> str:
    if found := _THAWS.search(line):
        return found.group()
    found = _TRAINABLE.search(line)
    return found.group() if found and _counted(*found.groups()[:2]) < _counted(*found.groups()[2:]) else ""


def _counted(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _TIMES[unit.upper()]


def change_at_step(text: str) -> tuple[str, int] | None:
    """A setting of the text by which the run changes after a step, where a step right behind it is the last
    that the text names.
    """
    steps = [int(number.replace(",", "")) for number in _STEP_NUMBER.findall(text)]
    if not steps:
        return None
    for name, number in _CHANGE_AT.findall(text):
        if int(number) > 0 and max(steps) - int(number) in (0, 1):
            return name, int(number)
    return None
