"""How much room each kind of rank takes, as stacked bars on one scale, and how to print sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.budget import Answer
from memsheet.report.shared.look import Look
from memsheet.sheet import OUTSIDE_TENSORS, Bytes, Component, Sheet

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Text

SHOWN_RANKS = 8
GLYPHS = "█▓▒░▚▞"
REST = "·"
COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "red")


def components_by_size(sheet: Sheet) -> list[tuple[Component, Bytes]]:
    """Components at the peak, largest first; what is no tensor comes last, whatever its size."""
    sizes = [(component, sheet.of(component)) for component in Component]
    present = [
        (component, size) for component, size in sizes if max(size.low, size.value, size.high)
    ]  # a pool is least where all else is most
    return sorted(
        present,
        key=lambda pair: (
            pair[0] in OUTSIDE_TENSORS,
            -pair[1].value if pair[0] not in OUTSIDE_TENSORS else 0,
        ),
    )


def marks_of(sheet: Sheet) -> dict[Component, tuple[str, str]]:
    """A glyph and a colour for each of the largest components; the rest share one."""
    order = sorted(components_by_size(sheet), key=lambda pair: -pair[1].value)
    known = zip(GLYPHS, COLOURS, strict=True)
    marks = {component: mark for (component, _), mark in zip(order, known, strict=False)}
    return {component: marks.get(component, (REST, "white")) for component, _ in order}


def render_stacked_bars(answer: Answer, main: Sheet, look: Look) -> Part:
    """A stacked bar for each kind of rank, all to one scale, against what a GPU gives."""
    from memsheet.report.screen.written.parts import Text

    capacity = answer.cluster.device.framework_bytes if answer.cluster else None
    groups = group_equal_sheets(answer)
    shown = groups[:SHOWN_RANKS]
    labels = [rank_group_label(group, answer) for group in shown]
    totals = [look.need(group[0].device.value) for group in shown] if len(groups) > 1 else [""]
    left, right = max(map(len, labels)) + 2, max(map(len, totals)) + 1
    width = look.width - left - right
    scale = max(capacity or 0, *(group[0].device.value for group in shown))
    marks, lines = marks_of(main), Text(no_wrap=True)
    for group, label, total in zip(shown, labels, totals, strict=True):
        lines.append(f"{label:<{left}}").append(
            _component_bar(group[0], marks, width, scale, capacity)
        ).append(f"{total:>{right}}\n")
    lines.append(
        _capacity_ruler(
            left, width, scale, capacity, look=look, end="" if len(groups) > 1 else look.need(scale)
        )
    )
    hidden = len(groups) - len(shown)
    return lines.append(f"\n{'':{left}}and {hidden} more kinds of rank, all smaller") if hidden else lines


def group_equal_sheets(answer: Answer) -> list[list[Sheet]]:
    """Sheets whose components are equal in size at their peaks, the largest first."""
    groups: dict[tuple[int, ...], list[Sheet]] = {}
    for sheet in answer.sheets:
        groups.setdefault(tuple(sheet.of(component).value for component in Component), []).append(sheet)
    return sorted(groups.values(), key=lambda group: -group[0].device.value)


def rank_group_label(group: list[Sheet], answer: Answer) -> str:
    if len(answer.sheets) == 1:
        one = "CPU" if ((answer.trace or {}).get("measured") or {}).get("device") == "cpu" else "GPU"
        return f"each {one}" if group[0].same_as else f"the {one}"
    kind, numbers = (
        ("stage", [sheet.stage for sheet in group])
        if answer.plan.mesh.pp > 1
        else ("rank", [sheet.rank for sheet in group])
    )
    if len(numbers) == 1:
        return f"{kind} {numbers[0]}"
    run = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{kind}s {numbers[0]}-{numbers[-1]}" if run else f"{len(numbers)} {kind}s"


def _component_bar(
    sheet: Sheet, marks: dict[Component, tuple[str, str]], width: int, scale: int, capacity: int | None
) -> Text:
    from memsheet.report.screen.written.parts import Text

    text, cells, so_far = Text(), 0, 0
    for component, size in sorted(((c, sheet.of(c)) for c in Component), key=lambda pair: -pair[1].value):
        so_far += size.value
        until = round(so_far * width / scale)
        glyph, colour = marks.get(component, (REST, "white"))
        text.append(glyph * (until - cells), colour)
        cells = until
    text.append(" " * (width - cells))
    if capacity is None:
        return text
    edge = min(round(capacity * width / scale), width - 1)
    return text.cut(0, edge).append("│", "bold").append(text.cut(edge + 1))


def _capacity_ruler(left: int, width: int, scale: int, capacity: int | None, *, end: str, look: Look) -> Text:
    """Under the bars: where the capacity lies, and ``end`` where the scale goes farther."""
    from memsheet.report.screen.written.parts import Text

    if capacity is None:
        return Text(f"{'':{left}}0{end:>{width - 1}}", "dim")
    words = f"{look.room(capacity)} a GPU gives"
    edge = min(round(capacity * width / scale), width - 1)
    line = f"{words} ┘".rjust(edge + 1) if edge >= len(words) + 2 else f"{'':{edge}}└ {words}"
    if width - len(line) > len(end) + 2 and scale > capacity:
        line = f"{line}{end:>{width - len(line)}}"
    return Text(f"{'':{left}}{line}", "dim")
