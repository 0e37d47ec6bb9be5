"""Steps under Megatron-Core: parameters and gradients lie in a buffer each, so that a gradient is added to
its place and goes; stages of a pipeline run micro-batches forward ahead of backward.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy
from itertools import repeat

from memsheet.formulas.pipeline import STEADY, interleaved_order
from memsheet.formulas.replay.order import Run, StepContext
from memsheet.formulas.replay.script import Played, Script, play_backward
from memsheet.formulas.sharding.distributed_optimizer import state_ranks
from memsheet.formulas.tapes.tape import Event
from memsheet.frozen import NamedTuple, replace
from memsheet.plan.dtypes import DType
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan

MOMENTS = 2
"""Of each element, which Adam keeps."""
AHEAD = 2
"""Micro-batches beyond those that warm a stage up, from which on all are alike."""


class TrainedPart(NamedTuple):
    """A parameter that trains, or a part of it."""

    dtype: DType
    elements: int
    expert: bool = False

    @property
    def bytes(self) -> int:
        return int(self.dtype.nbytes(self.elements))


class GradientBuffers(Run):
    """States that lie in buffers and what is cut from them."""

    stretches_layers = True

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Of stages whose micro-batches are all alike."""
        return isinstance(plan.mesh.gpus, int) and plan.optimizer is not None

    @classmethod
    def others(cls, plan: Plan, told: StepContext) -> list[StepContext]:
        """Ranks whose shares of the optimizer's states end inside other tensors."""
        ranks = int(state_ranks(plan.mesh, Role.LINEAR, plan.zero))
        shares = sorted({ranks // 3, 2 * ranks // 3, ranks - 1} - {0})
        return [replace(told, share=share) for share in shares]

    def other_script(self, told: StepContext, start: int) -> tuple[Script, int] | None:
        """Where another share of the states is the rank's: all else is the same. What takes the place of this
        one's copies and states is numbered behind everything.
        """
        if told != replace(self.told, share=told.share):
            return None
        own, other = self.script, copy(self)
        other.told, other.script = told, Script(array("q", own.sizes), bytearray(own.streams))
        other.prepare_parts()
        if other.parts == self.parts:
            return own, start
        events, done = other.script.events, 0
        for (first, last), make in (
            (self.made_copies, other.make_copies),
            (self.made_states, other.make_states),
        ):
            events += own.events[done:first]
            make()
            done = last
        events += own.events[done:]
        return other.script, start + len(events) - len(own.events)

    @property
    def adds(self) -> bool:
        return True

    def prepare(self) -> None:
        self.kept, self.trained = dict(self.told.kept), self._trained()
        self.made_copies = self.made_states = (0, 0)  # between which events
        self.prepare_parts()

    def prepare_parts(self) -> None:
        """What the rank's optimizer has of the parameters."""
        self.parts = self.optimizer_parts()
        self.elements = sum(one.elements for one in self.parts)  # that the rank's optimizer has

    def load(self) -> None:
        """Parameters are made one by one, those that train are moved into their buffer, experts' into
        another, and the rank's parts of them copied in fp32 (Megatron-LM 23e00ed
        core/distributed/param_and_grad_buffer.py:667-790, core/optimizer/distrib_optimizer.py:
        ``clone().float()``).
        """
        buffers, script, zero = self.told.buffers, self.script, self.plan.zero
        assert buffers is not None
        frozen = [int(h.dtype.nbytes(h.elements)) for h in self.all_parameters() if not h.trains]
        for size in frozen:
            script.take(size)
        made = [(one, script.take(one.bytes)) for one in self.trained]
        whole = buffers.parameters - sum(frozen)
        for experts in (False, True):
            own = [number for one, number in made if one.expert is experts]
            if not own:
                continue
            parameters, gradients = (
                (self._of_experts(size) if experts else size - self._of_experts(size))
                for size in (whole, buffers.gradients)
            )
            if zero:
                script.take(parameters)
            script.take(gradients)
            script.give(own if zero else ())
        self.make_copies()
        script.take(self.told.beside)

    def _order(self) -> Iterable[tuple[int, bool]]:
        mesh, stage, microbatches = self.plan.mesh, self.told.stage, int(self.plan.accumulation)
        if mesh.vpp > 1:
            return interleaved_order(mesh.pp, mesh.vpp, stage, min(microbatches, STEADY * mesh.pp))
        warm = mesh.pp - 1 - stage
        count = min(microbatches, warm + AHEAD)
        last = [(0, True)] * min(warm, count)
        return [(0, False)] * min(warm, count) + [(0, False), (0, True)] * max(0, count - warm) + last

    def _of_experts(self, size: int) -> int:
        """Of the bytes of all that trains, with what pads them, those of experts."""
        elements = sum(one.elements for one in self.trained)
        return size * sum(one.elements for one in self.trained if one.expert) // max(1, elements)

    def _trained(self) -> list[TrainedPart]:
        """Every parameter that trains, as Megatron makes it: a layer's matrices are joined, and each expert
        has its own.
        """
        found = list[TrainedPart]()
        matrices = self.told.matrices or repeat((), len(self.layers))
        ends = ((self.walk.embeddings, ()), (self.walk.head, ()))
        for group, joined in (ends[0], *zip(self.layers, matrices, strict=True), ends[1]):
            if group is None:
                continue
            own = [h for h in group.parameters if h.trains for _ in range(h.times)]
            linear = [h for h in own if h.role is Role.LINEAR]
            if joined and sum(joined) == sum(int(h.elements) for h in linear):
                found += [TrainedPart(linear[0].dtype, n) for n in joined]
                own = [h for h in own if h.role is not Role.LINEAR]
            for h in own:
                expert = h.role in (Role.EXPERT, Role.EXPERT_BIAS)
                each = int(h.shape[0]) if expert else 1
                found += [TrainedPart(h.dtype, int(h.elements) // each, expert)] * each
        return found

    def optimizer_parts(self) -> list[TrainedPart]:
        """Of each parameter the part that the rank's optimizer has: the last ones lie first in the buffer,
        which ranks divide evenly, wherever a parameter ends.
        """
        found, mesh, zero = list[TrainedPart](), self.plan.mesh, self.plan.zero
        dense = int(state_ranks(mesh, Role.LINEAR, zero))
        for experts in (False, True):
            own = [one for one in self.trained if one.expert is experts]
            ranks = int(state_ranks(mesh, Role.EXPERT, zero)) if experts else dense
            size, at = -(-sum(one.elements for one in own) // ranks), 0
            first = size * (self.told.share * ranks // dense)
            for one in reversed(own):
                part = min(at + one.elements, first + size) - max(at, first)
                if part > 0:
                    found.append(one._replace(elements=part))
                at += one.elements
        return found

    def _part_bytes(self, whole: int) -> list[int]:
        """Of ``whole`` bytes of all that the rank's optimizer has, those of each part."""
        return [whole * one.elements // self.elements for one in self.parts]

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """With what a matrix's first backward leaves for good, once the gradient of its input is made."""
        tape, last = played.part.own.tape, dict[str, int]()
        for at, (event, index) in enumerate(tape.backward if self.kept else (), 1):
            if event is Event.ALLOC and (path := tape.entries[index].path).endswith("/backward"):
                last[path.removesuffix("/backward")] = at
        takes = list[tuple[int, int]]()
        for name in [*self.kept]:
            ends = [at for path, at in last.items() if f".{path}".endswith(f".{name}")]
            takes += [(max(ends), self.kept.pop(name))] if ends else []
        stops = [(at, lambda _, size=size: self.script.take(size)) for at, size in sorted(takes)]
        return play_backward(self.script, played, gradient, adds=True, workspace=workspace, stops=stops)

    def step(self) -> None:
        """One forward and one backward in turn, after as many forwards as stages are behind (Megatron-LM
        23e00ed core/pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving); chunks
        of a stage interleaved.
        """
        waiting: dict[int, list[tuple[list[Played], Played | None]]] = {}
        for chunk, backward in self._order():
            if backward:
                self.backward(*waiting[chunk].pop(0), chunk)
            else:
                waiting.setdefault(chunk, []).append(self.forward(chunk))
        if not self.states and self.told.buffers is not None:
            for left in self.kept.values():
                self.script.take(left)
            self.kept.clear()
            self.make_states()
        self.script.give([self.script.take(self.told.stepping)])

    def make_copies(self) -> None:
        """Each part, and what it is raised to."""
        assert self.told.buffers is not None
        before, whole = len(self.script.events), self.told.buffers.master_weights
        for one, size in zip(self.parts, self._part_bytes(whole), strict=True) if whole else ():
            number = self.script.take(one.bytes)
            self.script.take(size)
            self.script.give([number])
        self.made_copies = before, len(self.script.events)

    def make_states(self) -> None:
        """Both moments of each part."""
        assert self.told.buffers is not None
        before, each = len(self.script.events), self.told.buffers.moments // MOMENTS
        self.states = self.script.take_all([n for n in self._part_bytes(each) for _ in range(MOMENTS)])
        self.made_states = before, len(self.script.events)


RUN = GradientBuffers
