"""CUDA graphs that Megatron-Core captures of its layers: static buffers, and what is not accounted.

Read at Megatron-LM d98e8a64ddf34856e74b24714e3bedb2f5a39553 (core 0.20) and TransformerEngine
d0067d0da6cb01811b8072a7d304f0e00344ce2b: megatron/core/transformer/cuda_graphs.py, transformer_layer.py,
transformer_engine/pytorch/graph.py. All graphs share one pool, in the order in which they run; each tensor
of theirs is let go when its backward was captured (graph.py:866-880), so that the pool holds what
micro-batches in flight keep, as without graphs. A static input takes the place of the input that is saved
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import Count, agreed
from memsheet.errors import Problem, nearest_words
from memsheet.formulas.graph_captures import Captured, chunks_in_flight, every_layer_bytes
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.sharding.whole_matrices import stated_release
from memsheet.plan.dtypes import BF16, BOOL, FP32, INT64
from memsheet.plan.model import Block, Dense, ModelSpec, Moe
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.references import MEGATRON, formula
from memsheet.sheet import NOTHING, Bytes, Component
from memsheet.units import format_bytes

LAYER_PARTS = frozenset({"attn", "mlp", "moe", "moe_router", "moe_preprocess"})
WHOLE_STEP = "full_iteration"
CAPTURED_BY = ("local", "transformer_engine")
WHOLE_LAYER = ("all", "full")
STATE_SPACE = "mamba"  # of layers that are not modelled of it
NAMES = (*sorted(LAYER_PARTS), *WHOLE_LAYER[1:], WHOLE_STEP, *CAPTURED_BY)
"""--cuda-graph-modules (once --cuda-graph-scope) and --cuda-graph-impl (transformer_config.py:1075-1090)."""
PATHS = {
    "attn": (".self_attn", "*/input"), "mlp": (".mlp", "*/residual"), "moe": (".mlp", "mlp_layernorm", "*/residual"),
    "moe_router": (".pre_mlp_layernorm", ".mlp.router", ".shared_experts", "*/residual"), "moe_preprocess": ("/row_id_map",),
}  # fmt: skip
"""What the rows of a part's tensors are named by."""
SPARING = 16
"""The first minor release of core 0 that takes static inputs again before it captures."""
AFTERWARDS = frozenset({"mlp", "moe", "moe_router", "moe_preprocess"})
"""Parts that are named since that release (v0.15.0 training/arguments.py:1411 takes full, attn and
full_iteration; core_v0.16.0 :1430).
"""
OLD_INPUTS = (
    "captured by TransformerEngine, core 0.15 and before makes the static inputs of all micro-batches at "
    "once, {}, when it begins to capture; {}"
)


def captured_parts(plan: Plan) -> frozenset[str]:
    """Parts of a layer that graphs hold; all of them where none is named."""
    named = frozenset(plan.cuda_graphs) & LAYER_PARTS
    return named | ({"moe_router"} if "moe_preprocess" in named else set()) if named else LAYER_PARTS


def captures_ends(block: Block, parts: frozenset[str]) -> bool:
    """Whether both the first and the last operation of a layer are in graphs."""
    return "attn" in parts and ("moe" if isinstance(block.feed_forward, Moe) else "mlp") in parts


@formula(
    cites=MEGATRON,
    at=(
        "d98e8a6 transformer_layer.py:1212-1233 get_layer_static_inputs: a mask of every query and key for "
        "each layer; it is not asked whether the kernel reads it"
    ),
)
def static_mask_bytes(sequences: Count, positions: Count, ranks: Count) -> Count:
    """Bytes of the attention mask that a layer's graph is given: of a context-parallel rank's ``positions``
    to those of all ``ranks``.
    """
    return BOOL.nbytes(sequences * positions * positions * ranks)


@formula(
    cites=MEGATRON,
    at=(
        "d98e8a6 transformer_layer.py:1353-1408, moe/moe_utils.py:1546-1597, "
        "moe/token_dispatcher.py:475-660; gradients: TransformerEngine pytorch/graph.py:768-784"
    ),
)
def static_output_bytes(
    tokens: Count, hidden: Count, *, streams: Count, shares: Count, copies: Count
) -> Count:
    """Bytes of what a graph hands out, or of the gradients that come back: so many rows of the stream and
    ``shares`` of a token, permuted ``copies`` of tokens and an fp32 share of each.
    """
    return BF16.nbytes(tokens * hidden * streams + tokens * shares + copies * hidden) + FP32.nbytes(copies)


def _static_tensors_out(
    block: Block, plan: Plan, of: dict[str, Count], parts: frozenset[str], *, gradients: bool = False
) -> Count:
    """Of a layer's graph: what stays in the pool until the layer's backward, beyond what it keeps without
    graphs, or the gradients of all that it hands out. A layer's output is copied to the next one's static
    input; normed rows and the residual are kept anyway.
    """
    ff, tokens = block.feed_forward, of["b"] * of["n"]
    routes = isinstance(ff, Moe) and "moe_router" in parts and not captures_ends(block, parts)
    if not routes:
        streams = int(gradients or captures_ends(block, parts))
        return static_output_bytes(tokens, of["h"], streams=streams, shares=0, copies=0)
    assert isinstance(ff, Moe)
    permutes = "moe_preprocess" in parts and plan.routing is not None and plan.routing.dispatch == "alltoall"
    return static_output_bytes(
        tokens,
        of["h"],
        streams=2 * gradients + (ff.shared is not None),
        shares=of["e"],
        copies=of["p"] if permutes else 0,
    )


def captured_graphs(code: ModelCode, spec: ModelSpec, plan: Plan, stage: Count) -> Captured | None:
    """What the graphs of a rank hold."""
    if not plan.cuda_graphs:
        return None
    if WHOLE_STEP in plan.cuda_graphs:
        return _captured_step(plan)
    parts, flights = captured_parts(plan), chunks_in_flight(plan, stage)
    blocks = spec.blocks()
    of = {block: code.axes(block, plan, plan.training.shape) for block in blocks}
    masks = every_layer_bytes(spec, plan, flights, lambda block: _mask_bytes(of[block], parts))
    outputs = every_layer_bytes(
        spec, plan, flights, lambda block: _static_tensors_out(block, plan, of[block], parts)
    )
    arriving = [_static_tensors_out(block, plan, of[block], parts, gradients=True) for block in blocks]
    gradients = sum({str(size): size for size in arriving}.values())  # one set for outputs that are alike
    rows = {"static/masks": masks, "static/gradients": gradients}
    own = 0 if "local" in plan.cuda_graphs else 1  # whose graphs write into one another's buffers
    surely = "transformer_engine" in plan.cuda_graphs
    old, notes = _old_inputs(plan, _inputs_of_all(code, spec, plan, parts))
    words = tuple(word for part in parts for word in PATHS[part])
    return Captured(
        static={  # steps before the capture run without
            path: Bytes(0, own * size, own * size) for path, size in rows.items()
        },
        outputs=Bytes(outputs if surely else 0, own * outputs, own * outputs),
        pooled=lambda kind, path: kind is Component.SAVED_ACTIVATIONS and any(word in path for word in words),
        whole=all(captures_ends(block, parts) for block in blocks),
        step=False,
        captures=1 if agreed(plan.mesh.pp == 1) else plan.accumulation,
        before=old,
        notes=notes,
    )


def _mask_bytes(of: dict[str, Count], parts: frozenset[str]) -> Count:
    return static_mask_bytes(of["b"], of["s"], of["c"]) if "attn" in parts else 0


def _inputs_of_all(code: ModelCode, spec: ModelSpec, plan: Plan, parts: frozenset[str]) -> Count:
    """Bytes of the static inputs of all micro-batches, which releases before core 0.16 make before they
    capture (23e00ed transformer/cuda_graphs.py:1318-1335; v0.15.0; 94b47593 takes buffers again).
    """

    def one(block: Block) -> Count:
        of = code.axes(block, plan, plan.training.shape)
        return BF16.nbytes(of["b"] * of["n"] * of["h"]) + _mask_bytes(of, parts)

    return every_layer_bytes(spec, plan, plan.accumulation * plan.mesh.vpp, one)


def _old_inputs(plan: Plan, size: Count) -> tuple[dict[str, Bytes], tuple[str, ...]]:
    """The row of inputs that old releases make, core 0.14 among them, which is accounted where none is named.
    TransformerEngine lets those go that wait for a later micro-batch, before it captures the first graph
    (c188b533 pytorch/graph.py:223-275); before 2.6 they stay (23e00ed transformer/cuda_graphs.py:1374). Core
    0.14 captures before the first step, where moments stand only if they were loaded (training.py:2053); 0.15
    after steps (v0.15.0 training.py:2253).
    """
    release = stated_release(plan)
    newer = bool(AFTERWARDS & set(plan.cuda_graphs)) if release is None else release >= SPARING
    if newer or "local" in plan.cuda_graphs or not agreed(plan.accumulation > 1):
        return {}, ()
    surely = release == SPARING - 1 and "transformer_engine" in plan.cuda_graphs
    row = {"static/inputs_of_all_microbatches": Bytes(size if surely else 0, size, size)}
    if not isinstance(size, int):
        return row, ()
    words = "" if release is not None else " and core 0.16 makes fewer: engine_version says which it is"
    stays = f"before TransformerEngine 2.6 they stay{words}"
    return row, (OLD_INPUTS.format(format_bytes(size), stays),)


@formula(
    cites=MEGATRON,
    at="d98e8a6 core/full_cuda_graph.py:86-122 StaticBufferLoader: tokens, labels, positions, mask of each",
)
def static_loader_bytes(tokens: Count, microbatches: Count) -> Count:
    """Bytes of the inputs of all micro-batches but the one that is counted anyway."""
    return (microbatches - 1) * (3 * INT64.nbytes(tokens) + FP32.nbytes(tokens))


def _captured_step(plan: Plan) -> Captured:
    """One graph of all forwards and backwards of a step (core/full_cuda_graph.py). Stages between the first
    and the last read nothing.
    """
    size = static_loader_bytes(plan.training.microbatch * plan.training.seq_len, plan.accumulation)
    made = (Component.SAVED_ACTIVATIONS, Component.TEMPORARIES, Component.AUTOGRAD_DETAIL)
    return Captured(
        static={"static/inputs": Bytes(size if agreed(plan.mesh.pp == 1) else 0, size, size)},
        outputs=NOTHING,
        pooled=lambda kind, _: kind in made,
        whole=True,
        step=True,
        captures=plan.accumulation,
    )


def graph_problems(spec: ModelSpec, plan: Plan) -> Iterator[Problem]:
    """What Megatron-Core captures no graphs of (transformer_config.py:2796-2880), and names that are none."""
    named = frozenset(plan.cuda_graphs)
    kinds = {type(block.feed_forward) for block in spec.blocks()}
    reasons = []
    for name in named - {*NAMES, *WHOLE_LAYER, STATE_SPACE}:
        near = nearest_words(name, NAMES)
        hint = f"did you mean {near[0]}?" if near else ", ".join(NAMES)
        reasons.append((name, "is nothing that megatron captures", hint))
    routed = ("moe", "moe_router", "moe_preprocess")
    absent = {STATE_SPACE, *([] if Moe in kinds else routed), *([] if Dense in kinds else ["mlp"])}
    reasons += [(name, f"names no part of {spec.name}'s layers", "leave it out") for name in named & absent]
    if {"moe", "moe_router"} <= named:
        reasons.append(("moe", "holds the router, which is named beside it", "one of the two"))
    elif "moe" in named - absent and not (plan.routing and plan.routing.padded):
        hint = "moe_router and moe_preprocess, or moe.capacity_factor and moe.pad_to_capacity"
        reasons.append(("moe", "is captured only where experts are padded to a capacity", hint))
    if plan.recompute.mode is RecomputeMode.FULL and named and WHOLE_STEP not in named:
        reasons.append((", ".join(sorted(named)), "captures no layer that is recomputed whole", WHOLE_STEP))
    for name, reason, hint in sorted(reasons):
        yield Problem(field="cuda_graphs", value=name, reason=reason, hint=hint)
