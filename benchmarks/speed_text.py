"""The page docs/speed.md, from what ``speed`` measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from speed import BARE_S, BarTiming

from memsheet import __version__
from memsheet.allocator.compiled import compiled_loops

Row = tuple[str, float, float]
"""What was asked, what it took, and what is wanted."""


def speed_page(answer: Mapping[str, Any]) -> str:
    """The page as Markdown. ``answer``: as ``speed --json`` prints it."""
    return "\n".join(_page_lines(answer)) + "\n"


def _page_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    played = "in C" if compiled_loops else "in Python"
    yield f"""# Speed

How long answers take, beside a bare interpreter on the same machine a moment before. This page is written by
`make bench`; it was last made on {datetime.now(UTC):%Y-%m-%d} with memsheet {__version__} on Python
{platform.python_version()}, {os.cpu_count()} cores, the allocator's loop {played}. Times are a processor's
own, medians of {answer["runs"]} runs: machines differ, and a busy one is slower, so ratios say more than
seconds. What is not met is in bold.

Bars in seconds were set where a bare `python -c pass` took {1e3 * BARE_S:g} ms; where this page was made it
took {1e3 * answer["bare"]:.1f} ms. So each of them stands here twice: in seconds, and in bare interpreters,
the bar as so many of those, and what was taken as so many of these, run in turn with it.

## Whole commands

Times a `python -c pass`.
"""
    yield from _table(answer["commands"], "Command", "x bare", "{:.1f}")
    yield "\n## Searches\n\nWhole commands, every legal plan of every engine that trains, by the clock;"
    yield "where the system can copy a process, searches are shared out over its processors.\n"
    yield from _heads(("`plan train`", "seconds", "wanted", *BARE_HEADS, "seconds of all processors"))
    for row, spent in answer["plans"]:
        yield f"{_beside_bare(row, '{:.1f}', 1.0)} {spent:.1f} |"
    yield "\n## In one process\n"
    yield (
        f"The model is read; steps are played through the allocator {played}, or bounded by shares. Each "
        "question is asked at many lengths in turn.\n"
    )
    yield from _heads(("Question", "ms", "wanted", *BARE_HEADS))
    yield from (_beside_bare(row, "{:.2f}", 1e-3) for row in answer["questions"])
    peer = answer["ratios"].get("peer over cold")
    if peer is not None:
        yield "\n## Beside others\n"
        yield "Building the same 70B on the meta device to sum its parameters, as accelerate does before it"
        yield f"can estimate, takes {peer:.1f} times as long as the whole sheet of a training step."
    if answer["over peer"] is not None:
        rate = f"{answer['over peer']:,.0f}"
        yield f"SimuMax weighs plans one by one: the search weighs {rate} times as many a second."


def _table(rows: Iterable[Row], name: str, unit: str, shown: str) -> Iterator[str]:
    yield from _heads((name, unit, "wanted"))
    for what, taken, wanted in rows:
        yield f"| {what} | {_told(taken, wanted, shown)} | {wanted:g} |"


BARE_HEADS = ("x bare", "wanted")


def _beside_bare(row: BarTiming, shown: str, unit_s: float) -> str:
    """A row of a table whose bar is so many of a unit of ``unit_s`` seconds, in that and in bare
    interpreters.
    """
    bar = row.wanted_in_bare(unit_s)
    number = "{:.0f}" if bar >= MANY else "{:.3f}"
    return (
        f"| {row.name} | {_told(row.taken, row.wanted, shown)} | {row.wanted:g} "
        f"| {_told(row.in_bare, bar, number)} | {number.format(bar)} |"
    )


MANY = 10


def _told(taken: float, wanted: float, shown: str) -> str:
    """A number, in bold where it is more than what is wanted."""
    return f"**{shown.format(taken)}**" if taken > wanted else shown.format(taken)


def _heads(names: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"| --- |{' ---: |' * (len(names) - 1)}"
