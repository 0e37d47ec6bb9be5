"""What the allocator reserves beyond the bytes asked for, as an item of a sheet."""

from __future__ import annotations

from dataclasses import replace

from memsheet.allocator.replay import Replay
from memsheet.sheet import Bytes, Component, Derived, Item, Sheet

REPLAYED = Derived(
    "replay of the traced allocations through the caching allocator's rules (torch 2.13, c10/cuda/CUDACachingAllocator.cpp): "
    "the high-water mark of what it reserves in an instant less that of the bytes asked for"
)


def slack_item(replayed: Replay) -> Item:
    """The row ALLOCATOR_SLACK: with it the sheet of the same timeline adds up to the reserved bytes of each instant."""
    at = {instant: Bytes.exact(size) for instant, size in replayed.slack.items()}
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, REPLAYED)


def with_slack(sheet: Sheet, replayed: Replay) -> Sheet:
    """``sheet`` with the replayed slack in place of any it had."""
    items = tuple(item for item in sheet.items if item.component is not Component.ALLOCATOR_SLACK)
    return replace(sheet, items=(*items, slack_item(replayed)))
