"""What a processor really allocated, by PyTorch's profiler: high-water marks between marks, and what was
there at each.

Its records come from the allocator itself, so they hold what kernels take inside an operation too, but for
the sums of a product that some processors keep apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from memsheet.frozen import dataclass
from memsheet.sheet import Instant

SILENT = "6"
"""Above all that Kineto logs, onto stdout: 5 is of its start and stop (libkineto ILoggerObserver.h,
LoggerOutputType). A person's own level stays.
"""
_MARK, _END = "memsheet/", "end"
_NO_OPERATION = (
    "no operation"  # such as the generator's state, which a checkpoint keeps (torch/utils/checkpoint.py)
)
_COLLECTIVE = ("c10d::", "_c10d_functional::")
_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A profiled step. ``instants``: each one's high-water mark; ``tops``: what was there then, by
    operation.
    """

    instants: Mapping[str, int]
    tops: Mapping[str, tuple[tuple[str, int], ...]]


def profile_memory_peaks(run: Callable[[Callable[[Instant | None], None]], None]) -> Real:
    """Call ``run`` with everything from its first tensor under the profiler. It says where it is; after None,
    nothing counts.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run(_record_instant_mark)
        _record_instant_mark(None)
    allocations = _add_missing_releases(
        list(_tree_allocations(profiler.profiler.kineto_results.experimental_event_tree(), ""))
    )
    return _peaks_between_marks(
        _without_accumulators(allocations), _instant_marks(profiler.profiler.kineto_results.events())
    )


def _record_instant_mark(instant: Instant | None) -> None:
    with record_function(_MARK + (instant.value if instant else _END)):
        pass


@dataclass(frozen=True, slots=True)
class _Allocation:
    """``bytes`` are negative for a release. ``until``: when the collective around it was over, ``op_end``:
    when ``op`` was, 0 outside all.
    """

    at: int
    bytes: int
    address: int
    op: str
    until: int = 0
    op_end: int = 0


def _tree_allocations(nodes: Any, op: str, until: int = 0, op_end: int = 0) -> Iterator[_Allocation]:
    """Memory records below some nodes of the profiler's tree, with the innermost operation that does more
    than allocate.
    """
    for node in nodes:
        if type(node.extra_fields).__name__ == "_ExtraFields_Allocation":
            yield _Allocation(
                node.start_time_ns, node.extra_fields.alloc_size, node.extra_fields.ptr, op, until, op_end
            )
        goes_on = not node.name.startswith("aten::") or node.name.startswith(_ALLOCATES)
        inner, inner_end = (op, op_end) if goes_on else (node.name, node.end_time_ns)
        collective = node.end_time_ns if node.name.startswith(_COLLECTIVE) else until
        yield from _tree_allocations(node.children, inner, collective, inner_end)


def _without_accumulators(allocations: list[_Allocation]) -> list[_Allocation]:
    """Without what a product takes and gives back before it is over: the sums of its 16-bit result in fp32,
    twice as large as that, which oneDNN keeps where the processor itself does not multiply such numbers. They
    are of the processor, not of the step: no GPU has them.
    """
    live, left_out = dict[int, int](), set[int]()
    for number, found in enumerate(allocations):
        before = live.pop(found.address, None)
        if found.bytes > 0:
            live[found.address] = number
        elif before is not None:
            taken = allocations[before]
            if taken.op in _PRODUCTS and found.at <= taken.op_end:
                left_out |= {before, number}
    return [found for number, found in enumerate(allocations) if number not in left_out]


def _add_missing_releases(allocations: list[_Allocation]) -> list[_Allocation]:
    """In order of time, with the releases that nobody heard: one of gloo's threads lets go of what a
    collective allocated, because it comes last to it, when the profiler no longer listens to that thread
    (ProcessGroupGloo.cpp, runLoop). That can only be soon after the collective: it counts as gone with it.
    """
    open_at, silent = dict[int, _Allocation](), list[_Allocation]()
    for found in sorted(allocations, key=lambda one: one.at):
        before = open_at.pop(found.address, None)
        if before is not None and found.bytes > 0 and before.until:  # its place has been given away
            silent.append(before)
        if found.bytes > 0:
            open_at[found.address] = found
    silent += [one for one in open_at.values() if one.until]
    return sorted(
        [*allocations, *(_Allocation(one.until, -one.bytes, one.address, one.op) for one in silent)],
        key=lambda one: one.at,
    )


def _instant_marks(events: Any) -> list[tuple[int, str]]:
    return sorted(
        (event.start_ns(), event.name().removeprefix(_MARK))
        for event in events
        if event.name().startswith(_MARK)
    )


def _peaks_between_marks(allocations: list[_Allocation], marks: list[tuple[int, str]]) -> Real:
    """High-water marks between the marks, and what was there at each. A step that begins anew forgets the one
    before. What was there before all of it counts neither while it stays nor when a collection of garbage
    lets go of it.
    """
    instants, tops = dict[str, int](), dict[str, list[_Allocation]]()
    live, held, now, waiting = dict[int, _Allocation](), 0, "", list(marks)
    for found in allocations:
        while waiting and waiting[0][0] <= found.at:
            now = waiting.pop(0)[1]
            if now == Instant.LOAD.value:
                instants, tops = {}, {}
            instants[now] = max(instants.get(now, 0), held)
        before = live.pop(found.address, None)
        if before is None and found.bytes < 0:
            continue
        held -= before.bytes if before else 0
        if found.bytes > 0:
            live[found.address] = found
            held += found.bytes
        if now and held >= instants[now]:
            instants[now], tops[now] = held, list(live.values())
    instants.pop(_END, None)
    return Real(
        instants=instants,
        tops={at: tuple((one.op or _NO_OPERATION, one.bytes) for one in top) for at, top in tops.items()},
    )
