"""A whole script of requests and releases on a device of its own: compiled where that is there, else by the
loops in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice

from memsheet.allocator.blocks import Block
from memsheet.allocator.compiled import compiled_loops
from memsheet.allocator.settings import Settings, block_bytes
from memsheet.allocator.state import Allocator
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.allocator.caching import play_requests
    from memsheet.allocator.plain_loop import has_plain_segments, play_plain_segments


class Marks(NamedTuple):
    """High-water marks after a script's start, in bytes: what is reserved, and what blocks hold that are in
    use; how often cached blocks went back to the device for more; ``before``: the most that is reserved up to
    the start.
    """

    reserved: int
    in_blocks: int
    retries: int
    before: int


def play_whole_script(
    events: Sequence[int],
    sizes: Sequence[int],
    streams: Sequence[int],
    start: int,
    settings: Settings,
    capacity: int | None = None,
) -> Marks | None:
    """What ``events`` reserve: ``n`` requests the bytes ``sizes[n]`` in ``streams[n]``, ``~n`` releases them.
    ``start``: the event after which marks are new. None where memory runs out on a device of ``capacity``
    bytes.
    """
    if compiled_loops is not None and _is_compiled(settings):
        limit = Allocator(settings, capacity).limit
        ends = (-1 if end is None else end for end in (capacity, limit))
        expandable, segment = settings.expandable_segments, settings.large_segment_bytes
        try:
            numbers = _numbers(events), _numbers(_rounded(sizes, settings)), bytes(streams)
            found = compiled_loops.play_script(*numbers, start, expandable, segment, *ends)
        except (OverflowError, ValueError):  # sums beyond 64 bits, more streams than a byte tells
            pass
        else:
            return Marks(*found) if found else None
    return play_in_python(events, sizes, streams, start, settings, capacity)


def play_in_python(
    events: Sequence[int],
    sizes: Sequence[int],
    streams: Sequence[int],
    start: int,
    settings: Settings,
    capacity: int | None = None,
) -> Marks | None:
    """The same, block by block: the reference."""
    allocator = Allocator(settings, capacity)
    rounded = {size: block_bytes(size, settings) for size in set(sizes)}
    kinds = {
        (stream, size): (allocator.pool(stream, rounded[size]), rounded[size])
        for stream, size in set(zip(streams, sizes, strict=True))
    }
    requests = [kinds[kind] for kind in zip(streams, sizes, strict=True)]
    play = play_plain_segments if has_plain_segments(settings) else play_requests
    blocks: list[Block | None] = [None] * len(requests)
    before = play(allocator, events[: start + 1], requests, blocks)
    steady = before and play(allocator, events[start + 1 :], requests, blocks)
    return Marks(*steady, allocator.retries, before[0]) if before and steady else None


def _is_compiled(settings: Settings) -> bool:
    """Whether play.c has all that is set: not blocks that are kept whole, nor a collection by age."""
    collects = settings.garbage_collection_threshold is not None and not settings.expandable_segments
    return settings.max_split_size_bytes is None and not collects


def _rounded(sizes: Sequence[int], settings: Settings) -> Sequence[int]:
    """play.c rounds to 512 bytes alone."""
    if max(settings.roundup_power2_divisions) <= 1:
        return sizes
    return [block_bytes(size, settings) for size in sizes]


def _numbers(given: Sequence[int]) -> array[int]:
    return given if isinstance(given, array) else array("q", given)


def shift_events(events: array[int], by: int) -> array[int]:
    """The same events of requests whose numbers are higher by so many."""
    if compiled_loops is None:
        return array("q", [event + by if event >= 0 else event - by for event in events])
    shifted = array("q")
    shifted.frombytes(compiled_loops.shift_events(events, by))
    return shifted


def append_shifted(onto: array[int], events: array[int], by: int) -> None:
    """``shift_events`` at the end of others."""
    if compiled_loops is None:
        onto.extend(shift_events(events, by))
    else:
        onto.frombytes(compiled_loops.shift_events(events, by))


def live_peak_bytes(events: array[int], sizes: array[int], start: int) -> int:
    """The most bytes asked for and not released, from event ``start`` on."""
    if compiled_loops is not None:
        try:
            return int(compiled_loops.live_peak(events, sizes, start))
        except OverflowError:  # sums beyond 64 bits
            pass
    live = accumulate([sizes[event] if event >= 0 else -sizes[~event] for event in events])
    return max(islice(live, start, None), default=0)
