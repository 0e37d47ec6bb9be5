"""Two documents of sheets side by side: rank by rank, joined on component and module path, the largest
difference first.

Witnesses name modules alike and may name what is inside one differently (``…q_proj/output``, ``…q_proj/mm``),
so that rows are joined on the module, the part of a path before its ``/``, unless parts are asked for. Only
tensors are compared: what an allocator and a driver add is no witness's business but the device's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.readers.sheet_json import Document
from memsheet.sheet import NOTHING, Component, Difference, Instant, Sheet, bytes_by_module

SCHEMA = "memsheet/comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sheets of the same ranks (``ranks`` is empty where none is in both), each at an instant, and how
    their rows differ.
    """

    left: Sheet
    right: Sheet
    ranks: tuple[int, ...]
    at: tuple[Instant, Instant]
    rows: tuple[Difference, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of tensors at the instants compared."""
        return int(self.left.at(self.at[0]).value), int(self.right.at(self.at[1]).value)

    @property
    def bytes(self) -> int:
        """What the right sheet holds more."""
        return self.sizes[1] - self.sizes[0]

    @property
    def instants(self) -> tuple[Instant, ...]:
        """Those of either sheet, in order."""
        return tuple(
            instant for instant in Instant if instant in self.left.instants or instant in self.right.instants
        )

    def components(self) -> dict[Component, Difference]:
        """The rows added up by component, the largest difference first."""
        found: dict[Component, Difference] = {}
        for row in self.rows:
            before = found.get(row.component, Difference(row.component, "", NOTHING, NOTHING))
            found[row.component] = replace(
                before, left=before.left + row.left, right=before.right + row.right
            )
        return dict(sorted(found.items(), key=lambda pair: -abs(pair[1].bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``left`` and ``right`` as documents, and their ranks in pairs, the largest difference first."""

    left: Document
    right: Document
    pairs: tuple[Pair, ...]


def compare_sheets(
    left: Document,
    right: Document,
    *,
    instant: Instant | None = None,
    rank: int | None = None,
    parts: bool = False,
) -> Comparison:
    """Compare the ranks that both documents have, or the first of each where they share none.

    At ``instant``, else each sheet at its own peak; only ``rank`` if it is given; with ``parts``, what is
    inside a module apart. Raises InputError where a document has no such instant or rank.
    """
    found = _matched_rank_sheets(left, right, rank)
    if instant is not None:
        for document, sheet in ((d, s) for one, other, _ in found for d, s in ((left, one), (right, other))):
            _check_instant(document, sheet, instant)
    pairs = (_sheet_pair(one, other, ranks, instant, parts=parts) for one, other, ranks in found)
    return Comparison(left=left, right=right, pairs=tuple(sorted(pairs, key=lambda pair: -abs(pair.bytes))))


def _matched_rank_sheets(
    left: Document, right: Document, rank: int | None
) -> list[tuple[Sheet, Sheet, tuple[int, ...]]]:
    """Sheets that stand for the same ranks, with those ranks."""
    sides = [
        {number: sheet for sheet in each.sheets for number in (sheet.rank, *sheet.same_as)}
        for each in (left, right)
    ]
    for document, ranks in zip((left, right), sides, strict=True):
        if rank is not None and rank not in ranks:
            raise input_error(
                "rank", rank, f"is not in {document.file}", f"it has {_first_rank_numbers(sorted(ranks))}"
            )
    shared: dict[tuple[int, int], list[int]] = {}
    for number in sorted(set(sides[0]) & set(sides[1])) if rank is None else [rank]:
        shared.setdefault((sides[0][number].rank, sides[1][number].rank), []).append(number)
    if not shared:
        return [(left.sheets[0], right.sheets[0], ())]
    return [(sides[0][one], sides[1][other], tuple(ranks)) for (one, other), ranks in shared.items()]


def _first_rank_numbers(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def _check_instant(document: Document, sheet: Sheet, instant: Instant) -> None:
    if instant not in sheet.instants:
        known = ", ".join(each.value for each in sheet.instants)
        raise input_error("instant", instant.value, f"is not in {document.file}", f"it has {known}")


def _sheet_pair(
    left: Sheet, right: Sheet, ranks: tuple[int, ...], instant: Instant | None, *, parts: bool
) -> Pair:
    at = (instant or left.peak_instant, instant or right.peak_instant)
    sides = [bytes_by_module(sheet, when, parts=parts) for sheet, when in zip((left, right), at, strict=True)]
    keys = dict.fromkeys((*sides[0], *sides[1]))
    rows = (
        Difference(c, path, sides[0].get((c, path), NOTHING), sides[1].get((c, path), NOTHING))
        for c, path in keys
    )
    return Pair(
        left=left, right=right, ranks=ranks, at=at, rows=tuple(sorted(rows, key=lambda row: -abs(row.bytes)))
    )


def comparison_document(found: Comparison) -> dict[str, Any]:
    """``memsheet/comparison/1``: every pair of ranks with its peaks, instants, components and rows; a
    difference is right less left.
    """
    sides = {
        side: {"file": d.file, "witness": d.witness.value, "model": d.model}
        for side, d in (("left", found.left), ("right", found.right))
    }
    return {"schema": SCHEMA, **sides, "ranks": [_pair_document(pair) for pair in found.pairs]}


def _pair_document(pair: Pair) -> dict[str, Any]:
    by_instant = ((i, int(pair.left.at(i).value), int(pair.right.at(i).value)) for i in pair.instants)
    return {
        "left_rank": pair.left.rank, "right_rank": pair.right.rank, "ranks": list(pair.ranks),
        "left_instant": pair.at[0].value, "right_instant": pair.at[1].value, **_difference_fields(*pair.sizes),
        "left_peak_bytes": int(pair.left.allocated.value), "right_peak_bytes": int(pair.right.allocated.value),
        "instants": [{"instant": instant.value, **_difference_fields(left, right)} for instant, left, right in by_instant],
        "components": [{"component": c.value, **_row_sizes(row)} for c, row in pair.components().items()],
        "rows": list(_difference_rows(pair)),
    }  # fmt: skip


def _difference_rows(pair: Pair) -> Iterator[dict[str, Any]]:
    for row in pair.rows:
        yield {"component": row.component.value, "path": row.path, **_row_sizes(row)}


def _row_sizes(row: Difference) -> dict[str, int]:
    return _difference_fields(int(row.left.value), int(row.right.value))


def _difference_fields(left: int, right: int) -> dict[str, int]:
    return {"left_bytes": left, "right_bytes": right, "difference_bytes": right - left}
