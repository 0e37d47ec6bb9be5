"""What must hold of the caching allocator whatever it is asked, and a second one, plain and slow, that must
agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import law

from memsheet.allocator.caching import allocate_block, free_block, play_requests
from memsheet.allocator.capacity import smallest_capacity
from memsheet.allocator.conf import settings_from
from memsheet.allocator.consistency import allocator_inconsistencies, segment_blocks
from memsheet.allocator.memory import release_all
from memsheet.allocator.plain_loop import has_plain_segments, play_plain_segments
from memsheet.allocator.replay import Replay, replay_timeline
from memsheet.allocator.settings import Settings, block_bytes, segment_bytes
from memsheet.allocator.slack import with_slack
from memsheet.allocator.state import Allocator
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline, instant_peaks, sheet_of
from memsheet.units import MIB

KINDS = (
    "", "expandable_segments:True", "max_split_size_mb:24", "max_split_size_mb:20,max_non_split_rounding_mb:24",
    "roundup_power2_divisions:4", "expandable_segments:True,max_split_size_mb:24,roundup_power2_divisions:[16:2,>:8]",
    "large_segment_size_mb:12",
)  # fmt: skip
COLLECTING = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9"
SIZES = (
    0,
    1,
    512,
    700,
    MIB - 512,
    MIB,
    MIB + 1,
    2 * MIB,
    5 * MIB,
    9 * MIB + 3,
    10 * MIB,
    12 * MIB,
    19 * MIB,
    21 * MIB,
    33 * MIB,
    50 * MIB,
)


def crowd(seed: int, streams: int = 2, longest: int = 80) -> Timeline:
    """Allocations and releases in any order, of sizes on both sides of every boundary, with instants
    anywhere.
    """
    chance = Random(seed)
    storages: list[Storage] = []
    events: list[int] = []
    live: list[int] = []
    keep, some = chance.uniform(0.35, 0.6), chance.sample(SIZES, chance.randint(2, len(SIZES)))
    for _ in range(chance.randint(1, longest)):
        if live and chance.random() < keep:
            events.append(~live.pop(chance.randrange(len(live))))
        else:
            live.append(len(storages))
            events.append(len(storages))
            storages.append(
                Storage(chance.choice(some), Component.TEMPORARIES, "x", "aten.x", chance.randrange(streams))
            )
    cuts = sorted(chance.choices(range(len(events) + 1), k=chance.randint(0, 3)))
    marks = tuple(
        Mark(at, instant)
        for at, instant in zip(cuts, (Instant.FORWARD, Instant.BACKWARD, Instant.FORWARD), strict=False)
    )
    return Timeline(storages=tuple(storages), events=tuple(events), marks=marks)


def tight(timeline: Timeline, how: Settings, per_cent: int | None) -> int | None:
    """A capacity between what is asked for (0) and what is reserved where there is no end of memory (100);
    None: no end.
    """
    free = replay_timeline(timeline, how)
    asked = free.requested_peak_bytes
    return None if per_cent is None else max(asked + (free.reserved_peak_bytes - asked) * per_cent // 100, 0)


timelines = st.integers(0, 2**32).map(crowd)
settings = st.sampled_from(KINDS).map(settings_from)
squeezes = st.none() | st.integers(-10, 110)
delays = st.integers(0, 20)


def steps(
    timeline: Timeline, how: Settings, capacity: int | None, delay: int = 0
) -> Iterator[tuple[Allocator, int]]:
    """The allocator and the bytes asked for after each event, until one fails; every third storage is held
    for ``delay`` events.
    """
    allocator, blocks, held = Allocator(how, capacity), {}, 0
    for at, event in enumerate(timeline.events):
        storage = timeline.storages[max(event, ~event)]
        size = block_bytes(storage.bytes, how)
        if event >= 0:
            allocator.settle(at)
            block = allocate_block(allocator, allocator.pool(storage.stream, size), size) if size else None
            if size and block is None:
                return
            blocks[event] = block
        elif (gone := blocks.pop(~event)) is not None:
            free_block(allocator, gone, at + delay if delay and ~event % 3 == 0 else None)
        held += storage.bytes if event >= 0 else -storage.bytes
        yield allocator, held


# ---- at every moment ---------------------------------------------------------------------------------------


@law(150)
@given(timelines, st.sampled_from((*KINDS, COLLECTING)).map(settings_from), squeezes, delays)
def test_blocks_tile_their_segments_and_no_two_unused_ones_touch(
    timeline: Timeline, how: Settings, squeeze: int | None, delay: int
) -> None:
    capacity = tight(timeline, how, squeeze)
    for allocator, held in steps(timeline, how, capacity, delay):
        assert allocator_inconsistencies(allocator) == []
        assert held <= allocator.allocated <= allocator.reserved
        assert capacity is None or allocator.reserved <= capacity


def test_pages_that_go_back_one_after_the_other_are_one_hole() -> None:
    sizes = (
        (20, 0),
        (20, 0),
        (5, 0),
        (1, 0),
        (15, 1),
    )  # pages 0, 1 and 2; then two that find no memory until page 0, page 1 is gone
    storages = tuple(
        Storage(size * MIB, Component.TEMPORARIES, "x", "aten.x", stream) for size, stream in sizes
    )
    timeline = Timeline(storages=storages, events=(0, 1, 2, ~0, 3, ~1, 4), marks=())
    seen = [
        (allocator.retries, allocator_inconsistencies(allocator))
        for allocator, _ in steps(timeline, settings_from(KINDS[1]), 60 * MIB)
    ]
    assert seen == [(retries, []) for retries in (0, 0, 0, 0, 1, 1, 2)]


@law(100)
@given(timelines, settings, delays)
def test_when_all_is_released_all_goes_back(timeline: Timeline, how: Settings, delay: int) -> None:
    allocator = None
    alive = dict.fromkeys(event for event in timeline.events if event >= 0 and ~event not in timeline.events)
    whole = Timeline(storages=timeline.storages, events=(*timeline.events, *(~k for k in alive)), marks=())
    for allocator, _ in steps(whole, how, None, delay):  # noqa: B007
        pass
    assert allocator is not None
    release_all(allocator)
    assert (allocator.reserved, allocator.allocated, allocator.segments, allocator.pending) == (0, 0, {}, [])
    assert all(not pool.keys and not pool.unmapped for pool in allocator.every_pool())


# ---- a replay ----------------------------------------------------------------------------------------------


@law(100)
@given(timelines, settings, squeezes)
def test_a_replay_is_what_its_steps_were(timeline: Timeline, how: Settings, squeeze: int | None) -> None:
    capacity = tight(timeline, how, squeeze)
    curve = [
        (allocator.reserved, allocator.allocated, held) for allocator, held in steps(timeline, how, capacity)
    ]
    found = replay_timeline(timeline, how, capacity)
    assert (found.died is None) == (len(curve) == len(timeline.events))
    for place, size in enumerate(
        (found.reserved_peak_bytes, found.allocated_peak_bytes, found.requested_peak_bytes)
    ):
        assert size == max((row[place] for row in curve), default=0)
    if curve:
        full = max(range(len(curve)), key=lambda at: curve[at][0])
        assert found.fragmentation_bytes == curve[full][0] - curve[full][1]
    if found.died:
        assert (found.died.at, found.died.storage) == (len(curve), timeline.events[len(curve)])


PLAIN = [how for how in map(settings_from, (*KINDS, COLLECTING)) if has_plain_segments(how)]


def test_segments_are_plain_where_blocks_are_alike() -> None:
    assert [settings_from(words) for words in ("", KINDS[4], KINDS[6])] == PLAIN


@law(300)
@given(timelines, st.sampled_from(PLAIN), squeezes, st.integers(0, 80))
def test_one_loop_does_what_calls_do(
    timeline: Timeline, how: Settings, squeeze: int | None, cut: int
) -> None:
    capacity, ends = tight(timeline, how, squeeze), []
    for play in (play_requests, play_plain_segments):
        allocator = Allocator(how, capacity)
        sizes = [(one.stream, block_bytes(one.bytes, how)) for one in timeline.storages]
        requests, blocks = [(allocator.pool(*one), one[1]) for one in sizes], [None] * len(sizes)
        before = play(allocator, timeline.events[:cut], requests, blocks)
        after = before and play(allocator, timeline.events[cut:], requests, blocks)
        keys = [pool.keys for pool in allocator.every_pool()]
        ends.append((before, after, keys, allocator.reserved, allocator.retries))
        if after:
            assert allocator_inconsistencies(allocator) == []
    assert ends[0] == ends[1]


@law(100)
@given(timelines, settings)
def test_instants_are_those_of_the_timeline_and_the_sheet_adds_up(timeline: Timeline, how: Settings) -> None:
    found = replay_timeline(timeline, how)
    assert found.requested == (
        {instant: peak.bytes for instant, peak in instant_peaks(timeline).items()} if timeline.marks else {}
    )
    assert all(size >= 0 for size in found.slack.values())
    if timeline.marks:
        sheet = with_slack(sheet_of(timeline), found)
        assert {instant: sheet.at(instant, without=()).value for instant in found.reserved} == found.reserved


@law(100)
@given(timelines, settings, st.integers(0, 3).map(lambda n: n * MIB // 2))
def test_with_what_it_reserves_when_unbounded_nothing_dies(
    timeline: Timeline, how: Settings, more: int
) -> None:
    unbounded = replay_timeline(timeline, how)
    assert replay_timeline(timeline, how, unbounded.reserved_peak_bytes + more) == unbounded
    assert (unbounded.retries, unbounded.died) == (0, None)


@law(60)
@given(st.integers(0, 2**32).map(lambda seed: crowd(seed, longest=30)), settings)
def test_the_smallest_capacity_suffices_and_2_mib_less_does_not(timeline: Timeline, how: Settings) -> None:
    found, unbounded = smallest_capacity(timeline, how), replay_timeline(timeline, how)
    assert unbounded.requested_peak_bytes <= found.bytes < unbounded.reserved_peak_bytes + 2 * MIB
    assert found.bytes % (2 * MIB) == 0
    assert replay_timeline(timeline, how, found.bytes).died is None
    if found.bytes:
        assert found.below == replay_timeline(timeline, how, found.bytes - 2 * MIB).died is not None


@law(100)
@given(st.integers(0, 2**32).map(lambda seed: crowd(seed, streams=1)), settings)
def test_streams_are_told_apart_and_not_ordered(timeline: Timeline, how: Settings) -> None:
    other = [Storage(s.bytes, s.component, s.path, s.op, 7) for s in timeline.storages]
    assert replay_timeline(
        Timeline(storages=tuple(other), events=timeline.events, marks=timeline.marks), how
    ) == replay_timeline(timeline, how)


@law(200)
@given(st.text(st.sampled_from("expandablsmx_gt:,[]>0123456789.TrueFalse \t"), max_size=40))
def test_any_text_is_settings_or_refused(text: str) -> None:
    with suppress(InputError):
        assert isinstance(settings_from(text), Settings)


# ---- a second allocator ------------------------------------------------------------------------------------


class Plain:
    """The same rules without links, sorted lists or counters: segments are lists of [size, state, owner],
    searched from end to end.
    """

    def __init__(self, how: Settings, capacity: int | None) -> None:
        self.how, self.capacity, self.retries = how, capacity, 0
        self.segments: list[tuple[tuple[int, bool], list[list[Any]]]] = []

    def reserved(self) -> int:
        return sum(cell[0] for _, cells in self.segments for cell in cells if cell[1] != "unmapped")

    def cells(self, kind: tuple[int, bool], *states: str) -> list[tuple[int, int, int]]:
        """(size, segment, place) of every cell in one of the states, in the order of segments and
        addresses.
        """
        return [
            (cell[0], number, place)
            for number, (of, cells) in enumerate(self.segments)
            if of == kind
            for place, cell in enumerate(cells)
            if cell[1] in states
        ]

    def tidy(self) -> None:
        for _, cells in self.segments:
            merged: list[list[Any]] = []
            for cell in cells:
                if merged and merged[-1][1] == cell[1] != "busy":
                    merged[-1][0] += cell[0]
                elif cell[0]:
                    merged.append(cell)
            cells[:] = merged

    def drop(self, gone: Callable[[list[list[Any]]], bool]) -> None:
        self.segments = [(kind, cells) for kind, cells in self.segments if not gone(cells)]

    def allocate(self, owner: int, size: int, stream: int) -> bool:
        kind = (stream, size <= MIB)
        place = self.find(kind, size) or self.new(kind, size)
        if place is None and self.make_room(kind, size):
            place = self.new(kind, size)
        if place is None:
            self.retries += 1
            self.release_all()
            place = self.new(kind, size)
        if place is None:
            return False
        cells = self.segments[place[0]][1]
        rest = cells[place[1]][0] - size
        fine = kind[1] or self.how.expandable_segments
        if not (
            rest >= 512
            if fine
            else rest > MIB
            and (self.how.max_split_size_bytes is None or size < self.how.max_split_size_bytes)
        ):
            size, rest = size + rest, 0
        cells[place[1] : place[1] + 1] = [[size, "busy", owner], [rest, "free", None]]
        self.tidy()
        return True

    def release(self, owner: int) -> None:
        for _, cells in self.segments:
            for cell in cells:
                if cell[1:] == ["busy", owner]:
                    cell[1:] = ["free", None]
        self.tidy()

    def find(self, kind: tuple[int, bool], size: int) -> tuple[int, int] | None:
        fits = sorted(cell for cell in self.cells(kind, "free") if cell[0] >= size)
        if not fits:
            return None
        best, most = fits[0], self.how.max_split_size_bytes
        if self.how.expandable_segments:
            for after in fits[1:]:
                if self.growing(after) >= self.growing(best):
                    break
                best = after
        if (
            most is not None
            and best[0] >= most
            and (size < most or best[0] >= size + self.how.rounding_bytes)
        ):
            return None
        return best[1:]

    def growing(self, cell: tuple[int, int, int]) -> int:
        behind = self.segments[cell[1]][1][cell[2] + 1 :][:1]
        return cell[0] + sum(other[0] for other in behind if other[1] == "unmapped")

    def new(self, kind: tuple[int, bool], size: int) -> tuple[int, int] | None:
        if self.how.expandable_segments:
            return self.expand(kind, size)
        segment = segment_bytes(size, self.how)
        if self.capacity is not None and self.reserved() + segment > self.capacity:
            return None
        self.segments.append((kind, [[segment, "free", None]]))
        return len(self.segments) - 1, 0

    def expand(self, kind: tuple[int, bool], size: int) -> tuple[int, int] | None:
        page = 2 * MIB if kind[1] else self.how.large_segment_bytes
        spot = self.spot(kind, size)
        if spot is None:
            space = 2**44 if self.capacity is None else max(self.capacity * 9 // 8, size)
            self.segments.append((kind, [[-(-space // page) * page, "unmapped", None]]))
            spot = (len(self.segments) - 1, 0)
        number, place = spot
        cells = self.segments[number][1]
        while (free := cells[place][0] if cells[place][1] == "free" else 0) < size:
            hole = place + (cells[place][1] == "free")
            pages = -(-min(size - free, cells[hole][0]) // page) * page
            if self.capacity is not None and self.reserved() + pages > self.capacity:
                return None
            cells[hole : hole + 1] = [[pages, "free", None], [cells[hole][0] - pages, "unmapped", None]]
            self.tidy()
        return number, place

    def spot(self, kind: tuple[int, bool], size: int) -> tuple[int, int] | None:
        for _, number, place in self.cells(kind, "unmapped"):
            cells = self.segments[number][1]
            first = place - 1 if place and cells[place - 1][1] == "free" else place
            run = next((at for at, cell in enumerate(cells) if at >= first and cell[1] == "busy"), len(cells))
            if sum(cell[0] for cell in cells[first:run]) >= size:
                return number, first
        return None

    def make_room(self, kind: tuple[int, bool], size: int) -> bool:
        most = self.how.max_split_size_bytes
        if most is None or self.how.expandable_segments:
            return False
        wanted, oversize = (
            max(size, most),
            sorted(cell for cell in self.cells(kind, "free") if cell[0] >= most),
        )
        enough = [cell for cell in oversize if cell[0] >= wanted][:1]
        gone = enough or [
            cell for at, cell in enumerate(oversize) if sum(c[0] for c in oversize[at + 1 :]) < wanted
        ]
        cells = [self.segments[number][1] for _, number, _ in gone]
        self.drop(lambda others: any(others is one for one in cells))
        return sum(cell[0] for cell in gone) >= wanted

    def release_all(self) -> None:
        if not self.how.expandable_segments:
            self.drop(lambda cells: [cell[1] for cell in cells] == ["free"])
            return
        used = [
            cells for _, cells in self.segments if [cell[1] for cell in cells] != ["unmapped"]
        ]  # one that was never mapped stays
        for (_, small), cells in self.segments:
            page, at, parts = 2 * MIB if small else self.how.large_segment_bytes, 0, list[list[Any]]()
            for size, state, owner in cells:
                start, end = -(-at // page) * page, (at + size) // page * page
                whole = state == "free" and start < end
                parts += (
                    [
                        [start - at, "free", None],
                        [end - start, "unmapped", None],
                        [at + size - end, "free", None],
                    ]
                    if whole
                    else []
                )
                parts += [] if whole else [[size, state, owner]]
                at += size
            cells[:] = parts
        self.tidy()
        self.drop(
            lambda cells: [cell[1] for cell in cells] == ["unmapped"] and any(cells is one for one in used)
        )


def plainly(
    timeline: Timeline, how: Settings, capacity: int | None
) -> tuple[list[int], int, list[list[Any]]]:
    """Bytes reserved after each event until one fails, retries, and the sizes and states of all blocks at the
    end.
    """
    plain, curve = Plain(how, capacity), []
    for event in timeline.events:
        storage = timeline.storages[max(event, ~event)]
        size = block_bytes(storage.bytes, how)
        if event < 0:
            plain.release(~event)
        elif size and not plain.allocate(event, size, storage.stream):
            break
        curve.append(plain.reserved())
    return curve, plain.retries, sorted([cell[:2] for cell in cells] for _, cells in plain.segments)


STATES = ("busy", "free", "unmapped")


@law(400)
@given(timelines, settings, squeezes)
def test_two_allocators_agree(timeline: Timeline, how: Settings, squeeze: int | None) -> None:
    capacity = tight(timeline, how, squeeze)
    curve, retries, blocks = plainly(timeline, how, capacity)
    seen = list(steps(timeline, how, capacity))
    found: Replay = replay_timeline(timeline, how, capacity)
    assert (found.reserved_peak_bytes, found.retries) == (max(curve, default=0), retries)
    assert (found.died is None) == (len(curve) == len(timeline.events))
    if seen and found.died is None:
        segments = seen[-1][0].segments.values()
        assert (
            sorted([[b.size, STATES[b.state]] for b in segment_blocks(first)] for first in segments) == blocks
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_timelines_strain_the_allocator(kind: str) -> None:
    """A law that no example strains proves nothing: some survive by a retry, some die with room to spare,
    none of them are few.
    """
    how = settings_from(kind)
    outcomes = [
        replay_timeline(timeline, how, tight(timeline, how, 40)) for timeline in map(crowd, range(60))
    ]
    assert sum(one.died is None and one.retries > 0 for one in outcomes) > 6
    assert sum(one.died is not None for one in outcomes) > 6
