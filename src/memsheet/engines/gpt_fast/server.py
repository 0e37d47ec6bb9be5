"""Serving with gpt-fast: weights in bf16, int8 or int4, a cache of the whole length, a prompt read outside of
the compiled step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from memsheet.arith import Count, ceil_div, given_or, maximum, round_up
from memsheet.errors import input_error
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.serving.quantized_ends import linear_ends
from memsheet.formulas.states.held import HeldTensor, WholeRoles, held_tensors, parameter_bytes
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import BF16, DType, Scale
from memsheet.plan.engine import Engine
from memsheet.plan.model import Attention, Block, Dense, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import GPT_FAST, formula
from memsheet.sheet import Bytes, Cited, Component, Derived, Instant, Item, Sheet

FAMILIES = ("llama", "mistral", "qwen2")
"""Families whose layers its one model file writes, biases aside (model.py, transformer_configs)."""
GROUP = 32
"""Elements that share a scale in int4 unless a plan says another number (quantize.py, groupsize)."""
CACHE_MULTIPLE = 8
SERVING = (Instant.PREFILL, Instant.DECODE)
GRAPHS = Derived(
    "what a captured decoding step keeps for itself: from nothing to the widest layer of one step and its "
    "logits"
)


def items(spec: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on a rank.

    Raises InputError for families and formats that gpt-fast does not have.
    """
    model = stage_model(spec, plan, stage)
    block, stored = _supported_block_and_dtype(model, plan)
    held = tuple(linear_ends(held_tensors(model, plan, WholeRoles(engine.whole_roles)), plan, stored))
    instants = (Instant.LOAD,) if plan.serving.phase == "load" else (Instant.LOAD, *SERVING)
    weights = parameter_bytes(model, plan, held)
    found = [
        Item(c, path, dict.fromkeys(instants, Bytes.exact(size)), Cited(GPT_FAST, "model.py, quantize.py"))
        for (c, path), size in weights.items()
    ]
    if stored is not None and not stored.scales:
        found.append(
            Item(
                Component.PARAMETERS,
                "scales",
                dict.fromkeys(instants, Bytes.exact(row_scale_bytes(held, stored))),
                Cited(GPT_FAST, "quantize.py WeightOnlyInt8Linear"),
            )
        )
    if plan.serving.phase != "load":
        found += _serving_items(model, plan, block, held, stored)
    allocated = {i: sum(item.at[i].value for item in found if i in item.at) for i in instants}
    loaded = sum(item.at[Instant.LOAD].value for item in found if item.component is Component.PARAMETERS)
    return [*found, *outside_tensors(plan, cluster, allocated, loaded=loaded)]


def _supported_block_and_dtype(spec: ModelSpec, plan: Plan) -> tuple[Block, DType | None]:
    blocks = spec.blocks()
    strange = next(
        (b.kind for b in blocks if b.kind not in FAMILIES or not isinstance(b.feed_forward, Dense)), None
    )
    if strange is not None:
        raise input_error(
            "engine", "gpt-fast", f"is not modelled for {strange}", f"families known: {', '.join(FAMILIES)}"
        )
    how = plan.quantization
    if how is None:
        return blocks[0], None
    if how.weights.name == "int8":
        return blocks[0], DType(
            "int8-rows", 8, source="quantize.py: one byte an element, a bf16 scale a row beside it"
        )
    if how.weights.name != "int4":
        raise input_error(
            "quantization.weights", how.weights.name, "is not what gpt-fast quantizes to", "int8 or int4"
        )
    group = how.weights.scales[0].block if how.weights.scales else GROUP
    return blocks[0], DType(
        "int4-groups",
        4,
        scales=(Scale(group, 16), Scale(group, 16)),
        source="quantize.py: scales_and_zeros in bf16",
    )


@formula(cites=GPT_FAST, at="quantize.py WeightOnlyInt8Linear: a bf16 scale for each row of a matrix")
def row_scale_bytes(held: tuple[HeldTensor, ...], stored: DType) -> Count:
    """Bytes of the scales of all matrices of a rank."""
    return sum(h.times * BF16.nbytes(h.shape[-2]) for h in held if h.dtype is stored)


def _serving_items(
    spec: ModelSpec, plan: Plan, block: Block, held: tuple[HeldTensor, ...], stored: DType | None
) -> list[Item]:
    full: Count = given_or(plan.serving.max_model_len, 0)
    prompt: Count = plan.serving.prompt_tokens if plan.serving.prompt_tokens is not None else full
    mixer = next(m for m in block.mixers if isinstance(m, Attention))
    cache = spec.stacks[0].layers * cache_bytes(mixer, plan, full)
    read, step = layer_bytes(block, spec, plan, prompt), layer_bytes(block, spec, plan, 1)
    unpacked = unpacked_bytes(held, plan, stored)
    graphs = Bytes(0, step if plan.compile else 0, 2 * step if plan.compile else 0)
    return [
        Item(Component.KV_CACHE, "layers.*.attention.kv_cache", dict.fromkeys(SERVING, Bytes.exact(cache)), Cited(GPT_FAST, "model.py KVCache")),
        Item(Component.BUFFERS, "freqs_cis", dict.fromkeys(SERVING, Bytes.exact(table_bytes(mixer, spec, plan))), Cited(GPT_FAST, "model.py setup_caches")),
        Item(Component.TEMPORARIES, "widest_layer", {Instant.PREFILL: Bytes(read, read + unpacked, 2 * read + unpacked), Instant.DECODE: Bytes(0, step, 2 * step + unpacked)}, Cited(GPT_FAST, "model.py, generate.py prefill")),
        *([Item(Component.CUDA_GRAPHS, "decode_one_token", dict.fromkeys(SERVING, graphs), GRAPHS)] if plan.compile else []),
    ]  # fmt: skip


@formula(
    cites=GPT_FAST,
    at="model.py setup_caches: length to a multiple of 8; tp.py: key heads divided over the ranks",
)
def cache_bytes(mixer: Attention, plan: Plan, tokens: Count) -> Count:
    """Bytes of one layer's cache on a rank."""
    heads = maximum(1, ceil_div(mixer.kv_heads, plan.mesh.tp))
    return plan.precision.compute.nbytes(
        2
        * given_or(plan.serving.max_sequences, 1)
        * heads
        * mixer.head_dim
        * round_up(tokens, CACHE_MULTIPLE)
    )


@formula(
    cites=GPT_FAST,
    at="model.py precompute_freqs_cis: a sine and a cosine for half a head at every position the model knows",
)
def table_bytes(mixer: Attention, spec: ModelSpec, plan: Plan) -> Count:
    """Bytes of the rotations."""
    return plan.precision.compute.nbytes(
        (spec.max_positions or given_or(plan.serving.max_model_len, 0)) * mixer.head_dim
    )


@formula(
    cites=GPT_FAST,
    at=(
        "quantize.py WeightOnlyInt8Linear.forward: the matrix cast to the input's dtype where nothing "
        "fuses the cast"
    ),
)
def unpacked_bytes(held: tuple[HeldTensor, ...], plan: Plan, stored: DType | None) -> Count:
    """The largest int8 matrix in the compute dtype; int4 is multiplied packed."""
    if stored is None or stored.bits != 8:
        return 0
    return reduce(maximum, (plan.precision.compute.nbytes(h.elements) for h in held if h.dtype is stored), 0)


@formula(
    cites=GPT_FAST,
    at=(
        "model.py TransformerBlock.forward: two hidden states with queries, keys and values, or with both "
        "inner tensors; logits of every position"
    ),
)
def layer_bytes(block: Block, spec: ModelSpec, plan: Plan, tokens: Count) -> Count:
    """The widest moment of a pass over ``tokens`` of every sequence on a rank."""
    rows, tp = given_or(plan.serving.max_sequences, 1) * tokens, plan.mesh.tp
    ff, mixer = block.feed_forward, next(m for m in block.mixers if isinstance(m, Attention))
    assert isinstance(ff, Dense)
    mixing = 2 * ceil_div((mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim, tp)
    layer = 3 * block.hidden + maximum(mixing, 3 * ceil_div(ff.intermediate, tp))
    return plan.precision.compute.nbytes(rows * maximum(layer, spec.head.width + 2 * block.hidden))


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """Cache bytes a token, and how many tokens of cache there is room for: one batch of one length is
    served.
    """
    mixer = next(m for m in spec.mixers() if isinstance(m, Attention))
    layers, compute = spec.layers, plan.precision.compute
    heads = max(1, -(-mixer.kv_heads // int(plan.mesh.tp)))
    a_token, on_rank = (int(layers * compute.nbytes(2 * n * mixer.head_dim)) for n in (mixer.kv_heads, heads))
    found: dict[str, Any] = {
        "kv_bytes_per_token": a_token, "kv_bytes_per_token_per_rank": on_rank, "kv_bytes_per_sequence": a_token * int(plan.serving.max_model_len or 0),
        "kv_tokens": 0, "pages": 0, "max_sequences": {},
    }  # fmt: skip
    if cluster is not None and plan.serving.phase != "load":
        held = int(sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value)
        free = (
            int(cluster.device.framework_bytes)
            - max(int(sheet.at(Instant.DECODE, without=()).value) for sheet in sheets)
            + held
        )
        found["kv_tokens"] = max(0, free // on_rank)
        found["max_sequences"] = {
            str(plan.serving.max_model_len): found["kv_tokens"] // int(plan.serving.max_model_len or 1)
        }
    return found
