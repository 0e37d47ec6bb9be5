"""What a configuration file says and comes to: the keys that were used, the ones that were not, the mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.errors import MOST_SHOWN, more_than_shown
from memsheet.exchange.lint import Found, Rule
from memsheet.exchange.lint.case import source_for
from memsheet.frozen import dataclass
from memsheet.report.bars import Look
from memsheet.report.json import sheet_document
from memsheet.report.layout import one_line
from memsheet.spec.exchange import Moved, Read

SCHEMA = "memsheet/checked/1"
MANY = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Files by name, and what came of them. ``why_not``: what keeps the sheet from being made. ``moved``: keys whose bytes stand beside it."""

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


def _engine(checked: Checked, found: Found) -> str:
    """The engine of the file that a finding is about; nothing where it is of none."""
    return str(next((read.request.get("engine") for name, read in checked.reads.items() if found.where.startswith(f"{name}:")), ""))


def checked_document(checked: Checked) -> dict[str, Any]:
    """All of it as one object of plain values."""
    return {
        "schema": SCHEMA, "result": checked.result.value if checked.result else None, "starts": not checked.stops,
        "files": [_file(name, read) for name, read in checked.reads.items()], "assumed": [*checked.assumed, *(f"not read: {one}" for one in checked.not_read)],
        "mistakes": [
            {
                "rule": rule.id, "where": found.where, "says": found.says, "cure": found.cure, "changes": dict(found.changes) or None,
                "saves_bytes": found.saves_bytes, "gains_bytes": found.gains_bytes, "stops": found.stops, "source": source_for(rule, _engine(checked, found)),
            }
            for rule, found in checked.mistakes
        ],
        "moved": [{"key": m.at, "why": m.why, "low_bytes": m.low_bytes, "high_bytes": m.high_bytes} for m in checked.moved],
        "doubt": checked.doubt or None, "why_not": [*([checked.no_model] if checked.no_model else []), *checked.why_not], "sheet": sheet_document(checked.answer) if checked.answer else None,
    }  # fmt: skip


def _file(name: str, read: Read) -> dict[str, Any]:
    return {
        "file": name, "format": read.form.name, "engine_version": read.form.tested,
        "used": {at: read.values[at] for at in read.used}, "ignored": list(read.ignored),
        "unknown": [{"key": at, "nearest": near or None} for at, near in read.unknown],
        "unmodelled": [{"key": at, "value": value} for at, value in read.unmodelled], "request": {**read.request},
    }  # fmt: skip


def render_checked(checked: Checked, look: Look) -> str:
    """What the job needs first, then the mistakes, then what was read of each file: every key of it only where all is asked for."""
    parts = [*_verdict(checked, look), *_mistakes(checked, look), *_keys(checked, look)]
    return "\n".join(parts) + "\n"


def _verdict(checked: Checked, look: Look) -> Iterator[str]:
    if checked.stops:
        yield from _wrapped("DOES NOT START  the engine refuses these files: see the mistakes below", look.width, "")
        yield from ("",) if checked.answer else ()
    if checked.no_model:
        yield from _wrapped(f"NO SHEET  {checked.no_model}", look.width, " " * 10)
    if checked.answer is not None:
        from memsheet.report.table import render

        yield render(checked.answer, look).rstrip("\n")
    if checked.doubt:
        yield ""
        why = "Whatever becomes of this:" if checked.result is Result.DOES_NOT_FIT else "Uncertain because"
        yield from _wrapped(f"{why} {checked.doubt}", look.width, "  ")
    for line in checked.why_not:
        yield from _wrapped(f"no sheet: {line}", look.width, "          ")


def _mistakes(checked: Checked, look: Look) -> Iterator[str]:
    if not checked.mistakes:
        yield "\nNo known mistake found."
        return
    yield f"\nMistakes ({len(checked.mistakes)}){_by_which_end(checked)}"
    for rule, found in checked.mistakes[:MOST_SHOWN]:
        size = found.saves_bytes or 0
        frees = f" · frees {look.room(size)} a GPU" if size > 0 else f" · takes {look.need(-size)} a GPU" if size else ""
        gives = found.gains_bytes or 0
        frees += (
            f" · gives its cache {look.room(gives)} a GPU"
            if gives > 0
            else f" · takes {look.need(-gives)} a GPU of its cache"
            if gives
            else ""
        )
        yield from _wrapped(f"{'!' if found.stops else '-'} {found.where}: {found.says}", look.width, "  ", "  ")
        yield from _wrapped(f"cure: {found.cure}{frees} [{rule.id}]", look.width, "          ", "    ")
    yield from (f"  {line}" for line in more_than_shown(len(checked.mistakes)))


def _by_which_end(checked: Checked) -> str:
    """Why a change in the list above the mistakes may save other bytes than the same cure frees."""
    listed = checked.answer and checked.answer.verdict and checked.answer.verdict.cheapest_fix
    weighed = any(found.saves_bytes for _, found in checked.mistakes)
    return "  freed of the expected bytes; the changes above save at the range's high end" if listed and weighed else ""


def _keys(checked: Checked, look: Look) -> Iterator[str]:
    for name, read in checked.reads.items():
        counts = f"{len(read.used)} keys used, {len(read.ignored)} that change no byte: --full lists them"
        yield ""
        yield from _wrapped(f"{one_line(name)}  ({read.form.tested})" + ("" if look.full else f"  {counts}"), look.width, "  ")
        every = {"used": [f"{at} {_shown(read.values[at])}" for at in read.used], "ignored": list(read.ignored)}
        rows = {
            **(every if look.full else {}),
            "unknown": [f"{at} (near: {near})" if near else at for at, near in read.unknown],
            "not modelled": [f"{at} {_shown(value)}" for at, value in read.unmodelled],
        }  # fmt: skip
        for word, told in rows.items():
            if told:
                yield from _wrapped(f"{word:<13}{', '.join(told)}", look.width, " " * 15, "  ")
    if checked.not_read:
        yield ""
        yield from _wrapped(f"Not read  {'; '.join(checked.not_read)}", look.width, "  ")
    if checked.moved:
        shifts = (f"{m.at}: {m.why} ({_signed(m.low_bytes, look)} to {_signed(m.high_bytes, look)})" for m in checked.moved)
        yield ""
        yield from _wrapped(f"Beside the sheet  {'; '.join(shifts)}", look.width, "  ")
    if checked.assumed:
        yield ""
        yield from _wrapped(f"Assumed  {'; '.join(checked.assumed)}", look.width, "  ")


def _signed(size: int, look: Look) -> str:
    return f"+{look.need(size)}" if size > 0 else f"-{look.need(-size)}" if size < 0 else "0"


def _shown(value: Any) -> str:
    """A value on one line; of a script its first line."""
    first, more, _ = str(value).partition("\n")
    return one_line(str(value).lower() if isinstance(value, bool) else f"{first} …" if more else first)


def _wrapped(text: str, width: int, after: str, before: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        one_line(text), width=width, initial_indent=before, subsequent_indent=before + after, break_long_words=True, break_on_hyphens=False
    )
