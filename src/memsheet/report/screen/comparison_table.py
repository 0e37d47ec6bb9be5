"""A comparison as a screen: which side is larger and by how much, what explains it, then row by row, instant
by instant, rank by rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.errors import printable_line
from memsheet.report.screen.layout import labelled_row, render_parts
from memsheet.report.shared.comparison import Comparison, Pair
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import INSTANTS, component_name
from memsheet.sheet import Difference, Witness

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

SHOWN_ROWS, SHOWN_COMPONENTS, SHOWN_PAIRS = 20, 3, 8


def render_comparison(found: Comparison, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_comparison_sections(found, look), look)


def _comparison_sections(found: Comparison, look: Look) -> Iterator[Part]:
    pair, names = found.pairs[0], side_labels(found)
    yield labelled_row(*comparison_headline(pair, names, look), look)
    yield _compared_sides_table(found, pair, names)
    yield _difference_table(pair, names, look)
    yield _instant_peaks_table(pair, names, look)
    if len(found.pairs) > 1:
        yield _other_rank_pairs(found, names, look)


def side_labels(found: Comparison) -> tuple[str, str]:
    """What the sides are called: their witnesses where these differ."""
    left, right = found.left.witness.value, found.right.witness.value
    return (left, right) if left != right else ("A", "B")


def comparison_headline(pair: Pair, names: tuple[str, str], look: Look) -> tuple[str, str, tuple[str, ...]]:
    """A word, its style and phrases: both sizes, the difference, what explains most of it, and what that
    leaves.
    """
    left, right = pair.sizes
    both = f"{names[1]} {look.need(right, 2)}, {names[0]} {look.need(left, 2)}"
    when = f"both in {INSTANTS[pair.at[0]]}"
    if pair.at[0] is not pair.at[1]:
        when = (
            f"{names[1]} in {INSTANTS[pair.at[1]]}, {names[0]} in {INSTANTS[pair.at[0]]} (--instant "
            "NAME compares them at one)"
        )
    if not pair.bytes:
        equal = not any(each.bytes for each in pair.rows)
        word = "EQUAL" if equal else "EQUAL IN SUM"
        cancel = () if equal else _cancelling_part_phrases(pair, look)
        return word, "bold green" if equal else "bold yellow", (both, when, *cancel)
    more = "MORE" if pair.bytes > 0 else "LESS"
    word = f"{names[1].upper()} {percent_of_whole(pair.bytes, left, signed=False)} {more}"
    change = f"{look.need(abs(pair.bytes), 2)} {more.lower()} ({abs(pair.bytes):,} bytes)"
    within, most = _range_check_phrases(pair, names, look), _main_difference_phrases(pair, look)
    return word, "bold yellow", (both, change, *within, when, *most)


def _range_check_phrases(pair: Pair, names: tuple[str, str], look: Look) -> Iterator[str]:
    """Whether the right size, where it is no prediction, lies in the left one's range, where that has one."""
    size = pair.left.at(pair.at[0])
    if size.low != size.high and pair.right.witness is not Witness.PREDICTED:
        low, high = (look.need(int(end), 2) for end in (size.low, size.high))
        inside = size.low <= pair.sizes[1] <= size.high or look.need(pair.sizes[1], 2) in (low, high)
        yield f"{'within' if inside else 'outside'} {names[0]}'s range, {low} to {high}"


def _main_difference_phrases(pair: Pair, look: Look) -> Iterator[str]:
    """The component whose difference goes the same way and is the largest, and in what the rest lies, where
    there is any.
    """
    parts = pair.components()
    top = max(parts.values(), key=lambda each: each.bytes * (1 if pair.bytes > 0 else -1))
    share = f", {100 * top.bytes // pair.bytes}% of it" if abs(top.bytes) < abs(pair.bytes) else ""
    rest = [each for each in parts.values() if each is not top and each.bytes]
    part = "most of it" if rest else "all of it"
    yield f"{part} {component_name(top.component)} {signed_difference(top.bytes, look)}{share}"
    left = pair.bytes - top.bytes
    if rest:
        told = f"the rest, {signed_difference(left, look)}" if left else "the rest cancels out"
        yield f"{told}: {_join_differences(rest, look)}"


def _cancelling_part_phrases(pair: Pair, look: Look) -> Iterator[str]:
    parts = [each for each in pair.components().values() if each.bytes]
    yield (
        f"components cancel: {_join_differences(parts, look)}"
        if parts
        else "rows differ inside their components only"
    )


def _join_differences(parts: list[Difference], look: Look) -> str:
    words = [
        f"{component_name(each.component)} {signed_difference(each.bytes, look)}"
        for each in parts[:SHOWN_COMPONENTS]
    ]
    more = len(parts) - SHOWN_COMPONENTS
    return ", ".join([*words, *([f"{more} more"] if more > 0 else [])])


def _compared_sides_table(found: Comparison, pair: Pair, names: tuple[str, str]) -> Part:
    """What is compared with what."""
    from memsheet.report.screen.written.parts import Table, Text

    grid = Table(gap=2, show_header=False)
    for name, document, sheet in ((names[0], found.left, pair.left), (names[1], found.right, pair.right)):
        ranks = f"rank {sheet.rank}" + (f" and {len(sheet.same_as)} like it" if sheet.same_as else "")
        witness = "" if name == document.witness.value else document.witness.value
        cells = [
            name,
            witness,
            document.model,
            printable_line(document.file),
            ranks if len(found.pairs) > 1 or not pair.ranks else "",
        ]
        grid.add_row(*(Text(cell, "bold" if number == 0 else "") for number, cell in enumerate(cells)))
    if found.left.model != found.right.model:
        grid.add_row(Text(""), Text("two different models", "yellow"))
    return grid


def _difference_table(pair: Pair, names: tuple[str, str], look: Look) -> Part:
    """What differs, the largest difference first; what is equal as one row, all of it with ``full``."""
    from memsheet.report.screen.written.parts import Table, Text

    table = Table(gap=1, header_style="bold")
    look = look.fitted(max(pair.sizes))
    table.add_column("component", no_wrap=True)
    table.add_column(f"{'path' if look.full else 'module'} (sizes in {look.unit})", overflow="fold")
    for name in (*names, "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    differing = [each for each in pair.rows if each.bytes]
    shown = pair.rows if look.full else differing[:SHOWN_ROWS]

    def add(component: str, path: str, left: int, right: int, style: str = "") -> None:
        sizes = (look.cell(size) if size else "" for size in (left, right))
        cells = (component, path, *sizes, signed_difference(right - left, look) if right != left else "=")
        table.add_row(*(Text(cell, style) for cell in cells))

    for each in shown:
        add(
            component_name(each.component),
            printable_line(each.path) or "all",
            int(each.left.value),
            int(each.right.value),
        )
    smaller, equal = differing[len(shown) :], [each for each in pair.rows if not each.bytes]
    for words, left_out in ((f"{len(smaller)} smaller", smaller), (f"{len(equal)} equal", equal)):
        if left_out and not look.full:
            add(
                words,
                "",
                sum(int(e.left.value) for e in left_out),
                sum(int(e.right.value) for e in left_out),
                "dim",
            )
    add("= compared", "", *pair.sizes, "bold")
    return table


def _instant_peaks_table(pair: Pair, names: tuple[str, str], look: Look) -> Part:
    """Both peaks of every instant."""
    from memsheet.report.screen.written.parts import Table, Text

    table = Table(gap=2, header_style="bold")
    look = look.fitted(max(pair.sizes))
    table.add_column(f"tensors at each peak, {look.unit}", no_wrap=True)
    for name in (*names, "difference", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for instant in pair.instants:
        left, right = int(pair.left.at(instant).value), int(pair.right.at(instant).value)
        present = [instant in sheet.instants for sheet in (pair.left, pair.right)]
        sizes = [look.cell(size) if there else "" for size, there in zip((left, right), present, strict=True)]
        change = (
            [signed_difference(right - left, look), percent_of_whole(right - left, left)]
            if all(present) and right != left
            else ["=" if all(present) else "", ""]
        )
        mark = ["  peak" if instant is sheet.peak_instant else "" for sheet in (pair.left, pair.right)]
        told = (
            mark[0]
            if mark[0] == mark[1]
            else f"{mark[0] and f'  peak of {names[0]}'}{mark[1] and f'  peak of {names[1]}'}"
        )
        table.add_row(*(Text(cell) for cell in (f"{instant.value}{told}", *sizes, *change)))
    return table


def _other_rank_pairs(found: Comparison, names: tuple[str, str], look: Look) -> Part:
    """The other pairs of ranks, a line each."""
    from memsheet.report.screen.written.parts import Text

    lines = ["The other ranks"]
    for pair in found.pairs[1 : SHOWN_PAIRS + 1]:
        left, right = pair.sizes
        change = (
            f"{signed_difference(pair.bytes, look)} ({percent_of_whole(pair.bytes, left)})"
            if pair.bytes
            else "="
        )
        lines.append(
            f"  rank {pair.ranks[0]}{_same_rank_suffix(pair)}: {names[0]} {look.need(left, 2)}, "
            f"{names[1]} {look.need(right, 2)}  {change}"
        )
    hidden = len(found.pairs) - 1 - SHOWN_PAIRS
    return Text(
        "\n".join([*lines, *([f"  and {hidden} more; --rank N or --json shows them"] if hidden > 0 else [])])
    )


def _same_rank_suffix(pair: Pair) -> str:
    return f" and {len(pair.ranks) - 1} like it" if len(pair.ranks) > 1 else ""


def signed_difference(size: int, look: Look) -> str:
    """A difference with its sign, in the unit that suits it; its magnitude is rounded up."""
    return f"{'-' if size < 0 else '+'}{look.need(abs(size), 2)}"


def percent_of_whole(part: int, whole: int, *, signed: bool = True) -> str:
    """``part`` of ``whole`` in percent, never rounded to nothing."""
    if not whole:
        return ""
    share = abs(part) / whole * 100
    sign = ("-" if part < 0 else "+") if signed else ""
    return (
        f"{sign}<0.01%"
        if share < 0.01
        else f"{sign}{share:.{0 if share >= 100 else 1 if share >= 1 else 2}f}%"
    )
