"""Steps under Megatron-Core: parameters and gradients lie in a buffer each, so that a gradient is added to
its place and goes; stages of a pipeline run micro-batches forward ahead of backward.
"""

from __future__ import annotations

from itertools import repeat

from memsheet.formulas.replay.order import Run
from memsheet.formulas.replay.script import Played, play_backward
from memsheet.formulas.sharding.distributed_optimizer import state_ranks
from memsheet.formulas.tapes.tape import Event
from memsheet.plan.dtypes import DType
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan

MOMENTS = 2
"""Of each element, which Adam keeps."""
AHEAD = 2
"""Micro-batches beyond those that warm a stage up, from which on all are alike."""


class GradientBuffers(Run):
    """States that lie in buffers and what is cut from them."""

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Of stages of one chunk, whose micro-batches are all alike."""
        known = isinstance(plan.mesh.gpus, int) and plan.optimizer is not None and plan.routing is None
        return known and plan.mesh.vpp == 1 and not plan.recompute.stretched and not plan.offload.activations

    @property
    def adds(self) -> bool:
        return True

    def prepare(self) -> None:
        self.kept, self.shards = dict(self.told.kept), self.optimizer_parts()

    def load(self) -> None:
        """Parameters are made one by one, those that train are moved into their buffer, and the rank's shards
        copied in fp32 (Megatron-LM 23e00ed core/distributed/param_and_grad_buffer.py:667-790,
        core/optimizer/distrib_optimizer.py: ``clone().float()``).
        """
        buffers, script = self.told.buffers, self.script
        assert buffers is not None
        frozen = [int(h.dtype.nbytes(h.elements)) for h in self.held() if not h.trains]
        for size in frozen:
            script.take(size)
        trained = [(dtype, script.take(int(dtype.nbytes(n)))) for dtype, n in self._trained()]
        if self.plan.zero:
            script.take(buffers.parameters - sum(frozen))
        script.take(buffers.gradients)
        if self.plan.zero:
            script.give([number for _, number in trained])
        for dtype, elements in self.shards if buffers.master_weights else ():
            copy = script.take(int(dtype.nbytes(elements)))
            self._take_part(buffers.master_weights, elements)
            script.give([copy])
        script.take(self.told.beside)

    def _trained(self) -> list[tuple[DType, int]]:
        """Dtype and elements of every parameter that trains, as Megatron makes them: a layer's matrices are
        joined.
        """
        found = list[tuple[DType, int]]()
        matrices = self.told.matrices or repeat((), len(self.layers))
        ends = ((self.walk.embeddings, ()), (self.walk.head, ()))
        for group, joined in (ends[0], *zip(self.layers, matrices, strict=True), ends[1]):
            if group is None:
                continue
            own = [h for h in group.parameters if h.trains for _ in range(h.times)]
            linear = [h for h in own if h.role is Role.LINEAR]
            if joined and sum(joined) == sum(int(h.elements) for h in linear):
                found += [(linear[0].dtype, n) for n in joined]
                own = [h for h in own if h.role is not Role.LINEAR]
            found += [(h.dtype, int(h.elements)) for h in own]
        return found

    def optimizer_parts(self) -> list[tuple[DType, int]]:
        """Of each parameter the part that the rank's optimizer has: the last ones lie first in the buffer,
        which ranks divide evenly, wherever a parameter ends.
        """
        trained, found, at = self._trained(), list[tuple[DType, int]](), 0
        size = -(-sum(n for _, n in trained) // int(state_ranks(self.plan.mesh, Role.LINEAR, self.plan.zero)))
        first = size * self.told.share
        for dtype, elements in reversed(trained):
            own = min(at + elements, first + size) - max(at, first)
            if own > 0:
                found.append((dtype, own))
            at += elements
        return found

    def _take_part(self, whole: int, elements: int) -> int:
        """So many elements of all that the rank's optimizer has ``whole`` bytes of."""
        return self.script.take(whole * elements // max(1, sum(n for _, n in self.shards)))

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """With what a matrix's first backward leaves for good, once the gradient of its input is made."""
        tape, last = played.part.own.tape, dict[str, int]()
        for at, (event, index) in enumerate(tape.backward, 1):
            if event is Event.ALLOC and (path := tape.entries[index].path).endswith("/backward"):
                last[path.removesuffix("/backward").rpartition(".")[2]] = at
        takes = [(at, self.kept.pop(name)) for name, at in last.items() if name in self.kept]
        return play_backward(
            self.script, played, gradient, adds=True, workspace=workspace, takes=sorted(takes)
        )

    def step(self) -> None:
        """One forward and one backward in turn, after as many forwards as stages are behind (Megatron-LM
        23e00ed core/pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving).
        """
        warm = self.plan.mesh.pp - 1 - self.told.stage
        count = min(int(self.plan.accumulation), warm + AHEAD)
        waiting: list[tuple[list[Played], Played | None]] = []
        for number in range(count):
            waiting.append(self.forward())
            if number >= warm:
                self.backward(*waiting.pop(0))
        for played, loss in waiting:
            self.backward(played, loss)
        if not self.states and self.told.buffers is not None:
            for left in self.kept.values():
                self.script.take(left)
            each = self.told.buffers.moments // MOMENTS
            self.states = [self._take_part(each, n) for _, n in self.shards for _ in range(MOMENTS)]
        self.script.give([self.script.take(self.told.stepping)])
