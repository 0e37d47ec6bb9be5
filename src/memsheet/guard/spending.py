"""What one command may take of files: bytes that are read of all of them together, and values that are built
of what was read.

Each reader has limits for one file; a command that is given many files, or one file in many parts, spends of
one amount. The command line opens it (``of_one_command``), ``guard`` spends of it wherever bytes are read and
values are counted, and nothing else asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from memsheet.errors import input_error
from memsheet.frozen import dataclass, field
from memsheet.guard.budget import Budget, TooMuchError

MOST_BYTES = 64 * 2**20
"""An index of 32 MiB and the headers of its files, 32 MB, are the most that one model is described by."""
MOST_VALUES = 8_000_000
"""Headers of 32 MB hold 100,000 tensors of 14 values in each of several files; all else is far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """``ends``, ``built``: how far each file was read, and the values built of it, so that one read again
    costs nothing more.
    """

    bytes: Budget
    values: Budget
    ends: dict[str, int] = field(default_factory=dict)
    built: dict[str, int] = field(default_factory=dict)


_NOW: ContextVar[Spending | None] = ContextVar("spending", default=None)


@contextmanager
def of_one_command(most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES) -> Iterator[Spending]:
    """What is read until the end is one command's; inside another it is the outer one's."""
    outer = _NOW.get()
    if outer is not None:
        yield outer
        return
    own = Spending(bytes=Budget(most_bytes, "bytes of files"), values=Budget(most_values, "values"))
    token = _NOW.set(own)
    try:
        yield own
    finally:
        _NOW.reset(token)


def spend_bytes(name: str, end: int) -> None:
    """That the file (or pipe, or compressed text) ``name`` is read up to ``end``. Raises InputError where a
    command has read enough.
    """
    if (now := _NOW.get()) is not None:
        _charge_budget(
            now.bytes, now.ends, name, end, f"{MOST_BYTES:,} bytes that one command reads of all its files"
        )


def spend_values(name: str, count: int) -> None:
    """That so many values are built of ``name``. Raises InputError where a command has built enough."""
    if (now := _NOW.get()) is not None:
        _charge_budget(
            now.values,
            now.built,
            name,
            count,
            f"{MOST_VALUES:,} values that one command builds of all its files",
        )


def _charge_budget(budget: Budget, before: dict[str, int], name: str, amount: int, most: str) -> None:
    more = amount - before.get(name, 0)
    if more <= 0:
        return
    before[name] = amount
    try:
        budget.spend(more)
    except TooMuchError:
        raise input_error(
            "file", name, f"goes beyond the {most}", "name fewer files, or those that the question is about"
        ) from None
