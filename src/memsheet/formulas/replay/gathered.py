"""Steps under fully_shard: units that are gathered for either pass and whose gradients are reduced after
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from memsheet.arith import Count
from memsheet.formulas.groups import Group
from memsheet.formulas.replay.order import FIRST, LAST, Run
from memsheet.formulas.replay.script import Played, Recorded, Stop, play_backward
from memsheet.formulas.replay.tape_logs import GATHERS, REDUCES, Sized
from memsheet.formulas.sharding.per_parameter_shards import (
    fsdp_wrapping,
    gathers_before_loss,
    loss_reduces_table,
)
from memsheet.formulas.sharding.per_parameter_sizes import (
    dim0_gathered,
    dim0_shard,
    mixed_precision_dtype,
    reduced_rest,
    tables_in_two_groups,
    with_rooted_norms,
)
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.tape import Event
from memsheet.frozen import dataclass, field
from memsheet.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered together, in bytes on this rank: each parameter ``whole``, the buffer they arrive in
    and what is sent for it, the buffer in which gradients are reduced and what is left of it. ``trained``:
    elements of each parameter that trains; a loop still names the gradient of the last one when the others
    are gone (torch 2.13 _fsdp_collectives.py:579-590, several ranks). ``shards``: of each parameter the
    rank's part as it lies on the host and as it is sent.
    """

    whole: tuple[int, ...]
    gathered: int
    sent: int
    reduce_input: int
    reduced: int
    trained: tuple[int, ...] = ()
    shards: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class GatheredUnit:
    """One gathered unit: ``groups`` of parameters and the bytes of what is gathered."""

    unit: Unit
    stays: bool  # gathered from its forward to its backward
    parameters: list[int] = field(default_factory=list)
    buffer: int | None = None


def _fsdp_unit_bytes(held: Sequence[HeldTensor], plan: Plan) -> Unit:
    ranks = plan.mesh.sharded
    whole = tuple(int(mixed_precision_dtype(h, plan).nbytes(dim0_gathered(h.shape, ranks))) for h in held)
    reduced = sum(int(plan.precision.reduce.nbytes(dim0_shard(h.shape, ranks))) for h in held if h.trains)
    gathered = sum(whole) if ranks > 1 else 0
    return Unit(
        whole=whole,
        gathered=gathered,
        sent=gathered // ranks * int(plan.precision.casts),  # parts that are not cast are sent as they are
        reduce_input=reduced * ranks,
        reduced=reduced,
        trained=tuple(int(h.elements) for h in held if h.trains),
        shards=tuple(_shard_bytes(h, plan) for h in held) if plan.offload.parameters else (),
    )


def _shard_bytes(held: HeldTensor, plan: Plan) -> tuple[int, int]:
    """A rank's part of a parameter in its own dtype, and in that which it is gathered in; 0 where that is the
    same.
    """
    elements, low = dim0_shard(held.shape, plan.mesh.sharded), mixed_precision_dtype(held, plan)
    return int(held.dtype.nbytes(elements)), 0 if low is held.dtype else int(low.nbytes(elements))


def _is_hosted(plan: Plan) -> bool:
    """Whether shards, gradients and states are on the host (CPUOffloadPolicy)."""
    return bool(plan.offload.parameters)


class GatheredUnits(Run):
    """Parameters cut along their first dimension."""

    hosts = True

    def load(self) -> None:
        if _is_hosted(self.plan):
            self.script.take(self.told.beside)
        else:
            super().load()

    def _optimize(self) -> None:
        if not _is_hosted(self.plan):
            super()._optimize()

    def prepare(self) -> None:
        plan = self.plan
        keeps = not plan.reshard_after_forward
        wrapped = fsdp_wrapping(plan)
        walk = self.walk if wrapped.joined else with_rooted_norms(self.walk)
        groups = (walk.embeddings, walk.head) if wrapped.joined else (walk.head, walk.embeddings)
        ends = [h for group in groups if group for h in group.parameters]
        rooted = wrapped.joined or walk.tied
        root = GatheredUnit(_fsdp_unit_bytes(ends, plan), stays=True) if rooted else None
        self.root = root
        self.loss_reduced = loss_reduces_table(plan, walk)
        units = {
            id(group): _fsdp_unit_bytes(group.parameters, plan)
            for group in {id(group): group for group in self.layers}.values()
        }
        self.placed = {
            number: GatheredUnit(
                units[id(group)],
                stays=keeps or (wrapped.last_stays and number == len(self.layers) - 1),
            )
            for number, group in enumerate(self.layers)
        }
        if walk.embeddings:
            self.placed[FIRST] = root or GatheredUnit(
                _fsdp_unit_bytes(walk.embeddings.parameters, plan), stays=keeps
            )
        if walk.head:
            self.placed[LAST] = root or GatheredUnit(_fsdp_unit_bytes(walk.head.parameters, plan), stays=True)
        around = (*self.told.rooted, *(h for h in walk.rest if h in walk.outer_norms))
        rest = [h for h in around for _ in range(h.times)]
        self.rest = GatheredUnit(_fsdp_unit_bytes(rest, plan), stays=True)  # the root's own, that no part has
        head = walk.head.parameters if walk.head and walk is not self.walk else ()
        self.apart = not rooted and sum(h.times for h in head if h.trains) == 1  # a head without its norm
        self.beside = [
            GatheredUnit(_fsdp_unit_bytes(unit, plan), stays=True) for unit in self.told.beside_units
        ]
        self.graded = [h for h in reduced_rest(walk) for _ in range(h.times)]  # of these what gets gradients
        self.reduced_rest = GatheredUnit(_fsdp_unit_bytes(self.graded, plan), stays=True)
        self.left_over: int | None = None  # the last gathered buffer, until the next is copied out
        self.reducing: int | None = None
        self.waiting: list[int] = []  # gradients of the root's, until its last part's backward is over
        self.unreduced: dict[int, list[int]] = {}  # of each unit, where the last micro-batch alone reduces

    @property
    def adds(self) -> bool:
        """Where gradients that wait whole are autograd's own (torch 2.13 _fsdp_param.py,
        to_accumulated_grad_if_needed).
        """
        same = self.plan.precision.reduce is self.plan.precision.compute
        return self.told.reduces_last and self.later and same

    def kept_elements(self, held: HeldTensor) -> Count:
        return dim0_shard(held.shape, self.plan.mesh.sharded)

    # ---- gathering and reducing ----------------------------------------------------------------------------

    def gather(self, at: GatheredUnit) -> None:
        """Ask for a unit's parameters: what is sent, and the buffer it arrives in."""
        if at.parameters or at.buffer is not None or not at.unit.gathered:
            return
        sent = self._come_from_host(at.unit) or [self.script.take(at.unit.sent, GATHERS)]
        at.buffer = self.script.take(at.unit.gathered, GATHERS)
        self.script.give(sent)

    def _come_from_host(self, unit: Unit) -> list[int]:
        """Each shard comes up and is cast by itself (torch 2.13 _fsdp_param.py:896-901); they go when all are
        copied into the buffer.
        """
        found = list[int]()
        for own, low in unit.shards:
            up = self.script.take(own, GATHERS)
            found.append(self.script.take(low, GATHERS) if low else up)
            self.script.give((up,) if low else ())
        return found

    def copy_out(self, at: GatheredUnit, *, defers: bool) -> None:
        """Copy what arrived into the parameters. In forward the buffer stays until the next unit's, when a
        name holds it to the end of the copy (torch 2.13 _fsdp_param_group.py, wait_for_unshard).
        """
        if at.parameters:
            return
        at.parameters = self.script.take_all(at.unit.whole)
        if defers:
            self.leave_forward()
        if at.buffer is not None and defers:
            self.left_over, at.buffer = at.buffer, None
        elif at.buffer is not None:
            self.script.give((at.buffer,))
            at.buffer = None

    def reshard(self, at: GatheredUnit) -> None:
        self.script.give(at.parameters)
        at.parameters = []

    def reduce(self, at: GatheredUnit, gradients: Sequence[int]) -> None:
        self.reshard(at)
        if self.told.reduces_last and not self.later:
            self.unreduced[id(at)] = self.widened(at.unit, gradients)
            return
        if self.told.reduces_last:
            self.script.give(gradients)  # added to what waits
            if not self.last:
                return
            gradients = self.unreduced.pop(id(at))
        self.reduce_whole(at.unit, gradients)

    def reduce_whole(self, unit: Unit, gradients: Sequence[int]) -> None:
        """Copied into a buffer, which stays until the next unit's is made."""
        self.end_backward()
        self.reducing = self.script.take(unit.reduce_input)
        wide = self.plan.precision.reduce if self.told.reduces_last else self.plan.precision.compute
        trained = unit.trained if unit.gathered else ()
        size = int(wide.nbytes(trained[-1])) if trained else 0
        named = [number for number in gradients if size and self.script.sizes[number] == size][-1:]
        self.script.give(number for number in gradients if number not in named)
        self._keep_reduced(unit)
        self.script.give(named)

    def widened(self, unit: Unit, gradients: Sequence[int]) -> list[int]:
        """Whole gradients, one parameter after the other, in the dtype they are reduced in, in which they
        wait for the last micro-batch's (torch 2.13 _fsdp_param.py, to_accumulated_grad_if_needed). Of a tied
        table there is one by then.
        """
        precision, script = self.plan.precision, self.script
        made = dict[int, list[int]]()
        for number in gradients:
            made.setdefault(script.sizes[number], []).append(number)
        found = list[int]()
        for elements in unit.trained:
            own, wide = (int(each.nbytes(elements)) for each in (precision.compute, precision.reduce))
            last = (made.get(own) or made.get(wide, []))[-1:]  # a loss in chunks makes the head's wide
            if last and script.sizes[last[0]] == wide:
                found += last
            elif last:
                found.append(script.take(wide))
                script.give(last)
            for number in last:
                made[script.sizes[number]].remove(number)
        for left in made.values():
            script.give(left)
        return found

    def _keep_reduced(self, unit: Unit) -> None:
        """A rank's part of a unit's gradients, which is added to that of an earlier micro-batch."""
        shard = self.script.take(unit.reduced, REDUCES)
        if (self.later and not self.told.reduces_last) or _is_hosted(self.plan):
            self.script.give((shard,))
        else:
            self.gradients.append(shard)

    # ---- a step --------------------------------------------------------------------------------------------

    def enter(self, group: Group, number: int) -> None:
        del group
        if number == FIRST and self.rest.unit.gathered:
            self.gather(self.rest)
            self.copy_out(self.rest, defers=True)
        if number != LAST or not self.apart:
            self._bring(self.placed[number])
        for beside in self.beside if number == FIRST else ():  # layers that run before those of the walk
            self._bring(beside)

    def _bring(self, at: GatheredUnit) -> None:
        self.gather(at)
        self.copy_out(at, defers=True)

    def head_stops(self, head: Recorded) -> Iterator[Stop]:
        """A head whose unit has its matrix alone is gathered when the norm before it has run."""
        if self.apart:
            log, outputs = head.own.forward, head.own.tape.outputs
            made = (n for n, (event, index) in enumerate(log) if event is Event.ALLOC and index in outputs)
            yield next(made, 0), lambda _: self._bring(self.placed[LAST])

    def leave(self, number: int) -> None:
        if not self.placed[number].stays:
            self.reshard(self.placed[number])

    @property
    def loss_outside(self) -> bool:
        return fsdp_wrapping(self.plan).loss_outside

    def leave_forward(self) -> None:
        if self.left_over is not None:
            self.script.give((self.left_over,))
            self.left_over = None

    def enter_backward(self, number: int) -> None:
        self.gather(self.placed[number])
        self.copy_out(self.placed[number], defers=False)

    def enter_loss(self) -> None:
        if gathers_before_loss(self.walk, self.plan):
            self.prefetch(LAST)

    def prefetch(self, number: int) -> None:
        ahead = len(self.layers) - 1 if number == LAST else number - 1
        if ahead in self.placed and (number != LAST or self.layers):
            self.gather(self.placed[ahead])

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        at, embeddings, head = len(self.script.events), self.walk.embeddings, self.walk.head
        if self.apart and head and played.part is self.part(head.part):
            stops = self._head_alone(played.part.own)
            return play_backward(
                self.script, played, gradient, adds=self.adds, workspace=workspace, stops=stops
            )
        found = super().part_backward(played, gradient, workspace)
        if self.waiting and embeddings and played.part is self.part(embeddings.part):
            self._keep_sum(at, embeddings.parameters[0])
        return found

    def _head_alone(self, own: Sized) -> Iterator[Stop]:
        """Where the head's unit has its matrix alone, whose gradients are reduced before the norm's backward:
        when its own is there and what it was made of has gone.
        """
        log, beside = own.tape.backward, {self._gradient_bytes(h) for h in self.graded}
        for at, index in own.arrivals:
            if own.sizes[index] not in beside:
                end = next(n for n in range(at, len(log) + 1) if n == len(log) or log[n][0] is Event.ALLOC)
                yield end, partial(self._reduce_head, index)

    def _reduce_head(self, index: int, held: dict[int, int]) -> None:
        self.reduce(self.placed[LAST], [held.pop(index)])

    def _gradient_bytes(self, held: HeldTensor) -> int:
        return int(mixed_precision_dtype(held, self.plan).nbytes(held.elements))

    def _keep_sum(self, at: int, table: HeldTensor) -> None:
        """Where both gradients of a tied table are added anew, the sum stays and not the head's (torch
        csrc/autograd/input_buffer.cpp, accumulate). ``at``: the event from which the look-ups ran backward.
        """
        events, sizes = self.script.events, self.script.sizes
        size = self._gradient_bytes(table)
        own = [number for number in self.waiting if sizes[number] == size]
        made = [event for event in events[at:] if event >= 0 and sizes[event] == size]
        gone = [place for place in range(at, len(events)) if made[1:] and events[place] == ~made[-1]]
        for place in gone[:1] if own else ():
            events[place] = ~own[0]
            self.waiting[self.waiting.index(own[0])] = made[-1]

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        if self.root is not None and number == LAST:
            self.waiting = list(made)
            if self.loss_reduced:
                self._keep_reduced(self.root.unit)
        else:
            rooted = list[int]()
            if number == FIRST:
                rooted, made = self._of_rest([*self.waiting, *made])
                self.waiting = []
                self.reshard(self.rest)
                for beside in self.beside:
                    self.reshard(beside)
                    self._keep_reduced(beside.unit)
            elif number == LAST:
                self.waiting, made = self._of_rest(made)
                if self.apart:
                    return
            if rooted:
                self.reduce(self.reduced_rest, rooted)
            there = len(self.gradients)
            self.reduce(self.placed[number], made)
            twice = number == FIRST and (self.loss_reduced or tables_in_two_groups(self.walk))
            if twice and len(self.gradients) > there:  # added to what is there
                self.script.give((self.gradients.pop(),))

    def _of_rest(self, made: Sequence[int]) -> tuple[list[int], list[int]]:
        """Of gradients those of the root's own parameters, and the others. The former wait for the end of
        backward, where they are reduced first (_fsdp_state.py, _root_post_backward_final_callback).
        """
        own, others = list[int](), list(made)
        for held in self.graded:
            size = self._gradient_bytes(held)
            found = next((number for number in others if self.script.sizes[number] == size), None)
            if found is not None:
                others.remove(found)
                own.append(found)
        return own, others

    def end_backward(self) -> None:
        if self.reducing is not None:
            self.script.give((self.reducing,))
            self.reducing = None


RUN = GatheredUnits
