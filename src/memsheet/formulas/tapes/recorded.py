"""Recorded passes as tapes."""

from __future__ import annotations

from functools import lru_cache

from memsheet.formulas.tapes.tape import Entry, Event, Tape
from memsheet.plan.dtypes import BF16, FP32, UINT8, DType
from memsheet.recording import RecordedPass, RecordedStorage

WIDTHS: dict[int, DType] = {4: FP32, 2: BF16, 1: UINT8}


@lru_cache(maxsize=256)
def tape_of_pass(found: RecordedPass, prefix: str = "") -> Tape:
    """A recorded pass as a tape, names taken within ``prefix``."""
    return Tape(
        entries=tuple(_entry(storage, prefix) for storage in found.storages),
        forward=tuple((Event(what), place) for what, place in found.forward),
        backward=tuple((Event(what), place) for what, place in found.backward),
        saved=frozenset(found.saved),
        cached=frozenset(found.cached),
        outputs=frozenset(found.outputs),
        handed=frozenset(found.handed),
        collected=frozenset(found.collected),
        waiting=frozenset(found.waiting),
        lingering=frozenset(found.lingering),
    )


def layer_tape(found: RecordedPass, stack: str) -> Tape:
    """The tape of a layer of ``stack``."""
    return tape_of_pass(found, f"{stack}.*")


def _entry(storage: RecordedStorage, prefix: str) -> Entry:
    path = storage.path.removeprefix(prefix).removeprefix(".") if prefix else storage.path
    if storage.width:
        ((size, _, _),) = storage.terms
        return Entry(path, (size // storage.width,), WIDTHS[storage.width], gradient=True)
    return Entry(path, (), UINT8, terms=storage.terms)
