"""What DeepSpeed's stages add around the layers: buckets and their copies, gradients on their way, parameters
gathered ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from memsheet.arith import Count, at_least, maximum, minimum, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.partitioned_buckets import ALLREDUCE_BUCKET
from memsheet.formulas.sharding.partitioned_flow import (
    Flush,
    Flushes,
    Place,
    bucket_flushes,
    comes_later_in_backward,
    gathered_elements,
    peak_flush_places,
    prefetched_elements,
    stays_gathered,
)
from memsheet.formulas.sharding.partitioned_states import (
    PARTITION,
    Zero,
    of_parts,
    persistent_parameter_rows,
    whole_gradients,
)
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, largest_moment_rows, merge_moment
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.plan import Plan
from memsheet.references import DEEPSPEED, QLORA, formula
from memsheet.sheet import Component

C = Component
BUCKET: Key = (C.COMMUNICATION, "zero/ipg_bucket")
FLUSH: Key = (C.COMMUNICATION, "zero/reduction_copy")
GATHERED: Key = (C.UNSHARDED_PARAMETERS, "zero/gathered")
PACKED_COPIES: Key = (C.UNSHARDED_PARAMETERS, "zero/held_by_products")


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:2493-2516, stage3.py:730-735: buffers of reduce_bucket_size elements, whatever "
        "the model's size"
    ),
)
def bucket_bytes(zero: Zero) -> Count:
    """The fixed buckets in which gradients wait for their reduction."""
    return zero.buckets.buffers(zero.plan.zero) * zero.width * zero.buckets.reduce_bucket


def zero_overhead(zero: Zero, stage: StageLayers) -> ShardingOverhead:
    """What the plan's stage adds to a step."""
    match zero.plan.zero:
        case 0:
            return _around_whole(_all_reduce(zero))
        case 1 if zero.keeps_fp32_gradients:
            return _around_fp32_gradients(zero)
        case 1:
            return _around_one(zero, stage)
        case 2:
            return _around_two(zero, stage)
        case _:
            return _around_three(zero, stage)


def _around_whole(end: BytesByPath, bucket: BytesByPath = EMPTY) -> ShardingOverhead:
    """Autograd's own gradients stay until the last micro-batch's are reduced."""
    return ShardingOverhead(backward=lambda *_: bucket, leaves=lambda group: group.gradients, end=end)


def _unless_resident(zero: Zero) -> list[tuple[Key, Count]]:
    """The whole gradients, which are resident already when micro-batches accumulate."""
    return [] if zero.accumulates else whole_gradients(zero)


@formula(
    cites=DEEPSPEED,
    at="engine.py:3691-3702, 3784-3797: gradients are flattened by 5e8 elements for one all-reduce",
)
def _all_reduce(zero: Zero) -> BytesByPath:
    mesh = zero.plan.mesh
    copied = where(
        at_least(mesh.dp_replicate * mesh.cp, 2), zero.width * minimum(zero.total, ALLREDUCE_BUCKET), 0
    )
    return BytesByPath.of([*_unless_resident(zero), ((C.COMMUNICATION, "allreduce/flat"), copied)])


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:861-881, 1193-1242: after the last backward each gradient moves into the bucket, "
        "flushed when full"
    ),
)
def _around_one(zero: Zero, stage: StageLayers) -> ShardingOverhead:
    """Stage 1: from its first gradient on the bucket is there; the partition grows while the bucket's
    gradients are gone. A first one that is wider than the bucket is not, until its part is copied.
    """
    bucket = EMPTY if zero.accumulates else BytesByPath.of([(BUCKET, bucket_bytes(zero))])
    most = zero.buckets.reduce_bucket
    wide = at_least(next((h.elements for h in zero.parameters if h.trains), 0), most + 1)
    first = where(wide, 0, minimum(zero.total, most))
    grown = 0 if zero.plan.offload.optimizer else maximum(0, zero.width * (zero.shard - first))
    wide_copy = shared_reduction_bytes(zero.plan, minimum(zero.total, maximum(most, zero.widest)))
    reduced = BytesByPath.of([(PARTITION, maximum(0, grown - wide_copy)), (FLUSH, wide_copy)])
    sent = BytesByPath.of(
        (key, maximum(0, size - zero.width * first))
        for key, size in _offload_scratch(zero, zero.widest).held.items()
    )
    end = merge_moment(
        [
            (1, BytesByPath.of([*_unless_resident(zero), *bucket.held.items()])),
            (1, largest_moment_rows([[(1, reduced)], [(1, sent)]])),
        ]
    )
    around = replace(_around_whole(end), always=_offload_buffers(zero))
    return replace(around, backward=_bucket_after_head(stage, bucket, EMPTY)) if bucket.held else around


def _bucket_after_head(
    stage: StageLayers, bucket: BytesByPath, flushed: BytesByPath
) -> Callable[[Group | None, Group, Group | None], BytesByPath]:
    """The bucket is made when the first gradient is there (:1193, setup_buckets): in the head's backward that
    of the logits has gone by then. ``flushed``: what reductions in the head's backward leave.
    """
    head = stage.head
    if head is None:
        return lambda *_: bucket
    logits: Key = (C.TEMPORARIES, "loss/backward")
    gone = BytesByPath.of([(logits, -head.part.backward.held.get(logits, 0))])
    late = largest_moment_rows([[(1, EMPTY)], [(1, bucket), (1, flushed), (1, gone)]])
    return lambda _, group, __: late if group is head else bucket


@formula(
    cites=DEEPSPEED,
    at=(
        "bf16_optimizer.py:371: each gradient in fp32 before it is added; engine.py:3658-3664: all of them "
        "in the model's dtype, to be reduced"
    ),
)
def _around_fp32_gradients(zero: Zero) -> ShardingOverhead:
    """BF16_Optimizer: its flat fp32 gradients are one tensor, which is cast whole for the all-reduce."""
    cast = BytesByPath.of([((C.TEMPORARIES, "zero/gradient_fp32"), FP32.nbytes(zero.widest))])
    reduced = BytesByPath.of([((C.COMMUNICATION, "allreduce/flat"), zero.width * zero.shard * zero.ranks)])
    whole = BytesByPath.of(_unless_resident(zero))
    return _around_whole(merge_moment([(1, whole), (1, largest_moment_rows([[(1, cast)], [(1, reduced)]]))]))


def _around_two(zero: Zero, stage: StageLayers) -> ShardingOverhead:
    """Stage 2: a bucket through every backward, its copy at a flush, and from the first flush on the rank's
    own gradients.
    """
    shard = zero.shard
    made = bucket_flushes(stage, zero.buckets.reduce_bucket, shard, cuts=True)
    bucket = BytesByPath.of([(BUCKET, bucket_bytes(zero))])
    partition = EMPTY if zero.plan.offload.optimizer else BytesByPath.of([(PARTITION, zero.width * shard)])
    late = _late_gradients(zero, stage)

    def flushed(run: int, repetition: int) -> BytesByPath:
        return merge_moment(
            [(1, flush_peak_rows(zero, (run, repetition), made[:-1], partition)), (1, late(run, repetition))]
        )

    last = len(stage.layers)
    at_head = flushed(last, 0) if stage.head else EMPTY
    end = merge_moment([(1, bucket), (1, _last_flush(zero, made, partition))])
    return ShardingOverhead(
        always=_offload_buffers(zero),
        backward=_bucket_after_head(stage, bucket, at_head),
        during=lambda run, repetition: EMPTY if stage.head and run == last else flushed(run, repetition),
        stops=peak_flush_places(made),
        end=end,
    )


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:919-921 (independent_gradient_partition_epilogue): what is left is reduced when "
        "backward is over"
    ),
)
def _last_flush(zero: Zero, made: Flushes, partition: BytesByPath) -> BytesByPath:
    """The bucket's rest, reduced after the last gradient was made; one that is wider than the bucket is
    itself there still.
    """
    last = made[-1]
    wide = zero.width * last.elements if last.elements > zero.buckets.reduce_bucket else 0
    copy = BytesByPath.of([(FLUSH, _reduction_copies(zero, last)), ((C.GRADIENTS, "zero/extra_large"), wide)])
    copying = [(1, copy), (1, partition if len(made) > 1 else EMPTY)]
    kept = BytesByPath.of([((C.GRADIENTS, "zero/extra_large"), wide)])
    sent = [(1, kept), (1, _offload_scratch(zero, last.widest))]
    return largest_moment_rows([copying, sent, [(1, partition)]])


def _reduction_copies(zero: Zero, flush: Flush) -> Count:
    """The copies of a bucket that one reduction makes: parts of several ranks are joined for it."""
    return zero.width * flush.copied + shared_reduction_bytes(zero.plan, flush.elements)


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:1847-1851: ranks that share sequences reduce in fp32 at stages 1 and 2; stage 3 "
        "in the model's dtype, with NCCL 2.27.3 or later (runtime/constants.py:299-303)"
    ),
)
def shared_reduction_bytes(plan: Plan, elements: Count) -> Count:
    """The fp32 copy of a bucket of so many elements."""
    if plan.zero == 3 or plan.precision.parameters is FP32:
        return 0
    return where(at_least(plan.mesh.cp, 2), FP32.nbytes(elements), 0)


def flush_peak_rows(zero: Zero, place: Place, made: Flushes, partition: BytesByPath) -> BytesByPath:
    """The most that flushes leave at a place: the copy of one of them, and the partition once one has gone
    before.
    """
    before = bool(made) and comes_later_in_backward(place, max([flush.place for flush in made]))
    candidates = [[(1, partition)]] if before else [[(1, EMPTY)]]
    for number, flush in enumerate(made):
        if flush.place == place:
            copy = BytesByPath.of([(FLUSH, _reduction_copies(zero, flush))])
            candidates += [
                [(1, copy), (1, partition if number else EMPTY)],
                [(1, _offload_scratch(zero, flush.widest))],
                [(1, partition)],
            ]
    return largest_moment_rows(candidates)


def _around_three(zero: Zero, stage: StageLayers) -> ShardingOverhead:
    """Stage 3: a bucket for good, its copy at a flush, persistent parameters, and parameters gathered ahead
    of their use.
    """
    buckets = zero.buckets
    made = bucket_flushes(stage, buckets.reduce_bucket, 1, cuts=False)
    left, everything = _elements_left(zero, stage)
    biggest = max((h.elements for h in zero.parameters if not stays_gathered(h, buckets)), default=0)
    late = _late_gradients(zero, stage)

    def fetched(remaining: Count) -> BytesByPath:
        return gathered_bag(zero, remaining, biggest)

    @cache  # asked about again at every length
    def during(run: int, repetition: int) -> BytesByPath:
        moment = [
            (1, flush_peak_rows(zero, (run, repetition), made, EMPTY)),
            (1, fetched(left(run, repetition))),
            (1, late(run, repetition)),
        ]
        return merge_moment(moment)

    whole, head = fetched(everything), stage.head.name if stage.head else None

    def held(group: Group) -> BytesByPath:
        gathered = whole if group.name == head else EMPTY
        copies = packed_copies(zero, group.parameters)
        if isinstance(copies, int) and not copies:
            return gathered
        return merge_moment([(1, gathered), (1, BytesByPath.of([(PACKED_COPIES, copies)]))])

    return ShardingOverhead(
        always=BytesByPath.of([(BUCKET, bucket_bytes(zero))]),
        between=persistent_parameter_rows(zero),
        entering=lambda *_: whole,
        forward=lambda *_: whole,
        holds=held,
        during=during,
        stops=peak_flush_places(made),
    )


def holds_packed(plan: Plan) -> bool:
    """Whether products in four bits keep what was gathered for them."""
    return plan.zero == 3 and plan.quantization is not None and not plan.recompute.reentrant


@formula(
    cites=QLORA,
    at=(
        "bitsandbytes 0.50.2 autograd/_functions.py:353-360 (MatMul4Bit): a view of the packed weight in an "
        "attribute, which no checkpoint drops unless it is reentrant; DeepSpeed partition_parameters.py:329 "
        "gives the parameter another storage, and the view keeps the one that was gathered"
    ),
)
def packed_copies(zero: Zero, parameters: tuple[HeldTensor, ...]) -> Count:
    """Bytes that the products of a group hold of gathered weights in four bits from forward to backward."""
    if not holds_packed(zero.plan):
        return 0
    return of_parts(zero, sum(h.times * h.dtype.nbytes(h.elements) for h in parameters if h.packed))


def _elements_left(zero: Zero, stage: StageLayers) -> tuple[Callable[[int, int], Count], Count]:
    """Elements that a backward has still to gather at a repetition of a run of layers, or at the head (the
    run behind the last), and those of the whole stage.
    """
    embeddings, *runs, head = (
        gathered_elements(groups, zero.buckets, zero.ranks)
        for groups in (
            (stage.embeddings,) if stage.embeddings else (),
            *(layers.pattern for layers in stage.layers),
            (stage.head,) if stage.head else (),
        )
    )
    before, sizes = [embeddings], [*runs, head]
    for layers, size in zip(stage.layers, runs, strict=True):
        before.append(before[-1] + layers.count * size)
    return lambda run, repetition: before[run] + (repetition + 1) * sizes[run], before[-1] + head


def gathered_bag(zero: Zero, remaining: Count, biggest: Count) -> BytesByPath:
    """Gathered parameters, and with parameters on the host their rank's part on its way up
    (partition_parameters.py:1331-1333).
    """
    size = prefetched_elements(remaining, biggest, zero.buckets)
    bag = [(GATHERED, of_parts(zero, zero.gathered_bytes(size.value)))]
    if zero.plan.offload.parameters:
        bag.append(
            (
                (C.UNSHARDED_PARAMETERS, "zero/from_host"),
                zero.gathered_bytes(minimum(remaining, zero.buckets.prefetch + biggest)) // zero.ranks,
            )
        )
    return BytesByPath.of(bag)


def _late_gradients(zero: Zero, stage: StageLayers) -> Callable[[int, int], BytesByPath]:
    """Gradients that do not go into the bucket at once: a tied table's until the embeddings' is added,
    tensors wider than the bucket.
    """
    tied = EMPTY
    if stage.tied and stage.head:
        tied = BytesByPath.of(pair for pair in stage.head.gradients.held.items() if "norm" not in pair[0][1])

    def wide(groups: tuple[Group, ...]) -> BytesByPath:
        """A layer's last gradient, which is its first parameter's; others are reduced with the next of the
        layer's own.
        """
        size = next((h.elements for group in groups for h in group.parameters if h.trains), 0)
        return (
            BytesByPath.of([((C.GRADIENTS, "zero/extra_large"), zero.width * size)])
            if size > zero.buckets.reduce_bucket
            else EMPTY
        )

    layers = {run: wide(layers.pattern) for run, layers in enumerate(stage.layers)}

    def held(run: int, _: int) -> BytesByPath:
        if run == len(stage.layers):
            return EMPTY  # the head's own backward counts them (see ``head_keeps``)
        return merge_moment([(1, tied), (1, layers.get(run, EMPTY))])

    return held


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:591-593: one tensor's gradient on its way to the host")
def _offload_buffers(zero: Zero) -> BytesByPath:
    if not zero.plan.offload.optimizer:
        return EMPTY
    return BytesByPath.of([((C.COMMUNICATION, "zero/temp_grad_buffer"), zero.width * zero.widest)])


@formula(cites=DEEPSPEED, at="stage_1_and_2.py:1590-1605: its norm is taken in double precision")
def _offload_scratch(zero: Zero, widest: Count) -> BytesByPath:
    """While a gradient of so many elements goes to the host: the rank's part of it, once what was joined for
    the reduction has gone.
    """
    if not zero.plan.offload.optimizer:
        return EMPTY
    if zero.plan.zero == 3:  # stage3.py:1393-1407
        return BytesByPath.of([((C.TEMPORARIES, "zero/gradient_fp32"), FP32.nbytes(widest // zero.ranks))])
    part = minimum(widest, zero.shard)
    return BytesByPath.of([((C.TEMPORARIES, "zero/gradient_norm"), 2 * FP32.nbytes(part))])
