"""The answer as Python code gets it: with its forms as plain values, and short where it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet import budget
from memsheet.frozen import fields
from memsheet.report.json.document import value_writer
from memsheet.report.json.sheet import Evidence, sheet_document
from memsheet.report.shared.frames import frame_of
from memsheet.sheet import Sheet
from memsheet.units import format_bytes


class Answer(budget.Answer):
    """What a question gets: ``verdict``, ``sheets`` (one a distinct rank), the whole ``plan`` and what was
    ``assumed``.
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The answer as ``memsheet/sheet/1``: what ``--json`` prints."""
        return sheet_document(self)

    def rows(self) -> list[dict[str, Any]]:
        """One dict an item and instant (rank, stage, component, path, instant, bytes, low_bytes, high_bytes,
        evidence), for a table.
        """
        return [row for sheet in self.sheets for row in _sheet_rows(sheet)]

    def to_frame(self) -> Any:
        """``rows`` as a DataFrame of pandas or polars, or a Table of pyarrow, whichever is installed."""
        return frame_of(self.rows())

    def picture(self) -> str:
        """Every kind of rank as a bar against what a GPU gives, as the text of an SVG file."""
        from memsheet.report.page.html import bars_svg
        from memsheet.report.page.sheet import answer_view

        return f"{bars_svg(answer_view(self))}\n"

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, the bars and the table, in one piece without scripts."""
        from memsheet.report.page.html import answer_html
        from memsheet.report.page.sheet import answer_view

        return answer_html(answer_view(self))

    def __repr__(self) -> str:
        cards = f" on {self.cluster.count}x{self.cluster.device.name}" if self.cluster else ""
        return (
            f"<memsheet {self.plan.task} {self.model.name}{cards}, {self.plan.engine}: "
            f"{_verdict_words(self)}>"
        )


def public_answer(answer: budget.Answer) -> Answer:
    """The same answer, of the class that has its forms."""
    return Answer(**{field.name: getattr(answer, field.name) for field in fields(answer)})


def _sheet_rows(sheet: Sheet) -> Iterator[dict[str, Any]]:
    for item in sheet.items:
        for instant, size in item.at.items():
            yield {
                "rank": sheet.rank, "stage": sheet.stage, "component": item.component.value, "path": item.path, "instant": instant.value,
                "bytes": int(size.value), "low_bytes": int(size.low), "high_bytes": int(size.high), "evidence": value_writer(Evidence)(item.evidence),
            }  # fmt: skip


def _verdict_words(answer: budget.Answer) -> str:
    largest = max(answer.sheets, key=lambda sheet: sheet.device.high)
    need = format_bytes(int(largest.device.value))
    if answer.verdict is None or answer.cluster is None:
        return need
    room = format_bytes(answer.cluster.device.framework_bytes, headroom=True)
    return f"{answer.verdict.result.value.replace('_', ' ').upper()}, {need} of {room}"
