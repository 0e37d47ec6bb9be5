"""Steps under Megatron-Core: parameters and gradients lie in a buffer each, so that a gradient is added to
its place and goes; stages of a pipeline run micro-batches forward ahead of backward.
"""

from __future__ import annotations

from memsheet.formulas.replay.order import Run
from memsheet.formulas.replay.script import Played
from memsheet.plan.dtypes import FP32
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

    def load(self) -> None:
        """Parameters are made one by one, then moved into their buffer, and the rank's shards copied in fp32
        (Megatron-LM 23e00ed core/distributed/param_and_grad_buffer.py:667-790,
        core/optimizer/distrib_optimizer.py).
        """
        buffers = self.told.buffers
        assert buffers is not None
        made = [self.script.take(int(h.dtype.nbytes(h.elements))) for h in self.held()]
        self.script.take(buffers.parameters)
        self.script.take(buffers.gradients)
        self.script.give(made)
        self._take_shards(buffers.master_weights)
        self.script.take(self.told.beside)

    def _take_shards(self, size: int) -> list[int]:
        """Tensors of so many bytes, each a parameter's, the last ones first as they lie in the buffer."""
        found: list[int] = []
        for h in reversed(self.held()):
            part = min(size, int(FP32.nbytes(h.elements)))
            found.append(self.script.take(part))
            size -= part
            if not size:
                return found
        return [*found, self.script.take(size)]

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
            each = self.told.buffers.moments // MOMENTS
            self.states = [number for _ in range(MOMENTS) for number in self._take_shards(each)]
        self.script.give([self.script.take(self.told.stepping)])
