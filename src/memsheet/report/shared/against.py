"""What changed between two states of a job's files: its bytes by component, its options, its mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, worst_sheet
from memsheet.exchange.mistakes import FoundMistake, Rule
from memsheet.frozen import dataclass
from memsheet.plan.check import flatten_document
from memsheet.plan.document import plan_document
from memsheet.report.shared.checked import Checked, Launch
from memsheet.sheet import Component, Sheet

Mistakes = tuple[tuple[Rule, FoundMistake], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One job before and after. ``reference``: the file or the revision that ``before`` is of."""

    reference: str
    before: Launch
    after: Launch

    @property
    def sheets(self) -> tuple[Sheet | None, Sheet | None]:
        """Of each side the sheet of the rank that decides, None where it has none."""
        before, after = (_deciding_sheet(side.checked) for side in (self.before, self.after))
        return before, after

    @property
    def difference_bytes(self) -> int | None:
        """What a GPU needs more after than before at its peak; None where a side has no sheet."""
        before, after = self.sheets
        return None if before is None or after is None else int(after.device.value - before.device.value)

    def components(self) -> tuple[tuple[Component, int, int], ...]:
        """Bytes before and after of each component that either peak holds, the largest difference first;
        together they are the difference.
        """
        before, after = self.sheets
        if before is None or after is None:
            return ()
        sizes = ((each, int(before.of(each).value), int(after.of(each).value)) for each in Component)
        return tuple(
            sorted(
                (row for row in sizes if row[1] or row[2]),
                key=lambda row: (-abs(row[2] - row[1]), -row[2]),
            )
        )

    def options(self) -> Iterator[tuple[str, Any, Any]]:
        """Keys of the accounted plan that are others after, with both values."""
        before, after = (_plan_keys(side.checked) for side in (self.before, self.after))
        if before is not None and after is not None:
            for key in dict.fromkeys((*before, *after)):
                if before.get(key) != after.get(key):
                    yield key, before.get(key), after.get(key)

    @property
    def new_mistakes(self) -> Mistakes:
        return _mistakes_without(self.after.checked, self.before.checked)

    @property
    def gone_mistakes(self) -> Mistakes:
        return _mistakes_without(self.before.checked, self.after.checked)


def _deciding_sheet(checked: Checked | None) -> Sheet | None:
    answer: Answer | None = checked.answer if checked else None
    if answer is None:
        return None
    rank = answer.verdict.rank if answer.verdict else None
    return next((one for one in answer.sheets if one.rank == rank), None) or worst_sheet(answer.sheets)


def _plan_keys(checked: Checked | None) -> Mapping[str, Any] | None:
    answer = checked.answer if checked else None
    if answer is None:
        return None
    return flatten_document(plan_document(answer.plan, model=answer.model.name, cluster=answer.cluster))


def _mistakes_without(checked: Checked | None, other: Checked | None) -> Mistakes:
    """Mistakes that the other side has not, wherever in it they would stand."""
    if checked is None or other is None:
        return ()
    known = {_mistake_identity(rule, found, other) for rule, found in other.mistakes}
    return tuple(pair for pair in checked.mistakes if _mistake_identity(*pair, checked) not in known)


def _mistake_identity(rule: Rule, found: FoundMistake, checked: Checked) -> tuple[str, str]:
    """A mistake by its rule and its key, without the file's name and the line."""
    name = max((one for one in checked.reads if found.where.startswith(f"{one}:")), key=len, default="")
    return rule.id, re.sub(r"^:?(?:\d+:)? ?", "", found.where.removeprefix(name))
