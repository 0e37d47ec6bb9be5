"""A step that ran out of memory, as an answer: what asked, for how much, and what was there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline, events_document
from memsheet.trace.modules import fold_layer_indices
from memsheet.trace.recorder import Recorder, Stop

NO_MEMORY = (MemoryError, RuntimeError)
"""RuntimeError is the parent of torch.OutOfMemoryError (torch/__init__.py), and what the processor's
allocator raises (c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory: you tried to
allocate N bytes").
"""
_SAYS = ("can't allocate memory", "not enough memory", "out of memory")
_ONEDNN = "could not create a primitive"
"""All that oneDNN says (dnnl.hpp, primitive's constructor) when it finds no room for a kernel's code or
scratch.
"""
_BYTES = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_STATES = ("aten.zeros_like", "aten.zeros", "aten.empty_like")
LARGEST = 8


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was no memory left."""
    says = str(error).lower()
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or says == _ONEDNN
        or any(words in says for words in _SAYS)
    )


def stop_of(error: BaseException) -> Stop | None:
    """Where memory ran out, if that is what happened and it was seen."""
    found = getattr(error, "stop", None)
    return found if ran_out(error) and isinstance(found, Stop) else None


def request_bytes(error: BaseException) -> int | None:
    """What the message says was asked for; CUDA's rounds it to hundredths of a unit
    (CUDACachingAllocator.cpp, format_size).
    """
    found = _BYTES.search(str(error))
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def out_of_memory_record(stop: Stop, error: BaseException, step: int | None = None) -> dict[str, Any]:
    """The rank of which a child tells: a timeline of what was there, and the facts of its end. ``step``
    counts from 1.
    """
    recorder = stop.recorder
    instant = recorder.instant or Instant.LOAD
    first = not any(mark.instant is Instant.LOAD for mark in recorder.marks)
    there = sorted(
        (_held_storage(recorder, number, stop, first=first) for number in stop.held),
        key=lambda storage: -storage.bytes,
    )
    timeline = Timeline(
        storages=tuple(there), events=tuple(range(len(there))), marks=(Mark(len(there), instant),)
    )
    facts: dict[str, Any] = {
        "instant": instant.value, "step": step or (1 if first else 2), "op": stop.op, "path": fold_layer_indices(stop.path),
        "request_bytes": request_bytes(error), "resident_bytes": sum(storage.bytes for storage in there), "by": _by_component(there),
        "largest": _largest_held_rows(there), "message": str(error).splitlines()[0][:500] if str(error) else type(error).__name__,
    }  # fmt: skip
    return {
        "rank": 0,
        "stage": 0,
        "events": events_document(timeline),
        "facts": {"torch": torch.__version__, "died": facts},
    }


def _held_storage(recorder: Recorder, number: int, stop: Stop, *, first: bool) -> Storage:
    """A row that was there. While the model is built all are parameters; what waits for backward is saved but
    where its own module still runs; what the optimizer's first step fills with zeros are its states.
    """
    row = recorder.rows[number]
    component = row.component
    if component is Component.TEMPORARIES:
        if recorder.instant is None:
            component = Component.PARAMETERS
        elif number in stop.kept and (recorder.instant is Instant.BACKWARD or row.path != stop.path):
            component = Component.SAVED_ACTIVATIONS
        elif first and recorder.instant is Instant.OPTIMIZER_STEP and row.op in _STATES:
            component = Component.OPTIMIZER_STATES
    made = component in (Component.TEMPORARIES, Component.SAVED_ACTIVATIONS)
    path = fold_layer_indices(row.path or row.owner)
    return Storage(
        row.bytes,
        component,
        f"{path or 'step'}/{row.part or row.op.removeprefix('aten.')}" if made else path,
        row.op,
        row.stream,
        row.line,
    )


def _by_component(there: list[Storage]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for storage in there:
        sums[storage.component.value] = sums.get(storage.component.value, 0) + storage.bytes
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def _largest_held_rows(there: list[Storage]) -> list[Mapping[str, Any]]:
    """The rows that take most, one a component and path."""
    sums: dict[tuple[str, str], int] = {}
    for storage in there:
        key = storage.component.value, storage.path
        sums[key] = sums.get(key, 0) + storage.bytes
    most = sorted(sums.items(), key=lambda pair: -pair[1])[:LARGEST]
    return [{"component": component, "path": path, "bytes": size} for (component, path), size in most]
