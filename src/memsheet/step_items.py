"""The items of an accounted step, made when somebody reads them, and what they add up to before that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from memsheet.arith import Count, is_array, maximum, minimum
from memsheet.plan.engine import Engine
from memsheet.references import DERIVATIVES, ZERO
from memsheet.sheet import (
    NOTHING,
    ByComponent,
    Bytes,
    Cited,
    Component,
    Derived,
    Evidence,
    Instant,
    Item,
    LaterItems,
    sum_byte_ranges,
)

if TYPE_CHECKING:
    from memsheet.formulas.step import Trained
    from memsheet.formulas.tapes.bytes_by_path import BytesByPath, Key

EVIDENCE: dict[Component, Evidence] = {
    **dict.fromkeys(
        (Component.PARAMETERS, Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES),
        Cited(ZERO, "section 3.1"),
    ),
    Component.SAVED_ACTIVATIONS: Cited(DERIVATIVES, "what each operation saves for its backward"),
    Component.TEMPORARIES: Cited(DERIVATIVES, "what each operation's backward allocates"),
}

NO_RANGES: Mapping[Key, tuple[Count, Count]] = MappingProxyType({})


def step_items(step: Trained, engine: Engine, outside: Sequence[Item]) -> LaterItems:
    """The items of a step and those ``outside`` its tensors."""

    def make() -> list[Item]:
        alike = step.low is None or step.high is None
        tensors = bag_items(step.bags, engine, step.kept.ranges) if alike else _ranged_items(step, engine)
        return [*tensors, *outside]

    return LaterItems(make, _step_sums(step, outside))


def _step_sums(step: Trained, outside: Sequence[Item]) -> ByComponent:
    """What those items add up to."""
    found: ByComponent = {}
    for instant in Instant:
        if instant in step.bags:
            row = found[instant] = _component_sums(step, instant)
            for item in outside:
                if (size := item.at.get(instant)) is not None:
                    before = row.get(item.component)
                    row[item.component] = size if before is None else before + size
    return {instant: row for instant, row in found.items() if row}


def _component_sums(step: Trained, instant: Instant) -> dict[Component, Bytes]:
    """Bytes of the tensors of an instant by component, each with the ends of its range."""
    held, ranges = step.bags[instant].held, step.kept.ranges
    if step.low is not None and step.high is not None:
        return _ranged_sums(held, step.low[instant].held, step.high[instant].held, ranges)
    sums = defaultdict[Component, Count](int)
    for (component, _), size in held.items():
        sums[component] += size
    row = {component: Bytes(size, size, size) for component, size in sums.items()}
    for key in ranges:
        if key in held:
            size, of = held[key], row[key[0]]
            one = ordered_byte_range(size, *ranges[key])
            row[key[0]] = Bytes(of.low - (size - one.low), of.value, of.high + (one.high - size))
    return row


def _ranged_sums(
    held: Mapping[Key, Count],
    low: Mapping[Key, Count],
    high: Mapping[Key, Count],
    ranges: Mapping[Key, tuple[Count, Count]],
) -> dict[Component, Bytes]:
    """Bytes by component of what is ``held``, with the ends that the same parts have in two other accounts of
    the step, or in ``ranges``.
    """
    none: dict[Key, Count] = dict.fromkeys({**held, **high}, 0)
    sizes, lows, highs = {**none, **held}, {**none, **low}, {**none, **high}
    sums = defaultdict[Component, tuple[Count, Count, Count]](lambda: (0, 0, 0))
    for key in none:
        size, least, most = sizes[key], lows[key], highs[key]
        if key in ranges:
            least, most = ranges[key]
        if not type(size) is type(least) is type(most) is int or not least == size == most:
            least, most = minimum(least, size), maximum(most, size)
        elif not size:
            continue
        below, value, above = sums[key[0]]
        sums[key[0]] = below + least, value + size, above + most
    return {component: Bytes(*ends) for component, ends in sums.items()}


def bag_items(
    bags: Mapping[Instant, BytesByPath], engine: Engine, ranges: Mapping[Key, tuple[Count, Count]] = NO_RANGES
) -> list[Item]:
    """Every (component, path) with its bytes at the instants where it is resident; ``ranges`` of those that
    are not exactly known.
    """
    rows: dict[Key, dict[Instant, Bytes]] = {}
    made: dict[Count, Bytes] = {}  # most sizes stand at several instants
    for instant, bag in bags.items():
        for key, size in bag.held.items():
            row = rows.setdefault(key, {})
            if ranges and key in ranges:
                row[instant] = ordered_byte_range(size, *ranges[key])
            elif type(size) is int:
                row[instant] = made.get(size) or made.setdefault(size, Bytes(size, size, size))
            else:
                row[instant] = Bytes(size, size, size)
    evidence = {
        component: _component_evidence(component, engine)
        for component in {component for component, _ in rows}
    }
    return [Item(component, path, at, evidence[component]) for (component, path), at in rows.items()]


def ended_gradients(step: Trained) -> Bytes:
    """Gradients when backward has ended."""
    rows = [
        row
        for bag in (step.kept.states, step.kept.gradients)
        for row in bag.held.items()
        if row[0][0] is Component.GRADIENTS
    ]
    if step.kept.ranges.keys().isdisjoint([key for key, _ in rows]):
        return Bytes.exact(sum([size for _, size in rows]))
    return sum_byte_ranges(
        ordered_byte_range(size, *step.kept.ranges.get(key, (size, size))) for key, size in rows
    )


def ranged_sizes(step: Trained) -> Iterator[tuple[Instant, Bytes, Any]]:
    """Sizes that are a range, instant by instant, and the plans where they are there."""
    if step.low is not None and step.high is not None:
        for instant, bag in step.bags.items():
            yield from (
                (instant, size, True)
                for size in _ranged_bag_parts(bag, step.low[instant], step.high[instant], step.kept.ranges)
            )
        return
    for key, ends in step.kept.ranges.items():
        for instant, bag in step.bags.items():
            value, there = bag.part(key)
            if there is not False:
                yield instant, ordered_byte_range(value, *ends), there


def _ranged_bag_parts(
    bag: BytesByPath, low: BytesByPath, high: BytesByPath, ranges: Mapping[Key, tuple[Count, Count]]
) -> Iterator[Bytes]:
    """Parts of a bag whose range is that of two others, without those that are the same in all."""
    value, least, most = bag.held, low.held, high.held
    for key in {**value, **most}:
        size, ends = value.get(key, 0), ranges.get(key) or (least.get(key, 0), most.get(key, 0))
        if size is not ends[0] or size is not ends[1]:
            yield ordered_byte_range(size, *ends)


def _ranged_items(step: Trained, engine: Engine) -> list[Item]:
    """Items whose range is that of two other accounts of the same step; what only one of them has is a range
    from nothing.
    """
    low, high = step.low or step.bags, step.high or step.bags
    keys = {key: None for bag in (*step.bags.values(), *high.values()) for key in bag.held}
    evidence = {component: _component_evidence(component, engine) for component, _ in keys}
    items = []
    for key in keys:
        ends = step.kept.ranges.get(key)
        at = {}
        for instant, bag in step.bags.items():
            if key not in bag.held and key not in high[instant].held:
                continue
            least, most = ends or (low[instant].held.get(key, 0), high[instant].held.get(key, 0))
            size = ordered_byte_range(bag.held.get(key, 0), least, most)
            if is_array(size.value) or is_array(size.high) or size != NOTHING:
                at[instant] = size
        items.append(Item(*key, at, evidence[key[0]]))
    return items


def ordered_byte_range(value: Count, low: Count, high: Count) -> Bytes:
    return Bytes(minimum(low, value), value, maximum(high, value))


def _component_evidence(component: Component, engine: Engine) -> Evidence:
    return (
        engine.evidence.get(component.value)
        or EVIDENCE.get(component)
        or Derived(f"the engine's own buffers ({engine.name} {engine.tested})")
    )
