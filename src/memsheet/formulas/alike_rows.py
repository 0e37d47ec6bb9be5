"""Plans of a stratum whose layers run in different ways, taken apart for what asks how they run: each part is
worked out by itself, and what comes of it laid together again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from memsheet.arith import NotAlike, is_array
from memsheet.frozen import fields, replace
from memsheet.plan.plan import Plan

T = TypeVar("T")


Alike = list[tuple[Any, Plan]]
"""Plans of a stratum that run alike, and the places that they have in it; None where that is all of them."""
_recent = deque[tuple[Plan, Alike]](maxlen=4)


def _alike_parts(plan: Plan) -> Alike:
    """The parts that a plan has been found to have so far: it is asked about again and again."""
    found = next((parts for known, parts in _recent if known is plan), None)
    if found is None:
        found = [(None, plan)]
        _recent.appendleft((plan, found))
    return found


def by_alike_rows(plan: Plan, make: Callable[[Plan], T], join: Callable[[list[T], list[Any]], T]) -> T:
    """What ``make`` makes of a plan. Of a stratum whose plans a formula tells apart (``agreed``) it is made
    of those that are alike, part by part; ``join`` lays the parts together, given the places of each one's
    plans. Raises ValueError where they cannot be laid together.
    """
    parts, found = _alike_parts(plan), list[T]()
    while len(found) < len(parts):
        places, own = parts[len(found)]
        try:
            found.append(make(own))
        except NotAlike as differ:
            parts[len(found) : len(found) + 1] = [
                (which if places is None else places[which], plan_of_rows(own, which))
                for which in (differ.condition.nonzero()[0], (~differ.condition).nonzero()[0])
            ]
    return found[0] if len(found) == 1 else join(found, [places for places, _ in parts])


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
