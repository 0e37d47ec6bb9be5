"""What a configuration file says and comes to, as JSON (``memsheet/checked/1``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes import Found, Rule
from memsheet.exchange.mistakes.case import source_for
from memsheet.exchange.shared.file_format import Moved, Read
from memsheet.frozen import dataclass
from memsheet.report.json.answer import sheet_document

SCHEMA = "memsheet/checked/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Files by name, and what came of them. ``why_not``: what keeps the sheet from being made. ``moved``:
    keys whose bytes stand beside it.
    """

    reads: Mapping[str, Read]
    answer: Answer | None
    why_not: tuple[str, ...]
    assumed: tuple[str, ...]
    mistakes: tuple[tuple[Rule, Found], ...]
    moved: tuple[Moved, ...]
    doubt: str  # why the verdict is less sure than the sheet alone, or nothing
    not_read: tuple[str, ...] = ()  # files of a folder that are no configuration that is known, and why
    no_model: str = ""  # why nobody knows which model it is, or nothing
    on_cards: bool = False  # GPUs were named, so that a verdict was asked for

    @property
    def result(self) -> Result | None:
        """The sheet's verdict, which is uncertain where the files say what the sheet does not hold."""
        verdict = self.answer.verdict if self.answer else None
        return verdict.result if verdict else None

    @property
    def stops(self) -> bool:
        """Whether the engine refuses the files as they stand."""
        return any(found.stops for _, found in self.mistakes)


def _finding_engine(checked: Checked, found: Found) -> str:
    """The engine of the file that a finding is about; nothing where it is of none."""
    return str(
        next(
            (
                read.request.get("engine")
                for name, read in checked.reads.items()
                if found.where.startswith(f"{name}:")
            ),
            "",
        )
    )


def checked_document(checked: Checked) -> dict[str, Any]:
    """All of it as one object of plain values."""
    return {
        "schema": SCHEMA, "result": checked.result.value if checked.result else None, "starts": not checked.stops,
        "files": [_config_file_document(name, read) for name, read in checked.reads.items()], "assumed": [*checked.assumed, *(f"not read: {one}" for one in checked.not_read)],
        "mistakes": [
            {
                "rule": rule.id, "where": found.where, "says": found.says, "cure": found.cure, "changes": dict(found.changes) or None,
                "saves_bytes": found.saves_bytes, "gains_bytes": found.gains_bytes, "stops": found.stops, "source": source_for(rule, _finding_engine(checked, found)),
            }
            for rule, found in checked.mistakes
        ],
        "moved": [{"key": m.at, "why": m.why, "low_bytes": m.low_bytes, "high_bytes": m.high_bytes} for m in checked.moved],
        "doubt": checked.doubt or None, "why_not": [*([checked.no_model] if checked.no_model else []), *checked.why_not], "sheet": sheet_document(checked.answer) if checked.answer else None,
    }  # fmt: skip


def _config_file_document(name: str, read: Read) -> dict[str, Any]:
    return {
        "file": name, "format": read.form.name, "engine_version": read.form.tested,
        "used": {at: read.values[at] for at in read.used}, "ignored": list(read.ignored),
        "unknown": [{"key": at, "nearest": near or None} for at, near in read.unknown],
        "unmodelled": [{"key": at, "value": value} for at, value in read.unmodelled], "request": {**read.request},
    }  # fmt: skip
