"""Changes of a job that its files leave in doubt: sought with what is open on top of the sheet, and told as
sure where the files so changed are judged to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.budget import Answer, Fix, Result, WayToFit
from memsheet.frozen import replace
from memsheet.plan.workload import Training
from memsheet.search.fixes.ways_to_fit import EXPECTED

Judge = Callable[[Mapping[str, Any]], Answer | None]
"""The answer about the files with some keys changed, judged as the files themselves are."""
Seek = Callable[[int], Answer | None]
"""The same question where so many bytes of each card are not there."""
ELSEWHERE = frozenset({"gpus", "nodes", "engine"})
"""Changes to another job, which its files do not say."""


def with_judged_changes(
    told: Answer | None, sheet: Answer | None, judge: Judge, seek: Seek, *, lasting: bool = False
) -> Answer | None:
    """The answer with changes that the files in their doubt fit with. ``told``: the answer with its doubt,
    ``sheet``: before it was doubted. ``lasting``: what is open no change settles, so that the best there is
    fits by what is known.
    """
    if told is None or told.verdict is None or sheet is None or sheet.verdict is None:
        return told
    verdict = told.verdict
    if verdict.result is Result.FITS or not isinstance(told.plan.workload, Training):
        return told
    beyond, first = int(verdict.device.high) - int(sheet.verdict.device.high), verdict.cheapest_fix
    sought = beyond > 0 or (lasting and first is None)
    if (fix := _judged_fix(first, judge)) is None and sought and not verdict.no_most:
        further = seek(max(0, beyond))
        if further is not None and further.verdict is not None:
            fix = _judged_fix(further.verdict.cheapest_fix, judge)
            if lasting and fix is None and first is None:
                first = _known_fix(further.verdict.cheapest_fix, judge, told)
            told = replace(told, ways_to_fit=further.ways_to_fit or told.ways_to_fit)
    kept = fix or (replace(first, open_ended=True) if first is not None else None)
    ways = tuple(judged for way in told.ways_to_fit if (judged := _judged_way(way, judge, told, beyond)))
    return replace(told, verdict=replace(verdict, cheapest_fix=kept), ways_to_fit=() if fix else ways)


def _judged_fix(fix: Fix | None, judge: Judge) -> Fix | None:
    """The list of changes where the files fit with it, with what they need then."""
    after = judge(changed_values(fix)) if fix is not None else None
    fits = after is not None and after.verdict is not None and after.verdict.result is Result.FITS
    return replace(fix, device=after.verdict.device) if fix and after and after.verdict and fits else None


def _known_fix(fix: Fix | None, judge: Judge, told: Answer) -> Fix | None:
    """The list of changes with which all of the files' range fits, whatever stays open."""
    after = judge(changed_values(fix)) if fix is not None else None
    if fix is None or after is None or after.verdict is None or told.cluster is None:
        return None
    device = after.verdict.device
    fits = device.high <= told.cluster.device.framework_low_bytes and not after.verdict.no_most
    return replace(fix, device=device) if fits else None


def _judged_way(way: WayToFit, judge: Judge, told: Answer, beyond: int) -> WayToFit | None:
    room = told.cluster.device.framework_low_bytes if told.cluster else 0
    if ELSEWHERE.isdisjoint(way.changes):
        after = judge(way.changes)
        if after is None or after.verdict is None:
            return None
        judged = replace(way, device=after.verdict.device)
        if after.verdict.result is Result.FITS:
            return judged
        return _likely_model(judged, room, no_most=after.verdict.no_most) if "model" in way.changes else None
    more = replace(way, device=replace(way.device, high=way.device.high + max(0, beyond)))
    return more if "gpus" in way.changes or more.device.high <= room else None


def _likely_model(way: WayToFit, room: int, *, no_most: bool) -> WayToFit | None:
    """Another model, which no file names, so that the files are never sure to be about it: told where all of
    its range fits, and as expected to fit where that is all.
    """
    if way.device.high <= room and not no_most:
        return way
    return replace(way, words=f"{way.words}{EXPECTED}") if way.device.value <= room else None


def changed_values(fix: Fix) -> dict[str, Any]:
    """Keys of the plan as all changes of a list leave them."""
    return {
        key: after
        for change in fix.changes
        for key, _, after in ((change.key, change.before, change.after), *change.also, *change.implied)
    }
