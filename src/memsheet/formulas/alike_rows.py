"""Plans of a stratum whose layers run in different ways, taken apart for what asks how they run: each part is
worked out by itself, once for plans that have the same counts, and what comes of it laid together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from memsheet.arith import NotAlikeError, holds_for_all, is_array, is_symbol, mixed_stratum, row_codes
from memsheet.frozen import dataclass, field_values, fields, replace
from memsheet.plan.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class AlikeParts:
    """A plan in parts that run alike. ``order``: the place that each of its plans has in all parts' plans,
    laid one after another; None where there is one part, which is the plan itself.
    """

    plans: tuple[Plan, ...]
    lengths: tuple[int, ...]
    order: Any = None

    def split(self, number: int, condition: Any) -> AlikeParts:
        """Two parts in place of one: where a condition holds, and where it does not."""
        condition = _of_every_end(condition)
        space, told = condition.__array_namespace__(), (condition.nonzero()[0], (~condition).nonzero()[0])
        before, size, after = sum(self.lengths[:number]), self.lengths[number], slice(number + 1, None)
        place = space.arange(sum(self.lengths))
        place[space.concat(told) + before] = space.arange(before, before + size)
        parts = (plan_of_rows(self.plans[number], which) for which in told)
        return AlikeParts(
            (*self.plans[:number], *parts, *self.plans[after]),
            (*self.lengths[:number], *map(len, told), *self.lengths[after]),
            place if self.order is None else place[self.order],
        )

    def together(self, sizes: Sequence[Any]) -> Any:
        """Counts, or truths, of the parts as those of all plans; a number where it is the same everywhere."""
        first = sizes[0]
        if not is_array(first) and all(type(size) is type(first) and size == first for size in sizes[1:]):
            return first
        space = self.order.__array_namespace__()
        depths = {size.shape[:-1] for size in sizes if is_array(size)}
        depth = max(depths, key=len, default=())
        columns = [
            space.broadcast_to(space.asarray(size), (*depth, length))
            for size, length in zip(sizes, self.lengths, strict=True)
        ]
        return (columns[0] if len(columns) == 1 else space.concat(columns, axis=-1))[..., self.order]


def _of_every_end(condition: Any) -> Any:
    """A condition of plans, also where it was asked at each end of their routing. Raises ValueError where it
    holds at some of them.
    """
    if condition.ndim > 1:
        if not holds_for_all(condition == condition[:1]):
            mixed_stratum()
        return condition[0]
    return condition


def hash_of_single(plan: Plan) -> int | None:
    """The hash of a plan; None where counts of it are arrays, which have none."""
    try:
        return hash(plan)
    except TypeError:
        return None


PlanCode = tuple[int, Any]
"""What tells a plan from others: a hash, and the single plan itself, or of a stratum everything in it, arrays
as their bytes.
"""


def plan_code(plan: Plan) -> PlanCode:
    """Equal for plans that are, arrays in them place by place."""
    number = hash_of_single(plan)
    if number is not None:
        return number, plan
    codes = _field_codes(plan)
    return hash(codes), codes


def _field_codes(held: Any) -> tuple[Any, ...]:
    return tuple([value if type(value) in NO_COLUMNS else count_code(value) for value in field_values(held)])


def count_code(value: Any) -> Any:
    """Equal for counts, or fields of a plan, that are: arrays place by place, symbols by their text."""
    if is_array(value):
        return value.dtype.str, value.shape, value.tobytes()
    if is_symbol(value):
        return str(value)
    if not hasattr(value, "__own_fields__"):
        return value
    try:
        hash(value)
    except TypeError:
        return type(value), _field_codes(value)
    return value


FEW_PLANS = 64
"""Plans of a stratum for which it takes longer to find those that have the same counts."""
_recent: tuple[tuple[Plan, AlikeParts], ...] = ()
"""The parts that the last plans have been found to have: one is asked about again and again."""


def _distinct_plans(plan: Plan) -> AlikeParts:
    """One plan for all that have the same counts."""
    columns = [
        column for held in (plan, *_counted_fields(plan).values()) for column in _columns(held).values()
    ]
    size = max((len(column) for column in columns), default=1)
    if size <= FEW_PLANS:
        return AlikeParts((plan,), (size,))
    code = row_codes(columns)
    _, first, which, _ = code.__array_namespace__().unique_all(code)
    if 2 * len(first) > size:
        return AlikeParts((plan,), (size,))
    return AlikeParts((plan_of_rows(plan, first),), (len(first),), which)


def by_alike_rows(plan: Plan, make: Callable[[Plan], T], join: Callable[[list[T], AlikeParts], T]) -> T:
    """What ``make`` makes of a plan. Of a stratum whose plans a formula tells apart (``agreed``) it is made
    of those that are alike, part by part; ``join`` lays the parts together. Raises ValueError where they
    cannot be laid together.
    """
    global _recent  # noqa: PLW0603 - one value, replaced as a whole
    if hash_of_single(plan) is not None:
        return make(plan)
    before = next((parts for known, parts in _recent if known is plan), None)
    parts = before or _distinct_plans(plan)
    found = list[T]()
    while len(found) < len(parts.plans):
        try:
            found.append(make(parts.plans[len(found)]))
        except NotAlikeError as differ:
            parts = parts.split(len(found), differ.condition)
    if parts is not before:
        _recent = ((plan, parts), *_recent[:3])
    return found[0] if parts.order is None else join(found, parts)


def _counted_fields(plan: Plan) -> dict[str, Any]:
    """The fields of a plan that have counts of its own in them: the ends of a routing are those of all
    plans.
    """
    return {name: getattr(plan, name) for name in ("mesh", "workload")}


NO_COLUMNS = frozenset({int, float, bool, str, tuple, type(None)})


def _columns(held: Any) -> dict[str, Any]:
    return {
        f.name: column
        for f, column in zip(fields(held), field_values(held), strict=True)
        if type(column) not in NO_COLUMNS and is_array(column)
    }


def plan_of_rows(plan: Plan, which: Any) -> Plan:
    """Some plans of a stratum; a count that all of them share is a plain number."""
    inner = {name: _counts_of_rows(held, which) for name, held in _counted_fields(plan).items()}
    found: Plan = _counts_of_rows(replace(plan, **inner), which)
    return found


def _counts_of_rows(held: Any, which: Any) -> Any:
    return replace(held, **{name: _shared_count(column[which]) for name, column in _columns(held).items()})


def _shared_count(column: Any) -> Any:
    return int(column[0]) if holds_for_all(column == column[0]) else column
