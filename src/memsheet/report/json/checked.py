"""What a configuration file says and comes to, as JSON (``memsheet/checked/1``)."""

from collections.abc import Sequence
from typing import Any, Literal

from memsheet.errors import printable_line
from memsheet.exchange.mistakes import FoundMistake, Rule
from memsheet.exchange.mistakes.case import source_for
from memsheet.report.json.document import Document, Result, read_from
from memsheet.report.json.sheet import Sheet
from memsheet.report.shared.checked import Checked as CheckedFiles
from memsheet.report.shared.checked import Launch as CheckedLaunch
from memsheet.report.shared.checked import place_of


def finding_engine(checked: CheckedFiles, found: FoundMistake) -> str:
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


Outcome = Literal["does_not_start", "does_not_fit", "uncertain", "no_sheet", "not_read", "predicted", "fits"]


class UnknownKey(Document):
    """A key that its engine does not know, with the known one that is most like it."""

    key: str
    nearest: str | None


class UnmodelledKey(Document):
    """A key whose bytes nobody accounts, so that no verdict is sure."""

    key: str
    value: Any


class File(Document):
    """One file, as its engine reads it. ``request``: the keys of a plan that it says; ``ignored``: known keys
    without bytes.
    """

    file: str
    format: str = read_from("form.name")
    engine_version: str = read_from("form.tested")
    used: dict[str, Any] = read_from(lambda read: {at: read.values[at] for at in read.used})
    ignored: list[str]
    unknown: list[UnknownKey] = read_from(lambda read: [(at, near or None) for at, near in read.unknown])
    unmodelled: list[UnmodelledKey]
    request: dict[str, Any]


class Mistake(Document):
    """A known mistake, and what cures it. ``saves_bytes`` is of one GPU (less than nothing: it takes them),
    null where no plan says it; ``gains_bytes`` is what a server's cache gets; ``stops``: the engine refuses
    the file; ``source``: who says so; ``file``, ``line``: where it stands, null where that is not certain.
    """

    rule: str
    where: str
    says: str
    cure: str
    changes: dict[str, Any] | None = read_from(lambda found: found.changes or None)
    saves_bytes: int | None
    gains_bytes: int | None
    stops: bool
    source: str
    file: str | None
    line: int | None


class MovedKey(Document):
    """Bytes that a key adds to a GPU beyond the sheet, or takes from it."""

    key: str = read_from("at")
    why: str
    low_bytes: int
    high_bytes: int


class CommonCards(Document):
    """The verdict on cards that nobody named; ``gives_bytes``: what a framework gets of each at least."""

    gpus: str
    result: Result
    gives_bytes: int
    low_bytes: int = read_from("device.low")
    value_bytes: int = read_from("device.value")
    high_bytes: int = read_from("device.high")
    doubt: str | None = read_from(lambda one: one.doubt or None)


def mistake_documents(
    checked: CheckedFiles | None, mistakes: Sequence[tuple[Rule, FoundMistake]]
) -> list[dict[str, Any]]:
    """Some of the mistakes of files, each with who says so and where it stands."""
    if checked is None:
        return []
    return [
        Mistake.document_of(
            found,
            rule=rule.id,
            source=source_for(rule, finding_engine(checked, found)),
            **_finding_place(checked, found),
        )
        for rule, found in mistakes
    ]


def _finding_place(checked: CheckedFiles, found: FoundMistake) -> dict[str, Any]:
    place = place_of(checked, found)
    return {"file": place and printable_line(place.file), "line": place and place.line}


class Checked(Document):
    """``memsheet/checked/1``: what configuration files come to. ``starts`` is false where the engine refuses
    them as they stand.
    """

    schema_: str = "memsheet/checked/1"
    result: Result | None
    starts: bool = read_from(lambda checked: not checked.stops)
    files: list[File] = read_from(
        lambda checked: [File.document_of(read, file=name) for name, read in checked.reads.items()]
    )
    assumed: list[str] = read_from(
        lambda checked: [*checked.assumed, *(f"not read: {one}" for one in checked.not_read)]
    )
    mistakes: list[Mistake] = read_from(lambda checked: mistake_documents(checked, checked.mistakes))
    moved: list[MovedKey]
    doubt: str | None = read_from(lambda checked: checked.doubt or None)
    why_not: list[str] = read_from(
        lambda checked: [*([checked.no_model] if checked.no_model else []), *checked.why_not]
    )
    sheet: Sheet | None = read_from("answer")
    common_cards: list[CommonCards] = read_from("common")


def checked_document(checked: CheckedFiles) -> dict[str, Any]:
    """All of it as one object of plain values."""
    return Checked.document_of(checked)


class Launch(Document):
    """One launch of a tree. ``outcome``: the verdict, or why there is none; ``problem``: why it was not
    read.
    """

    file: str
    outcome: Outcome
    problem: str | None = read_from(lambda launch: launch.problem or None)
    checked: Checked | None


class Launches(Document):
    """``memsheet/launches/1``: what the launches of a tree come to, the worst first."""

    schema_: str = "memsheet/launches/1"
    folder: str = read_from(lambda tree: tree[0])
    launches: list[Launch] = read_from(lambda tree: list(tree[1]))


def launches_document(folder: str, launches: Sequence[CheckedLaunch]) -> dict[str, Any]:
    """All of them as one object of plain values."""
    return Launches.document_of([folder, launches])
