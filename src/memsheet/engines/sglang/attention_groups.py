"""Groups of ranks with requests of their own (data-parallel attention), as SGLang cuts and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from memsheet.arith import Count, ceil_div, maximum
from memsheet.engines.sglang.facts import group_graphs_mib
from memsheet.engines.sglang.loaded import WAYS
from memsheet.engines.sglang.options import sglang_options
from memsheet.formulas.serving.dp_attention import SENT, forward_paths, group_plan
from memsheet.formulas.serving.loaded import loaded_tensors
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.formulas.serving.widest_layer import block_bytes
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.states.params import parameter_tensors
from memsheet.frozen import replace
from memsheet.plan.model import Block, ModelSpec, Moe, Role, Weight
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item
from memsheet.units import MIB

KEPT_FREE = Cited(
    SGLANG,
    (
        "v0.5.23 arg_groups/memory_hook.py:376: kept free for graphs of all groups' tokens; what they "
        "take is "
        "not written down"
    ),
)


def grouped_tensors(part: ModelSpec, plan: Plan) -> tuple[HeldTensor, ...]:
    """SGLang's parameters of a stage on a rank: attention and the embedding cut over a group's ranks,
    feed-forward layers over all, the output matrix over all unless each group has its own.
    """
    if not parts_ways(plan):
        return loaded_tensors(part, plan, WAYS)
    inside, of_all, uncut = (
        loaded_tensors(part, one, WAYS) for one in (group_plan(plan), plan, alone_plan(plan))
    )
    shared, whole = _shared_cut_predicate(part, plan), _replicated_weight_paths(part, plan)
    rows = zip((weight for _, weight, _ in parameter_tensors(part)), inside, of_all, uncut, strict=True)
    return tuple(
        one if weight.path in whole else together if shared(weight) else own
        for weight, own, together, one in rows
    )


def parts_ways(plan: Plan) -> bool:
    """Whether a layer's parts are cut over other ranks than one another."""
    return bool(plan.mesh.attn_dp > 1) or plan.options.dispatch == SENT or plan.options.dp_dense


def alone_plan(plan: Plan) -> Plan:
    """The plan of a rank by itself, but for its share of the experts."""
    return replace(plan, mesh=replace(plan.mesh, tp=1, attn_dp=1))


def _replicated_weight_paths(part: ModelSpec, plan: Plan) -> frozenset[str]:
    """Paths of what every rank has whole: a shared expert beside tokens that are sent (v0.5.23
    models/deepseek_v2.py:873, qwen2_moe.py:369), and layers without experts where that is asked for
    (deepseek_v2.py:2667).
    """
    layers = [b.feed_forward for b in part.blocks() if b.feed_forward]
    shared = (
        w.path
        for layer in layers
        if isinstance(layer, Moe) and layer.shared and plan.options.dispatch == SENT
        for w in layer.shared.weights
    )
    dense = (
        w.path
        for layer in layers
        if not isinstance(layer, Moe) and plan.options.dp_dense
        for w in layer.weights
    )
    return frozenset((*shared, *dense))


def _shared_cut_predicate(part: ModelSpec, plan: Plan) -> Callable[[Weight], bool]:
    """Whether all groups cut a tensor together."""
    forward = {path for block in part.blocks() for path in forward_paths(block)}
    return lambda weight: (
        weight.path in forward or (weight.role is Role.HEAD and not sglang_options(plan).dp_lm_head)
    )


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 layers/dp_attention.py:292: a buffer of the tokens of all groups before a feed-forward "
        "layer; deepseek_v2.py:2662 cut over all ranks"
    ),
)
def grouped_layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest of attention over a group's own tokens and of a feed-forward layer over those of all groups,
    with its buffers.
    """
    group, sizes, own = group_plan(plan), list[Bytes](), ceil_div(tokens, plan.mesh.attention_tp)
    for block in dict.fromkeys(part.blocks()):
        sizes += block_bytes(replace(block, feed_forward=None), group, tokens)
        by_itself = (
            plan.options.dispatch == SENT if isinstance(block.feed_forward, Moe) else plan.options.dp_dense
        )
        sizes += block_bytes(
            _feed_forward_block(block),
            *((alone_plan(plan), own) if by_itself else (plan, tokens * plan.mesh.attn_dp)),
        )
    return reduce(Bytes.max, sizes, Bytes.exact(0))


def _feed_forward_block(block: Block) -> Block:
    return replace(block, mixers=())


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 layers/logits_processor.py:973, 1036, 1320: logits of all groups' rows, gathered from all "
        "ranks and put in order; then a group's own"
    ),
)
def grouped_logits_bytes(part: ModelSpec, plan: Plan, sequences: Count) -> Bytes:
    """Logits of the next tokens of a group's ``sequences``, where the output matrix is cut over all ranks, or
    is each group's own.
    """
    dtype, width = plan.precision.compute, part.head.width
    drawn = masked_sampler_bytes(sequences, width, dtype)
    if sglang_options(plan).dp_lm_head or part.head.kind == "none":
        return Bytes.exact(drawn if part.head.kind != "none" else 0)
    rows = sequences * plan.mesh.attn_dp
    whole, shard, own = (
        dtype.nbytes(rows * width),
        dtype.nbytes(rows * ceil_div(width, plan.mesh.tp)),
        dtype.nbytes(sequences * width),
    )
    return Bytes(
        maximum(drawn, whole + own),
        maximum(drawn, 2 * whole + shard),
        maximum(drawn, 2 * whole + shard + own),
    )


def grouped_graphs(plan: Plan, largest: Count) -> list[Item]:
    """What is kept free for graphs of data-parallel attention, as their high end."""
    if plan.mesh.attn_dp == 1 or not plan.options.captures:
        return []
    size = Bytes(0, 0, int(group_graphs_mib(int(largest), int(plan.mesh.attn_dp)) * MIB))
    return [
        Item(
            Component.CUDA_GRAPHS,
            "captured_groups",
            dict.fromkeys((Instant.PREFILL, Instant.DECODE), size),
            KEPT_FREE,
        )
    ]
