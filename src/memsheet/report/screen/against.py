"""What changed between two states of a job's files, as a screen: the verdicts and the difference first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memsheet.report.screen.checked import OUTCOMES
from memsheet.report.screen.comparison_table import signed_difference
from memsheet.report.screen.layout import labelled_row, one_line, render_parts
from memsheet.report.screen.plans.story import plain_table
from memsheet.report.shared.against import Against, Mistakes
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import component_name

if TYPE_CHECKING:
    from rich.console import RenderableType

WORSE, BETTER = "bold red", "bold green"
LISTED = 4
"""Components that the headline names."""


def render_against(found: Against, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_change_sections(found, look), look)


def change_headline(found: Against, look: Look) -> tuple[str, str, tuple[str, ...]]:
    """A word, its style and phrases: how much more is needed, of what, and the verdict before and after."""
    before, after = (OUTCOMES[side.outcome].lower() for side in (found.before, found.after))
    verdict = f"{before} → {after}" if before != after else f"{after}, as before"
    against = f"against {one_line(found.reference)}"
    size, (old, new) = found.difference_bytes, found.sheets
    if size is None or old is None or new is None:
        problems = (one_line(side.problem) for side in (found.before, found.after) if side.problem)
        return "NO DIFFERENCE IS KNOWN", "bold yellow", (verdict, *problems, against)
    if not size:
        word, style = "THE SAME", BETTER
    else:
        word, style = signed_difference(size, look), WORSE if size > 0 else BETTER
    needs = f"{look.need(int(old.device.value), 2)} → {look.need(int(new.device.value), 2)} a GPU"
    parts = [(name, two - one) for name, one, two in found.components() if one != two]
    said = [f"{component_name(name)} {signed_difference(more, look)}" for name, more in parts[:LISTED]]
    if len(parts) > LISTED:
        said.append(f"{len(parts) - LISTED} more")
    return word, style, (", ".join(said), needs, verdict, against)


def change_columns(look: Look) -> tuple[tuple[str, bool], ...]:
    """Headings of the table of components, and whether numbers stand below each."""
    return (f"at the peak, in {look.unit}", False), ("before", True), ("after", True), ("change", True)


def change_rows(found: Against, look: Look) -> Iterator[tuple[str, ...]]:
    """A row for each component that differs, one for those that do not, and their sum."""
    rows = [(component_name(name), one, two) for name, one, two in found.components()]
    equal = [one for _, one, two in rows if one == two]
    told = [row for row in rows if row[1] != row[2]]
    if equal:
        told.append((f"{len(equal)} as before", sum(equal), sum(equal)))
    told.append(("= device", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    for name, one, two in told:
        change = signed_difference(two - one, look) if one != two else "="
        yield name, look.cell(one), look.cell(two), change


def option_words(found: Against) -> tuple[str, ...]:
    """The keys of the accounted plan that are others, each with both values."""
    return tuple(
        one_line(f"{key} {_value_words(before)} → {_value_words(after)}")
        for key, before, after in found.options()
    )


def _value_words(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def mistake_words(mistakes: Mistakes) -> tuple[str, ...]:
    """Mistakes, one phrase each."""
    return tuple(one_line(f"{found.where}: {found.says} [{rule.id}]") for rule, found in mistakes)


def _change_sections(found: Against, look: Look) -> Iterator[RenderableType]:
    sheets = [sheet for sheet in found.sheets if sheet is not None]
    if sheets:
        look = look.fitted(max(int(sheet.device.value) for sheet in sheets))
    yield labelled_row(*change_headline(found, look), look)
    if options := option_words(found):
        yield labelled_row("Changed", "bold", options, look)
    if any(one != two for _, one, two in found.components()):
        table = plain_table(
            *((name, "right" if numbers else "left") for name, numbers in change_columns(look))
        )
        for cells in change_rows(found, look):
            table.add_row(*cells)
        yield table
    for word, style, mistakes in (
        ("New mistakes", "bold yellow", found.new_mistakes),
        ("Cured", "bold", found.gone_mistakes),
    ):
        if mistakes:
            yield labelled_row(word, style, ("\n".join(mistake_words(mistakes)),), look)
