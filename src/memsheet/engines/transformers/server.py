"""Serving with transformers: weights, caches, and what is needed while prompts are read and tokens made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.arith import Count, maximum, minimum
from memsheet.engines.transformers.all_logits import MASKED, first_step_logits_bytes, prompt_logits_bytes
from memsheet.engines.transformers.assisted import assistant_facts, assistant_items
from memsheet.engines.transformers.forward_work import Work
from memsheet.engines.transformers.peft_lora import branch_item, peft_items
from memsheet.engines.transformers.releases import hands_tuples
from memsheet.engines.transformers.untied_table import untied_bytes
from memsheet.engines.transformers.widest_layer import (
    dequantized_bytes,
    largest_layer_bytes,
    tower_bytes,
)
from memsheet.formulas.model_code.transformers.blocks import served_as_trained
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import ALLOCATOR, MIDDLE_SEGMENT, loading_slack, outside_tensors
from memsheet.formulas.serving.drafts import verified_tokens, with_draft
from memsheet.formulas.serving.kv_cache import (
    bytes_per_token,
    cache_bytes,
    caching_layers,
    kept_tokens,
    kv_elements_per_token,
)
from memsheet.formulas.states.held import HeldTensor, WholeRoles, held_tensors, parameter_bytes
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import FP32, INT64
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.verified_families import TP_LATENT
from memsheet.references import QLORA, TRANSFORMERS, TRANSFORMERS_CACHE, formula
from memsheet.sheet import Bytes, Cited, Component, Derived, Evidence, Instant, Item, Sheet

with late_functions(__name__):
    from memsheet.engines.transformers.recorded_steps import recorded_step_bytes, recorded_working_items
    from memsheet.formulas.model_code.recorded import record_notes


MOST = 2**62
LENGTHS = (1024, 4096, 8192, 32768, 131072)
CACHE = Cited(TRANSFORMERS_CACHE, "DynamicCache by layer kind")
BY_HAND = Derived(
    "the widest operations of a layer, listed from the modeling code: exact where traced, else a range"
)
APART = Derived(
    "a tied matrix once; twice where the quantized release's own config does not tie it, which no model "
    "config says"
)
TOWER = Derived(
    "one image a sequence through the tower's widest layer, not modelled operation by operation: only a "
    "high end"
)


def items(spec: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """Everything on a rank of a stage."""
    part = stage_model(spec, plan, stage)
    tensors = serving_items(part, plan, engine)
    tensors += assistant_items(
        part, plan, lambda model, own: serving_items(model, replace(own, speculative=None), engine)
    )
    loaded = sum(i.at[Instant.LOAD].value for i in tensors if i.component is Component.PARAMETERS)
    return [*tensors, *outside_tensors(plan, cluster, _tensor_bytes_by_instant(tensors), loaded=loaded)]


def _tensor_bytes_by_instant(tensors: list[Item]) -> dict[Instant, Count]:
    """Tensor bytes at each instant."""
    found: dict[Instant, Count] = {}
    for item in (i for i in tensors if i.component is not Component.ALLOCATOR_SLACK):
        for instant, size in item.at.items():
            found[instant] = found[instant] + size.value if instant in found else size.value
    return found


def serving_items(spec: ModelSpec, plan: Plan, engine: Engine) -> list[Item]:
    """Items of a rank at load, prefill and decode."""
    keeping = WholeRoles(engine.whole_roles, latent_attention=engine.whole_latent and not splits_latent(spec))
    held = tuple(held_tensors(spec, plan, keeping))
    instants = (
        (Instant.LOAD,) if plan.serving.phase == "load" else (Instant.LOAD, Instant.PREFILL, Instant.DECODE)
    )
    weights = parameter_bytes(spec, plan, held)
    items = [
        Item(c, path, dict.fromkeys(instants, Bytes.exact(size)), Cited(TRANSFORMERS))
        for (c, path), size in weights.items()
    ]
    if (twice := untied_bytes(spec, plan)).high:
        items.append(Item(Component.PARAMETERS, "lm_head", dict.fromkeys(instants, twice), APART))
    items += peft_items(spec, plan, instants)
    gaps = loading_slack((h.dtype.nbytes(h.elements), h.times) for h in held)
    items.append(
        Item(
            Component.ALLOCATOR_SLACK,
            "weights",
            dict.fromkeys(instants, Bytes(0, gaps, gaps + MIDDLE_SEGMENT)),
            ALLOCATOR,
        )
    )
    return (
        items
        if plan.serving.phase == "load"
        else [
            *items,
            *_cache_items(spec, plan),
            _input_item(spec, plan),
            *(
                recorded_working_items(spec, plan)
                if spec.recording is not None
                else _working_items(spec, plan, engine, held)
            ),
        ]
    )


def notes(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> tuple[str, ...]:
    """Where the layers come from that nobody has written down."""
    del plan, cluster
    return record_notes(spec) if spec.recording is not None else ()


def splits_latent(spec: ModelSpec) -> bool:
    """Whether the family's tensor-parallel plan splits the heads of its latent attention."""
    blocks = spec.blocks()
    return all(b.kind in TP_LATENT for b in blocks if any(isinstance(m, LatentAttention) for m in b.mixers))


def _full_and_prompt_tokens(plan: Plan) -> tuple[Count, Count]:
    """Tokens of a sequence when it is full, and of its prompt."""
    full: Count = 0 if plan.serving.max_model_len is None else plan.serving.max_model_len
    return full, plan.serving.prompt_tokens if plan.serving.prompt_tokens is not None else full


def _cache_items(spec: ModelSpec, plan: Plan) -> list[Item]:
    assert plan.cache.kv_dtype is not None
    full, prompt = _full_and_prompt_tokens(plan)
    sequences: Count = 1 if plan.serving.max_sequences is None else plan.serving.max_sequences
    common: dict[str, Any] = {
        "tp": plan.mesh.tp,
        "memory_tokens": _memory_tokens(spec, prompt),
        "states": plan.precision.compute,
    }
    own = 1 if reads_encoded(spec) else prompt  # a decoder behind an encoder begins with one token
    after = cache_bytes(spec, plan.cache.kv_dtype, own, sequences, whole=True, **common)
    late = cache_bytes(spec, plan.cache.kv_dtype, full, sequences, **common)
    known = (
        plan.serving.prompt_tokens is not None
    )  # else prompts may be short, and windowed layers never hold more than their window
    return [
        Item(
            Component.KV_CACHE,
            path,
            {
                Instant.PREFILL: _prefill_cache_bytes(after.get(path, 0), late.get(path, 0), known=known),
                Instant.DECODE: Bytes.exact(late.get(path, 0)),
            },
            CACHE,
        )
        for path in dict.fromkeys((*after, *late))
    ]


@formula(
    cites=TRANSFORMERS,
    at=(
        "generation/utils.py _sample: input_ids and position_ids are joined anew with each token, int64, "
        "while the prompt's own are named outside; low: a model that takes no positions"
    ),
)
def input_bytes(tokens: Count, prompt: Count, sequences: Count) -> tuple[Bytes, Bytes]:
    """Token ids and positions while a prompt is read, and when the last token is made."""
    first, last = INT64.nbytes(sequences * prompt), INT64.nbytes(sequences * (tokens + prompt))
    return Bytes(first, 2 * first, 2 * first), Bytes(last, 2 * last, 2 * last)


def _input_item(spec: ModelSpec, plan: Plan) -> Item:
    """Without --prompt-tokens prompts may be short, and are read one by one or all at once."""
    full, prompt = _full_and_prompt_tokens(plan)
    sequences: Count = 1 if plan.serving.max_sequences is None else plan.serving.max_sequences
    reading, making = input_bytes(full, prompt, sequences)
    if plan.serving.prompt_tokens is None:
        shortest = input_bytes(full, 0, sequences)[1]
        reading, making = (
            Bytes(0, reading.value, reading.high),
            Bytes(shortest.low, making.value, making.high),
        )
    made = {Instant.PREFILL: reading} | ({} if spec.head.kind == MASKED else {Instant.DECODE: making})
    return Item(Component.INPUTS, "input_ids", made, Cited(TRANSFORMERS, "generation/utils.py _sample"))


def _prefill_cache_bytes(after: Count, late: Count, *, known: bool) -> Bytes:
    return Bytes.exact(after) if known else Bytes(minimum(after, late), after, after)


def reads_encoded(spec: ModelSpec) -> bool:
    """Whether prompts are an encoder's, and the decoder's own tokens are made one by one."""
    if spec.recording is not None:
        from memsheet.recording import ENCODER_DECODER

        if spec.recording.stacks == ENCODER_DECODER:
            return True
    return {"encoder", "decoder"} <= {stack.role for stack in spec.stacks}


def _memory_tokens(spec: ModelSpec, prompt: Count) -> Count:
    """Length of the sequence that cross-attention reads: the encoder's input, or one image's tokens."""
    if any(stack.role == "encoder" for stack in spec.stacks) or reads_encoded(spec):
        return prompt
    return sum(tower.tokens_per_image or 0 for tower in spec.towers)


def _working_items(spec: ModelSpec, plan: Plan, engine: Engine, held: tuple[HeldTensor, ...]) -> list[Item]:
    """Temporaries of the widest layer and the logits. Without --prompt-tokens nobody says whether prompts are
    read one by one or all at once: the low end is one token each, the value one full sequence, the high end
    the whole batch.
    """
    full, prompt = _full_and_prompt_tokens(plan)
    sequences: Count = 1 if plan.serving.max_sequences is None else plan.serving.max_sequences
    prompts = Work(sequences=sequences, tokens=prompt, memory=_memory_tokens(spec, prompt))
    batch, step = (
        largest_layer_bytes(spec, plan, engine, prompts),
        _decode_step_bytes(spec, plan, engine, full, sequences),
    )
    grown = _growth_bytes(spec, plan, engine, full, sequences)
    one = (
        batch
        if plan.serving.prompt_tokens is not None
        else largest_layer_bytes(spec, plan, engine, Work(sequences=1, tokens=prompt, memory=prompts.memory))
    )
    low = batch.low if plan.serving.prompt_tokens is not None else minimum(step.low, one.low)
    evidence: Evidence = (
        Cited(TRANSFORMERS, "the block's operations without saving")
        if _follows_training_code(spec, plan)
        else BY_HAND
    )
    at = {
        Instant.PREFILL: Bytes(minimum(low, one.value), one.value, maximum(batch.high, one.value)),
        Instant.DECODE: step,
    }
    items = [
        Item(Component.TEMPORARIES, "widest_layer", at, evidence),
        Item(Component.TEMPORARIES, "cache_growth", {Instant.DECODE: grown}, Cited(TRANSFORMERS_CACHE, "DynamicLayer.update: torch.cat")),
        Item(Component.TEMPORARIES, "logits", _logits_beside(spec, plan, sequences, at[Instant.PREFILL], step + grown), Cited(TRANSFORMERS, "generate: logits_to_keep=1")),
    ]  # fmt: skip
    if plan.quantization is not None:
        matrix = Bytes(0, 0, dequantized_bytes(held, plan))
        items.append(
            Item(
                Component.TEMPORARIES,
                "dequantized_weight",
                dict.fromkeys(at, matrix),
                Cited(QLORA, "section 3"),
            )
        )
    if not _follows_training_code(
        spec, plan
    ):  # where it is, the layer's own operations have the adapter's among them
        items += branch_item(
            spec,
            plan,
            {Instant.PREFILL: (prompt, sequences * prompt), Instant.DECODE: (sequences, sequences)},
        )
    if spec.towers:
        items.append(
            Item(
                Component.TEMPORARIES,
                "vision_tower",
                {Instant.PREFILL: Bytes(0, 0, tower_bytes(spec, plan, prompts))},
                TOWER,
            )
        )
    return [
        item for item in items if any(type(size.high) is not int or size.high for size in item.at.values())
    ]


def _decode_step_bytes(
    spec: ModelSpec, plan: Plan, engine: Engine, cached: Count, sequences: Count, *, growing: bool = False
) -> Bytes:
    """The widest layer while each sequence makes a token over ``cached`` ones."""
    _, prompt = _full_and_prompt_tokens(plan)
    memory = _memory_tokens(spec, prompt)
    return largest_layer_bytes(
        spec,
        plan,
        engine,
        Work(
            sequences=sequences, tokens=verified_tokens(plan), cached=cached, memory=memory, growing=growing
        ),
    )


def _growth_bytes(spec: ModelSpec, plan: Plan, engine: Engine, tokens: Count, sequences: Count) -> Bytes:
    """What there is of a cache a second time while it grows by a token: of one layer, or of all that hand
    tuples on.
    """
    if hands_tuples(spec, plan.engine_version):
        return Bytes.exact(_handed_bytes(spec, plan, maximum(0, tokens - 1), sequences))
    return _excess_bytes(
        _decode_step_bytes(spec, plan, engine, tokens, sequences, growing=True),
        _decode_step_bytes(spec, plan, engine, tokens, sequences),
    )


@formula(
    cites=TRANSFORMERS,
    at="before 4.42 LlamaAttention.forward: torch.cat of a layer's own tuple, which the caller still names",
)
def _handed_bytes(spec: ModelSpec, plan: Plan, tokens: Count, sequences: Count) -> Count:
    """Keys and values of all layers, as one step hands them to the next."""
    assert plan.cache.kv_dtype is not None
    return sequences * sum(
        layers
        * plan.cache.kv_dtype.nbytes(kv_elements_per_token(mixer, plan.mesh.tp) * kept_tokens(mixer, tokens))
        for _, mixer, layers in caching_layers(spec)
    )


def _excess_bytes(whole: Bytes, part: Bytes) -> Bytes:
    """What there is to add to ``part``, and at its high end."""
    more = maximum(0, whole.value - part.value)
    return Bytes(0, more, maximum(more, whole.high - part.high))


@formula(
    cites=TRANSFORMERS,
    at="generation/utils.py _sample: the last token's fp32 logits are named until the next ones are there",
)
def logits_bytes(spec: ModelSpec, plan: Plan, sequences: Count) -> tuple[Count, Count]:
    """Logits that stay while layers run, and those made after them: of the last position, and their fp32
    copy. Whole on a rank.
    """
    kept = FP32.nbytes(sequences * spec.head.width)
    return kept, plan.precision.compute.nbytes(sequences * spec.head.width) + kept


def _logits_beside(
    spec: ModelSpec, plan: Plan, sequences: Count, prompt: Bytes, step: Bytes
) -> dict[Instant, Bytes]:
    """What logits take besides the widest layer: they are made when it is gone, and no earlier ones are there
    while prompts are read.
    """
    kept, made = logits_bytes(spec, plan, sequences)
    whole = maximum(
        made, prompt_logits_bytes(spec, plan, _full_and_prompt_tokens(plan)[1], sequences)
    )  # of every position, in old versions
    first, later = maximum(0, whole - prompt.value), kept + maximum(0, made - step.value)
    later = maximum(later, _first_step_excess(spec, plan, sequences))
    return {Instant.PREFILL: Bytes(first, first, whole), Instant.DECODE: Bytes(later, later, kept + made)}


def _first_step_excess(spec: ModelSpec, plan: Plan, sequences: Count) -> Count:
    """What the first token after a prompt takes beside what the last one does: the prompt's logits, less
    what the caches have yet to grow by.
    """
    full, prompt = _full_and_prompt_tokens(plan)
    kept = first_step_logits_bytes(spec, plan, prompt, sequences)
    times = 2 if hands_tuples(spec, plan.engine_version) else 1
    to_come = _handed_bytes(spec, plan, full, sequences) - _handed_bytes(spec, plan, prompt, sequences)
    return maximum(0, kept - times * to_come)


def _follows_training_code(spec: ModelSpec, plan: Plan) -> bool:
    return (
        all(served_as_trained(b) for b in spec.blocks())
        and isinstance(plan.mesh.tp, int)
        and plan.mesh.tp == 1
    )


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """What a serving engineer asks: cache bytes a token and a sequence, and how many sequences fit at several
    lengths.

    ``kv_bytes_per_token`` and ``kv_bytes_per_sequence`` are those of one replica, over all its ranks, a copy
    on another rank not counted again; ``…_per_rank`` is what the fullest rank holds of a token, copies
    included.
    """
    assert plan.cache.kv_dtype is not None
    full, asked = plan.serving.max_model_len or 0, spec
    spec = with_draft(spec, plan)
    stages = [with_draft(stage_model(asked, plan, stage), plan) for stage in range(plan.mesh.pp)]
    found: dict[str, Any] = {
        "kv_bytes_per_token": bytes_per_token(spec, plan.cache.kv_dtype),
        "kv_bytes_per_token_per_rank": max(
            bytes_per_token(part, plan.cache.kv_dtype, plan.mesh.tp) for part in stages
        ),
        "kv_bytes_per_sequence": sum(_sequence_cache_bytes(spec, plan, full, tp=1).values()),
        "kv_tokens": 0,
        "pages": 0,
        "max_sequences": {},
    }
    if plan.speculative is not None:
        found["speculative"] = assistant_facts(asked, plan, tuple(sheets[-1].items))
    if cluster is None or plan.serving.phase == "load":
        return found
    lengths = sorted({*(n for n in LENGTHS if n <= (spec.max_positions or full)), full} - {0})
    rooms = [
        _sequences_by_length(part, plan, sheet, cluster, lengths)
        for part, sheet in zip(stages, sheets, strict=True)
    ]
    bound = (
        1 if plan.speculative is not None else MOST
    )  # transformers assists one sequence (generation/utils.py:4029)
    counts = {n: [count for room in rooms if (count := room[n]) is not None] for n in lengths}
    found["max_sequences"] = {str(n): min(bound, *held) for n, held in counts.items() if held}
    copies = 2 if hands_tuples(asked, plan.engine_version) else 1
    free = [
        (_free_card_bytes(sheet, cluster), bytes_per_token(part, plan.cache.kv_dtype, plan.mesh.tp))
        for part, sheet in zip(stages, sheets, strict=True)
    ]
    found["kv_tokens"] = min(
        (max(0, left // (copies * a_token)) for left, a_token in free if a_token), default=0
    )
    return found


def _sequence_cache_bytes(spec: ModelSpec, plan: Plan, tokens: int, *, tp: Count) -> dict[str, Count]:
    assert plan.cache.kv_dtype is not None
    memory = _memory_tokens(spec, _full_and_prompt_tokens(plan)[1])
    return cache_bytes(
        spec, plan.cache.kv_dtype, tokens, 1, states=plan.precision.compute, tp=tp, memory_tokens=memory
    )


def _sequences_by_length(
    part: ModelSpec, plan: Plan, sheet: Sheet, cluster: Cluster, lengths: list[int]
) -> dict[int, int | None]:
    """Sequences of each length that a stage's rank holds with what each one takes while decoding; None where
    it keeps nothing of them.
    """
    engine = find_engine(plan.engine)
    assert engine is not None
    working = sum(
        i.at[Instant.DECODE].value
        for i in sheet.items
        if i.component is Component.TEMPORARIES and Instant.DECODE in i.at
    )
    free, found = _free_card_bytes(sheet, cluster) + working, dict[int, int | None]()
    for n in lengths:
        cache = sum(_sequence_cache_bytes(part, plan, n, tp=plan.mesh.tp).values())
        if part.recording is not None:
            step = recorded_step_bytes(part, plan, n)
            found[n] = max(0, free // (cache + step)) if cache and step is not None else None
            continue
        kept, made = logits_bytes(part, plan, 1)
        last = _decode_step_bytes(part, plan, engine, n, 1) + _growth_bytes(part, plan, engine, n, 1)
        takes = cache + kept + maximum(last.value, made)
        found[n] = max(0, free // takes) if cache else None
    return found


def _free_card_bytes(sheet: Sheet, cluster: Cluster) -> int:
    """What a card has left for the cache while decoding."""
    used = (
        sheet.at(Instant.DECODE, without=()).value
        - sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value
    )
    return int(cluster.device.framework_bytes - used)
