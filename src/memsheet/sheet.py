"""What is resident on one rank, item by item, at each instant of a step: one type for all three witnesses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from memsheet.arith import Count, maximum, minimum
from memsheet.frozen import dataclass, field
from memsheet.patterns import late_pattern
from memsheet.references import Reference

if TYPE_CHECKING:
    from weakref import WeakValueDictionary


class Component(Enum):
    """What memory is used for. A storage counts once, under the first of these that owns it."""

    PARAMETERS = "parameters"
    MASTER_WEIGHTS = "master_weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"
    BUFFERS = "buffers"
    INPUTS = "inputs"
    SAVED_ACTIVATIONS = "saved_activations"
    TEMPORARIES = "temporaries"
    AUTOGRAD_DETAIL = "autograd_detail"
    UNSHARDED_PARAMETERS = "unsharded_parameters"
    COMMUNICATION = "communication"
    KV_CACHE = "kv_cache"
    CUDA_GRAPHS = "cuda_graphs"
    WORKSPACES = "workspaces"
    ALLOCATOR_SLACK = "allocator_slack"
    CONTEXT = "context"
    UNEXPLAINED = "unexplained"

    __hash__ = (
        object.__hash__
    )  # members are singletons; the default hashes their names, and these are keys in every loop


STATES = (Component.PARAMETERS, Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES)
OUTSIDE_TENSORS = (Component.ALLOCATOR_SLACK, Component.CONTEXT)
OUTSIDE_ALLOCATOR = (Component.CONTEXT,)
DESCRIBED = (
    Component.SAVED_ACTIVATIONS,
    Component.TEMPORARIES,
    Component.AUTOGRAD_DETAIL,
    Component.UNSHARDED_PARAMETERS,
    Component.COMMUNICATION,
    Component.ALLOCATOR_SLACK,
)
"""Of a training step what formulas describe; states, buffers and inputs are counted. The slack is that of
what is described: where steps are replayed it holds, at an instant, what was there at another.
"""
AGREEMENT_PER_MILLE = 5
"""How far formulas may be from the traced step of a model's own code, per mille: the bound that they are held
to (benchmarks/agreement.py, PEAK_BAR; tests/benchmarks/test_agreement.py), so that no range of what they
describe is narrower, each way.
"""


class Instant(Enum):
    """The named instants of a step, in order. Those of a job of several models are made of them and of its
    phases: ``Instant("update_actor/backward")``, which is no member that a loop over the instants meets.
    """

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    PREFILL = "prefill"
    DECODE = "decode"

    __hash__ = object.__hash__  # see Component

    @classmethod
    def _missing_(cls, value: object) -> Instant | None:
        if not isinstance(value, str) or not (found := PHASE_INSTANT.fullmatch(value)):
            return None
        if found[2] not in cls._value2member_map_:
            return None
        if (known := _phased_instants().get(value)) is not None:
            return known
        made = object.__new__(cls)
        made._name_, made._value_ = value.upper(), value
        _phased_instants()[value] = made
        return made

    def of_phase(self, phase: str) -> Instant:
        """The same instant in a phase of a job. Raises ValueError for what is no name of a phase."""
        named = f"{phase}/{self.step.value}"
        return _phased_instants().get(named) or Instant(named)

    @property
    def phase(self) -> str:
        """The phase of a job that it is of; nothing of a step alone."""
        return str(self.value).rpartition("/")[0]

    @property
    def step(self) -> Instant:
        """Of a phase the instant of its own step."""
        return Instant(str(self.value).rpartition("/")[2]) if self.phase else self


@cache
def _phased_instants() -> WeakValueDictionary[str, Instant]:
    """Instants of phases that anybody holds: each is one object, as members are."""
    from weakref import WeakValueDictionary

    return WeakValueDictionary()


PHASE_NAME = r"[a-z][a-z0-9_]{0,39}"
PHASE_INSTANT = late_pattern(rf"({PHASE_NAME})/([a-z_]+)")
TRAINED = (Instant.FORWARD, Instant.BACKWARD, Instant.OPTIMIZER_STEP)
"""Instants of training alone."""


class Witness(Enum):
    PREDICTED = "predicted"
    TRACED = "traced"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Bytes:
    """A size with its range; exactly known sizes have low = value = high. The ends are of the job that takes
    least and of the one that takes most in all: what fills up the rest of a fraction (a server's pool) is
    largest at the low end.
    """

    low: Count
    value: Count
    high: Count

    @classmethod
    def exact(cls, value: Count) -> Bytes:
        return cls(value, value, value)

    @property
    def ordered(self) -> Bytes:
        """The range that holds all three."""
        if self.low <= self.value <= self.high:
            return self
        return Bytes(min(self.low, self.value, self.high), self.value, max(self.low, self.value, self.high))

    def with_margin(self, margin: Count) -> Bytes:
        """The range that reaches so many bytes to either side, where it does not reach further already."""
        if type(margin) is int and not margin:
            return self
        low, high = self.value - margin, self.value + margin
        if type(self.low) is type(low) is int and type(self.high) is type(high) is int:
            reaches = self.low <= low and high <= self.high
            return self if reaches else Bytes(min(self.low, low), self.value, max(self.high, high))
        return Bytes(minimum(self.low, low), self.value, maximum(self.high, high))

    def with_ends_of(self, other: Bytes) -> Bytes:
        """What is expected of this one, with the ends of both."""
        return Bytes(minimum(self.low, other.low), self.value, maximum(self.high, other.high))

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.low + other.low, self.value + other.value, self.high + other.high)

    def max(self, other: Bytes) -> Bytes:
        """The larger of both, end by end: whichever it is, it is at least as large as either's low end."""
        return Bytes(
            maximum(self.low, other.low), maximum(self.value, other.value), maximum(self.high, other.high)
        )


NOTHING = Bytes(0, 0, 0)


def sum_byte_ranges(sizes: Iterable[Bytes]) -> Bytes:
    """The sum of sizes, ranges added end to end."""
    every = list(sizes)
    if len(every) == 1:
        return every[0]
    return Bytes(sum([s.low for s in every]), sum([s.value for s in every]), sum([s.high for s in every]))


@dataclass(frozen=True, slots=True)
class Cited:
    """A formula from a paper or documentation."""

    reference: Reference
    at: str = ""


@dataclass(frozen=True, slots=True)
class FromCode:
    """A fact read from a project's source."""

    project: str
    commit: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Derived:
    """Follows from other facts; ``why`` says how."""

    why: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """Measured or simulated elsewhere and carried over, with its spread."""

    runs: str
    hardware: str
    date: str
    spread: str


@dataclass(frozen=True, slots=True)
class Traced:
    op: str


@dataclass(frozen=True, slots=True)
class Measured:
    record: str


Evidence = Cited | FromCode | Derived | Fitted | Traced | Measured


@dataclass(frozen=True, slots=True)
class Item:
    """Bytes of one component under one module path, at each instant's high-water mark."""

    component: Component
    path: str
    at: Mapping[Instant, Bytes]
    evidence: Evidence

    @property
    def largest(self) -> Bytes:
        """The largest over instants (by value)."""
        return max(self.at.values(), key=lambda b: b.value, default=NOTHING)


ByComponent = dict[Instant, dict[Component, Bytes]]


class LaterItems(Sequence[Item]):
    """Items that are made when somebody reads one, with what they add up to, which most ask for alone.

    ``make``: the items; ``sums``: bytes by instant and component, instants in order.
    """

    __slots__ = ("_known", "sums")

    def __init__(self, make: Callable[[], Sequence[Item]], sums: ByComponent) -> None:
        self._known: Callable[[], Sequence[Item]] | tuple[Item, ...] = make
        self.sums = sums

    @property
    def every(self) -> tuple[Item, ...]:
        """All of them."""
        known = self._known
        if not isinstance(known, tuple):
            self._known = known = tuple(known())
        return known

    def __getitem__(self, at: Any) -> Any:
        return self.every[at]

    def __len__(self) -> int:
        return len(self.every)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.every)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LaterItems | tuple) and self.every == tuple(other))

    def __hash__(self) -> int:
        return hash(self.every)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.every,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What one rank holds. Items of an instant add up to its high-water mark; the peak is the largest
    instant.
    """

    rank: int
    stage: int = 0
    same_as: tuple[int, ...] = ()
    witness: Witness = Witness.PREDICTED
    items: Sequence[Item]
    host_bytes: int = 0  # host memory the rank needs (offload)
    notes: tuple[str, ...] = ()
    phased: tuple[Instant, ...] = ()  # of a job its instants, in order
    gradients: Bytes | None = (
        None  # all of them when backward has ended, which no instant's high-water mark need show
    )
    _sums: ByComponent = field(default_factory=dict, init=False, repr=False, compare=False)
    _found: dict[tuple[Component, ...], dict[Instant, Bytes]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        peak = (
            f", {self.allocated.value:,} bytes allocated in {self.peak_instant.value}" if self.items else ""
        )
        return f"<sheet of rank {self.rank}, {self.witness.value}: {len(self.items)} items{peak}>"

    def sums(self) -> ByComponent:
        """Bytes by instant (in order) and component; computed once."""
        if isinstance(self.items, LaterItems):
            return self.items.sums
        if not self._sums:
            found: dict[Instant, dict[Component, list[Bytes]]] = {i: {} for i in (*Instant, *self.phased)}
            for item in self.items:
                component = item.component
                for instant, size in item.at.items():
                    row = found[instant]
                    if component in row:
                        row[component].append(size)
                    else:
                        row[component] = [size]
            self._sums.update(
                {
                    instant: {c: sum_byte_ranges(sizes) for c, sizes in row.items()}
                    for instant, row in found.items()
                    if row
                }
            )
        return self._sums

    @property
    def instants(self) -> tuple[Instant, ...]:
        return tuple(self.sums())

    def at(self, instant: Instant, *, without: tuple[Component, ...] = OUTSIDE_TENSORS) -> Bytes:
        """Bytes at an instant; by default those of tensors (allocated). Where a training step is predicted
        the range is no narrower than ``AGREEMENT_PER_MILLE`` of what formulas describe, each way.
        """
        return self._totals(without).get(instant, NOTHING)

    def _totals(self, without: tuple[Component, ...]) -> dict[Instant, Bytes]:
        """Bytes of every instant, but for those of some components; computed once."""
        found = self._found.get(without)
        if found is None:
            share = AGREEMENT_PER_MILLE if self.witness is Witness.PREDICTED and self._trains() else 0
            found = self._found[without] = {
                instant: _row_total(row, without, share) for instant, row in self.sums().items()
            }
        return found

    def _trains(self) -> bool:
        """Whether it is of a training, in one of its phases at least."""
        sums = self.sums()
        return not sums.keys().isdisjoint(TRAINED) or (
            bool(self.phased) and any(each.step in TRAINED for each in sums)
        )

    @property
    def peak_instant(self) -> Instant:
        sizes = self._totals(OUTSIDE_TENSORS)
        return max(sizes, key=lambda i: sizes[i].value)

    def _peak(self, without: tuple[Component, ...]) -> Bytes:
        """The range of the peak: each end is the largest over instants, for another instant than the expected
        one may reach higher.
        """
        sizes = self._totals(without).values()
        return Bytes(
            max([s.low for s in sizes]), max([s.value for s in sizes]), max([s.high for s in sizes])
        ).ordered

    @property
    def allocated(self) -> Bytes:
        """Tensors, as the caching allocator counts them, at the peak."""
        return self._peak(OUTSIDE_TENSORS)

    peak = allocated

    @property
    def reserved(self) -> Bytes:
        """The allocator's segments at the peak: tensors and slack."""
        return self._peak(OUTSIDE_ALLOCATOR)

    def beside(self, *components: Component) -> Bytes:
        """Everything at the peak of what is none of ``components``."""
        return self._peak(components)

    @property
    def device(self) -> Bytes:
        """What the driver shows at the peak: reserved, context and libraries."""
        return self._peak(())

    def by(self, depth: int = 0) -> dict[tuple[str, ...], Bytes]:
        """Bytes at the peak by component and the first ``depth`` parts of the path, largest first."""
        instant, sums = self.peak_instant, dict[tuple[str, ...], Bytes]()
        for item in self.items:
            if instant in item.at:
                key = (item.component.value, *item.path.split(".")[:depth])
                sums[key] = sums.get(key, NOTHING) + item.at[instant]
        return dict(sorted(sums.items(), key=lambda pair: -pair[1].value))

    def of(self, *components: Component, instant: Instant | None = None) -> Bytes:
        """Bytes of some components at an instant (the peak by default)."""
        row = self.sums().get(self.peak_instant if instant is None else instant, {})
        return sum_byte_ranges(row[component] for component in components if component in row)

    @property
    def states(self) -> dict[Component, Bytes]:
        """The model states that there are, each at its own largest. Gradients are whole when backward has
        ended; within it, what is on its way to join them is no state.
        """
        return {component: size for component in STATES if (size := self._at_rest(component)).value}

    def _at_rest(self, component: Component) -> Bytes:
        ended = self.gradients if component is Component.GRADIENTS else None
        within = (Instant.BACKWARD,) if ended is not None else ()
        sizes = [
            row[component]
            for instant, row in self.sums().items()
            if component in row and instant not in within
        ]
        return max(*sizes, ended or NOTHING, NOTHING, key=lambda size: size.value)


def _row_total(row: Mapping[Component, Bytes], without: tuple[Component, ...], per_mille: int) -> Bytes:
    """Bytes of an instant by component, added up; the range is no narrower than ``per_mille`` of what
    formulas describe, each way.
    """
    low: Count = 0
    value: Count = 0
    high: Count = 0
    described: Count = 0
    for component, size in row.items():
        if component not in without:
            low, value, high = low + size.low, value + size.value, high + size.high
            described = described + size.value if component in DESCRIBED else described
    total = Bytes(low, value, high)
    return total.with_margin(described * per_mille // 1000) if per_mille else total


def bytes_by_module(
    sheet: Sheet, instant: Instant, *, parts: bool = False
) -> dict[tuple[Component, str], Bytes]:
    """A sheet's tensors at an instant by component and module: the part of a path before its ``/``, or all of
    it with ``parts``.
    """
    found: dict[tuple[Component, str], Bytes] = {}
    for item in sheet.items:
        if instant in item.at and item.component not in OUTSIDE_TENSORS:
            key = (item.component, item.path if parts else item.path.partition("/")[0])
            found[key] = found.get(key, NOTHING) + item.at[instant]
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a diff: what two sheets hold under a component and path."""

    component: Component
    path: str
    left: Bytes
    right: Bytes

    @property
    def bytes(self) -> Any:
        return self.right.value - self.left.value


def sheet_differences(left: Sheet, right: Sheet, instant: Instant | None = None) -> tuple[Difference, ...]:
    """Two sheets joined on (component, path) at an instant (each one's peak by default), largest difference
    first.
    """
    sides = []
    for sheet in (left, right):
        when = sheet.peak_instant if instant is None else instant
        sides.append({(i.component, i.path): i.at[when] for i in sheet.items if when in i.at})
    keys = dict.fromkeys((*sides[0], *sides[1]))
    rows = [Difference(c, p, sides[0].get((c, p), NOTHING), sides[1].get((c, p), NOTHING)) for c, p in keys]
    return tuple(sorted(rows, key=lambda row: -abs(row.bytes)))
