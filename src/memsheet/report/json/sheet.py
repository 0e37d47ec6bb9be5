"""An answer as JSON: ``memsheet/sheet/1``, with the plan in the vocabulary of ``memsheet/plan/1``."""

from collections.abc import Iterator
from typing import Any

from memsheet import budget
from memsheet.frozen import replace
from memsheet.plan.document import model_reference, plan_document
from memsheet.report.json.document import ByteRange, Document, Natural, Plan, Result, optional_key, read_from
from memsheet.sheet import Component, Instant, Witness


class Source(Document):
    kind: str
    path: str
    revision: str | None
    notes: list[str]


class Model(Document):
    name: str = read_from("model.name")
    parameters: int
    active_parameters: int
    source: Source = read_from("model.source")


class Device(Document):
    """What a framework gets of one card (the range where that is derived), and the number on the box."""

    name: str = read_from("device.name")
    capacity_bytes: Natural = read_from("device.framework_bytes")
    count: int
    capacity_low_bytes: Natural = read_from("device.framework_low_bytes")
    capacity_high_bytes: Natural = read_from("device.framework_high_bytes")
    datasheet_bytes: Natural = read_from("device.datasheet_bytes")
    evidence: str = read_from("device.evidence")


class Cited(Document):
    kind: str = "cited"
    title: str = read_from("reference.title")
    where: str = read_from("reference.where")
    at: str


class FromCode(Document):
    kind: str = "from_code"
    project: str
    commit: str
    file: str
    line: int


class Derived(Document):
    kind: str = "derived"
    why: str


class Fitted(Document):
    kind: str = "fitted"
    runs: str
    hardware: str
    date: str
    spread: str


class Traced(Document):
    kind: str = "traced"
    op: str


class Measured(Document):
    kind: str = "measured"
    record: str


Evidence = Cited | FromCode | Derived | Fitted | Traced | Measured


class Item(Document):
    """One row: ``bytes`` is the largest over instants, ``at`` what it holds at each instant's high-water
    mark.

    Negative for what a device counted less than was seen (unexplained).
    """

    component: Component
    path: str
    bytes: int = read_from("largest.ordered.value")
    low_bytes: int = read_from("largest.ordered.low")
    high_bytes: int = read_from("largest.ordered.high")
    at: dict[Instant, int]
    evidence: Evidence


class Rank(Document):
    """One distinct rank; ``same_as`` are the ranks folded into it. ``instants`` count tensors; ``states`` are
    model states, each at its largest.
    """

    rank: int
    stage: int
    same_as: list[int]
    instants: dict[Instant, Natural] = read_from(
        lambda sheet: {each: sheet.at(each) for each in sheet.instants}
    )
    peak_instant: Instant
    allocated: ByteRange
    reserved: ByteRange
    device: ByteRange
    host_bytes: Natural
    notes: list[str]
    states: dict[Component, Natural] = optional_key()  # documents written before it came have none
    items: list[Item]


class Largest(Document):
    component: Component
    bytes: Natural


class Change(Document):
    key: str
    from_: Any = read_from("before")
    to: Any = read_from("after")
    saves_bytes: int
    words: str
    needs: str


def _changed_keys(fix: budget.Fix) -> Iterator[budget.Change]:
    """A change for every key of the whole plan; what all of them save together stands with the first."""
    for change in fix.changes:
        yield change
        for key, before, after in (*change.also, *change.implied):
            yield replace(change, key=key, before=before, after=after, before_bytes=0, after_bytes=0)


class Fix(Document):
    """``open_ended``: files leave open what may need more beside it. ``in_files``: the changes in the keys of
    each file.
    """

    changes: list[Change] = read_from(_changed_keys)
    device: ByteRange
    host_bytes: Natural
    host_short_bytes: Natural = optional_key(lambda fix: fix.host_short_bytes or None)
    open_ended: bool = optional_key(lambda fix: fix.open_ended or None)
    in_files: dict[str, list[str]] = optional_key(
        lambda fix: {name: list(keys) for name, keys in fix.in_files} or None
    )


class Verdict(Document):
    """Of the worst rank. ``headroom_bytes`` is negative where it does not fit. ``unbounded``: what files
    leave open may need any more than ``device_high_bytes``.
    """

    result: Result
    rank: int
    instant: Instant
    device: ByteRange
    unbounded: bool = optional_key(lambda verdict: verdict.no_most or None)
    headroom_bytes: int
    host_short_bytes: int
    largest: list[Largest]
    cheapest_fix: Fix | None


class Recomputed(Document):
    device_bytes: Natural
    result: Result | None


class LadderStep(Document):
    """One of the sequence lengths that were tried where none was asked for. ``recomputed``: with every layer
    recomputed.
    """

    seq_len: int
    device_bytes: Natural
    result: Result | None
    recomputed: Recomputed = optional_key(
        lambda step: () if step.recomputed_bytes is None else (step.recomputed_bytes, step.recomputed_result)
    )


class OtherEngine(Document):
    """What the same question comes to on another engine, where nobody named one."""

    engine: str
    device_bytes: Natural = read_from("device")
    result: Result


class WayToFit(Document):
    """Something else that was accounted and fits, where no change on the same cards does."""

    words: str
    changes: dict[str, Any]
    device: ByteRange
    host_bytes: Natural


def _answered_plan(answer: budget.Answer) -> dict[str, Any] | None:
    if "step" in (answer.trace or {}):
        return None
    return plan_document(answer.plan, model=model_reference(answer.model), cluster=answer.cluster)


class Sheet(Document):
    """``memsheet/sheet/1``: what is resident on every rank, and whether it fits."""

    schema_: str = "memsheet/sheet/1"
    witness: Witness = read_from(lambda answer: answer.sheets[0].witness if answer.sheets else None)
    model: Model = read_from()
    plan: Plan | None = read_from(_answered_plan)
    assumed: list[str]
    device: Device | None = read_from("cluster")
    ranks: list[Rank] = read_from("sheets")
    verdict: Verdict | None
    serving: dict[str, Any] | None
    trace: dict[str, Any] = optional_key()
    notes: list[str]
    ladder: list[LadderStep] = optional_key()
    other_engines: list[OtherEngine] = optional_key()
    ways_to_fit: list[WayToFit] = optional_key()
    job: dict[str, Any] = optional_key()  # of several models: memsheet/job/1; the plan is what trains


def sheet_document(answer: budget.Answer) -> dict[str, Any]:
    """The whole answer as one object of plain values."""
    return Sheet.document_of(answer)
