"""Steps under FullyShardedDataParallel: a flat parameter a unit, gathered whole for either pass, and a flat
gradient. Line numbers are of torch 2.13 distributed/fsdp/_runtime_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.groups import Group
from memsheet.formulas.replay.order import FIRST, LAST, Run, StepContext
from memsheet.formulas.replay.script import Played
from memsheet.formulas.replay.tape_logs import CASTS, GATHERS, REDUCES
from memsheet.formulas.sharding.flat_sizes import flat_elements
from memsheet.formulas.states.held import HeldTensor
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import DType
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import BackwardPrefetch, Plan

IN_FLIGHT = 2
"""Units that are let go of before the host waits for the device to be through with the first of them
(_limiter_utils.py:17).
"""


@dataclass(slots=True, eq=False)
class Flat:
    """A unit: its parameters, elements of all of them with padding and of the rank's part; ``whole``: where
    it is gathered.
    """

    held: tuple[HeldTensor, ...]
    elements: int
    part: int
    whole: int | None = None

    @classmethod
    def of(cls, held: Sequence[HeldTensor], plan: Plan) -> Flat:
        elements = int(flat_elements(tuple(held), plan))
        return cls(tuple(held), elements, elements // int(plan.mesh.dp_shard))


class FlatUnits(Run):
    """Every layer is a unit; embeddings and head are the root's, which stays gathered."""

    hosts = True

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """On several ranks, with nothing divided inside a unit."""
        ranks = plan.mesh.dp_shard
        return super().plays(plan) and isinstance(ranks, int) and ranks > 1

    @classmethod
    def others(cls, plan: Plan, told: StepContext) -> list[StepContext]:
        """A host that is as far ahead as it may be: what it lets go of in one stream and the device still
        reads in another is not given to others meanwhile (record_stream). Units that were joined elsewhere,
        as without device_id.
        """
        del plan
        return [replace(told, host_ahead=True), replace(told, joined_on_host=True)]

    def prepare(self) -> None:
        walk, plan = self.walk, self.plan
        self.wrapping = engine_of(plan).flat_wrapping
        self.prefetches = plan.gathers.backward or self.wrapping.backward_prefetch
        in_a_step = 2 * len(self.layers) + 1  # which is over before the next one's loss is read
        self.in_flight = IN_FLIGHT if plan.gathers.limited else in_a_step
        self.hosted = bool(plan.offload.parameters)  # parts, gradients and states (CPUOffload)
        ends = [h for group in (walk.embeddings, walk.head) if group for h in group.parameters]
        ends += walk.rest
        self.root = Flat.of(ends[:1] if self.wrapping.table_apart else ends, plan)
        self.units = {number: Flat.of(group.parameters, plan) for number, group in enumerate(self.layers)}
        self.each = [*self.units.values(), self.root]
        rooted = {h.path for h in walk.rest}
        self.idle = [h for h in self.told.idle if h.path not in rooted for _ in range(h.times)]
        self.units |= {FIRST: self.root, LAST: self.root}
        self.waiting: list[int] = []  # the head's gradients
        self.unreduced: dict[int, list[int]] = {}  # flat gradients that only a last micro-batch reduces
        self.outputs: list[int] = []  # logits that the trainer still names
        self.let_go: list[int] = []  # units that the device may still read
        self.reduced: list[int] = []  # flat gradients, likewise

    @property
    def adds(self) -> bool:
        return False

    def load(self) -> None:
        """A unit is moved to the device and joined there before the rank's part is copied out of it; layers
        come before the root (_init_utils.py:603-655; _flat_param.py:945-976). What is gathered later is made
        once in the model's stream (_flat_param.py:1266-1310).
        """
        script, precision = self.script, self.plan.precision
        dtype, compute = precision.parameters, precision.compute
        script.take(self.told.beside)
        idle = [] if self.hosted else self.idle
        script.take_all([int(h.dtype.nbytes(self._idle_part(h))) for h in idle])
        for unit in self.each:
            before = list[int]()
            if not self.told.joined_on_host:
                own = [
                    script.take(int(h.dtype.nbytes(h.elements))) for h in unit.held for _ in range(h.times)
                ]
                before.append(script.take(int(dtype.nbytes(unit.elements))))
                script.give(own)
            part = script.take(int(dtype.nbytes(unit.part)))
            script.give([*before, part] if self.hosted else before)
        for unit in [self.root, *self.each[:-1]]:
            sizes = [compute.nbytes(unit.elements)]
            if precision.casts:
                sizes = [compute.nbytes(unit.part), *sizes, dtype.nbytes(unit.elements)]
            for size in sizes:
                script.give([script.take(int(size))])

    # ---- gathering -----------------------------------------------------------------------------------------

    def gather(self, unit: Flat) -> None:
        """The rank's part in the dtype that units are computed in, and all of them (277-307)."""
        if unit.whole is not None:
            return
        script, precision = self.script, self.plan.precision
        comes = precision.casts or self.hosted  # cast, or from the host
        cast = [script.take(precision.compute.nbytes(unit.part), CASTS)] if comes else []
        if len(self.let_go) >= self.in_flight:
            script.give([self.let_go.pop(0)])
        unit.whole = script.take(precision.compute.nbytes(unit.elements), GATHERS)
        script.give(cast)

    def reshard(self, unit: Flat) -> None:
        if unit.whole is not None:
            if self.told.host_ahead:
                self.let_go.append(unit.whole)
            else:
                self.script.give([unit.whole])
            unit.whole = None

    def enter(self, group: Group, number: int) -> None:
        """The unit, and the next one where it is gathered ahead (_pre_forward_unshard, 409-434)."""
        del group
        self.gather(self.units[number])
        following = 0 if number == FIRST else number + 1
        if self.plan.gathers.forward and number != LAST and following < len(self.layers):
            self.gather(self.units[following])

    def leave(self, number: int) -> None:
        if number >= 0 or (number == FIRST and self.wrapping.table_apart):
            self.reshard(self.units[number])

    def leave_forward(self) -> None:
        self.script.give(self.outputs)
        self.outputs = []

    def backward(self, played: list[Played], loss: Played | None, chunk: int = 0) -> None:
        """The root begins, and with it the last layer is gathered, unless the loss is outside of it."""
        if not self.wrapping.loss_outside:
            self._gather_ahead(LAST)
        super().backward(played, loss, chunk)

    def _gather_ahead(self, number: int) -> None:
        ahead = len(self.layers) - 1 if number == LAST else number - 1
        if self.prefetches is BackwardPrefetch.PRE and ahead in self.units and ahead >= 0:
            self.gather(self.units[ahead])

    def prefetch(self, number: int) -> None:
        if number == LAST and self.wrapping.keeps_outputs and self.walk.head:
            self.outputs = [self.script.take(int(self.walk.head.part.output))]
        self._gather_ahead(number)

    def enter_backward(self, number: int) -> None:
        self.gather(self.units[number])

    # ---- gradients -----------------------------------------------------------------------------------------

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        """Joined into the flat one, which is cast to the dtype of the reduction (701-775, 831-925)."""
        if number == LAST:
            self.waiting = list(made)
            return
        script, precision, unit = self.script, self.plan.precision, self.units[number]
        joined = [*self.waiting, *made] if number == FIRST else made
        flat = [script.take(precision.compute.nbytes(unit.elements))]
        script.give(joined)
        if number == FIRST and self.wrapping.table_apart:
            flat.append(script.take(precision.compute.nbytes(unit.elements)))  # of its other forward
        self.reshard(unit)
        if self.prefetches is BackwardPrefetch.POST and number > 0:
            self.gather(self.units[number - 1])
        if self.told.reduces_last and not self.later:
            self.unreduced[number] = flat
            return
        if self.told.reduces_last:
            script.give(flat)  # added to what waits
            if not self.last:
                return
            flat = self.unreduced.pop(number)
        copy = (
            [script.take(precision.reduce.nbytes(unit.elements), REDUCES)]
            if precision.reduce is not precision.compute
            else []
        )
        part = script.take(precision.reduce.nbytes(unit.part), REDUCES)
        if precision.gradients is not precision.reduce:
            part = self._cast(part, precision.gradients, unit)
        adds = self.later and not self.told.reduces_last
        self.gradients += [] if adds else [part]
        script.give([*copy, *([part] if adds else []), *self.reduced])
        self.reduced = flat if self.told.host_ahead else []
        script.give(() if self.told.host_ahead else flat)

    def _cast(self, part: int, dtype: DType, unit: Flat) -> int:
        found = self.script.take(dtype.nbytes(unit.part), REDUCES)
        self.script.give([part])
        return found

    def _idle_part(self, held: HeldTensor) -> int:
        """Elements of a parameter of a unit that never runs."""
        return -(-int(held.elements) // int(self.plan.mesh.dp_shard))

    # ---- the optimizer's step ------------------------------------------------------------------------------

    def _optimize(self) -> None:
        """On the host it finds copies of gradients, whose own stay until backward is over."""
        if self.hosted:
            self.script.give(self.gradients)
            self.gradients = []
        else:
            super()._optimize()

    def stepped(self) -> list[tuple[HeldTensor, int]]:
        """What lies in the first rank's part of a unit, parameter by parameter."""
        found = [(h, self._idle_part(h)) for h in self.idle if h.trains]
        for unit in self.each:
            left = unit.part
            for one in (h for h in unit.held for _ in range(h.times)):
                found += [(one, min(left, int(one.elements)))] if left > 0 else []
                left -= int(one.elements)
        return found


RUN = FlatUnits
