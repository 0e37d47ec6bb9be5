"""What is live at a moment of a history, and what it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memsheet.diagnose.snapshot.categories import Meaning, stack_meaning
from memsheet.diagnose.snapshot.history import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GROWS,
    OOM,
    SHRINKS,
    History,
)
from memsheet.frozen import NamedTuple, dataclass
from memsheet.sheet import Component, Instant

UNKNOWN = Component.UNEXPLAINED.value
TORN = 20
"""Of the requests one part in so many may lack its release: blocks are of a moment later than events."""
BACKWARD_REST = Component.TEMPORARIES.value


class Live(NamedTuple):
    """A block that is live: bytes as requested, its stack and its component's number (0: by the stack);
    whether it lies in a private pool.
    """

    size: int
    stack: int
    category: int
    stream: int = 0
    private: bool = False


class Group(NamedTuple):
    """Live blocks of one component, or of one line of it."""

    component: str
    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A history gone through once. ``before``: blocks by address that were there before it begins;
    ``before_reserved``: segments then; ``death``: the place of the last request that failed, None where none
    did; ``failures``: how many did; ``frees``: the action by which a block is let go; ``torn``: whether
    events are missing, by what should be there at the end.
    """

    history: History
    before: dict[int, Live]
    before_reserved: int
    death: int | None
    failures: int
    frees: int
    torn: bool = False

    @property
    def end(self) -> int:
        """The place before which things are told: that of the death, or the end."""
        return len(self.history.events) if self.death is None else self.death


def run_of(history: History) -> Run:
    """What was there before, and where it died."""
    events = history.events
    frees = FREE_COMPLETED if FREE_COMPLETED in events.action else FREE_REQUESTED
    made, before = set[int](), dict[int, Live]()
    change, death, failures, count, lost = 0, None, 0, 0, 0
    for place, action in enumerate(events.action):
        if action == ALLOC:
            count, lost = count + 1, lost + (events.address[place] in made)
            made.add(events.address[place])
        elif action == frees:
            address = events.address[place]
            if address in made:
                made.discard(address)
            elif address not in before:
                stream, private = events.stream[place], bool(events.private[place])
                before[address] = Live(events.size[place], 0, 0, stream, private)
        elif action in GROWS:
            change += events.size[place]
        elif action in SHRINKS:
            change -= events.size[place]
        elif action == OOM:
            death, failures = place, failures + 1
    there = dict(_blocks_at_end(history))
    before |= {address: held for address, held in there.items() if address not in made}
    lost += len(made - there.keys())
    return Run(
        history=history, before=before, torn=lost * TORN > count, before_reserved=max(0, history.reserved_end - change), death=death, failures=failures, frees=frees,
    )  # fmt: skip


def _blocks_at_end(history: History) -> Iterator[tuple[int, Live]]:
    for segment in history.segments:
        address = segment.address
        for block in segment.blocks:
            place = address if block.address is None else block.address
            if block.active:
                yield (
                    place,
                    Live(block.requested or block.size, block.stack, 0, segment.stream, segment.private),
                )
            address = place + block.size


def live_at(run: Run, end: int) -> dict[int, Live]:
    """The live blocks by address before the event ``end``."""
    events = run.history.events
    live = dict(run.before)
    for place in range(end):
        action = events.action[place]
        if action == ALLOC:
            live[events.address[place]] = Live(
                events.size[place],
                events.stack[place],
                events.category[place],
                events.stream[place],
                bool(events.private[place]),
            )
        elif action == run.frees:
            live.pop(events.address[place], None)
    return live


def highest_place(run: Run) -> int:
    """Behind which event most is live, plus one: the place to look at where nothing failed."""
    events, held, most, where = run.history.events, sum(each.size for each in run.before.values()), 0, 0
    sizes = {address: each.size for address, each in run.before.items()}
    for place, action in enumerate(events.action):
        if action == ALLOC:
            sizes[events.address[place]] = events.size[place]
            held += events.size[place]
            if held > most:
                most, where = held, place + 1
        elif action == run.frees:
            held -= sizes.pop(events.address[place], 0)
    return where


def reserved_at(run: Run, end: int) -> int:
    """Segments before the event ``end``, in bytes."""
    events, held = run.history.events, run.before_reserved
    for place in range(end):
        action = events.action[place]
        held += events.size[place] if action in GROWS else -events.size[place] if action in SHRINKS else 0
    return held


class Meanings:
    """What each stack of a history is for, found once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.found: dict[int, Meaning] = {}
        self.has_stacks = len(history.stacks) > 1

    def meaning_of(self, stack: int) -> Meaning:
        if stack not in self.found:
            self.found[stack] = stack_meaning(self.history.stacks[stack])
        return self.found[stack]

    def component_of(self, held: Live) -> str:
        named = self.history.categories[held.category]
        if named:
            return named
        found = self.meaning_of(held.stack).component
        return "" if not held.stack and self.has_stacks else found

    def instant_of(self, stack: int) -> Instant | None:
        return self.meaning_of(stack).instant if stack else Instant.BACKWARD if self.has_stacks else None


def live_components(live: dict[int, Live], meanings: Meanings) -> dict[int, str]:
    """The component of each block by its address. What backward made and is as large as a weight is its
    gradient, one for each.
    """
    found = {address: meanings.component_of(held) for address, held in live.items()}
    weights = Counter(
        live[address].size for address, name in found.items() if name == Component.PARAMETERS.value
    )
    for address, name in found.items():
        if not name:
            size = live[address].size
            found[address] = Component.GRADIENTS.value if weights[size] > 0 else BACKWARD_REST
            weights[size] -= 1
    return found


def live_groups(live: dict[int, Live], meanings: Meanings) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """What is live by component, and by component and line, the largest first."""
    components = live_components(live, meanings)
    of_components: dict[str, list[int]] = {}
    of_lines: dict[tuple[str, str], list[int]] = {}
    for address, held in live.items():
        name = components[address]
        line = (
            meanings.meaning_of(held.stack).line
            if held.stack
            else "backward"
            if meanings.has_stacks and not held.category
            else ""
        )
        for row in (of_components.setdefault(name, [0, 0]), of_lines.setdefault((name, line), [0, 0])):
            row[0] += held.size
            row[1] += 1
    by_size = sorted(of_components.items(), key=lambda pair: -pair[1][0])
    lines = sorted(of_lines.items(), key=lambda pair: -pair[1][0])
    return (
        tuple(Group(name, "", size, blocks) for name, (size, blocks) in by_size),
        tuple(Group(name, line, size, blocks) for (name, line), (size, blocks) in lines),
    )
