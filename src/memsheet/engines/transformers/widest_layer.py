"""What the widest layer takes while prompts are read and while tokens are made over a cache."""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, at_least, ceil_div, is_zero, maximum, minimum, where
from memsheet.engines.transformers.forward_work import Work
from memsheet.engines.transformers.recurrent_operations import delta_step_bytes, runs_delta_rule, scan_bytes
from memsheet.formulas.activations import run_config_of
from memsheet.formulas.model_code.transformers.attention import CACHED
from memsheet.formulas.model_code.transformers.blocks import served_as_trained
from memsheet.formulas.model_code.transformers.chosen_kernels import block_numerics
from memsheet.formulas.model_code.transformers.code import block_axes
from memsheet.formulas.model_code.transformers.families import FusedQkvLayout, family_traits
from memsheet.formulas.model_code.transformers.shared_tables import mask_and_rotary_bytes, shared_tables
from memsheet.formulas.numerics import writes_scores
from memsheet.formulas.recordings import record_block
from memsheet.formulas.serving.kv_cache import kept_tokens, latent_elements_per_token
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.evaluate import Part, evaluate_tape
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BOOL, FP32, DType
from memsheet.plan.engine import Engine
from memsheet.plan.model import (
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
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.plan.verified_families import TP_LATENT
from memsheet.references import DEEPSEEK_V2, QLORA, TRANSFORMERS, TRANSFORMERS_CACHE, formula
from memsheet.sheet import NOTHING, Bytes, sum_byte_ranges

with late_functions(__name__):
    from memsheet.formulas.operators.blocks import activation_elements, channels


DEQUANTIZED = ("nf4", "fp4", "int8", "int4", "awq", "gptq")
"""Formats whose kernels may write a matrix in the compute dtype before they multiply by it (bitsandbytes
MatMul4Bit always).
"""
FP32_ROUTING = frozenset({
    "mixtral", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "dots1", "exaone_moe", "afmoe", "hunyuan_v1_moe", "nemotron_h",
})  # fmt: skip
"""Families whose routers return fp32 weights, so that what experts made is fp32 once it is weighted."""
TRACED_EXPERTS = frozenset(
    {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "granitemoe", "phimoe", "glm4_moe"}
)
"""Families whose prompts were traced in bf16 with sdpa: the widest layer agrees within 0.7 %, the router's
own tensors left out.
"""
EVERY_EXPERT = frozenset({"llama4_text"})
"""Families whose every expert computes every token, and is none of transformers' exchangeable ones."""
SINKS = frozenset({"gpt_oss"})
"""Families whose attention scores have a learned sink beside them."""
CLAMPED = 9
"""Widths of an expert in their feed-forwards: the first product, its biases, both halves clamped, the
activation, one half and one, and their product.
"""


@formula(cites=TRANSFORMERS, at="modeling files: layers run one after another, so the largest one decides")
def largest_layer_bytes(spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Bytes:
    """The layer that takes most while ``work`` passes through it, its input and what it makes of the cache
    included.
    """
    blocks = dict.fromkeys(spec.blocks())
    sizes = [
        _block_bytes(block, spec, plan, engine, work) + _cached_attention_bytes(block, plan, work)
        for block in blocks
    ]
    return reduce(Bytes.max, sizes, NOTHING)


def _has_recorded_operations(block: Block, plan: Plan, work: Work) -> bool:
    """Whether the layer's operations are listed one by one; a single token's eager scores are no matrix."""
    return (
        served_as_trained(block)
        and not isinstance(block.feed_forward, Moe)
        and not (plan.attention is AttentionKind.EAGER and isinstance(work.tokens, int) and work.tokens == 1)
    )


def _block_bytes(block: Block, spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Bytes:
    if runs_delta_rule(block):
        fused = _widest_operation_bytes(block, plan, work) + _shared_bytes(spec, plan, engine, work)
        plain = _plain_delta_bytes(block, spec, plan, engine, work)
        return Bytes(minimum(fused.low, plain), plain, maximum(fused.high, plain))
    if not _has_recorded_operations(block, plan, work):
        return _widest_operation_bytes(block, plan, work) + _shared_bytes(spec, plan, engine, work)
    size = _recorded_operation_bytes(block, spec, plan, engine, work)
    whole = at_least(1, plan.mesh.tp)
    return Bytes(where(whole, size, size * 3 // 4), size, where(whole, size, size * 5 // 4))


def _recorded_operation_bytes(block: Block, spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Count:
    # adapters stand beside its layers, whose matrices are multiplied with in the compute dtype
    adapter = plan.served_adapters.alone if plan.served_adapters else None
    plain = replace(plan, adapter=adapter, quantization=None)
    # what training's tensor parallelism keeps is not kept here
    alone = replace(plain, mesh=replace(plan.mesh, tp=1))
    kept = plan.cache.kv_dtype if _fills_cache(block, spec, work) else None
    run = replace(run_config_of(alone, engine), autocast=None, kept_keys=kept, positions_each=True)
    how = block_numerics(block, plain, work.shape, run)
    axes = block_axes(block, plain, work.shape)
    part = evaluate_tape(record_block(block, how, saving=False), axes, "", release=True)
    shared = (
        mask_and_rotary_bytes(spec, plain, work.shape, how).total
        + shared_tables(spec, plain, work.shape, how).total
    )
    tables = 1 if spec.embeddings.own_module else max(1, len(spec.embeddings.weights))
    # what each table gave stays through the forward
    named = tables * part.arriving.total
    return part.forward.total + shared + named - _cached_bytes(part)


def _fills_cache(block: Block, spec: ModelSpec, work: Work) -> bool:
    """Whether a prompt passes through a layer of those that keep its keys and values."""
    decodes = (run.pattern for stack in spec.stacks if stack.role == "decoder" for run in stack.runs)
    return isinstance(work.cached, int) and work.cached == 0 and any(block in each for each in decodes)


def _cached_bytes(part: Part) -> Count:
    """What a layer's own cache holds of the prompt, which is on the sheet as the cache; its moments before
    have it not. Attention works on the cache's own keys and values, the last layer's too
    (cache_utils.py, DynamicLayer.update).
    """
    return sum(size for (_, path), size in part.cached.held.items() if path.endswith(CACHED))


def _shared_bytes(spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Bytes:
    """Masks and rotary tables beside layers that are not listed operation by operation."""
    alone = replace(plan, adapter=None, quantization=None, mesh=replace(plan.mesh, tp=1))
    how = replace(run_config_of(alone, engine), autocast=None, positions_each=True)
    return Bytes.exact(
        mask_and_rotary_bytes(spec, alone, work.shape, how).total
        + shared_tables(spec, alone, work.shape, how).total
    )


def _plain_delta_bytes(block: Block, spec: ModelSpec, plan: Plan, engine: Engine, work: Work) -> Count:
    """A gated delta net in torch's plain operations: a prompt by chunks, a token over its state."""
    if isinstance(work.cached, int) and work.cached == 0:
        return _recorded_operation_bytes(block, spec, plan, engine, work)
    steps = (delta_step_bytes(mixer, work) for mixer in block.mixers if isinstance(mixer, LinearAttention))
    return _widest_operation_bytes(block, plan, work).value + sum(steps)


def _widest_operation_bytes(block: Block, plan: Plan, work: Work) -> Bytes:
    """A layer of which only the widest operations are known: its attention with the scores, or its
    feed-forward.
    """
    whole, traced = (
        at_least(1, plan.mesh.tp),
        block.kind in TRACED_EXPERTS and isinstance(block.feed_forward, Moe),
    )

    def sized(width: Count) -> Bytes:
        size = plan.precision.compute.nbytes(work.sequences * work.tokens * (4 * block.hidden + width))
        if traced:
            return Bytes(where(whole, size, size * 3 // 4), size, where(whole, size, size * 5 // 4))
        return Bytes(size // 2, size, 2 * size)

    attention = (
        sized(_mixing_width(block)) + _unrecorded_scores(block, plan, work) + scan_bytes(block, plan, work)
    )
    ff = block.feed_forward
    if ff is None:
        return attention
    fed = sized(_feed_forward_width(ff, block.kind, block.hidden, plan.mesh.tp))
    return Bytes.max(attention, fed + _named_scores(block, plan, work))


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling files: hidden_states, _ = self.self_attn(…): a layer names the probabilities of eager "
        "attention to its end; gpt_oss's are a part of those with a sink"
    ),
)
def _named_scores(block: Block, plan: Plan, work: Work) -> Bytes:
    """Probabilities of a prompt that are there while the feed-forward runs. Low: a family that drops them."""
    if plan.attention is not AttentionKind.EAGER or not (isinstance(work.cached, int) and work.cached == 0):
        return NOTHING
    heads = [
        _rank_heads(block, mixer, plan.mesh.tp)
        for mixer in block.mixers
        if isinstance(mixer, Attention | LatentAttention)
    ]
    rows = work.sequences * work.tokens * (work.tokens + (1 if block.kind in SINKS else 0))
    made = plan.precision.compute.nbytes(rows * reduce(maximum, heads, 0))
    return Bytes(0, made, made)


# ---- attention ---------------------------------------------------------------------------------------------


@formula(
    cites=TRANSFORMERS,
    at=(
        "eager_attention_forward: masked scores, softmax of them in fp32 and its copy in the compute dtype "
        "live together"
    ),
)
def score_bytes(scores: Count, compute: DType) -> Bytes:
    """Score matrices of ``scores`` elements. Low: only the scores and their softmax in the compute dtype;
    high: one more fp32 copy.
    """
    one, wide = compute.nbytes(scores), FP32.nbytes(scores)
    value = one + wide + (0 if compute is FP32 else one)
    return Bytes(2 * one, value, value + wide)


@formula(
    cites=TRANSFORMERS,
    at=(
        "gpt_oss eager_attention_forward: scores, the same with a sink beside them, and those less their "
        "maximum; softmax in their dtype"
    ),
)
def sink_bytes(scores: Count, compute: DType) -> Bytes:
    """Score matrices of attention with sinks, of ``scores`` elements each."""
    return Bytes.exact(3 * compute.nbytes(scores))


@formula(
    cites=TRANSFORMERS,
    at=(
        "repeat_kv: keys and values copied out for every query head; a view where there is one "
        "head, or as many"
    ),
)
def repeated_elements_per_token(mixer: Mixer, tp: Count = 1) -> Count:
    """Elements that repeating keys and values over their group takes for each token they cover."""
    if not isinstance(mixer, Attention | CrossAttention):
        return 0
    heads, kept = ceil_div(mixer.heads, tp), maximum(1, ceil_div(mixer.kv_heads, tp))
    return where(at_least(1, kept), 0, where(at_least(kept, heads), 0, 2 * heads * mixer.head_dim))


@formula(
    cites=DEEPSEEK_V2,
    at=(
        "section 2.1.2; expand_kv of the modeling code: the up-projection of every cached latent, then "
        "keys joined with the rotary part"
    ),
)
def expanded_elements_per_token(mixer: LatentAttention, heads: Count) -> Count:
    """Elements that a forward makes of each cached latent: keys and values, and the keys once more with their
    rotary part.
    """
    return heads * (
        (mixer.qk_nope_head_dim + mixer.v_head_dim) + (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    )


def _rank_heads(block: Block, mixer: Mixer, tp: Count) -> Count:
    """Query heads of one tensor-parallel rank; latent attention stays whole unless the family's plan splits
    it.
    """
    if isinstance(mixer, LatentAttention):
        return ceil_div(mixer.heads, tp) if block.kind in TP_LATENT else mixer.heads
    return ceil_div(mixer.heads, tp) if isinstance(mixer, Attention | CrossAttention) else 0


def _unrecorded_scores(block: Block, plan: Plan, work: Work) -> Bytes:
    """The score matrices and repeated keys of eager prefill, for layers that are not listed operation by
    operation.

    heads / tp · sequences · tokens² elements a matrix (tokens · memory in cross-attention).
    """
    compute, rows = plan.precision.compute, work.sequences * work.tokens
    found = []
    for mixer in block.mixers:
        if isinstance(mixer, Attention | LatentAttention | CrossAttention) and writes_scores(plan, mixer):
            over = work.memory if isinstance(mixer, CrossAttention) else work.tokens
            extra = compute.nbytes(work.sequences * over * repeated_elements_per_token(mixer, plan.mesh.tp))
            scores = _rank_heads(block, mixer, plan.mesh.tp) * rows * over
            found.append(
                (sink_bytes(scores, compute) if block.kind in SINKS else score_bytes(scores, compute))
                + Bytes(0, extra, extra)
            )
        elif compute is FP32 and plan.attention is AttentionKind.SDPA and isinstance(mixer, Attention):
            made = _plain_score_bytes(block, mixer, plan, work)
            found.append(Bytes(0, made, made))
    return reduce(Bytes.max, found, NOTHING)


@formula(
    cites=TRANSFORMERS,
    at=(
        "sdpa_attention_forward with enable_gqa in fp32: torch's _scaled_dot_product_attention_math "
        "(attention.cpp) makes scores, those with a bias, and the bias"
    ),
)
def _plain_score_bytes(block: Block, mixer: Attention, plan: Plan, work: Work) -> Count:
    """What attention of grouped heads writes where no kernel takes them; 0 where one does."""
    rows, tp = work.sequences * work.tokens, plan.mesh.tp
    a_token = _scaled_elements_per_token(mixer, tp)
    made = FP32.nbytes(rows * ((2 * _rank_heads(block, mixer, tp) + 1) * work.tokens + a_token))
    return where(at_least(a_token, 1), made, 0)


def _cached_attention_bytes(block: Block, plan: Plan, work: Work) -> Bytes:
    """What attention makes of cached keys in decode, or of a padded batch of prompts."""
    if isinstance(work.cached, int) and work.cached == 0:
        return Bytes(0, 0, reduce(maximum, (_padded_prompt_bytes(m, plan, work) for m in block.mixers), 0))
    mixing = reduce(
        Bytes.max, (_mixer_decode_bytes(block, mixer, plan, work) for mixer in block.mixers), NOTHING
    )
    return Bytes.max(mixing, _gathered_expert_bytes(block, plan, work))


def _mixer_decode_bytes(block: Block, mixer: Mixer, plan: Plan, work: Work) -> Bytes:
    """One mixer's work over its cache. A cache has grown before attention begins; a quantized one lets go of
    the old one only then.
    """
    over = _over_cache(block, mixer, plan, work)
    if not work.growing:
        return over
    if plan.cache.kv_dtype is not None and plan.cache.kv_dtype is not plan.precision.compute:
        return over + Bytes.exact(2 * grown_bytes(mixer, plan, work))
    grown = grown_bytes(mixer, plan, work)
    return Bytes.max(over, Bytes(0, grown, 2 * grown))


@formula(
    cites=TRANSFORMERS_CACHE,
    at="DynamicLayer.update: torch.cat makes new keys, then new values, while the old ones are there",
)
def grown_bytes(mixer: Mixer, plan: Plan, work: Work) -> Count:
    """The larger of the two tensors that a layer's cache makes anew for one more token."""
    assert plan.cache.kv_dtype is not None
    return work.sequences * plan.cache.kv_dtype.nbytes(
        copied_elements_per_token(mixer, plan.mesh.tp) * kept_tokens(mixer, work.cached)
    )


@formula(
    cites=TRANSFORMERS,
    at=(
        "sdpa_attention_forward: a mask rules out grouped heads, so prompts of a padded batch repeat keys; "
        "a boolean mask becomes a bias"
    ),
)
def _padded_prompt_bytes(mixer: Mixer, plan: Plan, work: Work) -> Count:
    if plan.attention is not AttentionKind.SDPA or not isinstance(mixer, Attention):
        return 0
    tokens = work.sequences * work.tokens
    compute = plan.precision.compute
    size = compute.nbytes(
        tokens * (repeated_elements_per_token(mixer, plan.mesh.tp) + work.tokens)
    ) + BOOL.nbytes(tokens * work.tokens)
    return where(at_least(work.sequences, 2), where(at_least(work.tokens, 2), size, 0), 0)


@formula(
    cites=TRANSFORMERS,
    at=(
        "eager_attention_forward and expand_kv over the whole cache; sdpa packs the one query of each "
        "group, but not in fp32 without a mask"
    ),
)
def _over_cache(block: Block, mixer: Mixer, plan: Plan, work: Work) -> Bytes:
    """Temporaries of one layer over its cache while each sequence makes one token."""
    compute, tp = plan.precision.compute, plan.mesh.tp
    over = work.memory if isinstance(mixer, CrossAttention) else kept_tokens(mixer, work.cached)
    kept = work.sequences * over
    heads, repeated = (
        _rank_heads(block, mixer, tp),
        compute.nbytes(kept * repeated_elements_per_token(mixer, tp)),
    )
    eager = plan.attention is AttentionKind.EAGER
    size = NOTHING
    if isinstance(mixer, LatentAttention):
        size = Bytes.exact(compute.nbytes(kept * expanded_elements_per_token(mixer, heads)))
    elif eager:
        size = Bytes.exact(repeated)
    elif (
        compute is FP32 and plan.attention is AttentionKind.SDPA
    ):  # plain mathematics, which scales the keys in a copy (attention.cpp)
        scaled = compute.nbytes(kept * _scaled_elements_per_token(mixer, tp))
        size = Bytes(0, scaled, scaled)
    if plan.attention is AttentionKind.SDPA and family_traits(block.kind).joint is FusedQkvLayout.PICKED:
        size = Bytes.max(size, Bytes.exact(_broadcast_head_bytes(mixer, plan, work, kept)))
    if eager:
        size = size + score_bytes(heads * kept, compute)
        if family_traits(block.kind).joint is FusedQkvLayout.PICKED:
            size = size + Bytes.exact(compute.nbytes(_broadcast_elements(mixer, work, kept, tp)))
        if family_traits(block.kind).wide_scores and isinstance(mixer, Attention) and compute is not FP32:
            size = size + Bytes.exact(
                FP32.nbytes(kept * heads * mixer.head_dim)
            )  # keys raised for the product
    return Bytes.max(
        size + _dequantized_keys(mixer, plan, kept, passed=True),
        _dequantized_keys(mixer, plan, kept, passed=False),
    )


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_falcon.py:339 scaled_dot_product_attention, not asked for grouped heads: torch's plain "
        "mathematics in fp32, which scales keys in a copy, with scores and a mask"
    ),
)
def _broadcast_head_bytes(mixer: Mixer, plan: Plan, work: Work, kept: Count) -> Count:
    """What attention makes of one cached head that meets many of queries; 0 where there are as many."""
    if not isinstance(mixer, Attention):
        return 0
    compute, heads = plan.precision.compute, ceil_div(mixer.heads, plan.mesh.tp)
    made_of_head = 1 if compute is FP32 else 3  # keys and values raised, and keys scaled
    elements = kept * (made_of_head * mixer.head_dim + heads) + _broadcast_elements(
        mixer, work, kept, plan.mesh.tp
    )
    made = FP32.nbytes(elements) + compute.nbytes(kept)
    return where(at_least(1, mixer.kv_heads), where(at_least(heads, 2), made, 0), 0)


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_falcon.py:339, :349: a product of one head of keys, or of values, with many of queries "
        "copies it for each of several sequences' heads (aten native/LinearAlgebra.cpp, matmul); one "
        "sequence's is a view"
    ),
)
def _broadcast_elements(mixer: Mixer, work: Work, kept: Count, tp: Count) -> Count:
    if not isinstance(mixer, Attention):
        return 0
    heads = ceil_div(mixer.heads, tp)
    copied = where(
        at_least(heads, 2), where(at_least(work.sequences, 2), kept * heads * mixer.head_dim, 0), 0
    )
    return where(at_least(1, mixer.kv_heads), copied, 0)


@formula(
    cites=TRANSFORMERS,
    at=(
        "sdpa_attention_forward with enable_gqa, which fp32 has no kernel for: torch's plain mathematics "
        "repeats keys and values, a single head of them too, and scales the keys in a copy (attention.cpp)"
    ),
)
def _scaled_elements_per_token(mixer: Mixer, tp: Count) -> Count:
    """Elements that each cached token takes there; none where keys have as many heads, and a kernel."""
    if not isinstance(mixer, Attention | CrossAttention):
        return 0
    heads, kept = ceil_div(mixer.heads, tp), maximum(1, ceil_div(mixer.kv_heads, tp))
    return where(at_least(kept, heads), 0, 3 * heads * mixer.head_dim)


@formula(
    cites=TRANSFORMERS_CACHE,
    at=(
        "Fp8QuantizedLayer._dequantize: a cast to fp32 and its product with the scale, then keys in the "
        "compute dtype; values after keys"
    ),
)
def _dequantized_keys(mixer: Mixer, plan: Plan, kept: Count, *, passed: bool) -> Bytes:
    """One layer's keys and values out of a quantized cache: as attention gets them (``passed``), and while
    the values are made.

    Group-wise formats make them and join them with the newest ones (QuantizedLayer.update); what their
    kernels add is not known.
    """
    compute = plan.precision.compute
    if plan.cache.kv_dtype is None or plan.cache.kv_dtype is compute or not isinstance(mixer, Attention):
        return NOTHING
    elements = kept * copied_elements_per_token(mixer, plan.mesh.tp)
    one, wide = compute.nbytes(elements), FP32.nbytes(elements)
    if passed:
        return Bytes.exact(2 * one)
    return (
        Bytes.exact(one + 2 * wide)
        if plan.cache.kv_dtype.name == "fp8"
        else Bytes(4 * one, 4 * one, 4 * one + 2 * wide)
    )


@formula(
    cites=TRANSFORMERS,
    at=(
        "batched_mm_experts_forward (integrations/moe.py), to which generate switches after the prompt: "
        "every choice's matrices are copied"
    ),
)
def _gathered_expert_bytes(block: Block, plan: Plan, work: Work) -> Bytes:
    """The matrices of the experts that each sequence's newest token chose, both products' at once. Low: a
    loop over experts.
    """
    ff = block.feed_forward
    if not isinstance(ff, Moe) or block.kind in EVERY_EXPERT or plan.quantization is not None:
        return NOTHING
    matrices = (3 if ff.gated else 2) * block.hidden * ceil_div(ff.intermediate, plan.mesh.tp)
    size = plan.precision.compute.nbytes(work.sequences * work.tokens * ff.experts_per_token * matrices)
    return Bytes(0, size, size)


# ---- layers that are not listed operation by operation, and what lies outside of layers --------------------


@formula(cites=TRANSFORMERS, at="modeling files: tensors alive at the widest operation of a layer")
def _widest_elements_a_token(block: Block, tp: Count) -> Count:
    """Elements a token of the layer's widest operation."""
    mixing = _mixing_width(block)
    if block.feed_forward is not None:
        mixing = maximum(mixing, _feed_forward_width(block.feed_forward, block.kind, block.hidden, tp))
    return (
        4 * block.hidden + mixing
    )  # what the embeddings made, the layer's input, the first half's sum, its norm or the output


def _mixing_width(block: Block) -> Count:
    return reduce(maximum, (_mixer_width(m) for m in block.mixers), 0)


def _feed_forward_width(ff: Dense | Moe, kind: str, hidden: int, tp: Count) -> Count:
    """Of experts, elements for every choice of a token (grouped_mm_experts_forward, integrations/moe.py:424):
    its input with both halves of the first product, the activation and their product; or its input with the
    second product, that weighted and that put in order. gpt_oss names biases of the first product's size, and
    clamps both halves (modeling_gpt_oss.py GptOssExperts._apply_gate). Llama 4 gives every expert every token
    (modeling_llama4.py Llama4TextMoe.forward): what each is given and says, both halves, the activation.
    """
    if isinstance(ff, Dense):
        return activation_elements(ff, tp)
    inner = ceil_div(ff.intermediate, tp)
    if kind in EVERY_EXPERT:
        return ff.experts * (2 * hidden + 3 * inner + 2)
    multiplied = hidden + (CLAMPED if kind in SINKS else 4 if ff.gated else 2) * inner
    weighted = (6 if kind in FP32_ROUTING else 4) * hidden
    return ff.experts_per_token * maximum(multiplied, weighted) + ff.experts


def _mixer_width(mixer: object) -> Count:
    match mixer:
        case Attention():
            return 4 * mixer.heads * mixer.head_dim
        case LatentAttention():
            query = (
                2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) + mixer.qk_rope_head_dim
            )  # as made, its rotated part, joined
            return (
                mixer.heads * (query + mixer.v_head_dim)
                + expanded_elements_per_token(mixer, mixer.heads)
                + latent_elements_per_token(mixer)
            )
        case StateSpace(kind="mamba2"):  # what the projection gave and the convolution of it, and time steps
            return 3 * mixer.inner + 4 * mixer.groups * mixer.state + 2 * mixer.heads
        # two halves of the projection, the convolution, three operands made contiguous, the scan with and
        # without gate
        case StateSpace():
            return 8 * mixer.inner + 4 * mixer.state
        case LinearAttention() | Recurrent():
            return 6 * channels(mixer)
        case _:
            return 0


@formula(
    cites=QLORA,
    at="section 3: a matrix is dequantized to the compute dtype before it is multiplied by; one at a time",
)
def dequantized_bytes(held: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """The largest quantized matrix (of experts: one expert's) in the compute dtype."""
    how = plan.quantization
    if how is None or not how.weights.name.startswith(DEQUANTIZED):
        return 0
    sizes = (
        plan.precision.compute.nbytes(h.elements // (h.shape[0] if h.role is Role.EXPERT else 1))
        for h in held
        if h.dtype is how.weights
    )
    return reduce(maximum, sizes, 0)


@formula(
    cites=TRANSFORMERS,
    at="modeling files of vision towers: the widest operation of a layer over all patches of an image",
)
def tower_bytes(spec: ModelSpec, plan: Plan, work: Work) -> Count:
    """The widest tower layer while one image of each sequence passes through it: a rough high end."""
    return reduce(maximum, (_vision_tower_bytes(tower, plan, work) for tower in spec.towers), 0)


def _vision_tower_bytes(tower: Tower, plan: Plan, work: Work) -> Count:
    rows = [
        w.shape[0]
        for w in tower.embeddings
        if "position" in w.path and len(w.shape) > 1 and w.shape[1] == tower.stack.hidden
    ]
    patches: Count = reduce(maximum, rows, tower.tokens_per_image or 0)
    if is_zero(patches):
        from memsheet.formulas.serving.widest_layer import MERGED_PATCHES

        patches = MERGED_PATCHES * work.tokens
    image = replace(work, tokens=patches)
    blocks = dict.fromkeys(block for run in tower.stack.runs for block in run.pattern)
    sizes = [
        sum_byte_ranges(
            (
                Bytes.exact(
                    plan.precision.compute.nbytes(
                        2 * work.sequences * patches * _widest_elements_a_token(block, 1)
                    )
                ),
                _unrecorded_scores(block, replace(plan, mesh=replace(plan.mesh, tp=1)), image),
            )
        ).high
        for block in blocks
    ]
    return reduce(maximum, sizes, 0)


@formula(
    cites=TRANSFORMERS_CACHE,
    at=(
        "DynamicLayer.update: torch.cat makes the new keys while the old ones are there; latents are "
        "cached as keys"
    ),
)
def copied_elements_per_token(mixer: Mixer, tp: Count = 1) -> Count:
    """Elements a cached token of the larger tensor that a layer's cache copies to grow; recurrent states are
    written in place.
    """
    match mixer:
        case Attention():
            wide = mixer.head_dim if mixer.value_dim is None else max(mixer.head_dim, mixer.value_dim)
            return maximum(1, ceil_div(mixer.kv_heads, tp)) * wide
        case LatentAttention():
            return max(mixer.kv_lora_rank, mixer.qk_rope_head_dim)
        case _:
            return 0
