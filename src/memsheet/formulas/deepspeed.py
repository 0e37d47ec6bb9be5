"""What DeepSpeed keeps on a rank: ZeRO 0 to 3, the bf16 optimizer with fp32 gradients, and the parts moved to the host.

Stages 1 and 2 flatten the parameters that train into one buffer; stage 3 cuts every tensor on its own. Paths name DeepSpeed's own
buffers where a partition follows no module's borders. Line numbers are those of ``engines/deepspeed.py``'s commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from memsheet.arith import Count, agreed, at_least, maximum, minimum, round_up, where
from memsheet.engines.deepspeed import ALIGNMENT, ALLREDUCE_BUCKET, BUCKETS, Buckets
from memsheet.errors import Problem, require
from memsheet.formulas.evaluate import EMPTY, Bag, Key, largest, merge
from memsheet.formulas.groups import Group, Walk, walk
from memsheet.formulas.kept import Host, Kept
from memsheet.formulas.states import Held, held_tensors, module_of, parameter_bytes
from memsheet.formulas.surroundings import Surroundings
from memsheet.formulas.zero_flow import Flush, Place, flushes, gatherable, gathered, later, persists, places, stops, tensor_shard
from memsheet.references import DEEPSPEED, TORCH_OPTIM, formula
from memsheet.sheet import Component
from memsheet.spec.dtypes import BF16, FP32
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Implementation, OptimizerName, Plan

C = Component
PARTITION: Key = (C.GRADIENTS, "zero/averaged_gradients")
BUCKET: Key = (C.COMMUNICATION, "zero/ipg_bucket")
FLUSH: Key = (C.COMMUNICATION, "zero/reduction_copy")
GATHERED: Key = (C.UNSHARDED_PARAMETERS, "zero/gathered")
AUTO = (
    'DeepSpeed\'s own bucket sizes; transformers writes others where its configuration says "auto": '
    "reduce_bucket_size h·h, prefetch 0.9·h·h, persistence 10·h"
)


@dataclass(frozen=True, slots=True, eq=False)
class Zero:
    """The counts that every question below asks for, in elements."""

    plan: Plan
    parameters: tuple[Held, ...]
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

    @property
    def keeps_fp32_gradients(self) -> bool:
        """BF16_Optimizer: stage 1 in bf16 with gradients accumulated in fp32 (engine.py:1994-1997)."""
        return self.plan.zero == 1 and self.plan.precision.parameters is BF16 and self.plan.precision.gradients is FP32

    @property
    def host(self) -> Count:
        """Elements of the optimizer's partition that live on the host."""
        return offloaded(self.shard, self.plan, self.buckets)


def zero_of(plan: Plan, parameters: tuple[Held, ...], buckets: Buckets = BUCKETS) -> Zero:
    """The counts of a plan."""
    trained = [h for h in parameters if h.trains]
    ranks = plan.mesh.dp_shard
    total = sum(h.times * h.elements for h in trained)
    shard = sum(h.times * tensor_shard(h, ranks) for h in trained) if plan.zero == 3 else flat_partition(total, plan)
    widest = max((h.elements for h in trained), default=0)
    return Zero(plan, parameters, buckets, ranks, total, shard, widest, agreed(plan.accumulation > 1))


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:347, 392-442: the flat buffer is padded to 2 elements a rank and cut evenly")
def flat_partition(elements: Count, plan: Plan) -> Count:
    """Elements of one rank's part of the flat buffer (the whole of it at stage 0)."""
    if plan.zero == 0:
        return elements
    return round_up(elements, ALIGNMENT * plan.mesh.dp_shard) // plan.mesh.dp_shard


def check_deepspeed(plan: Plan) -> None:
    """Raise InputError naming every part of a plan that DeepSpeed does not have or that is not modelled."""
    found: list[Problem] = []

    def wrong(field: str, value: object, reason: str, hint: str = "") -> None:
        found.append(Problem(field=field, value=value, reason=reason, hint=hint))

    precision, offload = plan.precision, plan.offload
    if plan.zero and agreed(plan.mesh.dp_replicate > 1):
        wrong("mesh.dp_replicate", plan.mesh.dp_replicate, f"replicas of shards at zero {plan.zero} are not modelled", "use dp_shard")
    if precision.compute is not precision.parameters:
        wrong("precision", precision.compute.name, "DeepSpeed casts the whole model and computes in its dtype", "--precision bf16-master")
    if plan.adapter and plan.adapter.dtype is not precision.parameters:
        wrong(
            "adapter.dtype",
            plan.adapter.dtype.name,
            f"becomes {precision.parameters.name}: DeepSpeed casts the whole model",
            "leave it out",
        )
    if precision.gradients not in (precision.parameters, FP32) or (precision.gradients is not precision.parameters and plan.zero in (0, 2)):
        wrong(
            "precision.gradients",
            precision.gradients.name,
            f"zero {plan.zero} keeps gradients in the model's dtype",
            "zero 1 or 3 has fp32",
        )
    if (
        plan.zero == 1
        and precision.gradients is FP32
        and precision.parameters is not FP32
        and (offload.optimizer or precision.parameters is not BF16)
    ):
        wrong("precision.gradients", "fp32", "at zero 1 is modelled for bf16 without offload only", "leave it out, or zero 3")
    if precision.master_weights not in (None, FP32) or precision.moments is not FP32:
        wrong(
            "precision.moments", precision.moments.name, "bf16_master_weights_and_grads and bf16_optimizer_states are not modelled", "fp32"
        )
    unfused = plan.optimizer is not None and plan.optimizer.implementation is not Implementation.FUSED
    if plan.zero == 0 and precision.parameters is not FP32 and unfused:
        wrong(
            "optimizer.implementation",
            "unfused",
            "FP16_UnfusedOptimizer, which DeepSpeed takes at zero 0, is not modelled",
            "fused, or zero 1",
        )
    if plan.quantization and plan.zero == 3:
        wrong("quantization.weights", plan.quantization.weights.name, "is not modelled at zero 3", "zero 2 keeps it whole")
    found += _offload_problems(plan)
    require(found)


def _offload_problems(plan: Plan) -> list[Problem]:
    offload, found = plan.offload, []
    if offload.parameters and plan.zero != 3:
        found.append(Problem(field="offload.parameters", value=offload.parameters, reason="exists at zero 3 only", hint="--zero 3"))
    if offload.optimizer and plan.zero == 0:
        found.append(Problem(field="offload.optimizer", value=offload.optimizer, reason="exists from zero 1 on", hint="--zero 2"))
    if 0 < offload.parameters < 1:
        found.append(
            Problem(field="offload.parameters", value=offload.parameters, reason="has no partial form in DeepSpeed", hint="give 0 or 1")
        )
    if 0 < offload.optimizer < 1 and plan.zero != 3:
        hint = "give 0 or 1; the ratio of offload_optimizer exists at zero 3"
        found.append(Problem(field="offload.optimizer", value=offload.optimizer, reason=f"is not divided at zero {plan.zero}", hint=hint))
    return found


# ---- states ------------------------------------------------------------------------------------------------------------------


@formula(cites=DEEPSPEED, at="stage3.py:307-321, 1049-1058: the first int((1 - ratio) · sub-groups) sub-groups stay on the device")
def offloaded(shard: Count, plan: Plan, buckets: Buckets) -> Count:
    """Elements of a rank's partition whose master and moments are on the host."""
    if not plan.offload.optimizer:
        return 0
    if plan.offload.optimizer == 1:
        return shard
    groups = -(-shard // buckets.sub_group)
    return shard - minimum(shard, int((1 - plan.offload.optimizer) * groups) * buckets.sub_group)


@formula(cites=TORCH_OPTIM, at="_init_group: states like the parameter; FusedAdam and FusedLion the same (ops/adam/fused_adam.py:155)")
def moment_bytes(elements: Count, plan: Plan) -> Count:
    """Optimizer states of a flat partition."""
    assert plan.optimizer is not None
    count = {OptimizerName.ADAMW: 2, OptimizerName.LION: 1, OptimizerName.SGD_MOMENTUM: 1}.get(plan.optimizer.name, 0)
    return count * plan.precision.moments.nbytes(elements)


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:492-493, stage3.py:1031-1124, fp16/fused_optimizer.py: an fp32 copy of the partition")
def master_bytes(zero: Zero, elements: Count) -> Count:
    """The fp32 copy that is stepped: every ZeRO stage makes one, even of fp32 parameters; without ZeRO only low precision does."""
    return 0 if zero.plan.zero == 0 and zero.plan.precision.parameters is FP32 else FP32.nbytes(elements)


def _parameters(zero: Zero) -> dict[Key, Count]:
    """The model's own parameters, whole up to stage 2."""
    plan, sizes = zero.plan, dict[Key, Count]()
    for h in zero.parameters:
        if not plan.offload.parameters or persists(h, zero.buckets):  # partition_parameters.py:1801-1815
            key = (C.PARAMETERS, module_of(h.path))
            sizes[key] = sizes.get(key, 0) + h.times * h.dtype.nbytes(tensor_shard(h, zero.ranks) if plan.zero == 3 else h.elements)
    if plan.zero in (1, 2):
        sizes[C.PARAMETERS, "zero/padding"] = zero.width * (zero.shard * zero.ranks - zero.total)
    return sizes


def states(zero: Zero) -> Bag:
    """Parameters, their master and moments, and the gradients that exist from the first step to the last."""
    plan, kept = zero.plan, zero.shard - zero.host
    pairs = [
        *_parameters(zero).items(),
        ((C.MASTER_WEIGHTS, "zero/fp32_partition"), master_bytes(zero, kept)),
        ((C.OPTIMIZER_STATES, "zero/fp32_partition"), moment_bytes(kept, plan)),
    ]
    if plan.zero == 3 and not plan.offload.optimizer:  # stage3.py:740-752, made once and kept
        pairs.append(((C.GRADIENTS, "zero/grad_partitions_flat_buffer"), plan.precision.gradients.nbytes(zero.shard)))
    if zero.keeps_fp32_gradients:  # bf16_optimizer.py:175-177, and the bf16 ones that are zeroed, never freed (348-349)
        pairs.append(((C.GRADIENTS, "zero/fp32_groups_gradients_flat"), FP32.nbytes(zero.shard * zero.ranks)))
        pairs += _whole_gradients(zero)
    return Bag.of((key, size) for key, size in pairs if not _nothing(size))


def _nothing(size: Count) -> bool:
    return isinstance(size, int) and size == 0


def _whole_gradients(zero: Zero) -> list[tuple[Key, Count]]:
    return [((C.GRADIENTS, module_of(h.path)), zero.width * h.times * h.elements) for h in zero.parameters if h.trains]


# ---- the optimizer's step ----------------------------------------------------------------------------------------------------


@formula(cites=TORCH_OPTIM, at="adam.py:762-799 foreach copies the second moments once; :540-546 two copies in the loop; fused none")
def optimizer_scratch(elements: Count, plan: Plan) -> Count:
    """Temporaries of a step over one flat fp32 tensor."""
    assert plan.optimizer is not None
    if plan.optimizer.name is not OptimizerName.ADAMW:
        return 0
    copies = {Implementation.FOREACH: 1, Implementation.LOOP: 2}.get(plan.optimizer.implementation, 0)
    return copies * plan.precision.moments.nbytes(elements)


@formula(
    cites=DEEPSPEED, at="stage_1_and_2.py:2346-2386: flat copy, its fp32 copy, the step; 2289-2291, 2083-2091: checks a tensor at a time"
)
def partition_scratch(zero: Zero) -> Count:
    """Stages 1 and 2, beside the gradients' partition: the flat and the fp32 gradients, the step, or the overflow check."""
    gradients, checked = zero.width * zero.shard, minimum(zero.widest, zero.shard)
    wide = FP32.nbytes(zero.shard) if zero.width < FP32.nbytes(1) else 0
    stepping = maximum(0, FP32.nbytes(zero.shard) - gradients) + optimizer_scratch(zero.shard, zero.plan)  # the gradients are gone by then
    return maximum(maximum(gradients + wide, stepping), (2 * FP32.nbytes(1) + 3) * checked)


@formula(
    cites=DEEPSPEED,
    at="stage3.py:2397-2417, 2629-2644: a sub-group's gradients flat, then in fp32; 2726-2731: checks over the whole buffer",
)
def sub_group_scratch(zero: Zero) -> Count:
    """Stage 3, beside the flat gradient buffer."""
    gradients = zero.plan.precision.gradients
    group = minimum(zero.shard, zero.buckets.sub_group)
    flat = gradients.nbytes(group) + (0 if gradients is FP32 else FP32.nbytes(group))
    check = (1 + gradients.nbytes(1)) * zero.shard
    return maximum(maximum(flat, FP32.nbytes(group) + optimizer_scratch(group, zero.plan)), check)


@formula(cites=DEEPSPEED, at="fp16/fused_optimizer.py step: every gradient in fp32, then flattened; the model's own are dropped after")
def unsharded_scratch(zero: Zero) -> Count:
    """Stage 0, beside the whole gradients."""
    scratch = optimizer_scratch(zero.total, zero.plan)
    if zero.plan.precision.parameters is FP32:
        return scratch
    return maximum(2 * FP32.nbytes(zero.total), FP32.nbytes(zero.total) - zero.width * zero.total + scratch)


def at_step(zero: Zero) -> Bag:
    """Gradients and scratch at the optimizer's step, states aside."""
    plan = zero.plan
    key: Key = (C.TEMPORARIES, "optimizer")
    if plan.zero == 0:
        return Bag.of([*_whole_gradients(zero), (key, unsharded_scratch(zero))])
    if zero.keeps_fp32_gradients:  # the step works on a view of them
        return Bag.of([(key, optimizer_scratch(zero.shard, plan))])
    if plan.zero == 3:
        return EMPTY if plan.offload.optimizer == 1 else Bag.of([(key, sub_group_scratch(zero))])
    if plan.offload.optimizer:
        return EMPTY  # the gradients are on the host by then
    return Bag.of([(PARTITION, zero.width * zero.shard), (key, partition_scratch(zero))])


# ---- around the layers ---------------------------------------------------------------------------------------------------------


@formula(
    cites=DEEPSPEED, at="stage_1_and_2.py:2493-2516, stage3.py:730-735: buffers of reduce_bucket_size elements, whatever the model's size"
)
def bucket_bytes(zero: Zero) -> Count:
    """The fixed buckets in which gradients wait for their reduction."""
    return zero.buckets.buffers(zero.plan.zero) * zero.width * zero.buckets.reduce_bucket


def around(zero: Zero, stage: Walk) -> Surroundings:
    """What the plan's stage adds to a step."""
    match zero.plan.zero:
        case 0:
            return _around_whole(_all_reduce(zero))
        case 1 if zero.keeps_fp32_gradients:
            return _around_fp32_gradients(zero)
        case 1:
            return _around_one(zero)
        case 2:
            return _around_two(zero, stage)
        case _:
            return _around_three(zero, stage)


def _around_whole(end: Bag, bucket: Bag = EMPTY) -> Surroundings:
    """Autograd's own gradients stay until the last micro-batch's are reduced."""
    return Surroundings(backward=lambda *_: bucket, leaves=lambda group: group.gradients, end=end)


def _unless_resident(zero: Zero) -> list[tuple[Key, Count]]:
    """The whole gradients, which are resident already when micro-batches accumulate."""
    return [] if zero.accumulates else _whole_gradients(zero)


@formula(cites=DEEPSPEED, at="engine.py:3691-3702, 3784-3797: gradients are flattened by 5e8 elements for one all-reduce")
def _all_reduce(zero: Zero) -> Bag:
    copied = where(at_least(zero.plan.mesh.dp_replicate, 2), zero.width * minimum(zero.total, ALLREDUCE_BUCKET), 0)
    return Bag.of([*_unless_resident(zero), ((C.COMMUNICATION, "allreduce/flat"), copied)])


@formula(
    cites=DEEPSPEED,
    at="stage_1_and_2.py:861-881, 1193-1242: after the last backward each gradient moves into the bucket, flushed when full",
)
def _around_one(zero: Zero) -> Surroundings:
    """Stage 1: from its first gradient on the bucket is there; the partition grows while the bucket's gradients are gone."""
    bucket = EMPTY if zero.accumulates else Bag.of([(BUCKET, bucket_bytes(zero))])
    first = minimum(zero.total, zero.buckets.reduce_bucket)
    grown = 0 if zero.plan.offload.optimizer else maximum(0, zero.width * (zero.shard - first))
    end = Bag.of([*_unless_resident(zero), *bucket.held.items(), (PARTITION, grown), *_offload_scratch(zero).held.items()])
    return replace(_around_whole(end, bucket), always=_offload_buffers(zero))


@formula(cites=DEEPSPEED, at="bf16_optimizer.py:371: each gradient in fp32 before it is added")
def _around_fp32_gradients(zero: Zero) -> Surroundings:
    cast = Bag.of([((C.TEMPORARIES, "zero/gradient_fp32"), FP32.nbytes(zero.widest))])
    return Surroundings(end=cast)


def _around_two(zero: Zero, stage: Walk) -> Surroundings:
    """Stage 2: a bucket through every backward, its copy at a flush, and from the first flush on the rank's own gradients."""
    shard = zero.shard
    made = flushes(stage, zero.buckets.reduce_bucket, shard, cuts=True)
    bucket = Bag.of([(BUCKET, bucket_bytes(zero))])
    partition = EMPTY if zero.plan.offload.optimizer else Bag.of([(PARTITION, zero.width * shard)])
    late = _late_gradients(zero, stage)

    def during(run: int, repetition: int) -> Bag:
        return merge([(1, reduced(zero, (run, repetition), made, partition)), (1, late(run, repetition))])

    return Surroundings(always=_offload_buffers(zero), backward=lambda *_: bucket, during=during, stops=stops(made))


def reduced(zero: Zero, place: Place, made: list[Flush], partition: Bag) -> Bag:
    """The most that flushes leave at a place: the copy of one of them, and the partition once one has gone before."""
    before = any(later(place, flush.place) for flush in made)
    candidates = [[(1, partition)]] if before else [[(1, EMPTY)]]
    for number, flush in enumerate(made):
        if flush.place == place:
            copy = Bag.of([(FLUSH, zero.width * flush.copied)])
            candidates += [[(1, copy), (1, partition if number else EMPTY), (1, _offload_scratch(zero))], [(1, partition)]]
    return largest(candidates)


def _around_three(zero: Zero, stage: Walk) -> Surroundings:
    """Stage 3: a bucket for good, its copy at a flush, persistent parameters, and parameters gathered ahead of their use."""
    buckets = zero.buckets
    made = flushes(stage, buckets.reduce_bucket, 1, cuts=False)
    steps = list(places(stage))
    left: dict[Place, Count] = {}
    for place, groups in steps:
        left[place] = (left[steps[len(left) - 1][0]] if left else 0) + gatherable(groups, buckets, zero.ranks)
    everything = left[steps[-1][0]]
    biggest = max((h.elements for h in zero.parameters if not persists(h, buckets)), default=0)
    persistent = sum(h.times * h.dtype.nbytes(h.elements) for h in zero.parameters if persists(h, buckets))
    always = Bag.of([(BUCKET, bucket_bytes(zero)), ((C.UNSHARDED_PARAMETERS, "zero/persistent"), persistent)])
    late = _late_gradients(zero, stage)

    def fetched(remaining: Count) -> Bag:
        return gathered_bag(zero, remaining, biggest)

    def during(run: int, repetition: int) -> Bag:
        moment = [(1, reduced(zero, (run, repetition), made, EMPTY)), (1, fetched(left[run, repetition])), (1, late(run, repetition))]
        return merge(moment)

    whole = fetched(everything)
    return Surroundings(
        always=always, entering=lambda *_: whole, forward=lambda *_: whole, holds=lambda group: whole if group is stage.head else EMPTY,
        during=during, stops=stops(made),
    )  # fmt: skip


def gathered_bag(zero: Zero, remaining: Count, biggest: Count) -> Bag:
    """Gathered parameters, and with parameters on the host their rank's part on its way up (partition_parameters.py:1331-1333)."""
    size = gathered(remaining, biggest, zero.buckets)
    bag = [(GATHERED, zero.width * size.value)]
    if zero.plan.offload.parameters:
        bag.append(
            ((C.UNSHARDED_PARAMETERS, "zero/from_host"), zero.width * (minimum(remaining, zero.buckets.prefetch + biggest) // zero.ranks))
        )
    return Bag.of(bag)


def _late_gradients(zero: Zero, stage: Walk) -> Callable[[int, int], Bag]:
    """Gradients that do not go into the bucket at once: a tied table's until the embeddings' is added, tensors wider than the bucket."""
    tied = EMPTY
    if stage.tied and stage.head:
        tied = Bag.of(pair for pair in stage.head.gradients.held.items() if "norm" not in pair[0][1])

    def wide(groups: tuple[Group, ...]) -> Bag:
        size = max((h.elements for group in groups for h in group.parameters if h.trains), default=0)
        return Bag.of([((C.GRADIENTS, "zero/extra_large"), zero.width * size)]) if size > zero.buckets.reduce_bucket else EMPTY

    layers = {run: wide(layers.pattern) for run, layers in enumerate(stage.layers)}

    def held(run: int, _: int) -> Bag:
        if run == len(stage.layers):
            return EMPTY  # the head's own backward counts them (see ``head_keeps``)
        return merge([(1, tied), (1, layers.get(run, EMPTY))])

    return held


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:591-593: one tensor's gradient on its way to the host")
def _offload_buffers(zero: Zero) -> Bag:
    if not zero.plan.offload.optimizer:
        return EMPTY
    return Bag.of([((C.COMMUNICATION, "zero/temp_grad_buffer"), zero.width * zero.widest)])


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:1590-1605: its norm is taken in double precision")
def _offload_scratch(zero: Zero) -> Bag:
    if not zero.plan.offload.optimizer:
        return EMPTY
    if zero.plan.zero == 3:  # stage3.py:1393-1407
        return Bag.of([((C.TEMPORARIES, "zero/gradient_fp32"), FP32.nbytes(zero.widest // zero.ranks))])
    return Bag.of([((C.TEMPORARIES, "zero/gradient_norm"), 2 * FP32.nbytes(zero.widest))])


# ---- the host ------------------------------------------------------------------------------------------------------------------


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:492-507, 585-590, 839-844, 1525-1560; stage3.py:328, 742-746, 839-862, 1107-1110, 1287-1292")
def host_memory(zero: Zero) -> Host:
    """What a rank keeps on the host: master, gradients and parameters pinned, moments (at zero 3 the master too) pageable."""
    plan = zero.plan
    pinned: list[Count] = []
    pageable: Count = moment_bytes(zero.host, plan)
    if plan.offload.optimizer and plan.zero == 3:
        pinned += [FP32.nbytes(zero.host), plan.precision.gradients.nbytes(zero.shard)]
        pageable = pageable + FP32.nbytes(zero.host)
    elif plan.offload.optimizer:
        pinned += [FP32.nbytes(zero.shard), FP32.nbytes(zero.shard), zero.width * zero.shard, zero.width * zero.widest]
        pageable = pageable + (zero.width * zero.shard if zero.accumulates else 0)
    if plan.offload.parameters:
        moved = (h for h in zero.parameters if not persists(h, zero.buckets))
        pinned.append(sum(h.times * h.dtype.nbytes(tensor_shard(h, zero.ranks)) for h in moved))
    return Host(tuple(pinned), pageable)


# ---- the whole -----------------------------------------------------------------------------------------------------------------


def deepspeed_walk(spec: ModelSpec, plan: Plan, engine: Engine) -> Walk:
    """The model's groups. From stage 2 on a gradient leaves for the bucket as soon as it is made, unless it is wider than that."""
    stage = walk(spec, plan, engine, release=plan.zero > 1 or agreed(plan.accumulation > 1))
    if plan.zero > 1 and stage.head and (stage.tied or any(h.elements > BUCKETS.reduce_bucket for h in stage.head.parameters)):
        return replace(stage, head=walk(spec, plan, engine, release=False).head)
    return stage


def deepspeed_kept(spec: ModelSpec, plan: Plan, stage: Walk, buckets: Buckets = BUCKETS) -> Kept:
    """Everything DeepSpeed keeps on a rank through a step."""
    zero = zero_of(plan, tuple(held_tensors(spec, plan)), buckets)
    fixed = Bag.of(parameter_bytes(spec, plan, (), Sharding.DEEPSPEED).items())  # buffers
    return Kept(
        states=merge([(1, states(zero)), (1, fixed)]), around=around(zero, stage), resident=resident(zero), at_step=at_step(zero), host=host_memory(zero),
        ranges=_ranges(zero), notes=(AUTO,) if plan.zero else (),
    )  # fmt: skip


def resident(zero: Zero) -> Bag:
    """What earlier micro-batches have left when the next one starts."""
    if not zero.accumulates or zero.plan.zero == 3 or zero.keeps_fp32_gradients:
        return EMPTY
    if zero.plan.zero == 2:
        return EMPTY if zero.plan.offload.optimizer else Bag.of([((C.GRADIENTS, "zero/all_grad_tensors"), zero.width * zero.shard)])
    bucket = [(BUCKET, bucket_bytes(zero))] if zero.plan.zero == 1 else []
    return Bag.of([*_whole_gradients(zero), *bucket])


def _ranges(zero: Zero) -> dict[Key, tuple[Count, Count]]:
    """What depends on the order of events and was derived from the code."""
    copy = zero.width * minimum(zero.total, zero.buckets.reduce_bucket)
    if zero.plan.zero == 2:
        return {FLUSH: (0, copy)}
    if zero.plan.zero != 3:
        return {}
    open_ = [h for h in zero.parameters if not persists(h, zero.buckets)]
    all_ = sum(h.times * zero.ranks * tensor_shard(h, zero.ranks) for h in open_)
    size = gathered(all_, max((h.elements for h in open_), default=0), zero.buckets)
    return {GATHERED: (zero.width * size.low, zero.width * size.high), FLUSH: (0, 2 * copy)}
