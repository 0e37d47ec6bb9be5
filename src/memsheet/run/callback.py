"""A callback for transformers' Trainer: what was predicted for a rank beside what its GPU counts. Nothing of
the training is changed.

Transformers and torch are imported when a callback is made, so that this file can be read without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memsheet.run.step_watch import StepWatch
from memsheet.run.trackers import send_to_trackers
from memsheet.sheet import Sheet
from memsheet.units import GIB, format_bytes

LOG = logging.getLogger("memsheet")


def gpu_memory_counters() -> Mapping[str, int] | None:
    """What torch and the driver count on the rank's GPU; None where there is none. ``peak``: the most so far,
    of the whole process.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    reserved_bytes = torch.cuda.memory_reserved()
    return {
        "total": total_bytes, "others": total_bytes - free_bytes - reserved_bytes, "room": free_bytes + reserved_bytes,
        "allocated": torch.cuda.memory_allocated(), "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }  # fmt: skip


def predicted_lines(sheet: Sheet) -> Iterator[str]:
    """The prediction in a few lines."""
    low, value, high = (
        format_bytes(int(size)) for size in (sheet.device.low, sheet.device.value, sheet.device.high)
    )
    yield f"memsheet predicts {value} ({low} to {high}) on each GPU, the peak in {sheet.peak_instant.value}"
    rows = sorted(sheet.sums()[sheet.peak_instant].items(), key=lambda pair: -pair[1].value)
    yield "at the peak: " + ", ".join(
        f"{component.value.replace('_', ' ')} {format_bytes(int(size.value))}"
        for component, size in rows
        if size.value
    )


def room_lines(sheet: Sheet, gpu: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Whether the segments that the allocator will need are there to be had, each line with its level."""
    low_bytes, high_bytes, room = (
        int(sheet.reserved.low),
        int(sheet.reserved.high),
        format_bytes(gpu["room"], headroom=True),
    )
    grown_bytes = max(
        0, int(sheet.device.high) - int(sheet.reserved.high) - gpu["others"]
    )  # libraries that are not loaded yet
    others = f"{format_bytes(gpu['others'])} are held outside torch's allocator"
    if low_bytes > gpu["room"]:
        yield (
            logging.WARNING,
            (
                f"does not fit: at least {format_bytes(low_bytes)} of segments for {room} that torch can "
                f"have; {others}"
            ),
        )
    elif high_bytes + grown_bytes > gpu["room"]:
        yield (
            logging.WARNING,
            (
                f"may not fit: up to {format_bytes(high_bytes)} of segments for {room} that torch can have; "
                f"{others}"
            ),
        )
    else:
        yield (
            logging.INFO,
            f"fits: up to {format_bytes(high_bytes)} of segments for {room} that torch can have; {others}",
        )


def peak_lines(sheet: Sheet, gpu: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """The peaks as counted, and whether they lie in the predicted ranges."""
    for name, size in (("allocated", sheet.allocated), ("reserved", sheet.reserved)):
        seen = gpu[f"peak_{name}"]
        inside = size.low <= seen <= size.high
        where = "inside" if inside else "above" if seen > size.high else "below"
        span = f"{format_bytes(int(size.low))} to {format_bytes(int(size.high))}"
        yield (
            logging.INFO if inside else logging.WARNING,
            f"peak {name} {format_bytes(seen)}, {where} the predicted {span}",
        )


def step_figures(sheet: Sheet, gpu: Mapping[str, int]) -> dict[str, float]:
    """The predicted and the counted peaks so far, in GiB, by the names that trackers get."""
    return {
        f"memsheet/{whose}_{name}_gib": size / GIB
        for name, predicted in (("allocated", sheet.allocated), ("reserved", sheet.reserved))
        for whose, size in (("predicted", int(predicted.value)), ("peak", gpu[f"peak_{name}"]))
    } | {"memsheet/allocated_gib": gpu["allocated"] / GIB}


def log_beginning(sheet: Sheet) -> None:
    """The prediction, and whether the GPU has the room."""
    _log_leveled_lines((logging.INFO, line) for line in predicted_lines(sheet))
    _log_leveled_lines(
        room_lines(sheet, gpu)
        if (gpu := gpu_memory_counters())
        else ((logging.INFO, "there is no GPU to compare it with"),)
    )


def log_ending(sheet: Sheet) -> None:
    """The peaks beside the prediction; without a GPU nothing."""
    if gpu := gpu_memory_counters():
        _log_leveled_lines(peak_lines(sheet, gpu))


def log_warnings(lines: Iterable[str]) -> None:
    """What a watch found."""
    _log_leveled_lines((logging.WARNING, line) for line in lines)


def prediction_callback(sheets: tuple[Sheet, ...]) -> Any:
    """A ``TrainerCallback`` for a job whose ranks are predicted to hold ``sheets``; it logs to the logger
    ``memsheet``, of each node once, and the peaks so far to the experiment trackers that have a run, whenever
    the Trainer logs; and once each what grows from step to step, and memory that lies in pieces.
    """
    from transformers import TrainerCallback

    sheet, watch = max(sheets, key=lambda held: held.device.high), StepWatch()

    class Predicted(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.is_local_process_zero:
                log_beginning(sheet)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.is_local_process_zero and (gpu := gpu_memory_counters()):
                log_warnings(watch.warnings_of_step(gpu))

        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.is_world_process_zero and (gpu := gpu_memory_counters()):
                send_to_trackers(step_figures(sheet, gpu), int(state.global_step))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.is_local_process_zero:
                log_ending(sheet)

    return Predicted()


def _log_leveled_lines(lines: Any) -> None:
    for level, line in lines:
        LOG.log(level, "%s", line)
