"""The widest layer of a server with kernels of its own over a batch: what each part of it has at once, with
the residual and its own input.
"""

from __future__ import annotations

from functools import reduce
from math import prod

from memsheet.arith import Count, at_least, ceil_div, maximum, minimum, where
from memsheet.formulas.serving.dp_attention import SENT, gathered_groups
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.model import (
    Attention,
    Block,
    Dense,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Moe,
    Recurrent,
    Role,
    StateSpace,
)
from memsheet.plan.plan import Mesh, Plan
from memsheet.references import DEEPEP_BUFFERS, PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes

with late_functions(__name__):
    from memsheet.formulas.operators.blocks import activation_elements, channels
    from memsheet.formulas.serving.recorded_serving import unread_highs


MERGED_PATCHES = 4
"""Patches that one image token stands for where a tower merges two by two and has no table of positions."""
CONVOLVED = 3
"""Tensors at once that convolutions make: what one makes, what its norm makes of that, the activation's."""
CHUNK_TOKENS = 32768
"""Tokens that experts are given at once (``READ_IN``)."""


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 gpu_model_runner.py:3325: one layer after another, then pictures through the "
        "tower before them"
    ),
)
def layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest layer over a batch, and at the high end a batch of pictures through the tower."""
    blocks = dict.fromkeys(part.blocks())
    sizes = [size for block in blocks for size in block_bytes(block, plan, tokens)]
    nothing = Bytes.exact(0)
    read = reduce(Bytes.max, sizes, nothing)
    widest = Bytes(read.low, read.value, reduce(maximum, unread_highs(part, plan, tokens), read.high))
    widest = _with_layer_embeddings(widest, part, plan, tokens)
    if not part.towers:
        return widest
    return Bytes(widest.low, widest.value, maximum(widest.high, pictures_bytes(part, plan, tokens)))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 model_executor/models/gemma3n.py:689 get_per_layer_inputs: a projection, its norm and their "
        "sum with what the table holds, which stays until the last layer; SGLang v0.5.23 "
        "models/gemma3n_causal.py the same"
    ),
)
def layer_vector_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Count:
    """Bytes of a batch's vectors for all layers, where a table beside the words' holds them."""
    return plan.precision.compute.nbytes(tokens * part.embeddings.layer_elements)


def _with_layer_embeddings(widest: Bytes, part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest layer with a token's vectors for all layers beside it, or the making of those."""
    row = layer_vector_bytes(part, plan, tokens)
    return Bytes.max(widest + Bytes.exact(row), Bytes(2 * row, 3 * row, 4 * row))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 gpu_model_runner.py:3336: as many pictures as fill a batch, at once; models/pixtral.py a "
        "mask of all their patches"
    ),
)
def pictures_bytes(part: ModelSpec, plan: Plan, tokens: Count, *, masks: bool = True) -> Count:
    """A high end for the tower: twice its widest operation over all patches, and a mask where pictures of any
    size lie in one row. ``masks``: the tower may make one.
    """
    dtype, most = plan.precision.compute, 0
    for tower in part.towers:
        rows = [
            w.shape[0]
            for w in tower.embeddings
            if "position" in w.path and len(w.shape) > 1 and w.shape[1] == tower.stack.hidden
        ]
        fixed = tower.tokens_per_image
        each = reduce(maximum, rows, fixed or 0)
        patches = each * ceil_div(tokens, fixed) if fixed else MERGED_PATCHES * tokens
        alone = replace(plan, mesh=Mesh())
        blocks = dict.fromkeys(block for run in tower.stack.runs for block in run.pattern)
        widths = [3 * b.hidden + _feed_forward_width(b.feed_forward, alone) for b in blocks if b.feed_forward]
        mask = 0 if fixed or not masks else dtype.nbytes(patches * patches)
        shown = ceil_div(tokens, fixed) if fixed else 1
        convolved = dtype.nbytes(CONVOLVED * shown * tower.widest)
        most = maximum(
            most, maximum(convolved, dtype.nbytes(2 * patches * reduce(maximum, widths, 0)) + mask)
        )
    return most


def block_bytes(block: Block, plan: Plan, tokens: Count) -> list[Bytes]:
    """Each part of a layer with the residual and its own input."""
    dtype, hidden = plan.precision.compute, block.hidden
    above = [dtype.nbytes(tokens * width) for mixer in block.mixers for width in _mixer_widths(mixer, plan)]
    if block.feed_forward:
        routed = isinstance(block.feed_forward, Moe)
        groups = gathered_groups(plan) if routed else 1
        every = tokens * groups
        at_once = minimum(every, CHUNK_TOKENS) if routed else tokens
        gathered = where(at_least(groups, 2), dtype.nbytes((2 * every - at_once) * hidden), 0)
        gathered = (
            received_bytes(block, plan, tokens) if routed and plan.options.dispatch == SENT else gathered
        )
        above.append(dtype.nbytes(at_once * _feed_forward_width(block.feed_forward, plan)) + gathered)
    if block.streams > 1:
        above.append(dtype.nbytes(tokens * block.streams * hidden))
    unpacked = unpacked_expert_bytes(block.feed_forward, plan)
    return [beside_residual(size, block, plan, tokens) + unpacked for size in above]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 models/llama.py LlamaDecoderLayer.forward: what its parts make, none of it freed, whatever "
        "kernels make it"
    ),
)
def whole_layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Count:
    """Every tensor of the largest layer over a batch at once: more than any order of operations needs."""
    sizes = [
        tokens
        * (
            4 * block.streams * block.hidden
            + sum(width for mixer in block.mixers for width in _mixer_widths(mixer, plan))
            + (_feed_forward_width(block.feed_forward, plan) if block.feed_forward else 0)
        )
        for block in dict.fromkeys(part.blocks())
    ]
    return plan.precision.compute.nbytes(reduce(maximum, sizes, 0))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "01f5395 layers/quantization/bitsandbytes.py:599 BitsAndBytesMoEMethod._apply_4bit_dequnt: both "
        "matrices of all experts of a layer are whole while it runs"
    ),
)
def unpacked_expert_bytes(layer: Dense | Moe | None, plan: Plan) -> Bytes:
    """Bytes of a layer's experts in the dtype of activations, where they are kept in bitsandbytes' few
    bits.
    """
    if not isinstance(layer, Moe) or plan.quantization is None or not plan.quantization.experts:
        return NOTHING
    elements = sum(prod(w.shape) for w in layer.weights if w.role is Role.EXPERT)
    own = plan.precision.compute.nbytes(ceil_div(elements, plan.mesh.ep * plan.mesh.etp))
    return Bytes.exact(own)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 models/llama.py LlamaDecoderLayer.forward: hidden states and the residual go on together; "
        "v0.33.0 models/gemma3n.py:124 Gemma3nAltUp: all streams as they were, as predicted, and corrected"
    ),
)
def beside_residual(size: Count, block: Block, plan: Plan, tokens: Count) -> Bytes:
    """What a part of a layer takes, with its input and the residual: compiled code may free the input early
    (low) or keep one more (high).
    """
    row = plan.precision.compute.nbytes(tokens * block.streams * block.hidden)
    return Bytes(size + row, size + 2 * row, size + 3 * row)


@formula(
    cites=DEEPEP_BUFFERS,
    at=(
        "deep_ep/buffers/legacy.py dispatch: a rank receives a token once, whichever of its experts it "
        "goes to"
    ),
)
def received_bytes(block: Block, plan: Plan, tokens: Count) -> Count:
    """Bytes of the tokens that a rank receives of an even routing, where every rank has ``tokens`` of its
    own.
    """
    layer = block.feed_forward
    if not isinstance(layer, Moe):
        return 0
    return plan.precision.compute.nbytes(
        minimum(layer.experts_per_token, plan.mesh.ep) * tokens * block.hidden
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 models/llama.py:211: queries, keys and values joined, then rotated, then the output of "
        "all heads"
    ),
)
def _mixer_widths(mixer: object, plan: Plan) -> list[Count]:
    """Elements a token that a mixer has at once, besides its input and the residual."""
    tp = plan.mesh.tp
    match mixer:
        case Attention():
            heads, kv_heads = ceil_div(mixer.heads, tp), maximum(1, ceil_div(mixer.kv_heads, tp))
            return [(2 * (heads + 2 * kv_heads) + heads) * mixer.head_dim]
        case LatentAttention():
            query = ceil_div(mixer.heads, tp) * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
            return [
                2 * query
                + ceil_div(mixer.heads, tp) * mixer.v_head_dim
                + mixer.kv_lora_rank
                + (mixer.q_lora_rank or 0)
            ]
        case StateSpace() | LinearAttention() | Recurrent():
            return [4 * ceil_div(channels(mixer), tp)]
        case _:
            return [0]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 layers/activation.py:71 joined projections and their product; fused_moe.py:1565 one "
        "buffer for the first and third"
    ),
)
def _feed_forward_width(layer: Dense | Moe, plan: Plan) -> Count:
    """Elements a token of a feed-forward layer, of every expert that a token goes to."""
    if isinstance(layer, Dense):
        return activation_elements(layer, plan.mesh.tp)
    inner = ceil_div(layer.intermediate, plan.mesh.etp)
    hidden = next(w.shape[-1] for w in layer.weights)
    routed = layer.experts_per_token * (maximum(2 * inner, hidden) + inner) + hidden
    shared = ceil_div(layer.shared.intermediate, plan.mesh.tp) if layer.shared else 0
    return routed + shared
