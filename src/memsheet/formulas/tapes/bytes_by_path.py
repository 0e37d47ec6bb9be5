"""Bytes by component and path: what is there at a moment, added up, and the largest of several moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, Protocol, TypeVar

from memsheet.arith import Count, holds_for_any, is_array, is_symbol, maximum, where
from memsheet.frozen import dataclass, fields
from memsheet.sheet import Component

Key = tuple[Component, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class BytesByPath:
    """Bytes by component and path, with their sum."""

    held: dict[Key, Count]
    total: Count

    @classmethod
    def of(cls, pairs: Iterable[tuple[Key, Count]]) -> BytesByPath:
        every = list(pairs)
        held = dict(every)
        if len(held) < len(every):  # several under one name
            held = {}
            for key, size in every:
                held[key] = held[key] + size if key in held else size
        return cls(held, _sum_counts(list(held.values())))

    def with_rows(self, rows: Iterable[tuple[Key, Count]]) -> BytesByPath:
        """With other sizes under names that it has."""
        held = {**self.held, **BytesByPath.of(rows).held}
        return BytesByPath(held, _sum_counts(list(held.values())))

    def part(self, key: Key) -> tuple[Count, Any]:
        """Bytes under one name, and whether there is such a part: a bool, or one for each plan of a
        stratum.
        """
        return self.held.get(key, 0), key in self.held


class Later(BytesByPath):
    """A bag whose parts are worked out when they are asked for: of many moments one is the largest, and a
    search mostly reads no part.

    ``make`` gives all parts; ``pick`` one of them, and which plans have it, where that is less work.
    """

    __slots__ = ("_made", "_make", "_pick")
    _make: Callable[[], dict[Key, Count]]
    _pick: Callable[[Key], tuple[Count, Any]] | None
    _made: dict[Key, Count] | None

    def __init__(
        self,
        make: Callable[[], dict[Key, Count]],
        pick: Callable[[Key], tuple[Count, Any]] | None,
        total: Count,
    ) -> None:
        keep = object.__setattr__
        keep(self, "total", total)
        keep(self, "_make", make)
        keep(self, "_pick", pick)
        keep(self, "_made", None)

    @property
    def held(self) -> dict[Key, Count]:
        if self._made is None:
            object.__setattr__(self, "_made", self._make())
        return self._made or {}

    def part(self, key: Key) -> tuple[Count, Any]:
        return self._pick(key) if self._pick is not None else (self.held.get(key, 0), key in self.held)


EMPTY = BytesByPath({}, 0)
Moment = Sequence[tuple[Count, BytesByPath]]
"""What is resident at one moment: bags, each taken some number of times."""


def moment_total_bytes(moment: Moment) -> Count:
    """Bytes of a moment, without multiplying by one or adding nothing to arrays."""
    whole, arrays = 0, None
    for times, bag in moment:
        size = bag.total if type(times) is int and times == 1 else times * bag.total
        if type(size) is int:
            whole += size
        else:
            arrays = size if arrays is None else arrays + size
    if arrays is None:
        return whole
    return arrays + whole if whole else arrays


def _sum_counts(sizes: list[Count]) -> Count:
    """The sum, without adding nothing to arrays."""
    if {*map(type, sizes)} <= WHOLE:
        return sum(sizes)
    whole, arrays = 0, None
    for size in sizes:
        if type(size) is int:
            whole += size
        else:
            arrays = size if arrays is None else arrays + size
    return arrays + whole if whole else arrays  # type: ignore[return-value, operator]


WHOLE = {int}


def merge_moment(moment: Moment) -> BytesByPath:
    """A moment as one bag."""
    total = moment_total_bytes(moment)
    if type(total) is not int and is_array(total):
        return _deferred_moment(moment, total)
    held = _merge_by_key(moment)
    return BytesByPath(held, total if type(total) is int else _sum_counts(list(held.values())))


def bundle_moment(moment: Moment) -> Moment:
    """A moment as one bag, so that what is laid on top adds it up once."""
    total = moment_total_bytes(moment)
    return [(1, _deferred_moment(moment, total))] if type(total) is int or is_array(total) else moment


def _deferred_moment(moment: Moment, total: Count) -> Later:
    return Later(
        partial(_merge_by_key, moment), None if type(total) is int else partial(_merged_part, moment), total
    )


def _merge_by_key(moment: Moment) -> dict[Key, Count]:
    held: dict[Key, Count] = {}
    for times, bag in moment:
        once = type(times) is int and times == 1
        for key, one in bag.held.items():
            size = one if once else times * one
            held[key] = held[key] + size if key in held else size
    return held


def _merged_part(moment: Moment, key: Key) -> tuple[Count, Any]:
    parts = [(times, *bag.part(key)) for times, bag in moment]
    return sum([times * size for times, size, there in parts if there is not False]), reduce(
        or_, [there for _, _, there in parts], False
    )


def largest_moment_rows(moments: Sequence[Moment]) -> BytesByPath:
    """The moment with the most bytes, as one bag; element by element where counts are arrays."""
    totals = [moment_total_bytes(m) for m in moments]
    if {*map(type, totals)} <= WHOLE:
        best = moments[totals.index(max(totals))]
        return best[0][1] if len(best) == 1 and best[0][0] == 1 else merge_moment(best)
    if is_symbol(*totals):  # which of them it is, no symbol says
        return BytesByPath.of([((Component.TEMPORARIES, "largest"), reduce(maximum, totals))])
    which = partial(_largest_moment_masks, totals)
    return Later(
        partial(_largest_bytes_by_key, tuple(moments), which),
        partial(_chosen_part, tuple(moments), which),
        reduce(maximum, totals),
    )


Winners = Callable[[], Sequence[tuple[int, Any]]]


def _largest_moment_masks(totals: list[Count]) -> Sequence[tuple[int, Any]]:
    """Which of several moments holds most, the first of equals: those that do for some plans, and for
    which.
    """
    best: Any = (
        totals[0] + next(size for size in totals if type(size) is not int) * 0
    )  # an array, as all that it is compared with
    masks = list[tuple[int, Any]]()
    for number, size in enumerate(totals[1:], start=1):
        wins: Any = size > best
        if holds_for_any(wins):
            masks.append((number, wins))
            best = maximum(best, size)
    later: Any = False
    found = list[tuple[int, Any]]()
    for number, wins in reversed(masks):
        own = wins & ~later if later is not False else wins
        if holds_for_any(own):
            found.append((number, own))
            later = later | wins
    rest: Any = True if later is False else ~later
    return [(0, rest), *reversed(found)] if rest is True or holds_for_any(rest) else list(reversed(found))


def _chosen_part(moments: Sequence[Moment], which: Winners, key: Key) -> tuple[Count, Any]:
    (first, _), *others = which()
    chosen, there = _merged_part(moments[first], key)
    for number, wins in others:
        found, here = _merged_part(moments[number], key)
        if there is not False or here is not False:
            chosen, there = where(wins, found, chosen), where(wins, here, there)
    return chosen, there


def _largest_bytes_by_key(moments: Sequence[Moment], which: Winners) -> dict[Key, Count]:
    (first, _), *others = which()
    chosen = merge_moment(moments[first]).held
    for number, wins in others:
        bag = merge_moment(moments[number]).held
        chosen = {key: _select_count(wins, bag.get(key, 0), chosen.get(key, 0)) for key in {**chosen, **bag}}
    return chosen


def _select_count(condition: Any, a: Count, b: Count) -> Count:
    """As ``where``; what both have stays itself, so that it can be told from what differs."""
    return a if a is b else where(condition, a, b)


class Together(Protocol):
    """How parts of a stratum are laid together: a count of each as one of all plans."""

    def together(self, sizes: Sequence[Any]) -> Any: ...


def bags_laid_together(bags: Sequence[BytesByPath], parts: Together) -> BytesByPath:
    """Bags of parts of a stratum as one of all of its plans."""
    if all(bag is EMPTY for bag in bags):
        return EMPTY
    total = parts.together([bag.total for bag in bags])
    return Later(partial(_keys_laid_together, bags, parts), partial(_key_laid_together, bags, parts), total)


def fields_laid_together(found: Sequence[T], parts: Together) -> T:
    """Objects whose fields are bags, laid together field by field."""
    first: Any = found[0]
    return first.__class__(  # type: ignore[no-any-return]
        **{f.name: bags_laid_together([getattr(one, f.name) for one in found], parts) for f in fields(first)}
    )


def _keys_laid_together(bags: Sequence[BytesByPath], parts: Together) -> dict[Key, Count]:
    keys = dict.fromkeys(key for bag in bags for key in bag.held)
    return {key: parts.together([bag.held.get(key, 0) for bag in bags]) for key in keys}


def _key_laid_together(bags: Sequence[BytesByPath], parts: Together, key: Key) -> tuple[Count, Any]:
    sizes, there = zip(*(bag.part(key) for bag in bags), strict=True)
    return parts.together(sizes), parts.together(there)
