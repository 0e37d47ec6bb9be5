"""Steps under DeepSpeed's stage 3: every parameter is cut on its own, and gathered ahead of its use in the
order of an earlier step. Line numbers are of DeepSpeed edaa722, deepspeed/runtime/zero.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from memsheet.formulas.groups import Group
from memsheet.formulas.replay.order import FIRST, LAST, StepContext, stays_on_device
from memsheet.formulas.replay.partitioned import Partitioned
from memsheet.formulas.replay.script import Script
from memsheet.formulas.replay.tape_logs import GATHERS, REDUCES
from memsheet.formulas.sharding.partitioned_flow import stays_gathered, tensor_shard
from memsheet.formulas.sharding.partitioned_overhead import bucket_bytes
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.dtypes import FP16, FP32
from memsheet.plan.plan import Plan

ONGOING = 2
"""Fetches that may be under way (partitioned_param_coordinator.py:134)."""


@dataclass(slots=True, eq=False)
class Fetched:
    """A parameter that is let go of between its uses. ``there``: what it lies in; ``bundle``: what it is on
    its way in; ``asked_for``: the last of its uses that it was gathered for.
    """

    elements: int
    padded: int
    there: int | None = None
    bundle: Bundle | None = None
    asked_for: int = -1


@dataclass(slots=True, eq=False)
class Bundle:
    """Parameters that arrive in one buffer, which stays until all of them have been used."""

    buffer: int
    parameters: list[Fetched]
    waiting: list[Fetched] = field(default_factory=list)
    copied: bool = False


class FetchedTensors(Partitioned):
    """Stage 3: gradients leave for a bucket as in stage 2, and the rank's part of each for one buffer."""

    stretches_layers = False

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Of parameters that are not there before they are gathered."""
        ranks = plan.mesh.sharded
        known = plan.optimizer is not None and stays_on_device(plan, states_leave=True, parameters_leave=True)
        known = known and not plan.recompute.stretched and plan.quantization is None
        return known and plan.zero == 3 and isinstance(ranks, int) and ranks > 1

    @classmethod
    def others(cls, plan: Plan, told: StepContext) -> list[StepContext]:
        """A host that is as far ahead as it may be: parameters that it lets go of are still read."""
        del plan
        return [replace(told, host_ahead=True)]

    def other_script(self, told: StepContext, start: int) -> tuple[Script, int] | None:
        """Where the host is ahead, each goes when the one goes that is let go of so many later."""
        if told != replace(self.told, host_ahead=True) or self.told.host_ahead:
            return None
        events, at = array("q", self.script.events), self.releases
        for place, later in zip(at, at[ONGOING:], strict=False):
            events[later] = self.script.events[place]
        for place in reversed(at[:ONGOING]):
            del events[place]
        fewer = sum(place < start for place in at[:ONGOING])
        return Script(self.script.sizes, self.script.streams, events), start - fewer

    def prepare(self) -> None:
        super().prepare()
        ends = ((FIRST, self.walk.embeddings), (LAST, self.walk.head))
        self.fetched: dict[int, list[tuple[int, int]]] = {}  # of each kind of part: elements, and padded
        self.open = {number: self._fetched(group) for number, group in (*ends, *enumerate(self.layers))}
        if self.walk.tied:
            self.open[LAST] = [*self.open[FIRST], *self.open[LAST]]
        self.uses = list(self._uses())
        self.passed = list(accumulate((one.elements for one in self.uses), initial=0))
        self.places: dict[int, list[int]] = {}
        for at, one in enumerate(self.uses):
            self.places.setdefault(id(one), []).append(at)
        self.live = self.use = self.next = (
            0  # elements that are there; the use at hand, and the next to fetch
        )
        small = [h for h in self.all_parameters() if stays_gathered(h, self.zero.buckets)]
        self.small = [int(h.dtype.nbytes(h.elements)) for h in small]
        self.persistent: list[int] = []
        self.let_go: list[int] = []
        self.releases: list[int] = []  # events at which one goes

    def _fetched(self, group: Group | None) -> list[Fetched]:
        """What of a part is let go of; smaller ones stay."""
        ranks, buckets = self.zero.ranks, self.zero.buckets
        if id(group) not in self.fetched:
            held = [h for h in group.parameters for _ in range(h.times)] if group else []
            self.fetched[id(group)] = [
                (int(h.elements), int(ranks * tensor_shard(h, ranks)))
                for h in held
                if not stays_gathered(h, buckets)
            ]
        return [Fetched(*one) for one in self.fetched[id(group)]]

    def _uses(self) -> Iterator[Fetched]:
        """Every use of a micro-batch, in order."""
        layers = range(len(self.layers))
        for number in (FIRST, *layers, LAST):
            yield from self.open[number]
        yield from reversed(self.open[LAST])
        for number in reversed(layers):
            yield from self._backward_uses(number)
        yield from reversed(self.open[FIRST])

    def _backward_uses(self, number: int) -> list[Fetched]:
        """Of a layer; first those of the forward that runs again."""
        played, own = self.layers[number].part.played, self.open[number]
        return [*(own if played and played[1] else ()), *reversed(own)]

    @property
    def groups(self) -> list[int]:
        """Elements that are stepped together (stage3.py:1020-1046)."""
        most = self.zero.buckets.sub_group
        rest = self.shard % most
        return [most] * (self.shard // most) + ([rest] if rest else [])

    def load(self) -> None:
        """Parts are joined on the host, and cached blocks given back, before they lie in one buffer
        (utils.py:207-240); then come their copies in fp32, the bucket and the buffer of gradients
        (stage3.py:716-752, 1085-1124).
        """
        script, plan, width = self.script, self.plan, self.zero.width
        script.take(self.told.beside)
        self.take_apart()
        if not plan.offload.parameters:
            for h in self.all_parameters():
                if not h.trains:
                    script.take(int(h.dtype.nbytes(tensor_shard(h, self.zero.ranks))))
            script.take(width * self.shard)
        if plan.offload.optimizer:
            self.bucket = script.take(int(bucket_bytes(self.zero)))
            self._gather_persistent()
            return
        for elements in self.groups if width < FP32.nbytes(1) else ():
            raised = script.take(int(FP32.nbytes(elements)))
            script.take(int(FP32.nbytes(elements)))
            script.give([raised])
        script.give([script.take(int(FP32.nbytes(max(self.groups, default=0))))])
        self.bucket = script.take(int(bucket_bytes(self.zero)))
        script.take(int(plan.precision.gradients.nbytes(self.shard)))
        self._gather_persistent()

    def _gather_persistent(self) -> None:
        self.persistent = self.script.take_all(self.small)

    # ---- gathering (partitioned_param_coordinator.py:300-485) ----------------------------------------------

    def _gather(self, asked: list[Fetched]) -> None:
        """One alone arrives where it stays, several in a buffer that they are copied out of; the rank's part
        of each comes from the host first, where it lies there (partition_parameters.py:1318-1365, 1571-1575).
        """
        if not asked:
            return
        width, ranks = self.width, int(self.zero.ranks)
        buffer = self.script.take(width * sum(one.padded for one in asked), GATHERS)
        if self.plan.offload.parameters:
            self.script.give(self.script.take_all([width * one.padded // ranks for one in asked], GATHERS))
        self.live += sum(one.elements for one in asked)
        if len(asked) == 1:
            asked[0].there = buffer
            return
        bundle = Bundle(buffer, asked, list(asked))
        for one in asked:
            one.bundle = bundle

    def _wait_for(self, one: Fetched) -> None:
        bundle = one.bundle
        if bundle is None:
            return
        if not bundle.copied:
            bundle.copied = True
            for other in bundle.parameters:
                other.there = self.script.take(self.width * other.elements, GATHERS)
        bundle.waiting.remove(one)
        one.bundle = None
        if not bundle.waiting:
            self.script.give([bundle.buffer])

    def _fetch(self, uses: Iterable[Fetched]) -> None:
        """One after the other, with what is asked for ahead; what came before goes meanwhile."""
        before: Fetched | None = None
        for one in uses:
            if before is not None and before is not one:
                self._release(before)
            if one.there is None and one.bundle is None:
                self._gather([one])
            self._wait_for(one)
            if one.asked_for < self.use:
                for at in range(self.next, self.use + 1):
                    self.uses[at].asked_for = at
                self.next = max(self.next, self.use + 1)
            self._gather_ahead()
            self.use += 1
            before = one

    def _gather_ahead(self) -> None:
        buckets, asked, elements = self.zero.buckets, list[Fetched](), 0
        most = min(buckets.max_live - self.live, buckets.prefetch)
        while self.next < len(self.uses) and elements < most:
            one = self.uses[self.next]
            one.asked_for = self.next
            if one.there is None and one.bundle is None and one not in asked:
                asked.append(one)
                elements += one.elements
            self.next += 1
        self._gather(asked)

    def _release(self, one: Fetched) -> None:
        """Unless it was passed over since it was there, or is used again soon (557-590)."""
        if (
            one.there is None
            or one.bundle is not None
            or one.asked_for >= self.use
            or self._is_used_soon(one)
        ):
            return
        self.live -= one.elements
        self.let_go.append(one.there)
        self.releases.append(len(self.script.events))
        one.there = None
        while len(self.let_go) > (ONGOING if self.told.host_ahead else 0):
            self.script.give([self.let_go.pop(0)])

    def _is_used_soon(self, one: Fetched) -> bool:
        at = self.places[id(one)]
        following = bisect_left(at, self.use)
        if following == len(at):
            return False
        return self.passed[at[following]] - self.passed[self.use] < self.zero.buckets.max_reuse

    # ---- a step --------------------------------------------------------------------------------------------

    def enter(self, group: Group, number: int) -> None:
        del group
        self._fetch(self.open[number])

    def leave(self, number: int) -> None:
        for one in self.open[number]:
            self._release(one)

    def prefetch(self, number: int) -> None:
        if number == LAST:
            self._fetch(reversed(self.open[LAST]))

    def enter_backward(self, number: int) -> None:
        self._fetch(reversed(self.open[FIRST]) if number == FIRST else self._backward_uses(number))

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        del made
        self.leave(number)

    def _reduce(self) -> None:
        """Several are joined for it (stage3.py:1591-1608; comm/coalesced_collectives.py:
        179-199).
        """
        if len(self.inside) > 1:
            self.script.give([self.script.take(self.zero.width * self.filled, REDUCES)])
        if self.plan.offload.optimizer:
            self._send_to_host()
        self.script.give(self.wide)
        self.wide, self.filled, self.inside = [], 0, []

    def _send_to_host(self) -> None:
        """The rank's part of each gradient comes back from the host's buffer, and goes there in fp32
        (stage3.py:1370-1407).
        """
        for elements in self.inside:
            part = -(-elements // self.zero.ranks)
            back = self.script.take(self.zero.width * part, REDUCES)
            self.script.give([self.script.take(int(FP32.nbytes(part)), REDUCES), back])

    def end_backward(self) -> None:
        self._reduce()
        self.at = self.total
        for one in {id(one): one for one in self.uses}.values():
            if one.bundle is not None:
                self._wait_for(one)
            if one.there is not None:
                self.script.give([one.there])
            one.there, one.asked_for = None, -1
        self.live = self.use = self.next = 0

    def _optimize(self) -> None:
        """One group after the other, gradients end to end and in fp32, beside no small parameters (stage3.py:
        2397-2417, 2560-2644).
        """
        script, plan, fresh = self.script, self.plan, not self.states
        script.give(self.persistent)
        if plan.offload.optimizer:
            self._gather_persistent()
            return
        if plan.precision.parameters is FP16:
            script.give([script.take(size * self.shard) for size in (1, self.zero.width)])
        for elements in self.groups:
            flat = script.take(int(plan.precision.gradients.nbytes(elements)))
            if plan.precision.gradients is not FP32:
                wide = script.take(int(FP32.nbytes(elements)))
                script.give([flat])
                flat = wide
            self.step_flat(elements, fresh=fresh)
            script.give([flat])
        self._gather_persistent()


RUN = FetchedTensors
