"""What a snapshot shows, as parts of the screen: what is live and whose, what grows, what was replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Answer
from memsheet.diagnose.interval import Interval, size_words
from memsheet.diagnose.snapshot.findings import SnapshotFacts
from memsheet.diagnose.snapshot.held import Group
from memsheet.diagnose.verdict import predicted_bytes
from memsheet.report.screen.layout import labelled_row, one_line
from memsheet.report.shared.look import Look

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

LINES, SHARE = 5, 50
"""Lines that are shown, and of what is live one part in so many that each must have."""
LONGEST_LINE = 46


def held_sections(held: SnapshotFacts, answer: Answer | None, look: Look) -> Iterator[Part]:
    """The parts in order."""
    yield _held_table(held, answer, look)
    if held.steps:
        yield labelled_row("Steps", "bold", _step_words(held), look)
    if held.replayed is not None and held.replayed.events:
        yield labelled_row("Replay", "bold", _replay_words(held), look)
    if held.ranks:
        yield labelled_row("Ranks", "bold", _rank_words(held, look), look, between="; ")


def _size_words(size: int) -> str:
    return size_words(Interval(size, size))


def _held_table(held: SnapshotFacts, answer: Answer | None, look: Look) -> Part:
    """Components, the largest first, each with the lines that hold most of it."""
    from memsheet.report.screen.written.parts import Table, Text

    grid = Table(gap=2, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    had = f" of {_size_words(held.room_bytes)} to be had" if held.room_bytes is not None else ""
    when = "when it died" if held.died else "at the highest"
    grid.add_row(
        Text("Live", "bold"),
        Text(_size_words(held.live_bytes)),
        Text(f"{when} · {_size_words(held.reserved_bytes)} reserved{had}"),
    )
    shown = (
        held.lines
        if look.full
        else [line for line in held.lines[:LINES] if line.bytes * SHARE >= held.live_bytes]
    )
    for group in held.components:
        if group.bytes * SHARE * 4 < held.live_bytes and not look.full:
            continue
        beside = predicted_bytes(answer, group.component) if answer is not None else None
        predicted = f" · predicted {_size_words(beside)}" if beside is not None else ""
        said = group.component.replace("_", " ") + predicted
        grid.add_row(Text(""), Text(_size_words(group.bytes)), Text(said))
        for line in shown:
            if line.component == group.component and line.line:
                grid.add_row(Text(""), Text(_size_words(line.bytes), "dim"), Text(_line_words(line), "dim"))
    return grid


def _line_words(line: Group) -> str:
    count = "1 block" if line.blocks == 1 else f"{line.blocks:,} blocks"
    name = one_line(line.line)
    return f"  {name if len(name) <= LONGEST_LINE else '…' + name[1 - LONGEST_LINE :]} · {count}"


def _step_words(held: SnapshotFacts) -> Iterator[str]:
    growth = held.growth
    if growth is None:
        yield f"{held.steps} seen"
        yield "what outlives a step does not grow steadily"
        return
    yield f"{held.steps} seen"
    yield f"what outlives a step grows by {_size_words(growth.bytes_per_step)} a step"
    if growth.bytes_per_step and not held.died and held.free_bytes:
        yield f"{held.free_bytes // growth.bytes_per_step:,} more until memory is full"


def _replay_words(held: SnapshotFacts) -> Iterator[str]:
    replayed = held.replayed
    assert replayed is not None
    yield f"as it was set, {replayed.matched:,} of {replayed.events:,} segment events come out the same"
    for each in held.what_if:
        if each.lived and each.reserved_bytes is not None:
            reserved = _size_words(each.reserved_bytes)
            yield f"{_setting_words(each.change, each.conf)}: lives, {reserved} reserved"
        else:
            yield f"{_setting_words(each.change, each.conf)}: dies all the same"


def _setting_words(change: str, conf: str) -> str:
    return conf or change


def _rank_words(held: SnapshotFacts, look: Look) -> Iterator[str]:
    for rank in held.ranks[: None if look.full else 8]:
        died = ", died" if rank.died else ""
        live, reserved = _size_words(rank.live_bytes), _size_words(rank.reserved_bytes)
        yield f"{one_line(rank.name)} {live} live, {reserved} reserved{died}"
    if len(held.ranks) > 8 and not look.full:
        yield f"and {len(held.ranks) - 8} more"
