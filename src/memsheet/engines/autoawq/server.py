"""Serving with AutoAWQ's fused modules: packed weights, a cache of as many tokens as may be made, attention
written out over the prompt.

What is largest with short prompts is the loading itself: joined projections are made while the parts they are
joined from are still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.arith import Count, given_or, maximum
from memsheet.errors import input_error
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.states.held import HeldTensor, held_tensors, parameter_bytes
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import AWQ_INT4, FP16, FP32, DType
from memsheet.plan.engine import Engine
from memsheet.plan.model import Attention, Block, Dense, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import AUTOAWQ, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item, Sheet

COMPLEX = DType("complex64", 64, source="two fp32 numbers")
FUSED = ("llama", "mistral")
"""Families whose layers are fused alike (block.py, LlamaLikeBlock)."""
SPLITS = 8
"""Partial products that a packed product keeps beside each other until they are summed (linear.py,
split_k_iters).
"""
SERVING = (Instant.PREFILL, Instant.DECODE)


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on the GPU at load, prefill and decode.

    Raises InputError for families and formats whose fused modules are others.
    """
    model = stage_model(spec, plan, stage)
    block = _supported_awq_block(model, plan)
    held = tuple(held_tensors(model, plan))
    instants = (Instant.LOAD,) if plan.serving.phase == "load" else (Instant.LOAD, *SERVING)
    weights = parameter_bytes(model, plan, held)
    found = [
        Item(c, path, dict.fromkeys(instants, Bytes.exact(size)), Cited(AUTOAWQ, "linear.py"))
        for (c, path), size in weights.items()
    ]
    joining = Bytes.exact(joined_bytes(held, model.stacks[0].layers))
    found.append(
        Item(
            Component.TEMPORARIES,
            "joining_projections",
            {Instant.LOAD: joining},
            Cited(AUTOAWQ, "fused_utils.py fuse_qkv"),
        )
    )
    if plan.serving.phase != "load":
        found += _serving_items(model, plan, block)
    allocated = {i: sum(item.at[i].value for item in found if i in item.at) for i in instants}
    loaded = sum(item.at[Instant.LOAD].value for item in found if item.component is Component.PARAMETERS)
    return [*found, *outside_tensors(plan, cluster, allocated, loaded=loaded)]


def _supported_awq_block(spec: ModelSpec, plan: Plan) -> Block:
    blocks = spec.blocks()
    strange = next((b.kind for b in blocks if b.kind not in FUSED), None)
    if strange is not None:
        raise input_error(
            "engine", "autoawq", f"is not modelled for {strange}", f"fused models known: {', '.join(FUSED)}"
        )
    if plan.quantization is None or plan.quantization.weights.name != AWQ_INT4.name:
        raise input_error(
            "quantization.weights",
            plan.quantization and plan.quantization.weights.name,
            "is not what autoawq loads",
            "awq-int4",
        )
    return blocks[0]


@formula(
    cites=AUTOAWQ,
    at=(
        "fused_utils.py fuse_qkv: the joined projections of all layers while their parts exist, and the "
        "zeros of one more layer"
    ),
)
def joined_bytes(held: Iterable[HeldTensor], layers: int) -> Count:
    """What stands beside the weights when the last layer has been fused."""
    parts = sum(
        h.times * h.dtype.nbytes(h.elements)
        for h in held
        if h.path.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    )
    return parts + parts // layers


def _serving_items(spec: ModelSpec, plan: Plan, block: Block) -> list[Item]:
    layers, whole = spec.stacks[0].layers, dict.fromkeys((Instant.LOAD, *SERVING))
    cached, longest = cache_tokens(plan)
    mixer = next(m for m in block.mixers if isinstance(m, Attention))
    cache = _bytes_up_to(
        layers * cache_bytes(mixer, plan, cached), layers * cache_bytes(mixer, plan, longest)
    )
    tables = _bytes_up_to(layers * table_bytes(mixer, cached), layers * table_bytes(mixer, longest))
    prompt, step = _awq_prompt_tokens(plan), 1
    working = {
        Instant.PREFILL: _between_prompts(
            plan,
            prompt_bytes(block, plan, spec.head.width, 1),
            prompt_bytes(block, plan, spec.head.width, prompt),
        ),
        Instant.DECODE: Bytes.exact(
            logits_bytes(plan, spec.head.width, prompt) + layer_bytes(block, plan, step)
        ),
    }
    return [
        Item(
            Component.KV_CACHE,
            "model.blocks.*.attn.cache",
            dict.fromkeys(whole, cache),
            Cited(AUTOAWQ, "fused/cache.py"),
        ),
        Item(
            Component.BUFFERS,
            "model.blocks.*.attn.rope.freqs_cis",
            dict.fromkeys(whole, tables),
            Cited(AUTOAWQ, "fused/attn.py RoPE"),
        ),
        Item(Component.TEMPORARIES, "widest_layer", working, Cited(AUTOAWQ, "fused/attn.py, fused/mlp.py")),
    ]


def _between_prompts(plan: Plan, short: Count, long: Count) -> Bytes:
    """Without --prompt-tokens prompts may be anything up to the whole length."""
    return Bytes.exact(long) if plan.serving.prompt_tokens is not None else Bytes(short, long, long)


def _bytes_up_to(value: Count, high: Count) -> Bytes:
    return Bytes(value, value, maximum(value, high))


def _awq_prompt_tokens(plan: Plan) -> Count:
    return (
        plan.serving.prompt_tokens
        if plan.serving.prompt_tokens is not None
        else given_or(plan.serving.max_model_len, 0)
    )


def cache_tokens(plan: Plan) -> tuple[Count, Count]:
    """Tokens that the cache holds: ``max_new_tokens`` of from_quantized, and what it would be for prompt and
    answer together.

    The project's own example gives it the tokens of the answer, and lets the cache roll; a prompt has to fit.
    """
    longest: Count = given_or(plan.serving.max_model_len, 0)
    return longest if plan.serving.output_tokens is None else maximum(
        plan.serving.output_tokens, _awq_prompt_tokens(plan)
    ), longest


@formula(
    cites=AUTOAWQ,
    at=(
        "fused/cache.py WindowedCache: keys and values in fp16 for every sequence of the batch, made with "
        "the model"
    ),
)
def cache_bytes(mixer: Attention, plan: Plan, tokens: Count) -> Count:
    """Bytes of one layer's cache."""
    sequences: Count = given_or(plan.serving.max_sequences, 1)
    return FP16.nbytes(2 * sequences * mixer.kv_heads * mixer.head_dim * tokens)


@formula(
    cites=AUTOAWQ,
    at=(
        "fused/attn.py RoPE.precompute_freqs_cis: complex numbers for twice the cache's tokens, "
        "in every layer"
    ),
)
def table_bytes(mixer: Attention, tokens: Count) -> Count:
    """Bytes of one layer's rotations."""
    return COMPLEX.nbytes(2 * tokens * (mixer.head_dim // 2))


@formula(
    cites=AUTOAWQ,
    at=(
        "fused/attn.py QuantAttentionFused.forward: scores in fp16, in fp32 and their softmax, with keys "
        "and values repeated"
    ),
)
def attention_bytes(mixer: Attention, hidden: int, plan: Plan, tokens: Count) -> Count:
    """What a layer holds when a prompt's scores are normalised: two hidden states, joined projections, turned
    queries and keys, stored keys.
    """
    rows = given_or(plan.serving.max_sequences, 1) * tokens
    queries, keys = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    streams = 2 * hidden + (queries + 2 * keys) + queries + 2 * keys + 2 * queries
    scores = mixer.heads * rows * tokens
    mask = tokens * tokens
    return FP16.nbytes(rows * streams + scores + mask) + 2 * FP32.nbytes(scores)


@formula(
    cites=AUTOAWQ,
    at=(
        "fused/mlp.py over gemm_cuda_gen.cu: the first half and eight partial sums of the second with "
        "their sum, five hidden states"
    ),
)
def feed_forward_bytes(ff: Dense, hidden: int, plan: Plan, tokens: Count) -> Count:
    """What a layer holds when its second input product has been made."""
    rows = given_or(plan.serving.max_sequences, 1) * tokens
    return FP16.nbytes(rows * (5 * hidden + (SPLITS + 2) * ff.intermediate))


@formula(cites=AUTOAWQ, at="fused/block.py LlamaLikeBlock: attention, then the feed-forward")
def layer_bytes(block: Block, plan: Plan, tokens: Count) -> Count:
    """The widest moment of a layer over ``tokens`` of every sequence."""
    ff = block.feed_forward
    mixer = next(m for m in block.mixers if isinstance(m, Attention))
    wide = feed_forward_bytes(ff, block.hidden, plan, tokens) if isinstance(ff, Dense) else 0
    return maximum(attention_bytes(mixer, block.hidden, plan, tokens), wide)


@formula(
    cites=AUTOAWQ,
    at="models/base.py forward, transformers 4.35: logits of every position in fp16, then in fp32",
)
def logits_bytes(plan: Plan, vocabulary: int, tokens: Count) -> Count:
    """The fp32 logits, which the example still names while the next token is made."""
    return FP32.nbytes(given_or(plan.serving.max_sequences, 1) * tokens * vocabulary)


@formula(
    cites=AUTOAWQ, at="fused/model.py LlamaLikeModel: layers one after another; then logits of every position"
)
def prompt_bytes(block: Block, plan: Plan, vocabulary: int, tokens: Count) -> Count:
    """The widest layer, or the logits of the whole prompt in both dtypes over the last hidden states."""
    rows = given_or(plan.serving.max_sequences, 1) * tokens
    ends = logits_bytes(plan, vocabulary, tokens) + FP16.nbytes(rows * (vocabulary + 2 * block.hidden))
    return maximum(layer_bytes(block, plan, tokens), ends)


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """Cache bytes a token, and the sequences of each length that fit: the cache is made for a batch of one
    length.
    """
    mixer = next(m for m in spec.mixers() if isinstance(m, Attention))
    layers = spec.layers
    a_token = layers * FP16.nbytes(2 * mixer.kv_heads * mixer.head_dim)
    held = sum(
        item.at[Instant.DECODE].value
        for sheet in sheets
        for item in sheet.items
        if item.component is Component.KV_CACHE
    )
    found: dict[str, Any] = {
        "kv_bytes_per_token": a_token, "kv_bytes_per_token_per_rank": a_token, "kv_bytes_per_sequence": held // int(plan.serving.max_sequences or 1),
        "kv_tokens": 0, "pages": 0, "max_sequences": {},
    }  # fmt: skip
    if cluster is None or plan.serving.phase == "load":
        return found
    free = int(cluster.device.framework_bytes - max(sheet.device.value for sheet in sheets) + held)
    found["kv_tokens"] = max(0, free // a_token)
    found["max_sequences"] = {str(plan.serving.max_model_len): _awq_sequences_that_fit(spec, plan, free)}
    return found


def _awq_sequences_that_fit(spec: ModelSpec, plan: Plan, free: int) -> int:
    """Sequences of the plan's lengths in ``free`` bytes, each with its own share of a prompt's work."""
    block = spec.stacks[0].runs[0].pattern[0]
    one = replace(plan, workload=replace(plan.serving, max_sequences=1))
    mixer = next(m for m in block.mixers if isinstance(m, Attention))
    now = prompt_bytes(block, plan, spec.head.width, _awq_prompt_tokens(plan))
    takes = spec.stacks[0].layers * cache_bytes(mixer, one, cache_tokens(plan)[0]) + prompt_bytes(
        block, one, spec.head.width, _awq_prompt_tokens(plan)
    )
    return max(0, int((free + now) // takes)) if takes else 0
