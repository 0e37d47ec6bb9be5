"""The caching allocator's rules, one by one, on examples worked by hand.

Lines are those of pytorch/pytorch v2.13.0, c10/cuda/CUDACachingAllocator.cpp, where no other file is named.
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.allocator.capacity import smallest_capacity
from memsheet.allocator.conf import settings_from
from memsheet.allocator.replay import Replay, replay_timeline
from memsheet.allocator.settings import INTERVALS, Settings, block_bytes, segment_bytes
from memsheet.allocator.slack import slack_item, slack_within, with_slack
from memsheet.errors import InputError
from memsheet.sheet import Bytes, Component, Derived, Instant, Item
from memsheet.timeline import Mark, Storage, Timeline, sheet_of
from memsheet.units import GIB, KIB, MIB

EXPANDABLE = Settings(expandable_segments=True)
SPLIT_128 = Settings(max_split_size_bytes=128 * MIB)


def story(*steps: tuple[str, float] | tuple[str, float, int] | str | Instant) -> Timeline:
    """A timeline in words: ("a", 3) allocates 3 MiB as a, ("a", 3, 1) on stream 1, "a" releases it, an
    Instant begins one.
    """
    storages: list[Storage] = []
    events: list[int] = []
    marks: list[Mark] = []
    names: dict[str, int] = {}
    for step in steps:
        if isinstance(step, Instant):
            marks.append(Mark(len(events), step))
        elif isinstance(step, str):
            events.append(~names.pop(step))
        else:
            names[step[0]] = len(storages)
            events.append(len(storages))
            storages.append(
                Storage(
                    round(step[1] * MIB),
                    Component.TEMPORARIES,
                    "x",
                    "aten.x",
                    int(step[2]) if len(step) > 2 else 0,
                )
            )
    return Timeline(storages=tuple(storages), events=tuple(events), marks=tuple(marks))


def played(
    *steps: Any, settings: Settings | None = None, capacity: float | None = None, **more: Any
) -> Replay:
    return replay_timeline(
        story(*steps), settings or Settings(), None if capacity is None else round(capacity * MIB), **more
    )


def reserved(*steps: Any, **how: Any) -> float:
    """MiB reserved after the last step: what stands when an instant begins is part of its high-water mark."""
    found = played(Instant.LOAD, *steps, Instant.FORWARD, **how)
    assert found.died is None
    return found.reserved[Instant.FORWARD] / MIB


# ---- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "block"),
    [(0, 0), (1, 512), (511, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)],
)
def test_blocks_are_multiples_of_512_bytes(asked: int, block: int) -> None:
    assert (
        block_bytes(asked, Settings()) == block
    )  # round_size :3062, kMinBlockSize c10/core/AllocatorConfig.h:18


@pytest.mark.parametrize(
    ("asked", "divisions", "block"),
    [
        (1200 * KIB, 4, 1280 * KIB),  # between 1024 and 2048 in steps of 256, the example in the source
        (1200 * KIB, 2, 1536 * KIB),
        (1200 * KIB, 1, 1200 * KIB),  # one division is none
        (1536 * KIB, 4, 1536 * KIB),
        (MIB, 4, MIB),  # a power of two stays
        (1200, 4, 1536),  # not more than 512·4: rounded to 512
        (2049, 4, 2560),  # more than that: 2048 and steps of 512
        (70 * GIB + 1, 4, 80 * GIB),  # above 64 GiB the last entry counts: steps of 64/4
    ],
)
def test_roundup_power2_divisions_divides_the_way_to_the_next_power_of_two(
    asked: int, divisions: int, block: int
) -> None:
    assert (
        block_bytes(asked, Settings(roundup_power2_divisions=(divisions,) * INTERVALS)) == block
    )  # roundup_power2_next_division


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_a_segment_is_2_or_20_mib_or_the_request_rounded_to_2_mib(block: int, segment: int) -> None:
    assert segment_bytes(block, Settings()) == segment  # get_allocation_size :3700


def test_nothing_is_allocated_for_an_empty_storage() -> None:
    found = played(("a", 0), ("b", 0), "a")  # NativeCachingAllocator::allocate :4958
    assert (found.allocated_peak_bytes, found.reserved_peak_bytes, found.died) == (0, 0, None)


def test_one_byte_takes_a_block_of_512_bytes_and_a_segment_of_2_mib() -> None:
    found = played(("a", 1 / MIB))
    assert (found.requested_peak_bytes, found.allocated_peak_bytes, found.reserved_peak_bytes) == (
        1,
        512,
        2 * MIB,
    )
    assert found.fragmentation_bytes == 2 * MIB - 512


def test_an_empty_timeline_needs_nothing() -> None:
    found = played()
    assert (
        found.requested_peak_bytes,
        found.reserved_peak_bytes,
        found.fragmentation_bytes,
        found.reserved,
    ) == (0, 0, 0, {})
    assert smallest_capacity(story()).bytes == 0
    assert smallest_capacity(story()).below is None


# ---- finding, splitting, merging ---------------------------------------------------------------------------


def test_small_requests_share_a_segment_of_2_mib() -> None:
    assert [reserved(*[(f"a{n}", 0.5) for n in range(count)]) for count in (1, 4, 5)] == [2, 2, 4]


def test_middling_requests_share_a_segment_of_20_mib() -> None:
    assert [reserved(*[(f"a{n}", 5) for n in range(count)]) for count in (1, 4, 5)] == [20, 20, 40]


def test_small_and_large_requests_share_nothing() -> None:
    assert reserved(("a", 20), "a", ("b", 1)) == 22  # get_pool :3665


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    # 29.5 comes out of the 30; out of the 40 it would leave 10.5, and the 40 that follows would need a
    # segment of its own
    assert reserved(("a", 30), ("b", 40), "a", "b", ("c", 29.5), ("d", 40)) == 70  # get_free_block :3710


def test_of_blocks_of_one_size_the_first_segments_serves() -> None:
    # two free blocks of 12: one behind k in a segment of 20, one a segment of its own, which alone can go
    # back for d
    older = (
        ("k", 8),
        ("x", 12),
        ("b", 12),
        "x",
        "b",
        ("c", 12),
        ("d", 22),
    )  # k's segment is the older, and c lies in it
    assert reserved(*older, capacity=44) == 42
    younger = (("b", 12), ("k", 8), "b", ("c", 12), ("d", 22))
    assert played(*younger, capacity=44).died is not None


@pytest.mark.parametrize(("asked", "block"), [(8 * MIB, 9 * MIB), (8 * MIB - 512, 8 * MIB - 512)])
def test_a_large_block_is_split_where_more_than_1_mib_is_left(asked: int, block: int) -> None:
    found = played(("a", 9), ("b", 2), ("c", asked / MIB))  # 9 of 20 are left for c: should_split :3680
    assert (found.allocated_peak_bytes, found.reserved_peak_bytes) == (11 * MIB + block, 20 * MIB)


def test_a_small_block_is_split_where_512_bytes_are_left() -> None:
    found = played(("a", 1), ("b", 1 - 1 / 2048), ("c", 1 / 2048))
    assert (found.allocated_peak_bytes, found.reserved_peak_bytes) == (2 * MIB, 2 * MIB)


def test_neighbours_merge_when_they_are_free() -> None:
    three = (("a", 6), ("b", 6), ("c", 8))
    assert reserved(*three, "a", "c", "b", ("d", 20)) == 20  # free_block :3505: one block of 20 again
    assert reserved(*three, "a", "c", ("d", 8.5)) == 40  # 6 and 8 are free, but b lies between them
    assert reserved(*three, "a", "b", ("d", 12)) == 20


def test_memory_stays_reserved_when_it_is_released() -> None:
    assert reserved(("a", 100), "a") == 100


# ---- streams -----------------------------------------------------------------------------------------------


def test_a_block_serves_only_the_stream_it_was_allocated_on() -> None:
    assert reserved(("a", 30, 1), "a", ("b", 30, 1)) == 30
    assert reserved(("a", 30, 1), "a", ("b", 30, 0)) == 60  # the comparator puts the stream first


def test_a_block_that_another_stream_uses_is_free_when_that_has_finished() -> None:
    steps = (
        ("a", 30),
        ("x", 0.1),
        "a",
        ("y", 0.1),
        ("z", 0.1),
        ("b", 30),
    )  # a is released at event 2, b asked for at event 5
    assert [played(*steps, held={0: events}).reserved_peak_bytes // MIB for events in (0, 3, 4)] == [
        32,
        32,
        62,
    ]


def test_a_held_block_does_not_merge_and_no_longer_counts_as_allocated() -> None:
    steps = (("a", 10), ("b", 10), "a", "b", ("c", 20))
    assert played(*steps).allocated_peak_bytes == 20 * MIB
    assert played(("a", 6), ("b", 6), "b", "a", ("c", 12), held={1: 9}).reserved_peak_bytes == 32 * MIB
    assert (
        played(("a", 30), "a", ("b", 30), held={0: 9}).allocated_peak_bytes == 30 * MIB
    )  # free_locked: allocated falls at once


def test_the_allocator_waits_for_held_blocks_before_it_gives_up() -> None:
    found = played(("a", 30), "a", ("b", 30), held={0: 10**9}, capacity=40)  # synchronize_and_free_events
    assert (found.died, found.retries) == (None, 1)


@pytest.mark.parametrize("held", [{1: 0}, {-1: 0}, {0: -1}])
def test_held_names_storages(held: dict[int, int]) -> None:
    with pytest.raises(InputError, match="held"):
        played(("a", 1), held=held)


# ---- when memory runs out ----------------------------------------------------------------------------------


def test_whole_free_segments_go_back_before_a_request_fails() -> None:
    found = played(Instant.LOAD, ("a", 30), "a", Instant.FORWARD, ("b", 40), capacity=50)
    assert (found.died, found.retries, found.reserved_peak_bytes) == (
        None,
        1,
        40 * MIB,
    )  # release_blocks :4265


def test_a_segment_that_is_partly_used_stays_and_the_request_fails() -> None:
    found = played(("a", 5), ("b", 5), "a", ("c", 31), capacity=50)
    assert found.retries == 1
    death = found.died
    assert death is not None
    assert (death.at, death.storage, death.request_bytes) == (3, 2, 31 * MIB)
    assert (death.allocated_bytes, death.reserved_bytes, death.largest_free_bytes) == (
        5 * MIB,
        20 * MIB,
        10 * MIB,
    )
    assert (found.requested_peak_bytes, found.reserved_peak_bytes) == (10 * MIB, 20 * MIB)  # until then


def test_a_request_fits_to_the_last_byte() -> None:
    assert played(("a", 30), ("b", 20), capacity=50).died is None
    assert played(("a", 30), ("b", 20), capacity=50 - 1 / MIB).died is not None


def test_a_capacity_below_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="capacity"):
        replay_timeline(story(("a", 1)), Settings(), -1)


# ---- max_split_size_mb -------------------------------------------------------------------------------------


def test_an_oversize_block_serves_no_smaller_request() -> None:
    steps = (("a", 200), "a", ("b", 100))
    assert reserved(*steps) == 200
    assert reserved(*steps, settings=SPLIT_128) == 300  # get_free_block :3756


def test_an_oversize_block_serves_oversize_requests_of_nearly_its_size_and_is_not_split() -> None:
    for asked, total in (
        (181, 200),
        (180, 380),
    ):  # 20 MiB more than asked is too much: max_non_split_rounding_mb
        found = played(("a", 200), "a", ("b", asked), settings=SPLIT_128)
        assert found.reserved_peak_bytes == total * MIB
    assert played(("a", 200), "a", ("b", 181), settings=SPLIT_128).allocated_peak_bytes == 200 * MIB
    wide = Settings(max_split_size_bytes=128 * MIB, max_non_split_rounding_bytes=60 * MIB)
    assert reserved(("a", 200), "a", ("b", 141), settings=wide) == 200


def test_one_oversize_block_goes_back_before_all_do() -> None:
    low = Settings(max_split_size_bytes=40 * MIB)
    steps = (("a", 100), ("b", 30), ("s", 70), "a", "b", "s", ("c", 45))
    found = played(Instant.LOAD, *steps, Instant.FORWARD, settings=low, capacity=200)
    # release_available_cached_blocks :4002: 70 is the smallest that is large enough; the others stay, and it
    # is no retry
    assert (found.retries, found.reserved[Instant.FORWARD] // MIB) == (0, 100 + 30 + 46)


def test_several_oversize_blocks_go_back_largest_first_until_they_add_up() -> None:
    low = Settings(max_split_size_bytes=40 * MIB)
    steps = (("a", 40), ("b", 50), ("c", 60), "a", "b", "c", ("d", 90))
    found = played(Instant.LOAD, *steps, Instant.FORWARD, settings=low, capacity=150)
    assert (found.retries, found.reserved[Instant.FORWARD] // MIB) == (0, 40 + 90)
    short = played(
        Instant.LOAD, ("k", 30), *steps, "k", ("e", 149), Instant.FORWARD, settings=low, capacity=180
    )
    assert short.died is not None  # d and e together are more than there is
    rest = played(
        Instant.LOAD, ("k", 30), "k", *steps[:6], ("e", 170), Instant.FORWARD, settings=low, capacity=180
    )
    assert (rest.retries, rest.reserved[Instant.FORWARD] // MIB) == (
        1,
        170,
    )  # 60 + 50 + 40 < 170: not enough, so all goes back


# ---- garbage_collection_threshold --------------------------------------------------------------------------


COLLECTING = Settings(garbage_collection_threshold=0.6, per_process_memory_fraction=0.5)
"""Of a capacity of 1000 MiB the limit is 500 and the threshold 300. Each request to the large pool is a tick
of the clock.
"""


def test_segments_that_lay_idle_for_the_average_or_more_are_collected() -> None:
    steps = (("a", 100), ("k", 70), ("b", 110), "a", ("c", 104), "b", ("d", 120))
    # at d, tick 5, 384 are reserved; a is free since tick 3 and b since 4: ages 2 and 1, so a's segment goes,
    # which is enough
    assert reserved(*steps, settings=COLLECTING, capacity=1000) == 70 + 110 + 104 + 120
    assert (
        played(*steps, settings=COLLECTING, capacity=1000).retries == 0
    )  # without it 504 would have been more than the limit
    assert played(*steps, settings=Settings(per_process_memory_fraction=0.5), capacity=1000).retries == 1


def test_segments_of_one_age_go_together() -> None:
    steps = (("a", 100), ("b", 110), ("c", 120), "a", "b", "c", ("d", 130))
    assert reserved(*steps, settings=COLLECTING, capacity=1000) == 130  # 30 too much, and all went


def test_collection_goes_on_until_the_threshold_is_kept() -> None:
    steps = (("a", 20), ("b", 130), ("c", 132), "a", ("k", 60), "b", "c", ("d", 140))
    # at d 342 are reserved; a, of age 2, goes first; 22 are still too much, and b and c, of age 1, go
    assert reserved(*steps, settings=COLLECTING, capacity=1000) == 60 + 140


def test_nothing_is_collected_up_to_the_threshold_nor_of_small_or_used_segments() -> None:
    assert reserved(("a", 100), ("b", 200), "a", ("c", 110), settings=COLLECTING, capacity=1000) == 410
    used = (("s", 1), "s", ("a", 12), ("b", 5), ("k", 5), ("l", 280), "b", ("c", 100))
    assert reserved(*used, settings=COLLECTING, capacity=1000) == 2 + 12 + 20 + 280 + 100


def test_without_a_memory_fraction_nothing_is_collected() -> None:
    steps = (("a", 100), "a", ("b", 200), Instant.FORWARD)
    idle = Settings(garbage_collection_threshold=0.1)  # :1758 asks for allowed_memory_maximum
    assert played(Instant.LOAD, *steps, settings=idle, capacity=1000).reserved[Instant.FORWARD] == 300 * MIB


def test_a_memory_fraction_is_a_limit_of_its_own() -> None:
    half = Settings(per_process_memory_fraction=0.5)
    assert played(("a", 50), settings=half, capacity=100).died is None
    assert played(("a", 52), settings=half, capacity=100).died is not None
    assert played(("a", 52), settings=half).died is None  # half of no end
    assert smallest_capacity(story(("a", 50)), half).bytes == 100 * MIB


# ---- expandable segments -----------------------------------------------------------------------------------


def test_pages_of_2_mib_serve_small_and_of_20_mib_large_requests() -> None:
    assert [reserved(("a", size), settings=EXPANDABLE) for size in (0.5, 3, 20, 21, 45)] == [
        2,
        20,
        20,
        40,
        60,
    ]


def test_a_segment_grows_by_what_its_free_end_lacks() -> None:
    assert (
        reserved(("a", 15), ("b", 20), settings=EXPANDABLE) == 40
    )  # 5 are free at the end, 15 more are needed
    assert reserved(("a", 15), ("b", 20)) == 36
    assert (
        reserved(("a", 30), "a", ("b", 50), settings=EXPANDABLE) == 60
    )  # 40 and a page, where new segments would make 80
    assert reserved(("a", 30), "a", ("b", 50)) == 80


def test_large_blocks_are_split_where_512_bytes_are_left() -> None:
    found = played(("a", 19), ("b", 1 + 1 / 2048), settings=EXPANDABLE)
    assert (found.allocated_peak_bytes, found.reserved_peak_bytes) == (20 * MIB + 512, 40 * MIB)


def test_the_end_that_can_grow_counts_as_large_as_it_can_grow() -> None:
    # 60 are mapped and 51 used; a leaves a hole of 12, and 9 are free at the end. 8 would fit the end best,
    # but that could grow,
    # so b lies in the hole (get_free_block :3730), and 12 find no place in it
    steps = (("a", 12), ("k", 19), ("l", 20), "a", ("b", 8))
    assert reserved(*steps, ("c", 9), settings=EXPANDABLE) == 60
    assert reserved(*steps, ("c", 12), settings=EXPANDABLE) == 80


def test_whole_pages_go_back_and_the_rest_stays() -> None:
    # 40 mapped, [0, 30) free: page 0 goes, the page that b shares stays, so the small request finds its 2 MiB
    steps = (("a", 30), ("b", 5), "a", ("s", 1))
    found = played(Instant.LOAD, *steps, Instant.FORWARD, settings=EXPANDABLE, capacity=40)
    assert (found.died, found.retries, found.reserved[Instant.FORWARD]) == (
        None,
        1,
        22 * MIB,
    )  # unmap_block :4173


def test_a_hole_is_mapped_again_before_the_end_grows() -> None:
    # page 0 goes back for s, and the small page for c: page 0 and the 10 MiB behind it serve 30 again
    # (find_expandable_block)
    steps = (("a", 30), ("b", 5), "a", ("s", 1), "s")
    assert reserved(*steps, ("c", 30), settings=EXPANDABLE, capacity=41) == 40
    # 31 do not fit there; at the end 5 are free, and two pages more are one too many
    assert played(*steps, ("c", 31), settings=EXPANDABLE, capacity=41).died is not None


def test_a_segment_that_is_empty_goes_back_whole() -> None:
    steps = (
        ("a", 70),
        "a",
        ("b", 1),
        "b",
        ("c", 75, 1),
    )  # of the large pool, of the small one, of another stream
    found = played(*steps, settings=EXPANDABLE, capacity=80)
    assert (found.died, found.retries, reserved(*steps, settings=EXPANDABLE, capacity=80)) == (None, 2, 80)


# ---- capacity ----------------------------------------------------------------------------------------------


def test_the_smallest_capacity_lets_whole_segments_go() -> None:
    assert smallest_capacity(story(("a", 30), ("b", 40), "b", ("c", 50))).bytes == 80 * MIB  # unlimited: 120


def test_the_smallest_capacity_says_what_dies_just_below() -> None:
    found = smallest_capacity(
        story(("a", 30), ("b", 40), "b", ("c", 20), ("d", 30))
    )  # c lies in b's segment, which must stay
    assert found.bytes == 100 * MIB
    assert found.below is not None
    assert (found.below.at, found.below.request_bytes, found.below.reserved_bytes) == (4, 30 * MIB, 70 * MIB)


def test_survival_is_not_monotone_and_what_is_reported_holds() -> None:
    timeline = story(("a", 6), "a", ("b", 24), ("c", 12), "b", ("d", 30))
    # in 42, a's segment must go for b, and c gets one of its own, of 12; in 44, a's of 20 stays, and c lies
    # in it when d comes
    survives = {
        size: replay_timeline(timeline, Settings(), size * MIB).died is None
        for size in (40, 42, 44, 46, 48, 50, 74)
    }
    assert survives == {40: False, 42: True, 44: False, 46: False, 48: False, 50: True, 74: True}
    assert smallest_capacity(timeline).bytes == 50 * MIB


def test_a_timeline_without_gaps_needs_what_it_asks_for() -> None:
    assert smallest_capacity(story(("a", 30), ("b", 20))).bytes == 50 * MIB
    assert smallest_capacity(story(("a", 1 / MIB))).bytes == 2 * MIB


# ---- instants and the sheet --------------------------------------------------------------------------------


def test_each_instant_has_the_high_water_mark_of_what_is_reserved() -> None:
    found = played(
        ("p", 30), Instant.FORWARD, ("a", 20), Instant.BACKWARD, "a", ("b", 5), Instant.FORWARD, ("c", 40)
    )
    assert found.reserved == {Instant.FORWARD: 90 * MIB, Instant.BACKWARD: 50 * MIB}
    assert found.requested == {Instant.FORWARD: 75 * MIB, Instant.BACKWARD: 50 * MIB}
    assert found.slack == {Instant.FORWARD: 15 * MIB, Instant.BACKWARD: 0}
    assert found.reserved_at_requested_peak_bytes == found.reserved_peak_bytes == 90 * MIB


def test_with_the_slack_a_sheet_adds_up_to_what_is_reserved() -> None:
    timeline = story(
        ("p", 30), Instant.FORWARD, ("a", 5), Instant.BACKWARD, "a", ("b", 33), Instant.OPTIMIZER_STEP, "b"
    )
    found = replay_timeline(timeline)
    sheet = with_slack(sheet_of(timeline), found)
    assert {instant: sheet.at(instant, without=()).value for instant in sheet.instants} == dict(
        found.reserved
    )
    assert sheet.allocated.value == found.requested_peak_bytes
    assert sheet.reserved == Bytes.exact(found.reserved_peak_bytes)
    assert isinstance(slack_item(found).evidence, Derived)


def test_the_slack_replaces_what_a_sheet_had() -> None:
    timeline = story(("p", 30), Instant.FORWARD, ("a", 5))
    once = with_slack(sheet_of(timeline), replay_timeline(timeline))
    again = with_slack(once, replay_timeline(timeline, EXPANDABLE))
    slack = [item for item in again.items if item.component is Component.ALLOCATOR_SLACK]
    assert slack == [
        Item(
            Component.ALLOCATOR_SLACK, "allocator", {Instant.FORWARD: Bytes.exact(5 * MIB)}, slack[0].evidence
        )
    ]
    assert once.reserved.value == 50 * MIB


def test_where_there_is_less_room_less_is_cached() -> None:
    timeline = story(
        Instant.FORWARD, ("a", 30), Instant.BACKWARD, "a", ("b", 40), Instant.OPTIMIZER_STEP, "b"
    )

    def slack(*rooms: int) -> Bytes:
        return slack_within(timeline, Settings(), tuple(room * MIB for room in rooms)).at[Instant.BACKWARD]  # type: ignore[arg-type]

    assert slack(70, 80, 90) == Bytes.exact(30 * MIB)
    assert slack(50, 80, 90) == Bytes.exact(0)  # what is free goes back before memory runs out
    assert slack(30, 50, 90) == Bytes(0, 0, 30 * MIB)
    assert slack(20, 30, 50) == Bytes(0, 30 * MIB, 30 * MIB)
    assert slack(-1, 10, 30) == Bytes.exact(30 * MIB)  # it dies everywhere: what it would have reserved


# ---- PYTORCH_ALLOC_CONF ------------------------------------------------------------------------------------


def test_settings_are_read_from_text() -> None:
    text = (
        "expandable_segments:True, "
        "max_split_size_mb:128,garbage_collection_threshold:0.8,large_segment_size_mb:40,"
    )
    assert settings_from(text) == Settings(
        expandable_segments=True,
        max_split_size_bytes=128 * MIB,
        garbage_collection_threshold=0.8,
        large_segment_bytes=40 * MIB,
    )
    assert settings_from("") == Settings()
    assert (
        settings_from("backend:native,pinned_num_register_threads:8,release_lock_on_cudamalloc:True")
        == Settings()
    )
    assert settings_from("max_split_size_mb:64,max_split_size_mb:128") == SPLIT_128
    assert settings_from("per_process_memory_fraction:0.5").per_process_memory_fraction == 0.5


@pytest.mark.parametrize(
    ("value", "table"),
    [  # as torch 2.13's roundup_power2_divisions(2^20 … 2^35) answers for the same text
        ("4", [4] * 16),
        ("[256:1,512:2,1024:4,>:8]", [1] * 9 + [2, 4] + [8] * 5),
        ("[256:1,>:4]", [1] * 9 + [4] * 7),
        ("[>:4]", [0] + [4] * 15),
        ("[256:2,1024:4]", [2] * 9 + [0, 4] + [0] * 5),
        ("[1:2,65536:8]", [2] + [0] * 14 + [8]),
        ("[1024:4,256:2,>:1]", [4] * 8 + [2] + [1] * 7),
        ("[64:8,131072:4]", [8] * 7 + [0] * 8 + [4]),
        ("[]", [0] * 16),
    ],
)
def test_divisions_are_read_as_torch_reads_them(value: str, table: list[int]) -> None:
    assert settings_from(f"roundup_power2_divisions:{value}").roundup_power2_divisions == tuple(table)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("max_split_size_mb:10", ("max_split_size_mb", "10", "20")),
        ("max_split_size_mb:abc", ("max_split_size_mb", "abc")),
        ("large_segment_size_mb:40,max_split_size_mb:30", ("max_split_size_mb", "30", "40")),
        ("large_segment_size_mb:10", ("large_segment_size_mb", "10")),
        ("max_non_split_rounding_mb:10", ("max_non_split_rounding_mb", "10")),
        ("garbage_collection_threshold:1.0", ("garbage_collection_threshold", "1.0")),
        ("garbage_collection_threshold:0", ("garbage_collection_threshold", "0")),
        ("garbage_collection_threshold:nan", ("garbage_collection_threshold", "nan")),
        ("per_process_memory_fraction:1.5", ("per_process_memory_fraction", "1.5")),
        ("per_process_memory_fraction:0", ("per_process_memory_fraction", "0")),
        ("roundup_power2_divisions:3", ("roundup_power2_divisions", "3")),
        ("roundup_power2_divisions:0", ("roundup_power2_divisions", "0")),
        ("roundup_power2_divisions:[256:3]", ("roundup_power2_divisions", "3")),
        ("roundup_power2_divisions:[250:4]", ("roundup_power2_divisions", "250")),
        ("roundup_power2_divisions:[256]", ("roundup_power2_divisions", "256")),
        ("expandable_segments:true", ("expandable_segments", "true")),
        ("expandable_segment:True", ("expandable_segment", "True", "did you mean expandable_segments?")),
        ("backend:cudaMallocAsync", ("backend", "cudaMallocAsync")),
        ("throw_on_cudamalloc_oom:True", ("throw_on_cudamalloc_oom", "not modelled")),
        ("max_split_size_mb", ("max_split_size_mb", "key:value")),
        ("max_split_size_mb=128", ("max_split_size_mb=128", "key:value")),
        ("roundup_power2_divisions:[256:1", ("[256:1",)),
    ],
)
def test_a_refusal_names_key_and_value(text: str, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as refused:
        settings_from(text)
    assert all(name in str(refused.value) for name in names), str(refused.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InputError) as refused:
        settings_from("max_split_size_mb:x,expandable_segments:yes,colour:red")
    assert [problem.field for problem in refused.value.problems] == [
        "max_split_size_mb",
        "expandable_segments",
        "colour",
    ]
    with pytest.raises(InputError) as refused:
        Settings(max_split_size_bytes=MIB, per_process_memory_fraction=2)
    assert [problem.field for problem in refused.value.problems] == [
        "max_split_size_mb",
        "per_process_memory_fraction",
    ]
