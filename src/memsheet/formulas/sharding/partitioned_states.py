"""What DeepSpeed keeps on a rank from step to step: ZeRO 0 to 3, the bf16 optimizer with fp32 gradients, and
the parts on the host.

Stages 1 and 2 flatten the parameters that train into one buffer; stage 3 cuts every tensor on its own. Paths
name DeepSpeed's own buffers where a partition follows no module's borders. Line numbers are those of
``engines/deepspeed/facts.py``'s commit.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, at_least, maximum, minimum, round_up, where
from memsheet.formulas.sharding.partitioned_buckets import ALIGNMENT, BUCKETS, Buckets
from memsheet.formulas.sharding.partitioned_flow import stays_gathered, tensor_shard
from memsheet.formulas.sharding.resident_state import Host
from memsheet.formulas.states.held import HeldTensor, module_of, rows_apart
from memsheet.formulas.states.optimizers import optimizer_bytes
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import BF16, FP16, FP32
from memsheet.plan.model import Role
from memsheet.plan.plan import Implementation, OptimizerName, Plan
from memsheet.references import DEEPSPEED, TORCH_OPTIM, formula
from memsheet.sheet import Component

C = Component
PARTITION: Key = (C.GRADIENTS, "zero/averaged_gradients")


@dataclass(frozen=True, slots=True, eq=False)
class Zero:
    """The counts that every question below asks for, in elements."""

    plan: Plan
    parameters: tuple[HeldTensor, ...]
    buckets: Buckets
    ranks: Count
    total: Count  # that train
    shard: Count  # of them that one rank keeps, padding included
    widest: Count  # largest tensor that trains
    accumulates: bool

    @property
    def width(self) -> int:
        """Bytes an element of the model's dtype."""
        return self.plan.precision.parameters.nbytes(1)

    def gathered_bytes(self, elements: Count) -> Count:
        """Bytes of so many gathered elements: as wide as those that are let go of are on average, where four
        bits are packed into another dtype than the model's.
        """
        if self.plan.quantization is None:
            return self.width * elements
        let_go = [h for h in self.parameters if not stays_gathered(h, self.buckets)]
        size = sum(h.times * h.dtype.nbytes(h.elements) for h in let_go)
        return elements * size // maximum(1, sum(h.times * h.elements for h in let_go))

    @property
    def keeps_fp32_gradients(self) -> bool:
        """BF16_Optimizer: stage 1 in bf16 with gradients accumulated in fp32 (engine.py:1994-1997)."""
        return (
            self.plan.zero == 1
            and self.plan.precision.parameters is BF16
            and self.plan.precision.gradients is FP32
        )

    @property
    def host(self) -> Count:
        """Elements of the optimizer's partition that live on the host."""
        return offloaded_partition_elements(self.shard, self.plan, self.buckets)


def zero_of(plan: Plan, parameters: tuple[HeldTensor, ...], buckets: Buckets = BUCKETS) -> Zero:
    """The counts of a plan."""
    trained = [h for h in parameters if h.trains]
    ranks = plan.mesh.sharded
    total = sum(h.times * h.elements for h in trained)
    shard = (
        sum(h.times * tensor_shard(h, ranks) for h in trained)
        if plan.zero == 3
        else flat_partition(total, plan)
    )
    widest = max((h.elements for h in trained), default=0)
    return Zero(plan, parameters, buckets, ranks, total, shard, widest, agreed(plan.accumulation > 1))


@formula(
    cites=DEEPSPEED,
    at="stage_1_and_2.py:347, 392-442: the flat buffer is padded to 2 elements a rank and cut evenly",
)
def flat_partition(elements: Count, plan: Plan) -> Count:
    """Elements of one rank's part of the flat buffer (the whole of it at stage 0)."""
    if plan.zero == 0:
        return elements
    return round_up(elements, ALIGNMENT * plan.mesh.sharded) // plan.mesh.sharded


# ---- states ------------------------------------------------------------------------------------------------


@formula(
    cites=DEEPSPEED,
    at="stage3.py:307-321, 1049-1058: the first int((1 - ratio) · sub-groups) sub-groups stay on the device",
)
def offloaded_partition_elements(shard: Count, plan: Plan, buckets: Buckets) -> Count:
    """Elements of a rank's partition whose master and moments are on the host."""
    if not plan.offload.optimizer:
        return 0
    if plan.offload.optimizer == 1:
        return shard
    groups = -(-shard // buckets.sub_group)
    return shard - minimum(shard, int((1 - plan.offload.optimizer) * groups) * buckets.sub_group)


@formula(
    cites=TORCH_OPTIM,
    at=(
        "_init_group: states like the parameter; FusedAdam and FusedLion the same "
        "(ops/adam/fused_adam.py:155)"
    ),
)
def moment_bytes(elements: Count, plan: Plan) -> Count:
    """Optimizer states of a flat partition."""
    assert plan.optimizer is not None
    if plan.optimizer.implementation is Implementation.BNB:
        return optimizer_bytes(flat_tensor(elements), elements, plan)
    count = {OptimizerName.ADAMW: 2, OptimizerName.LION: 1, OptimizerName.SGD_MOMENTUM: 1}.get(
        plan.optimizer.name, 0
    )
    return count * plan.precision.moments.nbytes(elements)


def flat_tensor(elements: Count) -> HeldTensor:
    """The partition as the one tensor that an optimizer is handed, no part of it known as embeddings."""
    return HeldTensor(
        path=PARTITION_NAME, shape=(elements,), dtype=FP32, trains=True, role=Role.OTHER, times=1
    )


PARTITION_NAME = "zero/fp32_partition"


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:492-493, stage3.py:1031-1124, fp16/fused_optimizer.py: an fp32 copy of the "
        "partition"
    ),
)
def master_bytes(zero: Zero, elements: Count) -> Count:
    """The fp32 copy that is stepped: every ZeRO stage makes one, even of fp32 parameters; without ZeRO only
    low precision does.
    """
    return 0 if zero.plan.zero == 0 and zero.plan.precision.parameters is FP32 else FP32.nbytes(elements)


def _zero_parameter_rows(zero: Zero) -> dict[Key, Count]:
    """The model's own parameters, whole up to stage 2."""
    plan, sizes = zero.plan, rows_apart(zero.parameters)
    for h in zero.parameters:
        if not plan.offload.parameters or stays_gathered(
            h, zero.buckets
        ):  # partition_parameters.py:1801-1815
            key = (C.PARAMETERS, module_of(h.path))
            stored = h.dtype.nbytes(tensor_shard(h, zero.ranks) if plan.zero == 3 else h.elements)
            sizes[key] = sizes.get(key, 0) + h.times * stored
    if plan.zero in (1, 2):
        sizes[C.PARAMETERS, "zero/padding"] = zero.width * (zero.shard * zero.ranks - zero.total)
    return sizes


@formula(
    cites=DEEPSPEED,
    at=(
        "partition_parameters.py:1880-1889: the padded tensor by the group's ranks, in its own dtype, "
        "where parameters are kept; stage3.py:706-710, 2577: from load on, dropped after each step"
    ),
)
def secondary_bytes(zero: Zero) -> Count:
    """Bytes of a rank's part of the second copy of all parameters (hpZ)."""
    if zero.plan.gathers.secondary_shard == 1:
        return 0
    group = minimum(zero.plan.gathers.secondary_shard, zero.ranks)
    return sum(
        h.times * h.dtype.nbytes(zero.ranks * tensor_shard(h, zero.ranks) // group) for h in zero.parameters
    )


def zero_state_rows(zero: Zero) -> BytesByPath:
    """Parameters, their master and moments, and the gradients that exist from the first step to the last."""
    plan, kept = zero.plan, zero.shard - zero.host
    pairs = [
        *_zero_parameter_rows(zero).items(),
        ((C.MASTER_WEIGHTS, "zero/fp32_partition"), master_bytes(zero, kept)),
        ((C.OPTIMIZER_STATES, "zero/fp32_partition"), moment_bytes(kept, plan)),
    ]
    if plan.zero == 3 and not plan.offload.parameters:
        pairs.append(((C.PARAMETERS, "zero/secondary_shard"), secondary_bytes(zero)))
    if plan.zero == 3 and not plan.offload.optimizer:  # stage3.py:740-752, made once and kept
        pairs.append(
            ((C.GRADIENTS, "zero/grad_partitions_flat_buffer"), plan.precision.gradients.nbytes(zero.shard))
        )
    if zero.keeps_fp32_gradients:  # bf16_optimizer.py:175-177
        pairs.append(((C.GRADIENTS, "zero/fp32_groups_gradients_flat"), FP32.nbytes(zero.shard * zero.ranks)))
    return BytesByPath.of((key, size) for key, size in pairs if not _is_zero_size(size))


def _is_zero_size(size: Count) -> bool:
    return isinstance(size, int) and size == 0


def whole_gradients(zero: Zero) -> list[tuple[Key, Count]]:
    return [
        ((C.GRADIENTS, module_of(h.path)), zero.width * h.times * h.elements)
        for h in zero.parameters
        if h.trains
    ]


@formula(
    cites=DEEPSPEED,
    at=(
        "partition_parameters.py:1531-1532, 73-74: the only rank's part is the parameter, and nothing is "
        "gathered"
    ),
)
def of_parts(zero: Zero, size: Count) -> Count:
    """``size`` of whole parameters beside their parts, where those are something else: of another rank too,
    or on the host.
    """
    return size if zero.plan.offload.parameters else where(at_least(zero.ranks, 2), size, 0)


@formula(
    cites=DEEPSPEED,
    at=(
        "parameter_offload.py:311-329; stage3.py:2609, 2571-2572: they are let go of before the step, and "
        "gathered after it"
    ),
)
def persistent_parameter_rows(zero: Zero) -> BytesByPath:
    """Small parameters that stay gathered between steps."""
    size = sum(
        h.times * h.dtype.nbytes(h.elements) for h in zero.parameters if stays_gathered(h, zero.buckets)
    )
    kept = of_parts(zero, size)
    return (
        EMPTY
        if _is_zero_size(kept)
        else BytesByPath.of([((C.UNSHARDED_PARAMETERS, "zero/persistent"), kept)])
    )


# ---- the optimizer's step ----------------------------------------------------------------------------------


@formula(
    cites=TORCH_OPTIM,
    at="adam.py:762-799 foreach copies the second moments once; :540-546 two copies in the loop; fused none",
)
def optimizer_scratch(elements: Count, plan: Plan) -> Count:
    """Temporaries of a step over one flat fp32 tensor."""
    assert plan.optimizer is not None
    if plan.optimizer.name is not OptimizerName.ADAMW:
        return 0
    copies = {Implementation.FOREACH: 1, Implementation.LOOP: 2}.get(plan.optimizer.implementation, 0)
    return copies * plan.precision.moments.nbytes(elements)


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:2346-2386: flat copy, its fp32 copy, the step; 2289-2291, 2083-2091: checks a "
        "tensor at a time"
    ),
)
def partition_scratch(zero: Zero) -> Count:
    """Stages 1 and 2, beside the gradients' partition: the flat and the fp32 gradients, the step, or the
    overflow check.
    """
    gradients, checked = zero.width * zero.shard, minimum(zero.widest, zero.shard)
    wide = FP32.nbytes(zero.shard) if zero.width < FP32.nbytes(1) else 0
    stepping = maximum(0, FP32.nbytes(zero.shard) - gradients) + optimizer_scratch(
        zero.shard, zero.plan
    )  # the gradients are gone by then
    return maximum(maximum(gradients + wide, stepping), (2 * FP32.nbytes(1) + 3) * checked)


@formula(
    cites=DEEPSPEED,
    at=(
        "stage3.py:2397-2417, 2629-2644: a sub-group's gradients flat, then in fp32; 2550, 2726-2731: in "
        "fp16 checks over the whole buffer"
    ),
)
def sub_group_scratch(zero: Zero) -> Count:
    """Stage 3, beside the flat gradient buffer."""
    gradients = zero.plan.precision.gradients
    group = minimum(zero.shard, zero.buckets.sub_group)
    flat = gradients.nbytes(group) + (0 if gradients is FP32 else FP32.nbytes(group))
    check = (1 + gradients.nbytes(1)) * zero.shard if zero.plan.precision.parameters is FP16 else 0
    return maximum(maximum(flat, FP32.nbytes(group) + optimizer_scratch(group, zero.plan)), check)


@formula(
    cites=DEEPSPEED,
    at=(
        "fp16/fused_optimizer.py step: every gradient in fp32, then flattened; the model's own are "
        "dropped after"
    ),
)
def unsharded_scratch(zero: Zero) -> Count:
    """Stage 0, beside the whole gradients."""
    scratch = optimizer_scratch(zero.total, zero.plan)
    if zero.plan.precision.parameters is FP32:
        return scratch
    return maximum(2 * FP32.nbytes(zero.total), FP32.nbytes(zero.total) - zero.width * zero.total + scratch)


def at_step(zero: Zero) -> BytesByPath:
    """Gradients and scratch at the optimizer's step, states aside."""
    plan = zero.plan
    key: Key = (C.TEMPORARIES, "optimizer")
    if plan.zero == 0:
        return BytesByPath.of([*whole_gradients(zero), (key, unsharded_scratch(zero))])
    if (
        zero.keeps_fp32_gradients
    ):  # the step works on a view of them; the bf16 ones are freed after it (engine.py:3362-3363)
        return BytesByPath.of([*whole_gradients(zero), (key, optimizer_scratch(zero.shard, plan))])
    if plan.zero == 3:
        return (
            persistent_parameter_rows(zero)
            if plan.offload.optimizer == 1
            else BytesByPath.of([(key, sub_group_scratch(zero))])
        )
    if plan.offload.optimizer:
        return EMPTY  # the gradients are on the host by then
    return BytesByPath.of([(PARTITION, zero.width * zero.shard), (key, partition_scratch(zero))])


# ---- the host ----------------------------------------------------------------------------------------------


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:492-507, 585-590, 839-844, 1525-1560; stage3.py:328, 742-746, 839-862, "
        "1107-1110, 1287-1292"
    ),
)
def host_memory(zero: Zero) -> Host:
    """What a rank keeps on the host: master, gradients and parameters pinned, moments (at zero 3 the master
    too) pageable.
    """
    plan = zero.plan
    pinned: list[Count] = []
    pageable: Count = moment_bytes(zero.host, plan)
    if plan.offload.optimizer and plan.zero == 3:
        pinned += [FP32.nbytes(zero.host), plan.precision.gradients.nbytes(zero.shard)]
        pageable = pageable + FP32.nbytes(zero.host)
    elif plan.offload.optimizer:
        pinned += [
            FP32.nbytes(zero.shard),
            FP32.nbytes(zero.shard),
            zero.width * zero.shard,
            zero.width * zero.widest,
        ]
        pageable = pageable + (zero.width * zero.shard if zero.accumulates else 0)
    if plan.offload.parameters:
        pinned += [secondary_bytes(zero)] if plan.gathers.secondary_shard > 1 else []
        moved = (h for h in zero.parameters if not stays_gathered(h, zero.buckets))
        pinned.append(sum(h.times * h.dtype.nbytes(tensor_shard(h, zero.ranks)) for h in moved))
    return Host(tuple(pinned), pageable)
