"""What Megatron-Core keeps on a rank through a step: one buffer of parameters and one of gradients, the
distributed optimizer's shards, and the placeholders and buffers that stay once they were made (Megatron-LM
23e00ed0963c35382dfe8a5a94fb3cda4d21e133, TransformerEngine c188b533).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

from memsheet.arith import Count, ceil_div, maximum, minimum, round_up, where
from memsheet.formulas.groups import walk_stage_layers
from memsheet.formulas.model_code import ModelCode, model_code
from memsheet.formulas.sharding.algorithm import Algorithm, Steps, Traffic
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.sharding.resident_state import DUMMY_WGRAD, ResidentState
from memsheet.formulas.sharding.whole_matrices import (
    BUCKET_ALIGNMENT,
    PARAMETER_ALIGNMENT,
    Matrix,
    deals_without_layout,
    dealt_elements,
    is_orthogonalized,
    newton_schulz_bytes,
    steps_with_muon,
    whole_sides,
)
from memsheet.formulas.states.held import HeldTensor, held_tensors, module_of
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, merge_moment
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BF16, FP8, FP32, INT16_REMAINDER, INT64, DType
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, Block, LatentAttention, ModelSpec, Moe, Role
from memsheet.plan.plan import AttentionKind, Mesh, Plan
from memsheet.references import MEGATRON, formula
from memsheet.sheet import Component
from memsheet.units import MIB

with late_functions(__name__):
    from memsheet.formulas.sharding.bare_tensor import bare_parameter_tensor, steps_at_instants


DISPATCH: Key = (Component.COMMUNICATION, "moe_dispatch")


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter with the ranks that its optimizer states are divided over: elements of ``each`` tensor, of
    ``all`` of them and of a rank's ``shard``.
    """

    held: HeldTensor
    ranks: Count
    each: Count
    all: Count
    shard: Count

    @classmethod
    def of(cls, held: HeldTensor, ranks: Count) -> Part:
        each = held.elements
        whole = held.times * each
        return cls(held, ranks, each, whole, ceil_div(whole, ranks))


@formula(
    cites=MEGATRON,
    at=(
        "parallel_state.py: dense states over data- and context-parallel ranks; experts over those that "
        "share none of them"
    ),
)
def state_ranks(mesh: Mesh, role: Role, zero: int) -> Count:
    """Ranks that divide the optimizer states of a parameter between them."""
    if zero == 0:
        return 1
    if role in (Role.EXPERT, Role.EXPERT_BIAS):
        return maximum(1, mesh.dp_shard * mesh.cp * mesh.tp // (mesh.ep * mesh.etp))
    return mesh.dp_shard * mesh.cp


BRIDGE_NOTE = (
    "Megatron-Bridge hands its fp8_recipe, tensorwise unless set, to the optimizer, which then keeps "
    "whole fp32 copies and raises gradients to "
    "fp32 at the step, though remainders are asked for"
)


def _as_bridge_runs_it(plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """Megatron-Bridge 600d069 training/mixed_precision.py:51, 117-160 writes its recipe into the optimizer's
    configuration, also without eight-bit products; Megatron-LM 24bad8e optimizer/optimizer_config.py:404-411
    then leaves main parameters to its own code.
    """
    recipe = plan.fp8.recipe if plan.fp8 else None
    asked = (
        plan.precision.master_weights is INT16_REMAINDER and "bridge" in (plan.engine_version or "").lower()
    )
    if not asked or recipe == "delayed":
        return plan, ()
    return replace(plan, precision=replace(plan.precision, master_weights=FP32)), (BRIDGE_NOTE,)


def distributed_optimizer_state(spec: ModelSpec, plan: Plan) -> ResidentState:
    """States and buffers of a rank; nothing is gathered for a layer."""
    plan, notes = _as_bridge_runs_it(plan)
    tensors = tuple(held_tensors(spec, plan))
    parts = _optimizer_shards(tensors, plan)
    states = BytesByPath.of(
        [
            *_buffer_and_shard_rows(parts, plan),
            *_microbatch_input_rows(plan),
            *_dummy_wgrad_rows(spec, plan),
            *_sequence_gather_buffer(spec, plan),
            *_grouped_gemm_workspace_rows(spec),
            *_attention_score_buffer(spec, plan),
            *_cast_weights(parts, plan),
        ]
    )
    dispatched = dispatch_buffers(spec, plan)
    dealt, dealt_ends = _dealt_matrix_rows(spec, plan, tensors)
    widened, (work, work_ends) = widened_gradients(tensors, plan), _step_work(spec, plan, tensors)
    at_step = BytesByPath.of([(STEP, widened + work)])
    return ResidentState(
        states=merge_moment([(1, states), (1, BytesByPath.of(dealt.items()))]) if dealt else states,
        around=ShardingOverhead(),
        resident=EMPTY,
        at_step=at_step,
        ranges={
            **_fp8_parameter_ranges(parts),
            **dealt_ends,
            **{key: (widened + low, widened + high) for key, (low, high) in work_ends.items()},
            **({DISPATCH: (0, dispatched)} if plan.routing is not None else {}),
        },
        notes=notes,
    )


def _with_lengths(kept: ResidentState, spec: ModelSpec, plan: Plan) -> ResidentState:
    """States of a plan of any length, with what is as large as a micro-batch."""
    rows = [
        *_microbatch_input_rows(plan),
        *_sequence_gather_buffer(spec, plan),
        *_attention_score_buffer(spec, plan),
    ]
    ends = {DISPATCH: (0, dispatch_buffers(spec, plan))} if plan.routing is not None else {}
    return replace(kept, states=kept.states.with_rows(rows), ranges={**kept.ranges, **ends})


STEP: Key = (Component.TEMPORARIES, "optimizer")


def _matrices_of_stage(spec: ModelSpec, plan: Plan) -> Iterator[tuple[Role, str, Matrix]]:
    """Every matrix of a rank's layers by name, as the code has them."""
    for run in (run for stack in spec.stacks for run in stack.runs):
        for block in run.pattern:
            ff = block.feed_forward
            local = ceil_div(ff.experts, plan.mesh.ep) if isinstance(ff, Moe) else 1
            for name, rows, columns in layer_matrix_shapes(block, plan):
                routed = name.startswith("experts.")
                times = run.count * local if routed else run.count
                yield Role.EXPERT if routed else Role.LINEAR, name, (rows, columns, times)
            if isinstance(ff, Moe):
                yield Role.LINEAR, "router", (ff.experts, block.hidden, run.count)


def _dealt_beyond_even(spec: ModelSpec, plan: Plan) -> Iterator[tuple[Count, Count]]:
    """Of dense matrices and of experts': elements by which the shard of the rank that is dealt most is larger
    than an even share, and the ranks.
    """
    for role in (Role.LINEAR, Role.EXPERT):
        ranks = state_ranks(plan.mesh, role, plan.zero)
        matrices = [matrix for kind, _, matrix in _matrices_of_stage(spec, plan) if kind is role]
        if matrices:
            even = ceil_div(sum(rows * columns * times for rows, columns, times in matrices), ranks)
            yield dealt_elements(matrices, ranks) - even, ranks


Ends = dict[Key, tuple[Count, Count]]


def _dealt_matrix_rows(
    spec: ModelSpec, plan: Plan, tensors: Iterable[HeldTensor]
) -> tuple[dict[Key, Count], Ends]:
    """What whole matrices make of even shares: states of the rank that has most, and buffers that have a
    shard of its size for each rank. Without that layout (core 0.17 and before,
    --no-use-layer-wise-param-layout) nothing is padded, and a rank may have a whole table of embeddings
    (layer_wise_optimizer.py:721).
    """
    if not steps_with_muon(plan) or plan.zero == 0:
        return {}, {}
    precision, found = plan.precision, list(_dealt_beyond_even(spec, plan))
    copies = (precision.master_weights or FP32).nbytes(1)
    moment = precision.moments.nbytes(1)
    uneven = sum((copies + moment) * more for more, _ in found)
    spare = sum(more * ranks for more, ranks in found)
    table = max((h.elements for h in tensors if h.role in (Role.EMBEDDING, Role.HEAD)), default=0)
    rows = {
        (Component.OPTIMIZER_STATES, "layer_wise/uneven"): uneven,
        (Component.PARAMETERS, "layer_wise/padding"): precision.parameters.nbytes(spare),
        (Component.GRADIENTS, "layer_wise/padding"): precision.gradients.nbytes(spare),
    }
    ends = {key: (0, size) for key, size in rows.items()}
    if deals_without_layout(plan):
        ends[Component.OPTIMIZER_STATES, "layer_wise/uneven"] = (
            0,
            maximum(uneven, (copies + 2 * moment) * table),
        )
    return rows, ends


def _step_work(spec: ModelSpec, plan: Plan, tensors: Iterable[HeldTensor]) -> tuple[Count, Ends]:
    """What Muon takes for the largest matrix, and its ends: parts of it alone (--muon-tp-mode blockwise), and
    half as much again for Nesterov's sum and projections cut in three, or all parameters gathered flat
    (allgather_params).
    """
    if not steps_with_muon(plan):
        return 0, {}
    most = least = 0
    for kind, name, (rows, columns, _) in _matrices_of_stage(spec, plan):
        ranks = plan.mesh.etp if kind is Role.EXPERT else plan.mesh.tp
        most = maximum(most, newton_schulz_bytes(*whole_sides(name, rows, columns, ranks), ranks))
        least = maximum(least, newton_schulz_bytes(minimum(rows, columns), maximum(rows, columns), 1))
    flat: Count = 0
    if plan.zero and deals_without_layout(plan):
        flat = plan.precision.parameters.nbytes(sum(h.times * h.elements for h in tensors if h.trains))
    return most, {STEP: (minimum(least, most), maximum(most + most // 2, 2 * flat))}


def _optimizer_shards(tensors: Iterable[HeldTensor], plan: Plan) -> tuple[Part, ...]:
    own = tuple(tensors)
    ranks = {role: state_ranks(plan.mesh, role, plan.zero) for role in {h.role for h in own}}
    return tuple(Part.of(h, ranks[h.role]) for h in own)


def buffers_and_shards(tensors: Iterable[HeldTensor], plan: Plan) -> BytesByPath:
    """The two buffers and the distributed optimizer's parts of these tensors: there at every instant."""
    return BytesByPath.of(_buffer_and_shard_rows(_optimizer_shards(tensors, plan), plan))


def _buffer_and_shard_rows(parts: tuple[Part, ...], plan: Plan) -> Iterator[tuple[Key, Count]]:
    for part in parts:
        yield from _model_state_rows(part, plan)
    yield from _buffer_padding_rows(parts, plan)


@formula(
    cites=MEGATRON,
    at=(
        "distrib_optimizer.py:330-480: the parameter, its main gradient, a shard of the fp32 copy and of "
        "both moments"
    ),
)
def _model_state_rows(part: Part, plan: Plan) -> Iterator[tuple[Key, Count]]:
    held, precision = part.held, plan.precision
    module = module_of(held.path)
    yield (
        (Component.PARAMETERS, module),
        held.times * _fp8_weight_copies(held.dtype) * held.dtype.nbytes(part.each),
    )
    if not held.trains:
        return
    trained = held.dtype if plan.adapter else precision.gradients
    yield (Component.GRADIENTS, module), held.times * trained.nbytes(part.each)
    if precision.master_weights is not None:
        yield (Component.MASTER_WEIGHTS, module), precision.master_weights.nbytes(part.shard)
    moments = 1 if is_orthogonalized(held, plan) else 2
    yield (Component.OPTIMIZER_STATES, module), moments * precision.moments.nbytes(part.shard)


def _fp8_weight_copies(dtype: DType) -> int:
    """Copies of a weight in eight bits: along rows, and along columns for the input's gradient. Cards from
    compute capability 10 on need the second for scales of blocks alone (TransformerEngine
    pytorch/tensor/float8_tensor.py, mxfp8_tensor.py), so it is the high end.
    """
    return 2 if dtype.bits < BF16.bits else 1


def _fp8_parameter_ranges(parts: tuple[Part, ...]) -> dict[Key, tuple[Count, Count]]:
    """Parameters in eight bits that scale whole tensors: with and without the copy along columns."""
    found = dict[Key, tuple[Count, Count]]()
    for part in parts:
        held = part.held
        if held.dtype is FP8:
            one = held.times * held.dtype.nbytes(part.each)
            found[Component.PARAMETERS, module_of(held.path)] = (one, 2 * one)
    return found


def _cast_weights(parts: tuple[Part, ...], plan: Plan) -> Iterator[tuple[Key, Count]]:
    """Weights kept in sixteen bits are cast once a step for eight-bit products, and the casts stay
    (module/base.py, get_weight_workspace).
    """
    if plan.fp8 is not None and not plan.fp8.stored:
        size = sum(p.all for p in parts if p.held.role in (Role.LINEAR, Role.EXPERT))
        yield (Component.WORKSPACES, "transformer_engine/cast_weights"), 2 * FP8.nbytes(size)


@formula(
    cites=MEGATRON,
    at=(
        "param_and_grad_buffer.py:551-612: parameters at multiples of 64 elements, the buffer at one of "
        "lcm(ranks, 128)"
    ),
)
def _buffer_padding_rows(parts: tuple[Part, ...], plan: Plan) -> Iterator[tuple[Key, Count]]:
    """Bytes of both buffers that belong to no parameter."""
    if plan.zero == 0:
        return
    dtypes = (plan.precision.parameters, plan.precision.gradients)
    for experts in (False, True):
        own = [
            p for p in parts if p.held.trains and (p.held.role in (Role.EXPERT, Role.EXPERT_BIAS)) is experts
        ]
        if own:
            exact = sum(p.all for p in own)
            aligned = sum(p.held.times * round_up(p.each, PARAMETER_ALIGNMENT) for p in own)
            spare = round_up(aligned, own[0].ranks * BUCKET_ALIGNMENT) - exact
            name = "expert_buffer/padding" if experts else "buffer/padding"
            yield (Component.PARAMETERS, name), dtypes[0].nbytes(spare)
            yield (Component.GRADIENTS, name), dtypes[1].nbytes(spare)


def _microbatch_input_rows(plan: Plan) -> Iterator[tuple[Key, Count]]:
    """Tokens, labels, positions and the loss mask of a micro-batch (training/utils.py,
    get_batch_on_this_tp_rank).
    """
    size = plan.training.microbatch * ceil_div(plan.training.seq_len, plan.mesh.cp)
    for name, dtype in (
        ("input_ids", INT64),
        ("labels", INT64),
        ("position_ids", INT64),
        ("loss_mask", FP32),
    ):
        yield (Component.INPUTS, name), dtype.nbytes(size)


@formula(
    cites=MEGATRON,
    at=(
        "TransformerEngine pytorch/module/base.py:79-92 get_dummy_wgrad; tensor_parallel/layers.py:560-600 "
        "asks for it too"
    ),
)
def _dummy_wgrad_rows(spec: ModelSpec, plan: Plan) -> Iterator[tuple[Key, Count]]:
    """What autograd is given for weights whose gradients are in the buffer already: one tensor for each shape
    of a matrix, for good.
    """
    if (
        plan.adapter is not None or not engine_of(plan).workspaces
    ):  # frozen weights get nothing; nor is there a library that gives it
        return
    blocks = {id(block): block for block in spec.blocks()}
    found = [matrix for block in blocks.values() for matrix in layer_matrix_shapes(block, plan)]
    if spec.head.kind != "none":
        found.append(("lm_head", _code_of(plan).end_axes(spec, plan, plan.training.shape)["V"], spec.hidden))
    dtype, seen = _compute_dtype(plan), list[tuple[Count, Count]]()
    for name, rows, columns in found:
        again = reduce(or_, ((rows == r) & (columns == c) for r, c in seen), False)
        seen.append((rows, columns))
        if again is not True:
            yield (
                (Component.WORKSPACES, f"{DUMMY_WGRAD}/{name}"),
                dtype.nbytes(where(again, 0, rows * columns)),
            )


GROUPED_STREAMS, GROUPED_WORKSPACE = 4, 32 * MIB + 1024
"""Streams of a grouped product and the workspace of each from compute capability 9 on (TransformerEngine
pytorch/cpp_extensions/gemm.py:31-58, common/multi_stream.cpp: nvte_get_num_compute_streams).
"""


def _grouped_gemm_workspace_rows(spec: ModelSpec) -> Iterator[tuple[Key, Count]]:
    """Workspaces of the experts' products."""
    blocks = spec.blocks()
    if any(isinstance(block.feed_forward, Moe) for block in blocks):
        yield (Component.WORKSPACES, "transformer_engine/grouped"), GROUPED_STREAMS * GROUPED_WORKSPACE


def _compute_dtype(plan: Plan) -> DType:
    return plan.precision.parameters if plan.precision.parameters.bits >= BF16.bits else BF16


def layer_matrix_shapes(block: Block, plan: Plan) -> Iterator[tuple[str, Count, Count]]:
    """The matrices of a layer on one rank, as (name, rows, columns)."""
    of, h, at, ff = (
        _code_of(plan).axes(block, plan, plan.training.shape),
        block.hidden,
        block.mixers[0],
        block.feed_forward,
    )
    if isinstance(at, Attention):
        yield "linear_qkv", of["(a+2k)·d"], h
        yield "linear_proj", h, of["a·d"]
    elif isinstance(at, LatentAttention):
        if at.q_lora_rank:
            yield "linear_q_down_proj", of["qr"], h
        yield (
            "linear_q_up_proj" if at.q_lora_rank else "linear_q_proj",
            of["a·dq"],
            of["qr"] if at.q_lora_rank else h,
        )
        yield "linear_kv_down_proj", of["kr+dr"], h
        yield "linear_kv_up_proj", of["a·(dn+dv)"], of["kr"]
        yield "linear_proj", h, of["a·d"]
    if isinstance(ff, Moe):
        yield "experts.linear_fc1", of["2·i"] if ff.gated else of["i"], h
        yield "experts.linear_fc2", h, of["i"]
    dense = ff.shared if isinstance(ff, Moe) else ff
    if dense is not None:
        yield "linear_fc1", of["2·f"] if dense.gated else of["f"], h
        yield "linear_fc2", h, of["f"]


def _code_of(plan: Plan) -> ModelCode:
    return model_code(engine_of(plan).layers)


FLEX = ("deepep", "hybridep", "flex")
"""Dispatchers that keep buffers of their own."""


@formula(
    cites=MEGATRON,
    at=(
        "moe/fused_a2a.py:40-110, 300-380: buffers for what every rank may send, to and from experts; "
        "sized at run time, so the high end"
    ),
)
def dispatch_buffers(spec: ModelSpec, plan: Plan) -> Count:
    """Bytes that a dispatcher of its own may keep."""
    if plan.routing is None or plan.routing.dispatch not in FLEX:
        return 0
    of = [
        _code_of(plan).axes(b, plan, plan.training.shape)
        for b in spec.blocks()
        if isinstance(b.feed_forward, Moe)
    ]
    tokens = of[0]["b"] * of[0]["n"] if of else 0
    return 2 * BF16.nbytes(tokens * plan.mesh.ep * spec.hidden)


@formula(
    cites=MEGATRON,
    at=(
        "tensor_parallel/layers.py:470-480 and utils.py GlobalMemoryBuffer: what the output layer "
        "gathers stays"
    ),
)
def _sequence_gather_buffer(spec: ModelSpec, plan: Plan) -> Iterator[tuple[Key, Count]]:
    if plan.sequence_parallel and spec.head.kind != "none":
        ends = _code_of(plan).end_axes(spec, plan, plan.training.shape)
        yield (
            (Component.COMMUNICATION, "global_memory_buffer"),
            _compute_dtype(plan).nbytes(ends["b"] * ends["s"] * spec.hidden),
        )


@formula(
    cites=MEGATRON,
    at=(
        "dot_product_attention.py:150-165: the scores' product reads a buffer that stays, though it adds "
        "nothing of it"
    ),
)
def _attention_score_buffer(spec: ModelSpec, plan: Plan) -> Iterator[tuple[Key, Count]]:
    """The buffer of attention that computes scores in full."""
    if plan.attention is not AttentionKind.EAGER or not spec.stacks[-1].runs:
        return
    of = _code_of(plan).axes(spec.stacks[-1].runs[0].pattern[0], plan, plan.training.shape)
    yield (
        (Component.COMMUNICATION, "global_memory_buffer"),
        _compute_dtype(plan).nbytes(of["b"] * of["a"] * of["s"] * of["s"]),
    )


@formula(
    cites=MEGATRON,
    at=(
        "distrib_optimizer.py:2073-2091: shards of gradients are raised to fp32 where they are "
        "not, all at once"
    ),
)
def widened_gradients(tensors: Iterable[HeldTensor], plan: Plan) -> Count:
    """Bytes of gradients in the main parameters' precision while the optimizer steps; a precision-aware
    optimizer reads them as they are.
    """
    precision = plan.precision
    if precision.gradients is FP32 or precision.master_weights is not FP32:
        return 0
    return sum(FP32.nbytes(part.shard) for part in _optimizer_shards(tensors, plan) if part.held.trains)


def _bare_states(parameters: int, plan: Plan, _: Engine) -> Steps:
    """Parameters and gradients in two buffers that stay, the distributed optimizer's parts, and gradients
    raised for its step.
    """
    tensors = (bare_parameter_tensor(parameters, plan),)
    always = buffers_and_shards(tensors, plan)
    scratch = BytesByPath.of([((Component.TEMPORARIES, "optimizer"), widened_gradients(tensors, plan))])
    return steps_at_instants(always, always, always, merge_moment([(1, always), (1, scratch)]))


ALGORITHM = Algorithm(
    walk=lambda spec, plan, engine: walk_stage_layers(spec, plan, engine, release=True),
    resident_state=lambda spec, plan, *_: distributed_optimizer_state(spec, plan),
    state_alone=distributed_optimizer_state,
    with_lengths=_with_lengths,
    bare_states=_bare_states,
    traffic=Traffic(beside_backward=False),  # --overlap-grad-reduce is off unless one asks for it
)
