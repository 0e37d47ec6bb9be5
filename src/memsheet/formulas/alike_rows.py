"""Plans of a stratum whose layers run in different ways, taken apart for what asks how they run: each part is
worked out by itself, and what comes of it laid together again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from memsheet.arith import NotAlike, is_array
from memsheet.frozen import fields, replace
from memsheet.plan.plan import Plan

T = TypeVar("T")


def by_alike_rows(plan: Plan, make: Callable[[Plan], T], join: Callable[[list[T], list[Any]], T]) -> T:
    """What ``make`` makes of a plan. Of a stratum whose plans a formula tells apart (``agreed``) it is made
    of those that are alike, part by part; ``join`` lays the parts together, given the places of each one's
    plans. Raises ValueError where they cannot be laid together.
    """
    rows, found = _made_of_alike(plan, make)
    return found[0] if len(found) == 1 else join(found, rows)


def _made_of_alike(plan: Plan, make: Callable[[Plan], T]) -> tuple[list[Any], list[T]]:
    try:
        return [], [make(plan)]
    except NotAlike as differ:
        condition = differ.condition
    rows, found = list[Any](), list[T]()
    for which in (condition.nonzero()[0], (~condition).nonzero()[0]):
        inner, made = _made_of_alike(plan_of_rows(plan, which), make)
        rows += [which[places] for places in inner] or [which]
        found += made
    return rows, found


def plan_of_rows(plan: Plan, which: Any) -> Plan:
    """Some plans of a stratum; a count that all of them share is a plain number."""
    inner = {
        name: _counts_of_rows(getattr(plan, name), which)
        for name in ("mesh", "workload", "routing")
        if getattr(plan, name) is not None
    }
    return _counts_of_rows(replace(plan, **inner), which)


def _counts_of_rows(held: Any, which: Any) -> Any:
    columns = {f.name: getattr(held, f.name) for f in fields(held)}
    return replace(
        held, **{name: _shared_count(column[which]) for name, column in columns.items() if is_array(column)}
    )


def _shared_count(column: Any) -> Any:
    return int(column[0]) if (column == column[0]).all() else column
