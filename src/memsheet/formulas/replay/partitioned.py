"""Steps under DeepSpeed: parameters that train are flattened into one buffer, gradients leave for a bucket,
and the optimizer steps a partition in fp32. Line numbers are of DeepSpeed edaa722, deepspeed/runtime.
"""

from __future__ import annotations

from functools import partial

from memsheet.formulas.replay.order import Run, StepContext, stays_on_device
from memsheet.formulas.replay.script import Played, play_backward
from memsheet.formulas.sharding.partitioned_buckets import ALLREDUCE_BUCKET
from memsheet.formulas.sharding.partitioned_overhead import bucket_bytes
from memsheet.formulas.sharding.partitioned_states import (
    master_bytes,
    moment_bytes,
    optimizer_scratch,
    zero_of,
)
from memsheet.formulas.states.optimizers import STATES_EACH
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.plan import EIGHT_BITS, Implementation, Plan

CHECKS = (4, 1, 1, 1, 4)
"""Bytes an element of what a search for overflow makes (zero/stage_1_and_2.py:2486-2491)."""
NORM = 8
"""The same, of a norm in double precision (zero/stage_1_and_2.py:2085)."""


def flat_state_sizes(elements: int, plan: Plan) -> list[int]:
    """Bytes of each state of a flat tensor; of eight bits the numbers, then the maxima."""
    whole, one = int(moment_bytes(elements, plan)), int(plan.precision.moments.nbytes(elements))
    if plan.optimizer is None or plan.optimizer.implementation is not Implementation.BNB:
        return [one] * (whole // one)
    count = STATES_EACH.get(plan.optimizer.name, 2)
    each = whole // count
    apart = plan.optimizer.name in EIGHT_BITS and elements < each < FP32.nbytes(elements)
    return [elements] * count + [each - elements] * count if apart else [each] * count if each else []


class Partitioned(Run):
    """Up to stage 2, parameters whole."""

    stretches_layers = True

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Of flat buffers on the device whose gradients are added in the model's own dtype."""
        fp32_sums = plan.precision.parameters is BF16 and plan.precision.gradients is FP32
        known = plan.optimizer is not None and plan.zero < 3 and not fp32_sums
        return known and stays_on_device(plan, states_leave=True)

    @classmethod
    def others(cls, plan: Plan, told: StepContext) -> list[StepContext]:
        """Parameters are joined on the host where the device has no room for both, and by every release
        before DeepSpeed's pull request 7828 (zero/stage_1_and_2.py:397-470).
        """
        return [replace(told, joined_on_host=True)] if plan.zero else []

    def prepare(self) -> None:
        groups = [self.walk.embeddings, *self.layers, self.walk.head]
        used = tuple(h for group in groups if group for h in group.parameters)
        self.zero = zero_of(self.plan, (*self.told.idle, *used))
        self.total, self.shard, self.width = int(self.zero.total), int(self.zero.shard), self.zero.width
        self.made: list[tuple[int, int]] = []  # gradients that wait, and their elements
        self.bucket: int | None = None
        self.filled, self.inside = 0, list[int]()  # elements in it, and of each of its gradients
        self.lowest = 0  # where the lowest of them is among all
        self.at = self.total
        self.wide: list[int] = []  # a gradient that is larger than the bucket
        self.tied: int | None = None  # the head's part of a table's gradient
        self.partition: int | None = None
        self.accumulated: int | None = None

    # ---- states --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Parameters one by one, those that train once more end to end, and an fp32 copy of the rank's part
        of that, which is stepped with gradients of zero without ZeRO (fp16/fused_optimizer.py:87-130,
        zero/stage_1_and_2.py:440-505, 839-846).
        """
        script, plan, width = self.script, self.plan, self.zero.width
        script.take(self.told.beside)
        hosted = self.told.joined_on_host  # and what they were is no longer in the cache
        own = [
            (h.trains, script.take(int(h.dtype.nbytes(h.elements))))
            for h in self.all_parameters()
            if not (h.trains and hosted)
        ]
        self.take_apart()
        if not self._flat:
            return
        trained = [number for trains, number in own if trains]
        if plan.zero == 0:
            copies = [script.take(script.sizes[number]) for number in trained]
            script.take(width * self.total)
            script.give([*copies, *trained])
        else:
            script.take(width * self.shard * int(plan.mesh.sharded))
            script.give(trained)
        if plan.offload.optimizer:
            script.take(width * int(self.zero.widest))  # temp_grad_buffer_for_gpu_offload, :591
            return
        copy = script.take(width * self.shard)
        if plan.zero == 0 or width < FP32.nbytes(1):
            script.take(int(master_bytes(self.zero, self.shard)))
            script.give([copy])
        gradient = script.take(int(FP32.nbytes(self.shard)))
        if plan.zero == 0:
            self.step_flat(self.shard, fresh=True)
        script.give([gradient])

    @property
    def _flat(self) -> bool:
        """Whether the optimizer has flat parameters: without ZeRO those of low precision alone."""
        return self.plan.zero > 0 or self.plan.precision.parameters is not FP32

    def step_flat(self, elements: int, *, fresh: bool) -> None:
        """Over one flat fp32 tensor. ``fresh``: its states are made."""
        script, plan = self.script, self.plan
        if fresh:
            self.states += [script.take(size) for size in flat_state_sizes(elements, plan)]
        scratch = int(optimizer_scratch(elements, plan))
        script.give([script.take(scratch)] if scratch else ())

    # ---- gradients -----------------------------------------------------------------------------------------

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """With what hooks do with each gradient of a parameter as soon as it is there."""
        own = played.part.own
        stops = [(at, partial(self._arrive, played, index)) for at, index in own.arrivals]
        return play_backward(self.script, played, gradient, adds=True, workspace=workspace, stops=stops)

    def _arrive(self, played: Played, index: int, held: dict[int, int]) -> None:
        walk, own = self.walk, played.part.own
        number, elements = held.pop(index), own.sizes[index] // self.width
        if walk.tied and walk.embeddings and elements == walk.embeddings.parameters[0].elements:
            if self.tied is None:
                self.tied = number  # the head's, which autograd keeps until the look-ups' joins it
                return
            anew = not own.tape.entries[index].path.endswith("/backward")
            self.script.give([self.tied if anew else number])
            number, self.tied = (number if anew else self.tied), None
        if self.plan.zero and self.bucket is None:
            self.bucket = self.script.take(int(bucket_bytes(self.zero)))
        self.at -= elements
        if self.plan.zero > 1:
            self._fill(number, elements, self.at)
        elif self.later:
            self.script.give([number])
        else:
            self.made.append((number, elements))

    def _fill(self, number: int, elements: int, at: int) -> None:
        """A gradient's way into the bucket, which is reduced before it would overflow; one that is wider is
        reduced as it is (zero/stage_1_and_2.py:1193-1242).
        """
        most = self.zero.buckets.reduce_bucket
        if self.filled and self.filled + elements > most:
            self._reduce()
        self.lowest = min(self.lowest, at) if self.filled else at
        self.filled += elements
        self.inside.append(elements)
        if elements > most:
            self.wide.append(number)
        else:
            self.script.give([number])

    def _reduce(self) -> None:
        """Parts of several ranks are joined for it; then the rank's own are copied (zero/stage_1_and_2.py:
        1665-1689, 1833-1867).
        """
        script, width = self.script, self.zero.width
        joins = self.lowest // self.shard != (self.lowest + self.filled - 1) // self.shard
        copies = [script.take(width * self.filled)] if joins else []
        if int(self.plan.mesh.cp) > 1 and width < FP32.nbytes(1):
            copies.append(script.take(int(FP32.nbytes(self.filled))))
        script.give(copies)
        if self.plan.offload.optimizer:
            self._send_to_host()
        elif self.partition is None:
            self.partition = script.take(width * self.shard)
        script.give(self.wide)
        self.wide, self.filled, self.inside = [], 0, []

    def _send_to_host(self) -> None:
        """The norm of a gradient is taken in double precision, then what the host adds it in is made of it
        (zero/stage_1_and_2.py:1576-1602).
        """
        for elements in self.inside:
            part = min(elements, self.shard)
            for size in (2 * FP32.nbytes(part), FP32.nbytes(part)):
                self.script.give([self.script.take(int(size))])

    def end_backward(self) -> None:
        """Stage 2 reduces what is left in the bucket, and adds the rank's part to that of earlier
        micro-batches (zero/stage_1_and_2.py:919-961).
        """
        self.at = self.total
        if self.plan.zero != 2:
            return
        self._reduce()
        self._let_go_of_bucket()
        if self.accumulated is None:
            self.accumulated = self.partition
        elif self.partition is not None:
            self.script.give([self.partition])
        self.partition = None

    def _let_go_of_bucket(self) -> None:
        if self.bucket is not None:
            self.script.give([self.bucket])
            self.bucket = None

    # ---- the optimizer's step ------------------------------------------------------------------------------

    def _optimize(self) -> None:
        made, self.made = self.made[::-1], []
        if self.plan.zero == 0:
            self._all_reduce([elements for _, elements in made])
            self._step_whole([number for number, _ in made])
            return
        if self.plan.zero == 1:
            at = 0
            for number, elements in made:
                self._fill(number, elements, at)
                at += elements
            self._reduce()
            self._let_go_of_bucket()
            self.accumulated, self.partition = self.partition, None
        if not self.plan.offload.optimizer:
            self._step_partition()

    def _all_reduce(self, sizes: list[int]) -> None:
        """Gradients are joined until more than a bucket is there (engine.py:3691-3702)."""
        joined, mesh = 0, self.plan.mesh
        for number, size in enumerate(sizes if int(mesh.dp_replicate * mesh.cp) > 1 else [], 1):
            joined += size
            if joined > ALLREDUCE_BUCKET or number == len(sizes):
                self.script.give([self.script.take(self.zero.width * joined)])
                joined = 0

    def _step_whole(self, gradients: list[int]) -> None:
        """fp16/fused_optimizer.py:245-330: each gradient in fp32, all of them end to end, the step."""
        script = self.script
        if not self._flat:
            super()._optimize()
            script.give(gradients)
            return
        ratio = FP32.nbytes(1) // self.zero.width
        copies = [script.take(ratio * script.sizes[number]) for number in gradients]
        flat = script.take(int(FP32.nbytes(self.total)))
        script.give([*copies, *gradients])
        self.step_flat(self.shard, fresh=not self.states)
        script.give([flat])

    def _step_partition(self) -> None:
        """zero/stage_1_and_2.py:2279-2400: checks of a tensor at a time, the rank's gradients end to end, the
        same in fp32, the step.
        """
        script, checked = self.script, int(min(self.zero.widest, self.shard))
        script.give([script.take(size * checked) for size in CHECKS])
        script.give([script.take(NORM * checked)])
        flat = script.take(self.zero.width * self.shard)
        if self.zero.width < FP32.nbytes(1):
            wide = script.take(int(FP32.nbytes(self.shard)))
            script.give([flat])
            flat = wide
        if self.accumulated is not None:
            script.give([self.accumulated])
            self.accumulated = None
        self.step_flat(self.shard, fresh=not self.states)
        script.give([flat])


RUN = Partitioned
