"""Data-parallel attention: what one group of a server's ranks has, and what all groups do together.

A group attends to requests of its own and keeps their cache. Experts are of all groups: before a layer of them every rank is given the tokens
of all groups, and after it its own group's sums. SGLang does so for every feed-forward layer, and cuts the output matrix over all ranks too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from memsheet.arith import Count, ceil_div, maximum
from memsheet.engines.sglang import MOST_REQUESTS, group_graphs_mib
from memsheet.formulas.serving.loaded import loaded_tensors
from memsheet.formulas.serving.profiled import block_bytes
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.formulas.states.held import Held
from memsheet.formulas.states.params import tensors
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item
from memsheet.spec.model import Block, ModelSpec, Moe, Role, Weight
from memsheet.spec.plan import Plan
from memsheet.units import MIB

KEPT_FREE = Cited(
    SGLANG, "v0.5.23 arg_groups/memory_hook.py:376: kept free for graphs of all groups' tokens; what they take is not written down"
)


def group_plan(plan: Plan) -> Plan:
    """The plan of one group alone: its ranks cut attention, and it is one of so many replicas that share experts over more ranks than its own.

    SGLang's limits are of all groups: a chunk of a prompt and the requests that may run are divided (v0.5.23 arg_groups/parallel_hook.py:331,
    mem_cache/kv_cache_configurator.py:3128). vLLM's are of one.
    """
    groups = int(plan.mesh.attn_dp)
    if groups == 1:
        return plan
    mesh = replace(plan.mesh, dp_replicate=plan.mesh.dp_replicate * groups, tp=plan.mesh.attention_tp, attn_dp=1)
    if plan.engine != "sglang" or plan.max_sequences is None or plan.max_batched_tokens is None:
        return replace(plan, mesh=mesh)
    asked = plan.max_sequences if plan.max_sequences == MOST_REQUESTS else max(1, int(plan.max_sequences) // groups)
    slots = None if plan.state_slots is None else max(1, plan.state_slots // groups)
    return replace(plan, mesh=mesh, state_slots=slots, max_sequences=asked, max_batched_tokens=max(1, int(plan.max_batched_tokens) // groups))


def grouped_tensors(part: ModelSpec, plan: Plan) -> tuple[Held, ...]:
    """SGLang's parameters of a stage on a rank: attention and the embedding cut over a group's ranks, feed-forward layers over all, the output
    matrix over all unless each group has its own.
    """
    if plan.mesh.attn_dp == 1:
        return loaded_tensors(part, plan)
    inside, of_all = loaded_tensors(part, group_plan(plan)), loaded_tensors(part, plan)
    shared = _shared(part, plan)
    weights = (weight for _, weight, _ in tensors(part))
    return tuple(whole if shared(weight) else own for weight, own, whole in zip(weights, inside, of_all, strict=True))


def _shared(part: ModelSpec, plan: Plan) -> Callable[[Weight], bool]:
    """Whether all groups cut a tensor together."""
    forward = {path for s in part.stacks for r in s.runs for block in r.pattern for path in forward_paths(block)}
    return lambda weight: weight.path in forward or (weight.role is Role.HEAD and not plan.dp_lm_head)


def forward_paths(block: Block) -> frozenset[str]:
    """Paths of a block's feed-forward weights, a shared expert's among them."""
    layer = block.feed_forward
    shared = layer.shared.weights if isinstance(layer, Moe) and layer.shared else ()
    return frozenset(weight.path for weight in (*(layer.weights if layer else ()), *shared))


def gathers_all(plan: Plan) -> bool:
    """Whether every feed-forward layer is cut over all groups, not experts alone."""
    return plan.engine == "sglang" and bool(plan.mesh.attn_dp > 1)


@formula(
    cites=SGLANG,
    at="v0.5.23 layers/dp_attention.py:292: a buffer of the tokens of all groups before a feed-forward layer; deepseek_v2.py:2662 cut over all ranks",
)
def grouped_layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest of attention over a group's own tokens and of a feed-forward layer over those of all groups, with its buffers."""
    group, sizes = group_plan(plan), list[Bytes]()
    for block in dict.fromkeys(block for stack in part.stacks for run in stack.runs for block in run.pattern):
        sizes += block_bytes(replace(block, feed_forward=None), group, tokens)
        sizes += block_bytes(_forward(block), plan, tokens * plan.mesh.attn_dp)
    return reduce(_larger, sizes, Bytes.exact(0))


def _forward(block: Block) -> Block:
    return replace(block, mixers=())


def _larger(left: Bytes, right: Bytes) -> Bytes:
    return Bytes(maximum(left.low, right.low), maximum(left.value, right.value), maximum(left.high, right.high))


@formula(
    cites=SGLANG,
    at="v0.5.23 layers/logits_processor.py:973, 1036, 1320: logits of all groups' rows, gathered from all ranks and put in order; then a group's own",
)
def grouped_logits_bytes(part: ModelSpec, plan: Plan, sequences: Count) -> Bytes:
    """Logits of the next tokens of a group's ``sequences``, where the output matrix is cut over all ranks, or is each group's own."""
    dtype, width = plan.precision.compute, part.head.width
    drawn = masked_sampler_bytes(sequences, width, dtype)
    if plan.dp_lm_head or part.head.kind == "none":
        return Bytes.exact(drawn if part.head.kind != "none" else 0)
    rows = sequences * plan.mesh.attn_dp
    whole, shard, own = dtype.nbytes(rows * width), dtype.nbytes(rows * ceil_div(width, plan.mesh.tp)), dtype.nbytes(sequences * width)
    return Bytes(maximum(drawn, whole + own), maximum(drawn, 2 * whole + shard), maximum(drawn, 2 * whole + shard + own))


def grouped_graphs(plan: Plan, largest: Count) -> list[Item]:
    """What is kept free for graphs of data-parallel attention, as their high end."""
    if plan.mesh.attn_dp == 1 or not plan.captures:
        return []
    size = Bytes(0, 0, int(group_graphs_mib(int(largest), int(plan.mesh.attn_dp)) * MIB))
    return [Item(Component.CUDA_GRAPHS, "captured_groups", dict.fromkeys((Instant.PREFILL, Instant.DECODE), size), KEPT_FREE)]
