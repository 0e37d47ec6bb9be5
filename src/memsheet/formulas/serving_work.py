"""What the widest layer takes while prompts are read and while tokens are made over a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from memsheet.arith import Count, at_least, ceil_div, maximum, where
from memsheet.engines.verified import TP_LATENT
from memsheet.formulas.activations import block_axes, block_numerics, masks, numerics, shared_tables
from memsheet.formulas.blocks import record, unmodelled
from memsheet.formulas.evaluate import evaluate
from memsheet.formulas.kv_cache import kept_tokens
from memsheet.formulas.states import Held
from memsheet.references import DEEPSEEK_V2, QLORA, TRANSFORMERS, formula
from memsheet.sheet import NOTHING, Bytes, total
from memsheet.spec.dtypes import BOOL, FP32, DType
from memsheet.spec.engine import Engine
from memsheet.spec.model import (
    Attention,
    Block,
    CrossAttention,
    Dense,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Moe,
    Recurrent,
    Role,
    StateSpace,
    Tower,
)
from memsheet.spec.plan import AttentionKind, Plan, RecomputeMode

DEQUANTIZED = ("nf4", "fp4", "int8", "int4", "awq", "gptq")
"""Formats whose kernels may write a matrix in the compute dtype before they multiply by it (bitsandbytes MatMul4Bit always)."""
MERGED_PATCHES = 4
"""Patches that one image token stands for where a tower merges two by two and has no table of positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One forward: ``tokens`` of each of ``sequences`` enter; ``cached`` lie in each one's cache, these included; 0 while prompts are read.

    ``memory``: tokens that cross-attention reads.
    """

    sequences: Count
    tokens: Count
    cached: Count = 0
    memory: Count = 0


@formula(cites=TRANSFORMERS, at="modeling files: layers run one after another, so the largest one decides")
def widest(spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Bytes:
    """The layer that takes most while ``work`` passes through it, its input and what it makes of the cache included."""
    blocks = dict.fromkeys(block for stack in spec.stacks for run in stack.runs for block in run.pattern)
    sizes = [_block_bytes(block, spec, plan, engine, work) + _attended(block, plan, work) for block in blocks]
    return reduce(_larger, sizes, NOTHING)


def _larger(a: Bytes, b: Bytes) -> Bytes:
    """The one with the larger value, element by element for arrays; the higher of both high ends."""
    first = at_least(a.value, b.value)
    return Bytes(where(first, a.low, b.low), where(first, a.value, b.value), maximum(a.high, b.high))


def _recorded(block: Block, plan: Plan, work: Work) -> bool:
    """Whether the layer's operations are listed one by one; a single token's eager scores are no matrix."""
    return unmodelled(block) is None and not (plan.attention is AttentionKind.EAGER and isinstance(work.tokens, int) and work.tokens == 1)


def _block_bytes(block: Block, spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Bytes:
    if not _recorded(block, plan, work):
        size = plan.precision.compute.nbytes(work.sequences * work.tokens * _width(block, plan.mesh.tp))
        return Bytes(size // 2, size, 2 * size) + _unrecorded_scores(block, plan, work)
    quiet = replace(
        plan, microbatch=work.sequences, seq_len=work.tokens, recompute=replace(plan.recompute, mode=RecomputeMode.NONE), adapter=None, quantization=None,
    )  # fmt: skip
    how = block_numerics(block, quiet, replace(numerics(quiet, engine), autocast=None))
    part = evaluate(record(block, how, saving=False), block_axes(block, quiet), "", release=True)
    shared = masks(spec, quiet, how).total + shared_tables(spec, quiet, how).total
    size = part.forward.total + shared + part.arriving.total  # the model's forward holds on to the embeddings' output
    whole = at_least(1, plan.mesh.tp)
    return Bytes(where(whole, size, size * 3 // 4), size, where(whole, size, size * 5 // 4))


# ---- attention -----------------------------------------------------------------------------------------------------------------


@formula(
    cites=TRANSFORMERS, at="eager_attention_forward: masked scores, softmax of them in fp32 and its copy in the compute dtype live together"
)
def score_bytes(scores: Count, compute: DType) -> Bytes:
    """Score matrices of ``scores`` elements. Low: only the scores and their softmax in the compute dtype; high: one more fp32 copy."""
    one, wide = compute.nbytes(scores), FP32.nbytes(scores)
    value = one + wide + (0 if compute is FP32 else one)
    return Bytes(2 * one, value, value + wide)


@formula(cites=TRANSFORMERS, at="repeat_kv: keys and values copied out for every query head; a view where there is one head, or as many")
def repeated_elements_per_token(mixer: Mixer, tp: Count = 1) -> Count:
    """Elements that repeating keys and values over their group takes for each token they cover."""
    if not isinstance(mixer, Attention | CrossAttention):
        return 0
    heads, kept = ceil_div(mixer.heads, tp), maximum(1, ceil_div(mixer.kv_heads, tp))
    return where(at_least(1, kept), 0, where(at_least(kept, heads), 0, 2 * heads * mixer.head_dim))


@formula(
    cites=DEEPSEEK_V2,
    at="section 2.1.2; expand_kv of the modeling code: the up-projection of every cached latent, then keys joined with the rotary part",
)
def expanded_elements_per_token(mixer: LatentAttention, heads: Count) -> Count:
    """Elements that a forward makes of each cached latent: keys and values, and the keys once more with their rotary part."""
    return heads * ((mixer.qk_nope_head_dim + mixer.v_head_dim) + (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim))


def _rank_heads(block: Block, mixer: Mixer, tp: Count) -> Count:
    """Query heads of one tensor-parallel rank; latent attention stays whole unless the family's plan splits it."""
    if isinstance(mixer, LatentAttention):
        return ceil_div(mixer.heads, tp) if block.kind in TP_LATENT else mixer.heads
    return ceil_div(mixer.heads, tp) if isinstance(mixer, Attention | CrossAttention) else 0


def _unrecorded_scores(block: Block, plan: Plan, work: Work) -> Bytes:
    """The score matrices, mask and repeated keys of eager prefill, for layers that are not listed operation by operation.

    heads / tp · sequences · tokens² elements a matrix (tokens · memory in cross-attention); the mask has no heads.
    """
    if plan.attention is not AttentionKind.EAGER:
        return NOTHING
    compute, rows = plan.precision.compute, work.sequences * work.tokens
    found = []
    for mixer in block.mixers:
        if isinstance(mixer, Attention | LatentAttention | CrossAttention):
            over = work.memory if isinstance(mixer, CrossAttention) else work.tokens
            extra = compute.nbytes(rows * over + work.sequences * over * repeated_elements_per_token(mixer, plan.mesh.tp))
            found.append(score_bytes(_rank_heads(block, mixer, plan.mesh.tp) * rows * over, compute) + Bytes(0, extra, extra))
    return reduce(_larger, found, NOTHING)


def _attended(block: Block, plan: Plan, work: Work) -> Bytes:
    """What attention makes of cached keys in decode, or of a padded batch of prompts."""
    if isinstance(work.cached, int) and work.cached == 0:
        return Bytes(0, 0, reduce(maximum, (_padding(m, plan, work) for m in block.mixers), 0))
    return reduce(_larger, (_over_cache(block, mixer, plan, work) for mixer in block.mixers), NOTHING)


@formula(
    cites=TRANSFORMERS,
    at="sdpa_attention_forward: a mask rules out grouped heads, so prompts of a padded batch repeat keys; a boolean mask becomes a bias",
)
def _padding(mixer: Mixer, plan: Plan, work: Work) -> Count:
    if plan.attention is not AttentionKind.SDPA or not isinstance(mixer, Attention):
        return 0
    tokens = work.sequences * work.tokens
    compute = plan.precision.compute
    size = compute.nbytes(tokens * (repeated_elements_per_token(mixer, plan.mesh.tp) + work.tokens)) + BOOL.nbytes(tokens * work.tokens)
    return where(at_least(work.sequences, 2), where(at_least(work.tokens, 2), size, 0), 0)


@formula(
    cites=TRANSFORMERS,
    at="eager_attention_forward and expand_kv over the whole cache; sdpa packs the one query of each group, but not in fp32 without a mask",
)
def _over_cache(block: Block, mixer: Mixer, plan: Plan, work: Work) -> Bytes:
    """Temporaries of one layer over its cache while each sequence makes one token."""
    compute, tp = plan.precision.compute, plan.mesh.tp
    over = work.memory if isinstance(mixer, CrossAttention) else kept_tokens(mixer, work.cached)
    kept = work.sequences * over
    heads, repeated = _rank_heads(block, mixer, tp), compute.nbytes(kept * repeated_elements_per_token(mixer, tp))
    eager = plan.attention is AttentionKind.EAGER
    size = NOTHING
    if isinstance(mixer, LatentAttention):
        size = Bytes.exact(compute.nbytes(kept * expanded_elements_per_token(mixer, heads)))
    elif eager or (compute is FP32 and plan.attention is AttentionKind.SDPA):
        size = Bytes(0 if not eager else repeated, repeated, repeated)
    return size + score_bytes(heads * kept, compute) if eager else size


# ---- layers that are not listed operation by operation, and what lies outside of layers -----------------------------------------


@formula(cites=TRANSFORMERS, at="modeling files: tensors alive at the widest operation of a layer")
def _width(block: Block, tp: Count) -> Count:
    """Elements a token of the layer's widest operation."""
    mixing = reduce(maximum, (_mixer_width(m) for m in block.mixers), 0)
    if block.feed_forward is not None:
        mixing = maximum(mixing, _feed_forward_width(block.feed_forward, block.hidden, tp))
    return 3 * block.hidden + mixing


def _feed_forward_width(ff: Dense | Moe, hidden: int, tp: Count) -> Count:
    if isinstance(ff, Dense):
        return (3 if ff.gated else 2) * ceil_div(ff.intermediate, tp)
    routed = ff.experts_per_token * (2 * hidden + 3 * ceil_div(ff.intermediate, tp))
    return routed + ff.experts


def _mixer_width(mixer: object) -> Count:
    match mixer:
        case Attention():
            return 4 * mixer.heads * mixer.head_dim
        case LatentAttention():
            expanded = (mixer.qk_nope_head_dim + mixer.v_head_dim) + 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
            return mixer.heads * (expanded + mixer.v_head_dim)
        case StateSpace():
            return 6 * mixer.inner
        case LinearAttention():
            return 6 * mixer.value_heads * mixer.value_head_dim
        case Recurrent():
            return 6 * mixer.width
        case _:
            return 0


@formula(cites=QLORA, at="section 3: a matrix is dequantized to the compute dtype before it is multiplied by; one at a time")
def dequantized_bytes(held: tuple[Held, ...], plan: Plan) -> Count:
    """The largest quantized matrix (of experts: one expert's) in the compute dtype."""
    how = plan.quantization
    if how is None or not how.weights.name.startswith(DEQUANTIZED):
        return 0
    sizes = (
        plan.precision.compute.nbytes(h.elements // (h.shape[0] if h.role is Role.EXPERT else 1)) for h in held if h.dtype is how.weights
    )
    return reduce(maximum, sizes, 0)


@formula(cites=TRANSFORMERS, at="modeling files of vision towers: the widest operation of a layer over all patches of an image")
def tower_bytes(spec: ModelSpec, plan: Plan, work: Work) -> Count:
    """The widest tower layer while one image of each sequence passes through it: a rough high end."""
    return reduce(maximum, (_tower(tower, plan, work) for tower in spec.towers), 0)


def _tower(tower: Tower, plan: Plan, work: Work) -> Count:
    rows = [w.shape[0] for w in tower.embeddings if "position" in w.path and len(w.shape) > 1 and w.shape[1] == tower.stack.hidden]
    patches: Count = max((*rows, tower.tokens_per_image or 0))
    if patches == 0:
        patches = MERGED_PATCHES * work.tokens
    image = replace(work, tokens=patches)
    blocks = dict.fromkeys(block for run in tower.stack.runs for block in run.pattern)
    sizes = [
        total((Bytes.exact(plan.precision.compute.nbytes(2 * work.sequences * patches * _width(block, 1))), _unrecorded_scores(block, replace(plan, mesh=replace(plan.mesh, tp=1)), image))).high
        for block in blocks
    ]  # fmt: skip
    return reduce(maximum, sizes, 0)
