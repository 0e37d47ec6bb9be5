"""Known mistakes of configurations, as tables: what they cost, what cures them, who says so.

A rule looks at a ``Case`` and yields what it found. ``changes`` are keys of a plan: a cure whose bytes are
told by accounting the plan with it. ``stops``: the engine refuses the file, so that the job never starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes.case import ENGINE_REFUSES, Case, FoundMistake, Rule, device_bytes
from memsheet.exchange.mistakes.serving_pool import cache_bytes
from memsheet.exchange.shared.file_format import KEYWORDS, MORE
from memsheet.exchange.shared.script_defaults import absent_files
from memsheet.frozen import replace
from memsheet.units import format_bytes

TRAINING = (
    "files", "batch_scripts", "values", "plans", "zero", "megatron", "trainer", "shape", "scripts", "loops",
)  # fmt: skip
"""Modules of this folder whose rules are of training."""
SERVED = ("files", "values", "serving", "stored", "pods")
"""Those of a server's command."""
SHARE_WORTH_TELLING = 20
"""A cure is told where it frees at least one in so many bytes of a rank."""


@cache
def rules_of_kind(name: str) -> tuple[Rule, ...]:
    """The rules of a module of this folder, which is loaded for what it is asked of."""
    found: tuple[Rule, ...] = getattr(import_module(f"memsheet.exchange.mistakes.{name}"), name.upper())
    return found


def find_mistakes(case: Case, *, beyond_alone: bool = False) -> tuple[tuple[Rule, FoundMistake], ...]:
    """Every mistake that is found, those that stop the job first, then keys that are not heard, then by what
    the cure frees.
    ``beyond_alone``: only those whose bytes are not in the sheet, which a verdict needs.
    """
    known = SERVED if case.request.get("task") == "infer" else TRAINING
    rules = [rule for name in known for rule in rules_of_kind(name) if rule.beyond or not beyond_alone]
    whole = not case.together.script and not absent_files(case.reads)
    found = [
        (rule, _with_saved_bytes(case, _without_unsure_stop(case, one, any_reader=rule.any_reader)))
        for rule in rules
        if whole or not rule.only_if_whole
        for one in rule.looks(case)
    ]
    found = list(_without_told_twice(found))
    worth = [(rule, one) for rule, one in found if not rule.only_if_saves or _saves_enough(case, one)]
    return tuple(
        sorted(
            worth,
            key=lambda pair: (
                not pair[1].stops,
                not (pair[1].may_stop or pair[1].unheard),
                -(pair[1].saves_bytes or pair[1].gains_bytes or 0),
            ),
        )
    )


def _without_told_twice(found: list[tuple[Rule, FoundMistake]]) -> Iterator[tuple[Rule, FoundMistake]]:
    """Without what the engine refuses at a key of which another rule says so, in the file's own words."""
    told = {one.where for rule, one in found if rule.id != ENGINE_REFUSES and one.stops}
    return ((rule, one) for rule, one in found if rule.id != ENGINE_REFUSES or one.where not in told)


def _without_unsure_stop(case: Case, found: FoundMistake, *, any_reader: bool) -> FoundMistake:
    """A remark alone, where the program that reads the file is not known, or what it is given: no one can say
    what it stops at.
    """
    name = max((name for name in case.reads if found.where.startswith(f"{name}:")), key=len, default="")
    values = case.reads[name].values if name else {}
    known = any_reader or not name or case.reads[name].form.program_known(values)
    whole = MORE not in values and KEYWORDS not in values
    return found if known and whole else replace(found, stops=False, may_stop=False, unheard=False)


def _with_saved_bytes(case: Case, found: FoundMistake) -> FoundMistake:
    """With the bytes of a rank that the cure frees, or gives a server's cache, where a plan can say it."""
    if not found.changes or case.answer is None:
        return found
    cured = case.ask(found.changes)
    if cured is None:
        return found
    found = _with_worse_verdict(case.answer, cured, found)
    if case.request.get("task") == "infer":
        return replace(found, gains_bytes=cache_bytes(cured) - cache_bytes(case.answer))
    return replace(found, saves_bytes=device_bytes(case.answer) - device_bytes(cured))


SURE_FIRST = (Result.FITS, Result.UNCERTAIN, Result.DOES_NOT_FIT)


def _with_worse_verdict(answer: Answer, cured: Answer, found: FoundMistake) -> FoundMistake:
    """With what a cure makes of the verdict, where that is worse than without it."""
    before, after = answer.verdict, cured.verdict
    if before is None or after is None or SURE_FIRST.index(after.result) <= SURE_FIRST.index(before.result):
        return found
    worse = "it does not fit" if after.result is Result.DOES_NOT_FIT else "whether it fits is uncertain"
    most = format_bytes(int(after.device.high))
    return replace(found, cure=f"{found.cure} (then {worse}: up to {most} a GPU)")


def _saves_enough(case: Case, found: FoundMistake) -> bool:
    return case.answer is not None and (found.saves_bytes or 0) * SHARE_WORTH_TELLING > device_bytes(
        case.answer
    )


__all__ = ["SERVED", "TRAINING", "Case", "FoundMistake", "Rule", "find_mistakes", "rules_of_kind"]
