"""What changed between two states of a job's files, as JSON (``memsheet/change/1``)."""

from typing import Any

from memsheet.report.json.checked import Checked, Mistake, Outcome, mistake_documents
from memsheet.report.json.document import ByteRange, Document, read_from
from memsheet.report.shared.against import Against
from memsheet.sheet import Component, Sheet


class DeviceBytes(Document):
    """What the GPU that decides needs at its peak."""

    device: ByteRange


class State(Document):
    """One side. ``outcome``: the verdict, or why there is none; ``needs``: null without a sheet; ``problem``:
    why the files were not read.
    """

    outcome: Outcome
    needs: DeviceBytes | None
    problem: str | None = read_from(lambda launch: launch.problem or None)


class ComponentChange(Document):
    """Bytes of one component at either peak."""

    component: Component
    before_bytes: int
    after_bytes: int
    difference_bytes: int


class OptionChange(Document):
    """A key of the accounted plan with both values."""

    key: str
    before: Any
    after: Any


def _state_of(number: int) -> Any:
    def read(found: Against) -> dict[str, Any]:
        side: Any = (found.before, found.after)[number]
        sheet: Sheet | None = found.sheets[number]
        return State.document_of(side, needs=sheet)

    return read_from(read)


class Change(Document):
    """``memsheet/change/1``: a job's files held against an earlier state of them, or against another file.
    ``components`` add up to ``difference_bytes``; ``checked``: all that there is to say of the files now.
    """

    schema_: str = "memsheet/change/1"
    reference: str
    before: State = _state_of(0)
    after: State = _state_of(1)
    difference_bytes: int | None
    components: list[ComponentChange] = read_from(
        lambda found: [(name, one, two, two - one) for name, one, two in found.components()]
    )
    options: list[OptionChange] = read_from(lambda found: list(found.options()))
    new_mistakes: list[Mistake] = read_from(
        lambda found: mistake_documents(found.after.checked, found.new_mistakes)
    )
    gone_mistakes: list[Mistake] = read_from(
        lambda found: mistake_documents(found.before.checked, found.gone_mistakes)
    )
    checked: Checked | None = read_from("after.checked")


def change_document(found: Against) -> dict[str, Any]:
    """All of it as one object of plain values."""
    return Change.document_of(found)
