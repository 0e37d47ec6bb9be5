"""What configuration files say and come to."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes import FoundMistake, Rule
from memsheet.exchange.shared.file_format import FileReading, Moved
from memsheet.frozen import NamedTuple, dataclass, field
from memsheet.late import late_functions
from memsheet.sheet import Bytes

with late_functions(__name__):
    from memsheet.exchange.mistakes.key_lines import line_of_key, named_key


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

    reads: Mapping[str, FileReading]
    answer: Answer | None
    why_not: tuple[str, ...]
    assumed: tuple[str, ...]
    mistakes: tuple[tuple[Rule, FoundMistake], ...]
    moved: tuple[Moved, ...]
    doubt: str  # why the verdict is less sure than the sheet alone, or nothing
    not_read: tuple[str, ...] = ()  # files of a folder that are no configuration that is known, and why
    no_model: str = ""  # why nobody knows which model it is, or nothing
    on_cards: bool = False  # GPUs were named, so that a verdict was asked for
    keys_alone: bool = False  # files of a kind that names no model, looked over for mistakes of their keys
    common: tuple[OnCards, ...] = ()  # and where none were, what some common ones come to
    other_job: str = ""  # of which other job the sheet is than of what the files ask for
    cards_words: str = ""  # what the named GPUs are taken for, where they are not all that the files start on
    beside_others: bool = False  # further servers hold bytes of the same cards
    written: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # files as they lie: path and text, by name

    @property
    def result(self) -> Result | None:
        """The sheet's verdict, which is uncertain where the files say what the sheet does not hold; what
        needs more GPUs than are named does not fit them, however it fits others.
        """
        if self.stops and self.lacks_cards:
            return Result.DOES_NOT_FIT
        verdict = self.answer.verdict if self.answer else None
        return verdict.result if verdict else None

    @property
    def stops(self) -> bool:
        """Whether the engine refuses the files as they stand."""
        return any(found.stops for _, found in self.mistakes)

    @property
    def lacks_cards(self) -> bool:
        """Whether all that it stops at is that it needs more GPUs than are named."""
        return all(found.by_cards for _, found in self.mistakes if found.stops)


class Place(NamedTuple):
    """Where a finding stands: a file by its path, and the line from 1, where that is certain."""

    file: str
    line: int | None = None


def place_of(checked: Checked, found: FoundMistake) -> Place | None:
    """Where a finding stands; None where nothing says which of several files it is about."""
    name = max((one for one in checked.reads if found.where.startswith(f"{one}:")), key=len, default="")
    key = found.where.removeprefix(f"{name}:").strip()
    at, named = named_key(key)
    if at is None and name and not _has_key(checked.reads[name], named):  # it is missed, and stands nowhere
        key = ""
    held = dict.fromkeys(one for one in (name, *name.split(": ")) if one in checked.written)
    places = [
        Place(path, line_of_key(path, text, key)) for path, text in map(checked.written.__getitem__, held)
    ]
    sure = [place for place in places if place.line is not None]
    if len(sure) == 1:
        return sure[0]
    if not name and len(checked.written) == 1:
        return Place(next(iter(checked.written.values()))[0])
    return Place(places[0].file) if places else None


def _has_key(read: FileReading, key: str) -> bool:
    """Whether a file has a key, by its whole path or the end of it, or keys below it."""
    return any(
        at == key or at.endswith(f".{key}") or at.startswith(f"{key}.") or f".{key}." in at
        for at in read.values
    )


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
