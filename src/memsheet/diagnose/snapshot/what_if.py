"""The recorded requests through the simulated allocator: first as it was set, which must reproduce the
recorded segments, then as it could be set, on the memory that it had.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from memsheet.allocator.blocks import BUSY, Block, Pool, split_block
from memsheet.allocator.caching import allocate_block, free_block, play_requests
from memsheet.allocator.memory import release_all
from memsheet.allocator.plain_loop import has_plain_segments, play_plain_segments
from memsheet.allocator.settings import SMALL, SMALL_SEGMENT, Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.diagnose.snapshot.held import Run, live_at
from memsheet.diagnose.snapshot.history import (
    ALLOC,
    FREE_REQUESTED,
    GROWS,
    OTHER,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SHRINKS,
)
from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.units import MIB

SPLITS = (512 * MIB, 128 * MIB, 32 * MIB)
"""Sizes above which no block is split, the first that serves the request is told."""
MOST_REQUESTS, FEW_REQUESTS = 1_500_000, 200_000
"""Events beyond which nothing is replayed under other settings, and beyond which one size alone is tried."""
ENOUGH = (99, 100)
"""The share of segment events that the recorded settings must reproduce before others are believed."""


class Replayed(NamedTuple):
    """How well the recorded settings reproduce what was recorded: segment events by their bytes, and peaks of
    what is reserved. ``complete``: whether the history begins with an empty allocator.
    """

    matched: int
    events: int
    recorded_peak_bytes: int
    replayed_peak_bytes: int
    complete: bool

    @property
    def well_reproduced(self) -> bool:
        return self.matched * ENOUGH[1] >= self.events * ENOUGH[0]


class WhatIf(NamedTuple):
    """The same requests under other settings, or with more memory. ``lived``: whether the request that failed
    is served, and all before it; ``reserved_bytes``: the most, None where memory ran out.
    """

    change: str
    conf: str
    lived: bool
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Requests up to the one that failed, this one too: ``n`` is made, ``~n`` is let go. The first
    ``before`` of them were there when the history begins, by address.
    """

    events: array[int]
    sizes: array[int]
    streams: array[int]
    before: tuple[int, ...]


# ---- as it was set ---------------------------------------------------------------------------------------


def replay_recorded(run: Run) -> Replayed | None:
    """The simulation beside the history; None where its settings are not modelled."""
    if not run.history.known_settings:
        return None
    allocator = Allocator(run.history.settings)
    seeded = dict(_seeded_blocks(run, allocator))
    counted = _PlayedHistory(run, allocator, seeded)
    idle = FREE_REQUESTED if run.frees != FREE_REQUESTED else OTHER  # comes before a block is let go
    events = run.history.events
    rows = zip(events.action, events.address, events.size, events.stream, events.private, strict=True)
    for action, address, size, stream, private in islice(rows, run.end):
        if action != idle and not private:
            counted.play_event(action, address, size, stream)
    counted.settle_given()
    complete = run.before_reserved == 0 and not run.before
    return Replayed(counted.matched, counted.events, counted.recorded_peak, counted.replayed_peak, complete)


class _PlayedHistory:
    """A history played event by event, and how many of its segment events the simulation has, too."""

    def __init__(self, run: Run, allocator: Allocator, blocks: dict[int, Block]) -> None:
        self.run, self.allocator, self.blocks = run, allocator, blocks
        self.matched = self.events = 0
        self.recorded = self.recorded_peak = self.replayed_peak = run.before_reserved
        self.offset = run.before_reserved - allocator.reserved
        self.grown = self.grown_events = self.given = self.given_events = 0

    def play_event(self, action: int, address: int, size: int, stream: int) -> None:
        allocator = self.allocator
        if action in SHRINKS:
            self.given += size
            self.given_events += 1
            return
        if self.given_events:
            self.settle_given()
        if action == ALLOC:
            self.allocate_recorded(address, size, stream)
        elif action == self.run.frees:
            if (gone := self.blocks.pop(address, None)) is not None:
                free_block(allocator, gone)
        elif action in GROWS:
            self.grown += size
            self.grown_events += 1

    def allocate_recorded(self, address: int, size: int, stream: int) -> None:
        allocator = self.allocator
        rounded, had = block_bytes(size, allocator.settings), allocator.reserved
        if rounded:
            block = allocate_block(allocator, allocator.pool(stream, rounded), rounded)
            assert block is not None  # a device without end
            self.blocks[address] = block
        if self.grown or allocator.reserved != had:
            self.count_reproduced(self.grown, self.grown_events, allocator.reserved - had)
            self.recorded += self.grown
            self.grown = self.grown_events = 0
            self.recorded_peak = max(self.recorded_peak, self.recorded)
            self.replayed_peak = max(self.replayed_peak, allocator.reserved + self.offset)

    def settle_given(self) -> None:
        """Segments that went back have all been told: the simulation gives back all that it can."""
        if not self.given_events:
            return
        had = self.allocator.reserved
        release_all(self.allocator)
        self.count_reproduced(self.given, self.given_events, had - self.allocator.reserved)
        self.recorded -= self.given
        self.given = self.given_events = 0

    def count_reproduced(self, recorded: int, count: int, replayed: int) -> None:
        if recorded or replayed:
            self.events += max(count, 1)
            self.matched += count if recorded == replayed else 0


def _seeded_blocks(run: Run, allocator: Allocator) -> Iterator[tuple[int, Block]]:
    """The segments that were there before the history, cut as they were: the blocks of it by address."""
    if run.history.settings.expandable_segments:
        return
    places = sorted(address for address, each in run.before.items() if not each.private)
    for address, size, stream in _segments_before(run):
        pool = allocator.pool(stream, SMALL if size == SMALL_SEGMENT else SMALL + 1)
        inside = places[bisect_left(places, address) : bisect_left(places, address + size)]
        allocator.reserved += size
        yield from _cut_segment(allocator, allocator.segment(pool, size), address, inside, run)


def _cut_segment(
    allocator: Allocator, rest: Block, start: int, inside: list[int], run: Run
) -> Iterator[tuple[int, Block]]:
    pool, end, at = rest.pool, start + rest.size, start
    for number, place in enumerate(inside):
        if place > at:
            hole, rest = rest, split_block(rest, place - at)
            pool.put(hole)
            at = place
        following = inside[number + 1] if number + 1 < len(inside) else end
        size = min(block_bytes(run.before[place].size, allocator.settings), following - place)
        if following - place - size <= pool.keeps:  # a rest that was not split off
            size = following - place
        block, rest = rest, split_block(rest, size) if at + size < end else rest
        block.state = BUSY
        allocator.allocated += block.size
        at += size
        yield place, block
    if at < end:
        pool.put(rest)


def _segments_before(run: Run) -> Iterator[tuple[int, int, int]]:
    """Address, size and stream of the segments that the history finds."""
    events, made = run.history.events, set[int]()
    for place, action in enumerate(events.action):
        if action == SEGMENT_ALLOC:
            made.add(events.address[place])
        elif action == SEGMENT_FREE:
            if events.address[place] not in made and not events.private[place]:
                yield events.address[place], events.size[place], events.stream[place]
            made.discard(events.address[place])
    for segment in run.history.segments:
        if segment.address not in made and not segment.private and not segment.expandable:
            yield segment.address, segment.size, segment.stream


# ---- as it could be set ----------------------------------------------------------------------------------


def room_bytes(run: Run) -> int | None:
    """What the allocator had beside private pools: segments, and what the device had free, when a request
    failed.
    """
    if run.death is None:
        return None
    events, held = run.history.events, sum(each.size for each in run.history.segments if not each.private)
    for place in range(run.death, len(events)):
        if not events.private[place]:
            action, size = events.action[place], events.size[place]
            held -= size if action in GROWS else -size if action in SHRINKS else 0
    return max(0, held) + events.address[run.death]


def least_bytes(run: Run, *, private: bool = True) -> int:
    """What is live and the request that failed, rounded as blocks: the least that any setting needs.
    ``private``: what lies in private pools, too.
    """
    events, settings = run.history.events, run.history.settings
    assert run.death is not None
    live = live_at(run, run.death).values()
    held = sum(block_bytes(each.size, settings) for each in live if private or not each.private)
    return held + block_bytes(events.size[run.death], settings)


def other_settings(run: Run, room: int) -> Iterator[WhatIf]:
    """The history under other settings on the same memory, and as it was on a tenth more."""
    if run.death is None or run.torn or run.death > MOST_REQUESTS or not run.history.known_settings:
        return
    settings, script = run.history.settings, _script_of(run)
    least = least_bytes(run, private=False)
    possible = least <= room
    if not settings.expandable_segments and possible:
        yield _played_script(
            script,
            "expandable segments",
            "expandable_segments:True",
            replace(settings, expandable_segments=True, max_split_size_bytes=None),
            room,
        )
    if not settings.expandable_segments and settings.max_split_size_bytes is None and possible:
        yield _best_split(script, settings, room)
    if least <= room * 11 // 10:
        yield _played_script(script, "10 % more memory", "", settings, room * 11 // 10)


def _best_split(script: Script, settings: Settings, room: int) -> WhatIf:
    found = None
    for size in SPLITS:
        if size < settings.large_segment_bytes or (found is not None and len(script.events) > FEW_REQUESTS):
            break
        conf = f"max_split_size_mb:{size // MIB}"
        tried = _played_script(
            script, "split no block above a size", conf, replace(settings, max_split_size_bytes=size), room
        )
        found = found or tried
        if tried.lived:
            return tried
    assert found is not None
    return found


def _script_of(run: Run) -> Script:
    events, sizes, streams = array("q"), array("q"), array("q")
    number: dict[int, int] = {}
    recorded = run.history.events
    for address in sorted(address for address, each in run.before.items() if not each.private):
        number[address] = len(sizes)
        sizes.append(run.before[address].size)
        streams.append(run.before[address].stream)
    before = tuple(range(len(sizes)))
    assert run.death is not None
    for place in range(run.death):
        action = recorded.action[place]
        if recorded.private[place]:
            continue
        if action == ALLOC:
            number[recorded.address[place]] = len(sizes)
            events.append(len(sizes))
            sizes.append(recorded.size[place])
            streams.append(recorded.stream[place])
        elif action == run.frees and (gone := number.pop(recorded.address[place], None)) is not None:
            events.append(~gone)
    events.append(len(sizes))
    sizes.append(recorded.size[run.death])
    streams.append(recorded.stream[run.death])
    return Script(events=events, sizes=sizes, streams=streams, before=before)


def _played_script(script: Script, change: str, conf: str, settings: Settings, room: int) -> WhatIf:
    allocator = Allocator(settings, room)
    rounded = {size: block_bytes(size, settings) for size in set(script.sizes)}
    requests: list[tuple[Pool, int]] = [
        (allocator.pool(stream, rounded[size]), rounded[size])
        for size, stream in zip(script.sizes, script.streams, strict=True)
    ]
    blocks: list[Block | None] = [None] * len(requests)
    play = play_plain_segments if has_plain_segments(settings) else play_requests
    first = play(allocator, script.before, requests, blocks)
    done = play(allocator, script.events, requests, blocks) if first is not None else None
    return WhatIf(
        change,
        conf,
        done is not None,
        max(first[0], done[0]) if first is not None and done is not None else None,
    )
