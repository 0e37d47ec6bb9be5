"""Generation with litgpt's script: a cache of the whole length made beforehand, logits of every position,
bases by bitsandbytes.

With quantized weights the output matrix decides: it is the largest one, quantized like the others, and
unpacked whole for a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from memsheet.arith import Count, given_or, maximum, where
from memsheet.errors import input_error
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.serving.quantized_ends import linear_ends
from memsheet.formulas.states.held import HeldTensor, held_tensors, parameter_bytes
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import BOOL, FP16, FP32, INT8
from memsheet.plan.engine import Engine
from memsheet.plan.model import Attention, Dense, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import LITGPT, QLORA, formula
from memsheet.sheet import Bytes, Cited, Component, FromCode, Instant, Item, Sheet

FABRIC = FromCode(
    "Lightning-AI/pytorch-lightning",
    "6dfa5cca9de5c28548eef5582a53c483b0eda66a",
    "src/lightning/fabric/plugins/precision/bitsandbytes.py",
    335,
)
FORMATS = ("nf4", "nf4-single", "fp4", "fp4-double", "int8")
SERVING = (Instant.PREFILL, Instant.DECODE)


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on the GPU.

    Raises InputError for layers that are not attention of grouped heads with a dense feed-forward, and
    formats that the script lacks.
    """
    model = stage_model(spec, plan, stage)
    _check_litgpt_family(model, plan)
    held = tuple(linear_ends(held_tensors(model, plan), plan))
    instants = (Instant.LOAD,) if plan.serving.phase == "load" else (Instant.LOAD, *SERVING)
    weights = parameter_bytes(model, plan, held)
    found = [
        Item(c, path, dict.fromkeys(instants, Bytes.exact(size)), Cited(LITGPT, "model.py"))
        for (c, path), size in weights.items()
    ]
    if plan.quantization is not None:
        found.append(
            Item(
                Component.TEMPORARIES,
                "quantizing",
                {Instant.LOAD: Bytes.exact(quantizing_bytes(held, plan))},
                FABRIC,
            )
        )
    if plan.serving.phase != "load":
        found += _serving_items(model, plan, held)
    allocated = {i: sum(item.at[i].value for item in found if i in item.at) for i in instants}
    loaded = sum(item.at[Instant.LOAD].value for item in found if item.component is Component.PARAMETERS)
    return [*found, *outside_tensors(plan, cluster, allocated, loaded=loaded)]


def _check_litgpt_family(spec: ModelSpec, plan: Plan) -> None:
    for block in spec.blocks():
        if any(not isinstance(m, Attention) for m in block.mixers) or not isinstance(
            block.feed_forward, Dense
        ):
            raise input_error(
                "engine",
                "litgpt",
                f"does not generate with layers of {block.kind} here",
                "engine transformers",
            )
    how = plan.quantization
    if how is not None and how.weights.name not in FORMATS:
        raise input_error(
            "quantization.weights", how.weights.name, "is not what litgpt quantizes to", "nf4, fp4 or int8"
        )


def _bitsandbytes_tensors(held: Iterable[HeldTensor], plan: Plan) -> list[HeldTensor]:
    return [h for h in held if plan.quantization is not None and h.dtype is plan.quantization.weights]


@formula(
    cites=QLORA,
    at=(
        "Fabric's BitsandbytesPrecision: a matrix on the card in fp16 and quantized anew beside its "
        "placeholder; int8 also turned"
    ),
)
def quantizing_bytes(held: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """What loading the largest matrix takes besides all weights."""
    sizes = [
        FP16.nbytes(h.elements) + (2 if h.dtype is INT8 else 1) * h.dtype.nbytes(h.elements)
        for h in _bitsandbytes_tensors(held, plan)
    ]
    return reduce(maximum, sizes, 0)


@formula(
    cites=QLORA,
    at=(
        "bitsandbytes 0.41 MatMul4Bit.forward: dequantize_4bit in the fp16 it was quantized from, then to "
        "the input's dtype"
    ),
)
def unpacked_bytes(held: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """The largest matrix unpacked for several rows; one row is multiplied packed, and int8 always."""
    packed = [h for h in _bitsandbytes_tensors(held, plan) if h.dtype is not INT8]
    copy = 0 if plan.precision.compute is FP16 else 1
    return reduce(
        maximum,
        (FP16.nbytes(h.elements) + copy * plan.precision.compute.nbytes(h.elements) for h in packed),
        0,
    )


def _serving_items(spec: ModelSpec, plan: Plan, held: tuple[HeldTensor, ...]) -> list[Item]:
    full: Count = given_or(plan.serving.max_model_len, 0)
    prompt: Count = plan.serving.prompt_tokens if plan.serving.prompt_tokens is not None else full
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    cache = sum(
        cache_bytes(m, plan, full) for block in blocks for m in block.mixers if isinstance(m, Attention)
    )
    unpacked = unpacked_bytes(held, plan)
    ends = logits_bytes(spec, plan, prompt)
    layer = reduce(
        maximum, (layer_bytes(block, plan, prompt) for block in {id(b): b for b in blocks}.values()), 0
    )
    working = {
        Instant.PREFILL: Bytes(
            maximum(layer, ends), maximum(layer, ends) + unpacked, layer + ends + unpacked
        ),
        Instant.DECODE: Bytes(0, logits_bytes(spec, plan, 1), logits_bytes(spec, plan, 1) + unpacked),
    }
    return [
        Item(Component.KV_CACHE, "transformer.h.*.attn.kv_cache", dict.fromkeys(SERVING, Bytes.exact(cache)), Cited(LITGPT, "model.py build_kv_cache")),
        Item(Component.BUFFERS, "mask_cache", dict.fromkeys(SERVING, Bytes.exact(mask_bytes(full))), Cited(LITGPT, "model.py build_mask_cache")),
        Item(Component.TEMPORARIES, "widest_layer", working, Cited(LITGPT, "model.py, generate/base.py; bitsandbytes 0.41")),
    ]  # fmt: skip


@formula(
    cites=LITGPT,
    at="model.py build_kv_cache: one head where all queries share one, else as many as there are query heads",
)
def cache_bytes(mixer: Attention, plan: Plan, tokens: Count) -> Count:
    """Bytes of one layer's cache for every sequence."""
    heads = where(mixer.kv_heads == 1, 1, mixer.heads)
    return plan.precision.compute.nbytes(
        2 * given_or(plan.serving.max_sequences, 1) * heads * mixer.head_dim * tokens
    )


@formula(
    cites=LITGPT,
    at=(
        "model.py build_mask_cache: ones of every pair of positions, and their lower half beside them "
        "while it is made"
    ),
)
def mask_bytes(tokens: Count) -> Count:
    """Bytes of the mask that the model keeps."""
    return BOOL.nbytes(tokens * tokens)


@formula(
    cites=LITGPT,
    at=(
        "model.py GPT.forward: logits of every position; Fabric's wrapper hands them on in fp32 "
        "(fabric/wrappers.py)"
    ),
)
def logits_bytes(spec: ModelSpec, plan: Plan, tokens: Count) -> Count:
    """Logits in the compute dtype, and in fp32."""
    elements = given_or(plan.serving.max_sequences, 1) * tokens * spec.head.width
    return plan.precision.compute.nbytes(elements) + (
        0 if plan.precision.compute is FP32 else FP32.nbytes(elements)
    )


@formula(
    cites=LITGPT,
    at=(
        "model.py Block.forward: two hidden states, joined projections with keys repeated, or the "
        "feed-forward's inner tensors"
    ),
)
def layer_bytes(block: Any, plan: Plan, tokens: Count) -> Count:
    """The widest moment of a layer over a prompt."""
    rows = given_or(plan.serving.max_sequences, 1) * tokens
    mixing = sum(6 * m.heads * m.head_dim for m in block.mixers)
    inner = block.feed_forward.intermediate * (3 if block.feed_forward.gated else 2)
    return plan.precision.compute.nbytes(rows * (3 * block.hidden + maximum(mixing, inner)))


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """Cache bytes a token, and how many tokens of cache there is room for: the script serves one batch."""
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    one = replace(plan, workload=replace(plan.serving, max_sequences=1))
    a_token = int(
        sum(cache_bytes(m, one, 1) for block in blocks for m in block.mixers if isinstance(m, Attention))
    )
    found: dict[str, Any] = {
        "kv_bytes_per_token": a_token, "kv_bytes_per_token_per_rank": a_token, "kv_bytes_per_sequence": a_token * int(plan.serving.max_model_len or 0),
        "kv_tokens": 0, "pages": 0, "max_sequences": {},
    }  # fmt: skip
    if cluster is not None and plan.serving.phase != "load":
        held = sum(int(sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value) for sheet in sheets)
        free = (
            int(cluster.device.framework_bytes)
            - max(int(sheet.at(Instant.DECODE, without=()).value) for sheet in sheets)
            + held
        )
        found["kv_tokens"] = max(0, free // a_token)
        found["max_sequences"] = {
            str(plan.serving.max_model_len): found["kv_tokens"] // int(plan.serving.max_model_len or 1)
        }
    return found
