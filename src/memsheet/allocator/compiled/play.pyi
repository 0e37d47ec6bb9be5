from _typeshed import ReadableBuffer

INTERFACE: int

def play_script(
    events: ReadableBuffer,
    sizes: ReadableBuffer,
    streams: ReadableBuffer,
    start: int,
    expandable: bool,
    large_segment: int,
    capacity: int,
    limit: int,
    /,
) -> tuple[int, int, int, int] | None: ...
def shift_events(events: ReadableBuffer, by: int, /) -> bytes: ...
def live_peak(events: ReadableBuffer, sizes: ReadableBuffer, start: int, /) -> int: ...
