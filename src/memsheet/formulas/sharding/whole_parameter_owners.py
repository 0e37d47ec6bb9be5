"""What InternEvo's hybrid ZeRO optimizer keeps: parameters and gradients whole in bf16, fp32 copies and
moments of what a rank was dealt.

Parameters are dealt to the ranks of a zero group whole and in the order of the model, each rank until it has
its even share, so ranks differ; the sheet is that of the rank that was dealt most.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import Count, agreed, ceil_div, minimum
from memsheet.formulas.groups import StageLayers, walk_stage_layers
from memsheet.formulas.inputs import microbatch_inputs
from memsheet.formulas.sharding.algorithm import Algorithm, Steps, Traffic
from memsheet.formulas.sharding.bare_tensor import bare_parameter_rows, rank_parameters, steps_at_instants
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.sharding.resident_state import ResidentState, with_added_states
from memsheet.formulas.states.held import held_tensors, parameter_bytes
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, merge_moment
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Implementation, Plan
from memsheet.references import INTERNEVO, formula
from memsheet.sheet import Component

C = Component
BUCKET: Key = (C.COMMUNICATION, "zero/flat_bucket")
NOTE = "ranks are dealt whole parameters and differ: the sheet is that of the one that has most"

REDUCE_BUCKET = 512 * 1024 * 1024
"""Elements of gradients that are flattened for one reduction (InternEvo 1738bee configs/7B_sft.py:100)."""
SLACK = 1.01
"""A rank is dealt parameters until it has this many times its even share (solver/optimizer/utils.py:783)."""


@formula(
    cites=INTERNEVO,
    at=(
        "solver/optimizer/utils.py:733-800: module by module, to the next rank where one has more "
        "than its share"
    ),
    counts="int",
)
def partition_whole_parameters(sizes: list[int], ranks: int) -> list[int]:
    """Elements that each rank was dealt. The parameter that is too much for a rank goes to the next one and
    is not counted there.
    """
    share, counted, rank, found = sum(sizes) // ranks, 0, 0, [0] * ranks
    for size in sizes:
        counted += size
        if counted > share * SLACK and rank < ranks - 1:
            rank, counted = rank + 1, 0
        found[rank] += size
    return found


def in_order(spec: ModelSpec) -> Iterator[int]:
    """Elements of every parameter in the order of the model's modules: embeddings, blocks, final norm,
    head.
    """
    yield from (w.elements for w in spec.embeddings.weights)
    for stack in spec.stacks:
        for run in stack.runs:
            for _ in range(run.count):
                yield from (w.elements for block in run.pattern for w in block.weights)
        yield from (w.elements for norm in stack.final_norms for w in norm.weights)
    yield from (w.elements for w in spec.head.weights)


@formula(
    cites=INTERNEVO,
    at="solver/optimizer/hybrid_zero_optim.py:240-275: whole parameters, so that ranks differ",
)
def largest_partition_elements(spec: ModelSpec, ranks: Count) -> Count:
    """Elements of the rank that was dealt most; an even share where the number of ranks is open."""
    sizes = list(in_order(spec))
    return (
        max(partition_whole_parameters(sizes, ranks))
        if isinstance(ranks, int)
        else ceil_div(sum(sizes), ranks)
    )


def largest_owner_state(spec: ModelSpec, plan: Plan) -> ResidentState:
    """Everything the optimizer keeps on the rank that was dealt most."""
    parameters = tuple(held_tensors(spec, plan))
    own, total, precision = (
        largest_partition_elements(spec, plan.mesh.dp_shard),
        sum(in_order(spec)),
        plan.precision,
    )
    states = [*parameter_bytes(spec, plan, parameters).items(), *own_states(own, plan)]
    whole = whole_gradients(total, plan)
    bucket = precision.gradients.nbytes(minimum(total, REDUCE_BUCKET))
    return ResidentState(
        states=BytesByPath.of(states),
        around=_reduce_bucket_overhead(bucket),
        resident=whole if agreed(plan.accumulation > 1) else EMPTY,
        at_step=step_of_share(own, plan),
        gradients=whole,
        ranges={BUCKET: (0, 2 * bucket)},
        notes=(NOTE,),
    )


def own_states(own: Count, plan: Plan) -> list[tuple[Key, Count]]:
    """Copies and moments of the ``own`` elements that a rank was dealt."""
    assert plan.precision.master_weights is not None
    return [
        ((C.MASTER_WEIGHTS, "zero/fp32_flat"), plan.precision.master_weights.nbytes(own)),
        ((C.OPTIMIZER_STATES, "zero/moments"), 2 * plan.precision.moments.nbytes(own)),
    ]


def whole_gradients(total: Count, plan: Plan) -> BytesByPath:
    """Gradients of all parameters, which every rank has."""
    return single_row(C.GRADIENTS, "zero/whole", plan.precision.gradients.nbytes(total))


@formula(
    cites=INTERNEVO,
    at=(
        "solver/optimizer/hybrid_zero_optim.py:397-450: a bucket is flattened while the one before is on "
        "its way"
    ),
)
def _reduce_bucket_overhead(bucket: Count) -> ShardingOverhead:
    """Gradients stay whole until their bucket is reduced; one flat copy of a bucket, which may be none or
    two.
    """
    flat = BytesByPath.of([(BUCKET, bucket)])
    return ShardingOverhead(
        backward=lambda *_: flat, leaving=lambda *_: flat, leaves=lambda group: group.gradients
    )


@formula(
    cites=INTERNEVO,
    at=(
        "solver/optimizer/hybrid_zero_optim.py:690-760: its own gradients flat in fp32, then torch's AdamW "
        "over them"
    ),
)
def step_of_share(own: Count, plan: Plan) -> BytesByPath:
    assert plan.optimizer is not None
    wide = plan.precision.moments.nbytes(own)
    copies = {Implementation.FOREACH: 1, Implementation.LOOP: 2}.get(plan.optimizer.implementation, 0)
    return BytesByPath.of(
        [((C.GRADIENTS, "zero/fp32_flat"), wide), ((C.TEMPORARIES, "optimizer"), copies * wide)]
    )


def _walk(spec: ModelSpec, plan: Plan, engine: Engine) -> StageLayers:
    return walk_stage_layers(spec, plan, engine, release=agreed(plan.accumulation > 1))


def _state_with_inputs(spec: ModelSpec, plan: Plan, *_: object) -> ResidentState:
    return with_added_states(largest_owner_state(spec, plan), microbatch_inputs(spec, plan))


def _bare_states(parameters: int, plan: Plan, _: Engine) -> Steps:
    """An even share of the copies and moments: which rank is dealt more follows from the shapes."""
    total, ranks = rank_parameters(parameters, plan), plan.mesh.dp_shard
    share = ceil_div(total, ranks)
    always = merge_moment(
        [(1, bare_parameter_rows(parameters, total, plan)), (1, BytesByPath.of(own_states(share, plan)))]
    )
    gradients = whole_gradients(total, plan)
    before = gradients if agreed(plan.accumulation > 1) else EMPTY
    return steps_at_instants(
        always,
        merge_moment([(1, always), (1, before)]),
        merge_moment([(1, always), (1, gradients)]),
        merge_moment([(1, always), (1, step_of_share(share, plan))]),
    )


ALGORITHM = Algorithm(
    walk=_walk,
    resident_state=_state_with_inputs,
    bare_states=_bare_states,
    traffic=Traffic(broadcasts=True),  # solver/optimizer/hybrid_zero_optim.py, broadcast_params
)
