"""Where steps begin in a history, and what grows from one to the next.

A step is known by an allocation of one stack and size that comes again at even distances, between which the
run is in more than one instant: layers come again at even distances too, but within one forward.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from memsheet.arith import fitted_line
from memsheet.diagnose.snapshot.held import Meanings, Run
from memsheet.diagnose.snapshot.history import ALLOC
from memsheet.frozen import NamedTuple
from memsheet.sheet import Instant

LEAST, MOST = 4, 32
"""Steps of growth that are no accident; steps that are looked at."""
EVEN = 5
"""A distance may differ from the mean by one part in so many."""
STRAIGHT = 0.9
"""R² of a line through what is live, from which growth is steady."""
WARM = 2
"""First steps, in which states, caches and workspaces are made."""


class Growth(NamedTuple):
    """The least that is live within each step: what outlives it. ``line``: the line whose live bytes grow
    most, and by how much of ``bytes_per_step``; ``component`` of it.
    """

    steps: int
    first_bytes: int
    last_bytes: int
    bytes_per_step: int
    line: str
    component: str
    line_bytes_per_step: int


def step_places(run: Run, meanings: Meanings) -> tuple[int, ...]:
    """The event at which each step passes the same place; empty where no step is to be seen."""
    events, found = run.history.events, dict[tuple[int, int], list[int]]()
    for place in range(run.end):
        if events.action[place] == ALLOC:
            found.setdefault((events.stack[place], events.size[place]), []).append(place)
    even = [places for places in found.values() if _is_even(places, run.end)]
    if not even:
        return ()
    counts = Counter(len(places) for places in even)
    for count, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        places = next(each for each in even if len(each) == count)
        if _changes_instant(run, meanings, places):
            return tuple(places)
    return ()


def _is_even(places: Sequence[int], end: int) -> bool:
    """Whether distances are alike but for the first, cover a third of the history and reach to its end."""
    if len(places) < 2:
        return False
    tail = places[1:] if len(places) > LEAST else places
    gaps = [b - a for a, b in itertools.pairwise(tail)]
    mean = sum(gaps) / len(gaps)
    covers = (places[-1] - places[0]) * 3 >= end and end - places[-1] <= 2 * mean
    return covers and mean > 1 and all(abs(gap - mean) * EVEN <= mean for gap in gaps)


def _changes_instant(run: Run, meanings: Meanings, places: Sequence[int]) -> bool:
    """Whether every step has a forward and something that is none."""
    events = run.history.events
    for start, end in list(itertools.pairwise(places))[-LEAST:]:
        made = {events.stack[place] for place in range(start, end) if events.action[place] == ALLOC}
        seen = {meanings.instant_of(stack) for stack in made}  # what is let go may have no stack
        if Instant.FORWARD not in seen or seen.isdisjoint(
            {Instant.BACKWARD, Instant.LOSS, Instant.OPTIMIZER_STEP}
        ):
            return False
    return True


def steady_growth(run: Run, meanings: Meanings, places: Sequence[int]) -> Growth | None:
    """What grows from step to step, where it does so by about the same; None where nothing does. Longer steps
    than those before hold more at their highest, and no more at their lowest.
    """
    lowest = _lowest_places(run, places[-MOST:])
    kept = lowest[WARM:] if len(lowest) >= LEAST + WARM else lowest
    if len(kept) < LEAST:
        return None
    totals, by_stack = _live_at_places(run, kept)
    slope, straight = fitted_line(totals)
    if slope <= 0 or straight < STRAIGHT or slope * len(totals) * 1000 < totals[-1]:
        return None
    grown = {stack: by_stack[-1].get(stack, 0) - by_stack[0].get(stack, 0) for stack in by_stack[-1]}
    lines: dict[tuple[str, str], int] = {}
    for stack, size in grown.items():
        meaning = meanings.meaning_of(stack)
        key = meaning.line or ("backward" if meanings.has_stacks else ""), meaning.component
        lines[key] = lines.get(key, 0) + size
    (line, component), size = max(lines.items(), key=lambda pair: pair[1])
    between = len(kept) - 1
    return Growth(
        steps=len(kept), first_bytes=totals[0], last_bytes=totals[-1], bytes_per_step=int(slope), line=line, component=component,
        line_bytes_per_step=size // between,
    )  # fmt: skip


def _lowest_places(run: Run, places: Sequence[int]) -> list[int]:
    """Before which event least is live, of each whole step."""
    events, found = run.history.events, list[int]()
    if len(places) < 2:
        return found
    sizes = {address: each.size for address, each in run.before.items()}
    total, least, where, following = sum(sizes.values()), 0, places[0], 0
    for place in range(places[-1]):
        if place == places[following]:
            if following:
                found.append(where)
            least, where, following = total, place, following + 1
        action = events.action[place]
        if action == ALLOC:
            sizes[events.address[place]] = events.size[place]
            total += events.size[place]
        elif action == run.frees:
            total -= sizes.pop(events.address[place], 0)
            if following and total < least:
                least, where = total, place + 1
    return [*found, where]


def _live_at_places(run: Run, places: Sequence[int]) -> tuple[list[int], list[dict[int, int]]]:
    """What is live at each place, in all and by stack."""
    events, held = (
        run.history.events,
        {address: (each.size, each.stack) for address, each in run.before.items()},
    )
    total, of_stack = sum(size for size, _ in held.values()), dict[int, int]()
    for size, stack in held.values():
        of_stack[stack] = of_stack.get(stack, 0) + size
    totals, stacks, wanted = list[int](), list[dict[int, int]](), set(places)
    for place in range(places[-1] + 1):
        if place in wanted:
            totals.append(total)
            stacks.append(dict(of_stack))
        action = events.action[place]
        if action == ALLOC:
            size, stack = events.size[place], events.stack[place]
            held[events.address[place]] = size, stack
        elif action == run.frees:
            size, stack = held.pop(events.address[place], (0, 0))
            size = -size
        else:
            continue
        total += size
        of_stack[stack] = of_stack.get(stack, 0) + size
    return totals, stacks
