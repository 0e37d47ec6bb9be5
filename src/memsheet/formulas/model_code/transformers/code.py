"""The transformers library's model code (5.23): which kernels its blocks run, what its axes are, what its
layers share.

The blocks themselves are in ``blocks.py``, embeddings, head and loss in ``ends.py``, both operation by
operation.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.errors import Problem, input_error
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.transformers.attention import lowers_tables
from memsheet.formulas.model_code.transformers.blocks import decoder_block_forward, unmodelled_block_reason
from memsheet.formulas.model_code.transformers.cross_attention import (
    is_t5,
    let_go,
    looked_up_again,
    named_biases,
    saved_biases,
    t5_norm,
    two_stacks,
)
from memsheet.formulas.model_code.transformers.delta_chunks import chunk_options
from memsheet.formulas.model_code.transformers.encoders import pooler_weights, unmodelled_head
from memsheet.formulas.model_code.transformers.ends import (
    HEADS,
    head_output_loss,
    input_embeddings,
    logits_or_states,
    loss_input,
)
from memsheet.formulas.model_code.transformers.families import FusedQkvLayout, family_traits
from memsheet.formulas.model_code.transformers.first_qwen import spec_with_fused_qkv
from memsheet.formulas.model_code.transformers.losses import chunk_of
from memsheet.formulas.model_code.transformers.mixers import (
    kernel_notes,
    mixer_axes,
    other_masks,
    other_tables,
    sparse_problems,
    spec_with_fp32_stream,
)
from memsheet.formulas.model_code.transformers.picture_towers import (
    VISION,
    has_pictures,
    kept_beside,
    named_beside,
    of_tower,
    picture_problems,
    tower_axes,
    tower_numerics,
    with_pictures,
)
from memsheet.formulas.model_code.transformers.pictures import CLASSES, of_pictures, patch_values
from memsheet.formulas.numerics import AttentionKernel, RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.evaluate import with_products
from memsheet.plan.dtypes import BF16, BOOL, FP32, INT8
from memsheet.plan.engine_registry import MODELLED, engine_of, find_engine
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Moe,
    Stack,
)
from memsheet.plan.plan import AttentionKind, Loss, Plan, RecomputeMode
from memsheet.plan.torch_versions import softmax_keeps_input
from memsheet.plan.verified_families import NO_SDPA, OF_PICTURES, TP_TRAINED, VERIFIED
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import Component

FLASH_MAX_HEAD = 256
"""Largest head dim of the flash kernels (torch sdp_utils.cpp, check_head_dim_size_flash)."""
HEAD_ALIGNMENT = 8
BOTH = 2
"""Stacks of an encoder-decoder."""
TABLES_BY_KIND = frozenset({"gemma3_text", "gemma3", "olmo3"})
"""Families whose model makes rotary tables for windowed layers and for full ones (modeling_gemma3.py:549)."""


def block_numerics(block: Block, plan: Plan, how: RunConfig) -> RunConfig:
    """What depends on the block: the attention kernel its shapes and masks allow, padding of its heads."""
    if of_tower(block.kind):
        return tower_numerics(block, plan, how)
    how = replace(how, transposed=True) if family_traits(block.kind).transposed else how
    at = block.mixers[0]
    if isinstance(at, LinearAttention):
        return replace(how, options=chunk_options(plan.batch.seq_len))
    if isinstance(
        at, LatentAttention
    ):  # heads of two sizes: flash takes none, torch's memory-efficient kernel does (sdp_utils.cpp)
        if (
            plan.before_ampere
            and plan.attention is AttentionKind.SDPA
            and (how.autocast or how.parameters) is BF16
        ):
            why = (
                "has no kernel for bf16 before compute capability 8.0, and its plain operations are not "
                "modelled for latent attention"
            )
            raise input_error("attention", plan.attention.value, why, "--attention eager, or fp16")
        return (
            replace(how, attention=AttentionKernel.EFFICIENT) if plan.attention is AttentionKind.SDPA else how
        )
    if (
        not isinstance(at, Attention) or how.attention is AttentionKernel.EAGER
    ):  # the others copy as eager attention does, by sequences
        return replace(how, attention=AttentionKernel.EAGER, stream=FP32 if block.wide_input else how.stream)
    compute = how.autocast or how.parameters
    if (
        how.processor
    ):  # its kernel takes every dtype and drops nothing (sdp_utils_cpp.cpp, use_flash_attention_cpp)
        if is_t5(block.kind):
            why = (
                "has no kernel on a processor that makes a gradient of a bias, and its plain operations "
                "are not modelled"
            )
            raise input_error(
                "attention", plan.attention.value, why, "eager; `memsheet trace --device cpu` runs it"
            )
        own = family_traits(block.kind)
        plain = (how.dropout and own.drops_scores) or (
            own.always_masked and _has_grouped_kv_heads(at, block.kind)
        )
        kernel = AttentionKernel.MATH if plain else AttentionKernel.PROCESSOR
        return replace(how, attention=kernel, mask=_needs_mask(at, plan, block.kind))
    if plan.before_ampere and compute is BF16:  # sdp_utils.cpp, less_than_sm80_mem_efficient_dtypes
        return replace(how, attention=AttentionKernel.MATH, mask=_needs_mask(at, plan, block.kind))
    if compute is FP32 or plan.before_ampere:  # check_flash_attention_hardware_support
        return replace(
            how,
            attention=AttentionKernel.MATH
            if _has_grouped_kv_heads(at, block.kind) and not _needs_mask(at, plan, block.kind)
            else AttentionKernel.EFFICIENT,
            mask=_needs_mask(at, plan, block.kind),
        )
    if _needs_mask(at, plan, block.kind):
        unrepeated = _has_grouped_kv_heads(at, block.kind) and family_traits(block.kind).always_masked
        return replace(
            how, attention=AttentionKernel.MATH if unrepeated else AttentionKernel.EFFICIENT, mask=True
        )
    short = at.head_dim % HEAD_ALIGNMENT
    return replace(how, padded_head=at.head_dim + HEAD_ALIGNMENT - short) if short else how


def _has_grouped_kv_heads(at: Attention, kind: str) -> bool:
    """Whether queries come with fewer heads of keys, which falcon repeats by itself where there are
    several.
    """
    return at.heads != at.kv_heads and (
        family_traits(kind).joint is not FusedQkvLayout.PICKED or at.kv_heads == 1
    )


def _needs_mask(at: Attention, plan: Plan, kind: str) -> bool:
    """A window that the sequence fills is a mask in sdpa (transformers 5.23, masking_utils.py:302); the
    flash-attn package takes it as a number.
    """
    if plan.attention is AttentionKind.SDPA and family_traits(kind).always_masked:
        return True
    span = at.window or at.chunk
    return plan.attention is AttentionKind.SDPA and span is not None and agreed(span <= plan.batch.seq_len)


def transformers_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Everything of a model whose activations are not accounted yet."""
    hint = (
        "its states and cache are known: --parameters N for states alone, or `memsheet infer`; the "
        "trace will run its real code"
    )
    found = [
        Problem(
            field="model",
            value=spec.name,
            reason=f"the activations of {block.kind} blocks are not modelled: {why}",
            hint=hint,
        )
        for block in _language_blocks(spec)
        if (why := _unmodelled_kind_reason(block, plan))
    ]
    if of_pictures(spec.embeddings) and not agreed(plan.batch.seq_len == spec.max_positions):
        reason = f"is not what a picture is here: {spec.max_positions} patches and class tokens"
        found.append(
            Problem(
                field="seq_len",
                value=plan.batch.seq_len,
                reason=reason,
                hint=f"--seq-len {spec.max_positions}",
            )
        )
    if spec.towers and not engine_of(plan).trains_towers:
        others = _engines_that("trains_towers")
        reason = (
            "training a model with a vision tower is not modelled for it; modelled for "
            f"{' and '.join(others)}"
        )
        found.append(Problem(field="engine", value=plan.engine, reason=reason, hint=f"--engine {others[0]}"))
    if why := unmodelled_head(
        spec.head, {block.feed_forward.activation for block in _language_blocks(spec) if block.feed_forward}
    ):
        found.append(
            Problem(field="model", value=spec.name, reason=f"its head is not modelled: {why}", hint=hint)
        )
    if (spec.head.kind not in HEADS and spec.head.kind != "none") or (
        len(_language_stacks(spec)) != 1 and spec.head.kind != "sequence_to_sequence"
    ):
        found.append(
            Problem(
                field="model",
                value=spec.name,
                reason=f"training a {spec.head.kind} model is not modelled yet",
                hint=hint,
            )
        )
    return [
        *found,
        *picture_problems(spec, plan),
        *_other_heads(spec, plan),
        *_recompute_module_problems(spec, plan),
        *_moved_activations(plan),
        *_int8_rows(plan),
        *_tensor_parallel(spec, plan),
        *_idle_dropout(spec, plan),
        *sparse_problems(spec, plan),
    ]


def has_written_layers(spec: ModelSpec) -> bool:
    """Whether every kind of layer that a model trains, and its head, are written down here and were compared
    with the real code.
    """
    compared = {**VERIFIED, **OF_PICTURES}
    return all(
        is_t5(block.kind) or (unmodelled_block_reason(block) is None and block.kind in compared)
        for block in _language_blocks(spec)
    ) and (spec.head.kind in HEADS or spec.head.kind == "none")


def _engines_that(fact: str) -> list[str]:
    """Names of the engines that have a fact."""
    return [name for name in MODELLED if getattr(find_engine(name), fact)]


def _other_heads(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What a model that is not one row of layers with words at its end was not compared with its real code
    for.
    """
    if spec.head.kind not in ("masked_lm", "classification", "sequence_to_sequence", CLASSES):
        return []
    runs, again = "`memsheet trace` runs it", plan.recompute
    whole = again.mode is not RecomputeMode.SELECTIVE and not again.stretched and again.layers is None
    reasons = [
        ("engine", plan.engine, f"training a {spec.head.kind} model was not compared with its real code", not engine_of(plan).trains_other_heads, None),
        ("loss", plan.loss.value, "takes the logits of a causal model", plan.loss is not Loss.PLAIN, "plain"),
        ("recompute.mode", again.mode.value, "of some layers or modules is not modelled over two stacks", _two_stacks(spec) and not whole, runs),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint or _engines_that("trains_other_heads")[0])
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _recompute_module_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Modules that are recomputed and have no part of their own in a block's recording."""
    blocks = spec.blocks()
    paths = [norm.path for block in blocks for norm in block.norms]
    paths += [
        part.path
        for block in blocks
        for part in (block.feed_forward, *block.mixers)
        if isinstance(part, Dense | Attention)
    ]
    known = sorted({path.rpartition(".")[2] for path in paths if path})
    hint = f"modelled: {', '.join(known)}; `memsheet trace` runs any"
    unknown = [name for name in plan.recompute.modules if name not in known]
    return [
        Problem(field="recompute.modules", value=name, reason="is not modelled by itself", hint=hint)
        for name in unknown
    ]


def _moved_activations(plan: Plan) -> list[Problem]:
    """Hooks on what is saved see gathered parameters too, where those are made anew for every layer; a
    recomputed layer saves none.
    """
    if (
        not plan.offload.activations
        or engine_of(plan).offloads_unrecomputed
        or plan.recompute.mode is RecomputeMode.FULL
    ):
        return []
    why = (
        f"is modelled of recomputed layers alone for {plan.engine}: gathered parameters would be moved "
        "with them"
    )
    return [Problem(field="offload.activations", value=True, reason=why, hint="add --recompute full")]


def _int8_rows(plan: Plan) -> list[Problem]:
    """What is not modelled over LLM.int8(), whose layers hold their input past every checkpoint
    (``formulas/int8.py``).
    """
    if plan.quantization is None or plan.quantization.weights is not INT8:
        return []
    again, over = plan.recompute, "is not modelled over int8 weights"
    nested = again.mode is RecomputeMode.SELECTIVE or again.stretched
    reasons = [
        (
            "recompute",
            again.mode.value,
            f"of some modules or several layers together {over}",
            nested,
            "--recompute full or none",
        ),
        ("offload.activations", True, over, plan.offload.activations, "leave it out"),
        ("mesh.tp", plan.mesh.tp, over, agreed(plan.mesh.tp > 1), "without tp"),
    ]
    return [
        Problem(field=field, value=value, reason=reason, hint=hint or _engines_that("trains_other_heads")[0])
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _tensor_parallel(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What training over tensor-parallel ranks was not compared with its real code for."""
    degree = plan.mesh.tp
    if not agreed(degree > 1):
        return []
    blocks = spec.blocks()
    kinds = {block.kind for block in blocks} - TP_TRAINED
    heads = {m.kv_heads for block in blocks for m in block.mixers if isinstance(m, Attention)}
    runs, alone = "`memsheet trace` runs it", "without tp"
    reasons = [
        (f"training {', '.join(sorted(kinds))} was not compared with its real code", bool(kinds), runs),
        (
            "a tied table has one part of its rows for the embedding and another for the head",
            spec.head.tied,
            runs,
        ),
        ("adapters are not modelled over its ranks", plan.adapter is not None, alone),
        (f"a {plan.loss.value} loss is not modelled over its ranks", plan.loss is not Loss.PLAIN, alone),
        (
            "states on the host are not modelled over its ranks",
            bool(plan.offload.parameters or plan.offload.optimizer),
            runs,
        ),
        (
            f"does not divide {min(heads, default=0)} heads of keys and values",
            any(agreed(count % degree != 0) for count in heads),
            "a divisor",
        ),
    ]
    return [
        Problem(field="mesh.tp", value=degree, reason=reason, hint=hint)
        for reason, holds, hint in reasons
        if holds
    ]


def _idle_dropout(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Dropout keeps bytes where the family drops hidden states, and where attention's probabilities exist to
    be dropped.
    """
    kinds = sorted({block.kind for block in spec.blocks()})
    if plan.dropout and any(family_traits(kind).summed_bias for kind in kinds):
        reason = f"is no whole number, and the library's config of {', '.join(kinds)} takes none other"
        return [Problem(field="dropout", value=plan.dropout, reason=reason, hint="leave it out")]
    eager = plan.attention is AttentionKind.EAGER
    if (
        not plan.dropout
        or eager
        or spec.embeddings.dropout
        or any(family_traits(kind).branch_dropout or family_traits(kind).summed_in_place for kind in kinds)
    ):
        return []
    reason = (
        f"keeps nothing: {', '.join(kinds)} drops no hidden states, and {plan.attention.value} "
        "attention drops inside its kernel"
    )
    return [
        Problem(field="dropout", value=plan.dropout, reason=reason, hint="leave it out, or --attention eager")
    ]


def _unmodelled_kind_reason(block: Block, plan: Plan) -> str | None:
    if is_t5(block.kind):
        known = plan.attention in (AttentionKind.EAGER, AttentionKind.SDPA)
        return (
            None
            if known
            else f"{plan.attention.value} attention takes no bias of positions; give --attention sdpa"
        )
    if why := unmodelled_block_reason(block):
        return why
    if block.kind in NO_SDPA and plan.attention is AttentionKind.SDPA:
        return "transformers has no sdpa for them; give --attention eager"
    if plan.attention not in {**VERIFIED, **OF_PICTURES}.get(block.kind, ()):
        return (
            f"they were not compared with their real code under {plan.attention.value} attention; "
            "`memsheet trace` runs it"
        )
    own, at = family_traits(block.kind), block.mixers[0]
    if own.summed_in_place and block.arrangement is Arrangement.PRE:
        return (
            "their branches follow one another, which was not compared with the real code; `memsheet "
            "trace` runs it"
        )
    broadcast = isinstance(at, Attention) and own.always_masked and _has_grouped_kv_heads(at, block.kind)
    if (
        broadcast
        and plan.attention is AttentionKind.SDPA
        and engine_of(plan).autocast
        and engine_of(plan).layers is None
        and plan.precision.casts
    ):
        return (
            "torch has no kernel for one head of keys under a mask, and its plain operations under "
            "autocast were not compared; "
            "`memsheet trace` runs them, and --attention eager is modelled"
        )
    if (
        isinstance(at, Attention)
        and at.head_dim > FLASH_MAX_HEAD
        and plan.attention is not AttentionKind.EAGER
    ):
        return f"head dim {at.head_dim} exceeds the {FLASH_MAX_HEAD} of flash kernels; give --attention eager"
    return None


@formula(
    cites=TRANSFORMERS,
    at="modeling files: shapes of a layer's tensors; heads and widths divided over tensor-parallel ranks",
)
def block_axes(block: Block, plan: Plan) -> dict[str, Count]:
    """Values of the axes that a dense block's tensors are named by."""
    if of_tower(block.kind):
        return tower_axes(block, plan)
    at, ff = block.mixers[0], block.feed_forward
    experts = (
        {"e": ff.experts, "t": ff.experts_per_token, "i": ff.intermediate, "2·i": 2 * ff.intermediate}
        if isinstance(ff, Moe)
        else {}
    )
    through = ff.shared if isinstance(ff, Moe) else ff
    width = through.intermediate if through else 0
    return with_products({
        **experts, **(_attention_axes(at, plan) if isinstance(at, Attention) else mixer_axes(at, plan.batch.seq_len)),
        "b": plan.batch.microbatch, "s": plan.batch.seq_len, "h": block.hidden, "f": ceil_div(width, plan.mesh.tp),
        "r": plan.adapter.rank if plan.adapter else 0, "s32": -(-plan.batch.seq_len // 32) * 32,
    })  # fmt: skip


def _attention_axes(at: Attention, plan: Plan) -> dict[str, Count]:
    return {
        "a": ceil_div(at.heads, plan.mesh.tp),
        "2·a·d": 2 * ceil_div(at.heads, plan.mesh.tp) * at.head_dim,
        "k": maximum(1, ceil_div(at.kv_heads, plan.mesh.tp)),
        "d": at.head_dim,
        "s+1": plan.batch.seq_len + 1,
    }


def on_rank(block: Block, plan: Plan) -> Block:
    """A block as its code sees it on a tensor-parallel rank: one head of keys and values is a special
    case.
    """
    if of_tower(block.kind):
        return block
    at = block.mixers[0]
    if (
        len(block.mixers) > 1
        or not isinstance(at, Attention)
        or at.heads == at.kv_heads
        or not agreed(plan.mesh.tp >= at.kv_heads)
    ):
        return block
    return replace(block, mixers=(replace(at, kv_heads=1),))


def end_axes(spec: ModelSpec, plan: Plan) -> dict[str, Count]:
    tokens = plan.batch.microbatch * plan.batch.seq_len
    return {
        "b": plan.batch.microbatch, "s": plan.batch.seq_len, "h": spec.hidden, "V": ceil_div(spec.vocab, plan.mesh.tp), "V0": spec.vocab,
        "n": spec.head.width, "s-1": plan.batch.seq_len - 1, "p": patch_values(spec.embeddings) if of_pictures(spec.embeddings) else 0, "c": chunk_of(plan.loss, tokens, spec.hidden, spec.vocab),
    }  # fmt: skip


def shared_tables(spec: ModelSpec, plan: Plan, how: RunConfig) -> BytesByPath:
    """What all layers share and keep for backward: rotary tables, which bucket a distance is in."""
    tables = [("model.rotary_emb", size) for size in _table_sizes(spec, plan, how, copied=False)]
    tables += [("model", size) for size in _lowered_tables(spec, plan, how)]
    tables += kept_beside(spec, plan, how)
    saved = saved_biases(spec, plan, how) if _two_stacks(spec) and not keeps_masks(spec, plan) else []
    return BytesByPath.of(((Component.SAVED_ACTIVATIONS, path), size) for path, size in (*tables, *saved))


def _lowered_tables(spec: ModelSpec, plan: Plan, how: RunConfig) -> list[Count]:
    """Bytes of fp32 rotary tables in the dtype that each layer is handed them in, a copy a layer; of those
    that a layer copies anew nothing stays, but what a checkpoint was called with.
    """
    called = plan.recompute.mode is RecomputeMode.FULL
    layers = [
        (at.rotary_dim, run.count)
        for stack in _language_stacks(spec)
        for run in stack.runs
        for block in run.pattern
        for at in block.mixers
        if isinstance(at, Attention)
        and at.rotary_dim
        and lowers_tables(how, family_traits(block.kind))
        and (called or not family_traits(block.kind).own_tables)
    ]
    return [count * 2 * how.stream.nbytes(plan.batch.seq_len * width) for width, count in layers]


def _two_stacks(spec: ModelSpec) -> bool:
    return any(is_t5(block.kind) for block in _language_blocks(spec))


def _table_sizes(spec: ModelSpec, plan: Plan, how: RunConfig, *, copied: bool) -> list[Count]:
    """Bytes of the model's rotary tables that layers compute with themselves, or of those that each layer
    copies.
    """
    kinds = {
        (
            at.rotary_dim // (2 if at.sinks else 1),
            kind in TABLES_BY_KIND and at.window is not None,
            FP32 if family_traits(kind).wide_tables else how.stream,
            family_traits(kind).tables_each,
        )
        for kind, at in _attention_mixers(spec)
        if at.rotary_dim
        and (family_traits(kind).own_tables or lowers_tables(how, family_traits(kind))) is copied
        and not family_traits(kind).table_buffer
    }
    tables = [
        2 * dtype.nbytes((plan.batch.microbatch if each else 1) * plan.batch.seq_len * width)
        for width, _, dtype, each in sorted(kinds, key=lambda kind: kind[:2])
    ]
    return tables if copied else [*tables, *other_tables(_language_blocks(spec), plan.batch.seq_len, how)]


def transformers_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with a pooler as a part of the head that takes what it makes, and with projections joined as
    the plan names them.
    """
    spec = spec_with_fused_qkv(spec, plan)
    spec = spec_with_fp32_stream(spec)
    if (
        plan.task == "train"
        and spec.model_type in VISION
        and spec.towers
        and agreed(plan.batch.image_tokens > 0)
    ):
        spec = with_pictures(spec, plan)
    if (
        plan.task == "train"
        and of_pictures(spec.embeddings)
        and spec.head.kind == "classification"
        and spec.head.weights
    ):
        return replace(spec, head=replace(spec.head, kind=CLASSES))
    own = pooler_weights(spec.extras, spec.head)
    if own:
        return replace(spec, extras=(), head=replace(spec.head, weights=(*own, *spec.head.weights)))
    trained = plan.task == "train" and spec.head.kind == "sequence_to_sequence" and len(spec.stacks) == BOTH
    return two_stacks(t5_norm(spec)) if trained else spec


def _language_blocks(spec: ModelSpec) -> list[Block]:
    """Those of the model itself; a tower's are accounted beside them."""
    return [block for stack in _language_stacks(spec) for run in stack.runs for block in run.pattern]


def _language_stacks(spec: ModelSpec) -> list[Stack]:
    """The stacks that are no part of a tower."""
    return (
        [stack for stack in spec.stacks if not of_tower(stack.runs[0].pattern[0].kind)]
        if has_pictures(spec)
        else list(spec.stacks)
    )


def _attention_mixers(spec: ModelSpec) -> list[tuple[str, Attention]]:
    return [
        (block.kind, m) for block in _language_blocks(spec) for m in block.mixers if isinstance(m, Attention)
    ]


def keeps_masks(spec: ModelSpec, plan: Plan) -> bool:
    """Whether checkpoints hold on to masks, which are arguments of layers and of attention, until they have
    run backward.
    """
    if _fills_masked_scores(spec) and not plan.offload.activations:
        return True
    attentions = {at.path.rpartition(".")[2] for _, at in _attention_mixers(spec)}
    return plan.recompute.mode is RecomputeMode.FULL or bool(attentions & set(plan.recompute.modules))


def _fills_masked_scores(spec: ModelSpec) -> bool:
    """Whether scores are filled by a mask, which is saved for that."""
    return any(family_traits(kind).summed_bias for kind, _ in _attention_mixers(spec))


def mask_and_rotary_bytes(spec: ModelSpec, plan: Plan, how: RunConfig) -> BytesByPath:
    """What lives through the model's forward: a mask for each kind of attention, rotary tables that layers
    copy.

    A mask is of the compute dtype and for each sequence when eager, boolean and for all of them in sdpa.
    """
    if plan.attention is AttentionKind.EAGER:
        kinds = {
            None if family_traits(kind).own_window else at.window or at.chunk
            for kind, at in _attention_mixers(spec)
            if at.causal
        } | other_masks(_language_blocks(spec))
        mask = (BOOL if _fills_masked_scores(spec) else how.stream).nbytes(
            plan.batch.microbatch * plan.batch.seq_len * plan.batch.seq_len
        )
    else:
        kinds, mask = (
            {
                at.window
                for kind, at in _attention_mixers(spec)
                if not at.chunk and _needs_mask(at, plan, kind)
            },
            BOOL.nbytes(plan.batch.seq_len * plan.batch.seq_len),
        )
    component = (
        Component.SAVED_ACTIVATIONS if keeps_masks(spec, plan) else Component.TEMPORARIES
    )  # a checkpoint's argument
    lowered = any(lowers_tables(how, family_traits(kind)) for kind, _ in _attention_mixers(spec))
    gone = lowered and keeps_masks(spec, plan)  # when forward is: checkpoints were handed copies
    tables = [
        ((component, "model.rotary_emb"), size)
        for size in _table_sizes(spec, plan, how, copied=True)
        if not gone
    ]
    named = named_biases(spec, plan, how, kept=keeps_masks(spec, plan)) if _two_stacks(spec) else []
    biases = [((component, "position_bias"), size) for size in named]
    chunked = any(
        at.chunk and _needs_mask(at, plan, kind) for kind, at in _attention_mixers(spec)
    )  # one for each sequence
    tables += (
        [
            (
                (component, "model/chunked_mask"),
                BOOL.nbytes(plan.batch.microbatch * plan.batch.seq_len * plan.batch.seq_len),
            )
        ]
        if chunked
        else []
    )
    return BytesByPath.of([*(((component, "model/causal_mask"), mask) for _ in kinds), *tables, *biases])


def positions_each(spec: ModelSpec) -> bool:
    """Whether learned positions are looked up for each sequence."""
    return any(family_traits(kind).positions_each for kind, _ in _attention_mixers(spec))


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """What an older torch kept besides, and whether peft asks embeddings for a gradient
    (enable_input_require_grads).
    """
    asks = plan.adapter is not None and plan.recompute.mode is RecomputeMode.FULL
    return replace(
        how,
        keeps_scores=softmax_keeps_input(plan.engine_version),
        asks_grad=asks,
        handed_low=_hands_on_low(plan),
    )


def _hands_on_low(plan: Plan) -> bool:
    """Whether every layer's arguments are cast to a lower dtype before it runs."""
    engine = engine_of(plan)
    return engine.sharding.casts_arguments and plan.precision.compute is not FP32 and not engine.autocast


CODE = ModelCode(
    built=transformers_spec, notes=kernel_notes, beside=named_beside, let_go=let_go, made_again=looked_up_again, plan_numerics=plan_numerics,
    forward=decoder_block_forward, embed=input_embeddings, head=logits_or_states, loss=head_output_loss, loss_input=loss_input, problems=transformers_problems, block_numerics=block_numerics,
    axes=block_axes, end_axes=end_axes, on_rank=on_rank, shared=shared_tables, masks=mask_and_rotary_bytes, keeps_masks=keeps_masks, positions_each=positions_each, any_kernel=True,
)  # fmt: skip
