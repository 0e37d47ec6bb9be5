"""What configuration files say and come to."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes import Found, Rule
from memsheet.exchange.shared.file_format import Moved, Read
from memsheet.frozen import dataclass
from memsheet.sheet import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCards:
    """The verdict on some cards that nobody named. ``gives_bytes``: what a framework gets of each at the
    least.
    """

    gpus: str
    gives_bytes: int
    device: Bytes
    result: Result
    doubt: str


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
    keys_alone: bool = False  # files of a kind that names no model, looked over for mistakes of their keys
    common: tuple[OnCards, ...] = ()  # and where none were, what some common ones come to

    @property
    def result(self) -> Result | None:
        """The sheet's verdict, which is uncertain where the files say what the sheet does not hold."""
        verdict = self.answer.verdict if self.answer else None
        return verdict.result if verdict else None

    @property
    def stops(self) -> bool:
        """Whether the engine refuses the files as they stand."""
        return any(found.stops for _, found in self.mistakes)


NO_START, NO_SHEET, NOT_READ, PREDICTED = "does_not_start", "no_sheet", "not_read", "predicted"
WORST_FIRST = (NO_START, "does_not_fit", "uncertain", NO_SHEET, NOT_READ, PREDICTED, "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a tree: its file within the tree, and what it comes to or the problem that says why it
    was not read.
    """

    file: str
    checked: Checked | None
    problem: str = ""

    @property
    def outcome(self) -> str:
        """One of WORST_FIRST."""
        if self.checked is None:
            return NOT_READ
        if self.checked.stops:
            return NO_START
        if self.checked.result:
            return self.checked.result.value
        return PREDICTED if self.checked.answer else NO_SHEET
