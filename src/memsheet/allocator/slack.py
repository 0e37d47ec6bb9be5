"""What the allocator reserves beyond the bytes asked for, as an item of a sheet."""

from __future__ import annotations

from memsheet.allocator.replay import Replay, replay_timeline
from memsheet.allocator.settings import Settings
from memsheet.frozen import replace
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet
from memsheet.timeline import Timeline

REPLAYED = Derived(
    "replay of the traced allocations through the caching allocator's rules (torch 2.13, "
    "c10/cuda/CUDACachingAllocator.cpp): "
    "the high-water mark of what it reserves in an instant less that of the bytes asked for"
)


def slack_item(replayed: Replay) -> Item:
    """The row ALLOCATOR_SLACK: with it the sheet of the same timeline adds up to the reserved bytes of each
    instant.
    """
    return _allocator_slack_item({instant: Bytes.exact(size) for instant, size in replayed.slack.items()})


def slack_within(timeline: Timeline, settings: Settings, rooms: tuple[int, int, int]) -> Item:
    """The row on a device that leaves the allocator some room: (the least, the expected, the most) bytes.

    What is cached and free goes back to the device before memory runs out, so less is reserved where there is
    less room. Where the allocations die, the row is what they would have reserved.
    """
    free = replay_timeline(timeline, settings)
    if free.reserved_peak_bytes <= rooms[0]:
        return slack_item(free)
    tight, expected, most = (_surviving_replay(timeline, settings, room) for room in rooms)
    if tight is not None:
        return slack_item(tight)
    value, low = (expected, expected) if expected is not None else (free, most or free)
    return _allocator_slack_item(
        {
            instant: Bytes(
                min(low.slack[instant], value.slack[instant]),
                value.slack[instant],
                max(size, value.slack[instant]),
            )
            for instant, size in free.slack.items()
        }
    )


def _surviving_replay(timeline: Timeline, settings: Settings, room: int) -> Replay | None:
    """The replay on a device of so many bytes, None if it dies there."""
    found = replay_timeline(timeline, settings, max(room, 0))
    return None if found.died else found


def _allocator_slack_item(at: dict[Instant, Bytes]) -> Item:
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, REPLAYED)


def with_slack(sheet: Sheet, replayed: Replay) -> Sheet:
    """``sheet`` with the replayed slack in place of any it had."""
    items = tuple(item for item in sheet.items if item.component is not Component.ALLOCATOR_SLACK)
    return replace(sheet, items=(*items, slack_item(replayed)))
