"""Serving with transformers: weights, caches, and what the widest layer takes while prompts are read and tokens made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from memsheet.arith import Count, at_least, ceil_div, maximum, minimum, where
from memsheet.formulas.activations import block_axes, block_numerics, masks, numerics, shared_tables
from memsheet.formulas.blocks import record, unmodelled
from memsheet.formulas.evaluate import evaluate
from memsheet.formulas.kv_cache import bytes_per_token, cache_bytes
from memsheet.formulas.runtime import ALLOCATOR, MIDDLE_SEGMENT, loading_slack
from memsheet.formulas.states import Keeping, held_tensors, parameter_bytes
from memsheet.references import TRANSFORMERS, TRANSFORMERS_CACHE, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Derived, Evidence, Instant, Item, Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import FP32
from memsheet.spec.engine import Engine
from memsheet.spec.model import Attention, Block, Dense, LatentAttention, LinearAttention, ModelSpec, Moe, Recurrent, StateSpace
from memsheet.spec.plan import AttentionKind, Plan, RecomputeMode

LENGTHS = (1024, 4096, 8192, 32768, 131072)
CACHE = Cited(TRANSFORMERS_CACHE, "DynamicCache by layer kind")
BY_HAND = Derived("listed from the modeling code for the widest layer, not checked against a trace yet: a range")


def serving_items(spec: ModelSpec, plan: Plan, engine: Engine) -> list[Item]:
    """Items of a rank at load, prefill and decode."""
    keeping = Keeping(engine.whole_roles, latent_attention=engine.whole_latent)
    held = tuple(held_tensors(spec, plan, keeping))
    instants = (Instant.LOAD,) if plan.phase == "load" else (Instant.LOAD, Instant.PREFILL, Instant.DECODE)
    weights = parameter_bytes(spec, plan, held, engine.sharding)
    items = [Item(c, path, dict.fromkeys(instants, Bytes.exact(size)), Cited(TRANSFORMERS)) for (c, path), size in weights.items()]
    gaps = loading_slack((h.dtype.nbytes(h.elements), h.times) for h in held)
    items.append(Item(Component.ALLOCATOR_SLACK, "weights", dict.fromkeys(instants, Bytes(0, gaps, gaps + MIDDLE_SEGMENT)), ALLOCATOR))
    return items if plan.phase == "load" else [*items, *_cache_items(spec, plan), *_working_items(spec, plan, engine)]


def _lengths(plan: Plan) -> tuple[Count, Count]:
    """Tokens of a sequence when it is full, and of its prompt."""
    full: Count = 0 if plan.max_model_len is None else plan.max_model_len
    return full, plan.prompt_tokens if plan.prompt_tokens is not None else full


def _cache_items(spec: ModelSpec, plan: Plan) -> list[Item]:
    assert plan.kv_dtype is not None
    full, prompt = _lengths(plan)
    sequences: Count = 1 if plan.max_sequences is None else plan.max_sequences
    common: dict[str, Any] = {"tp": plan.mesh.tp, "memory_tokens": _memory_tokens(spec, prompt)}
    after = cache_bytes(spec, plan.kv_dtype, prompt, sequences, whole=True, **common)
    late = cache_bytes(spec, plan.kv_dtype, full, sequences, **common)
    known = plan.prompt_tokens is not None  # else prompts may be short, and windowed layers never hold more than their window
    return [
        Item(Component.KV_CACHE, path, {Instant.PREFILL: _prefilled(after.get(path, 0), late.get(path, 0), known=known), Instant.DECODE: Bytes.exact(late.get(path, 0))}, CACHE)
        for path in dict.fromkeys((*after, *late))
    ]  # fmt: skip


def _prefilled(after: Count, late: Count, *, known: bool) -> Bytes:
    return Bytes.exact(after) if known else Bytes(minimum(after, late), after, after)


def _memory_tokens(spec: ModelSpec, prompt: Count) -> Count:
    """Length of the sequence that cross-attention reads: the encoder's input, or one image's tokens."""
    if any(stack.role == "encoder" for stack in spec.stacks):
        return prompt
    return sum(tower.tokens_per_image or 0 for tower in spec.towers)


def _working_items(spec: ModelSpec, plan: Plan, engine: Engine) -> list[Item]:
    """Temporaries of the widest layer and the logits. Without --prompt-tokens nobody says whether prompts are read one by one or
    all at once: the low end is one token each, the value one full sequence, the high end the whole batch.
    """
    full, prompt = _lengths(plan)
    sequences: Count = 1 if plan.max_sequences is None else plan.max_sequences
    batch = _widest(spec, plan, engine, sequences, prompt)
    one = _widest(spec, plan, engine, 1, prompt) if plan.prompt_tokens is None else batch
    step = _widest(spec, plan, engine, sequences, 1)
    low = step.low if plan.prompt_tokens is None else batch.low
    grown = Bytes(0, _growing(spec, plan, full, sequences), 2 * _growing(spec, plan, full, sequences))
    evidence: Evidence = Cited(TRANSFORMERS, "the block's operations without saving") if _exact(spec, plan) else BY_HAND
    at = {Instant.PREFILL: Bytes(minimum(low, one.value), one.value, maximum(batch.high, one.value)), Instant.DECODE: step}
    return [
        Item(Component.TEMPORARIES, "widest_layer", at, evidence),
        Item(Component.TEMPORARIES, "cache_growth", {Instant.DECODE: grown}, Cited(TRANSFORMERS_CACHE, "DynamicLayer.update: torch.cat")),
        Item(Component.TEMPORARIES, "logits", dict.fromkeys(at, Bytes.exact(_logits(spec, plan, sequences))), Cited(TRANSFORMERS, "generate: logits_to_keep=1")),
    ]  # fmt: skip


def _logits(spec: ModelSpec, plan: Plan, sequences: Count) -> Count:
    """Logits of the last position and their fp32 copy; gathered whole under tensor parallelism."""
    return sequences * spec.head.width * (plan.precision.compute.bits + FP32.bits) // 8


def _growing(spec: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Count:
    """The new copy of one layer's keys while the old one is still there."""
    assert plan.kv_dtype is not None
    sizes = cache_bytes(replace_counts(spec), plan.kv_dtype, tokens, sequences, tp=plan.mesh.tp)
    return reduce(maximum, sizes.values(), 0) // 2


def replace_counts(spec: ModelSpec) -> ModelSpec:
    """The model with each distinct layer once."""
    stacks = tuple(
        replace(s, runs=tuple(replace(r, count=1, pattern=tuple(dict.fromkeys(r.pattern))[:1]) for r in s.runs[:1])) for s in spec.stacks
    )
    return replace(spec, stacks=stacks)


def _exact(spec: ModelSpec, plan: Plan) -> bool:
    return (
        all(unmodelled(b) is None for s in spec.stacks for r in s.runs for b in r.pattern)
        and isinstance(plan.mesh.tp, int)
        and plan.mesh.tp == 1
    )


def _widest(spec: ModelSpec, plan: Plan, engine: Engine, sequences: Count, tokens: Count) -> Bytes:
    """The layer that takes most while ``sequences`` · ``tokens`` pass through it, its input included."""
    blocks = dict.fromkeys(block for stack in spec.stacks for run in stack.runs for block in run.pattern)
    sizes = [_block_bytes(block, spec, plan, engine, sequences, tokens) for block in blocks]
    return reduce(_larger, sizes, NOTHING)


def _larger(a: Bytes, b: Bytes) -> Bytes:
    """The one with the larger value, element by element for arrays."""
    first = at_least(a.value, b.value)
    return Bytes(where(first, a.low, b.low), where(first, a.value, b.value), where(first, a.high, b.high))


def _block_bytes(block: Block, spec: ModelSpec, plan: Plan, engine: Engine, sequences: Count, tokens: Count) -> Bytes:
    quiet = replace(
        plan, microbatch=sequences, seq_len=tokens, recompute=replace(plan.recompute, mode=RecomputeMode.NONE), adapter=None, quantization=None,
    )  # fmt: skip
    if unmodelled(block) is None and not (plan.attention is AttentionKind.EAGER and isinstance(tokens, int) and tokens == 1):
        how = block_numerics(block, quiet, replace(numerics(quiet, engine), autocast=None))
        part = evaluate(record(block, how, saving=False), block_axes(block, quiet), "", release=True)
        shared = masks(spec, quiet, how).total + shared_tables(spec, quiet, how).total
        size = part.forward.total + shared + part.arriving.total  # the model's forward holds on to the embeddings' output
        whole = at_least(1, plan.mesh.tp)
        return Bytes(where(whole, size, size * 3 // 4), size, where(whole, size, size * 5 // 4))
    size = plan.precision.compute.nbytes(sequences * tokens * _width(block, plan.mesh.tp))
    return Bytes(size // 2, size, 2 * size)


@formula(cites=TRANSFORMERS, at="modeling files: tensors alive at the widest operation of a layer")
def _width(block: Block, tp: Count) -> Count:
    """Elements a token of the layer's widest operation."""
    widest = reduce(maximum, (_mixer_width(m) for m in block.mixers), 0)
    if block.feed_forward is not None:
        widest = maximum(widest, _feed_forward_width(block.feed_forward, block.hidden, tp))
    return 3 * block.hidden + widest


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


def serving_facts(spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]) -> Mapping[str, Any]:
    """What a serving engineer asks: cache bytes a token and a sequence, and how many sequences fit at several lengths.

    Bytes are those of one replica (all its ranks' layers, heads counted once a rank where they repeat).
    """
    assert plan.kv_dtype is not None
    tp, full = plan.mesh.tp, plan.max_model_len or 0
    a_token = bytes_per_token(spec, plan.kv_dtype, tp)
    a_sequence = sum(cache_bytes(spec, plan.kv_dtype, full, 1, tp=tp).values())
    facts: dict[str, Any] = {
        "kv_bytes_per_token": a_token,
        "kv_bytes_per_sequence": a_sequence,
        "kv_tokens": 0,
        "pages": 0,
        "max_sequences": {},
    }
    if cluster is None or plan.phase == "load":
        return facts
    free = min(_free_for_cache(sheet, cluster) for sheet in sheets) * len(sheets)
    lengths = sorted({*(n for n in LENGTHS if n <= (spec.max_positions or full)), full} - {0})
    per = {n: sum(cache_bytes(spec, plan.kv_dtype, n, 1, tp=tp).values()) for n in lengths}
    facts["max_sequences"] = {str(n): max(0, free // size) if size else 0 for n, size in per.items()}
    facts["kv_tokens"] = max(0, free // a_token) if a_token else 0
    return facts


def _free_for_cache(sheet: Sheet, cluster: Cluster) -> int:
    """What a card has left for the cache while decoding."""
    used = sheet.at(Instant.DECODE, without=()).value - sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value
    return int(cluster.device.framework_bytes - used)
