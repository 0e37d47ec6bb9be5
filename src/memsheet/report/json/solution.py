"""What was solved for, as JSON (``memsheet/solution/1``)."""

from typing import Any

from memsheet.errors import printable_line
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.document import plan_document
from memsheet.report.json.document import ByteRange, Document, Natural, Plan, Result, optional_key, read_from
from memsheet.report.json.sheet import Fix, Largest, WayToFit
from memsheet.search.solve.sizes import Curve
from memsheet.search.solve.targets import Solution as Solved
from memsheet.search.solve.targets import Target
from memsheet.search.trials import Tried
from memsheet.sheet import Instant

UNITS = {
    Target.SEQ_LEN: "tokens", Target.MICROBATCH: "sequences", Target.GPUS: "GPUs", Target.PARAMETERS: "parameters",
    Target.SEQUENCES: "sequences", Target.MAX_MODEL_LEN: "tokens",
}  # fmt: skip


def value_of(solution: Solved, tried: Tried) -> int:
    """What was solved for: of a family's member its parameters, of all else the value itself."""
    return int(parameter_count(tried.model)) if solution.target is Target.PARAMETERS else tried.value


class Sized(Document):
    name: str = read_from(lambda model: printable_line(model.name))
    parameters: int = read_from(parameter_count)
    layers: int
    hidden: int


class Large(Largest):
    pass  # what the published schema calls it here


class TriedValue(Document):
    value: int
    gpus: Natural = read_from("cluster.count")
    model: Sized
    replayed: bool
    result: Result = read_from("verdict.result")
    rank: int = read_from("verdict.rank")
    stage: int
    instant: Instant = read_from("verdict.instant")
    device: ByteRange = read_from("verdict.device")
    headroom_bytes: int = read_from("verdict.headroom_bytes")
    host_short_bytes: int = read_from("verdict.host_short_bytes")
    largest: list[Large] = read_from("verdict.largest")


class Card(Document):
    name: str = read_from("device.name")
    capacity_bytes: Natural = read_from("device.framework_bytes")
    count: Natural


class SizePoint(Document):
    gpus: Natural
    parameters: int | None = read_from(lambda point: point.parameters or None)


class Sizes(Document):
    name: str
    zero: int
    engine: str
    points: list[SizePoint]
    reason: str | None


class SkippedValue(Document):
    value: int
    reason: str


class TriedResult(Document):
    value: int
    result: Result


class Looked(Document):
    values: str
    accounted: Natural = read_from(lambda solution: len(solution.tried))
    skipped: list[SkippedValue]
    tried: list[TriedResult] = read_from(
        lambda solution: [(value_of(solution, tried), tried.verdict.result) for tried in solution.tried]
    )


def _tried_value(name: str) -> Any:
    """A key that is one of the values that were tried, where there is one."""

    def read(solution: Solved) -> dict[str, Any] | None:
        tried = getattr(solution, name)
        return TriedValue.document_of(tried, value=value_of(solution, tried)) if tried else None

    return read_from(read)


def _shown_plan(solution: Solved) -> dict[str, Any]:
    shown = solution.shown
    return plan_document(shown.plan, model=shown.model.name, cluster=shown.cluster)


class Solution(Document):
    """``memsheet/solution/1``: the last value up to which every one tried fits, the next that does not, the
    last tried that fits (another where the verdict alternates), the last tried whose expected bytes do. Each
    is what an answer to it says.
    """

    schema_: str = "memsheet/solution/1"
    solve: str = read_from("target")
    result: Result
    unit: str = read_from(lambda solution: UNITS[solution.target])
    value: int | None = read_from(
        lambda solution: value_of(solution, solution.found) if solution.found else None
    )
    found: TriedValue | None = _tried_value("found")
    next: TriedValue | None = _tried_value("beyond")
    last_fitting: TriedValue | None = _tried_value("last_fitting")
    expected: TriedValue | None = _tried_value("expected")
    possible: TriedValue | None = _tried_value("possible")
    least: TriedValue | None = _tried_value("least")
    plan: Plan = read_from(_shown_plan)
    assumed: list[str] = read_from(lambda solution: [*solution.assumed, *solution.shown.assumed])
    device: Card = read_from("shown.cluster")
    search: Looked = read_from()
    sizes: list[Sizes] = optional_key()
    cheapest_fix: Fix | None = read_from("fix")
    notes: list[str]
    ways_to_fit: list[WayToFit] = optional_key()


def solution_document(solution: Solved, curves: tuple[Curve, ...] = ()) -> dict[str, Any]:
    """The solution as plain values. ``found`` is null where nothing fits."""
    return Solution.document_of(solution, sizes=curves)
