"""What all layers share in a pass: rotary tables and masks."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.chosen_kernels import needs_mask
from memsheet.formulas.model_code.transformers.families import EXCHANGED, RING, family_traits, is_t5
from memsheet.formulas.model_code.transformers.language_stacks import (
    attention_mixers,
    has_pictures,
    language_blocks,
    language_stacks,
    reads_other_stack,
)
from memsheet.formulas.model_code.transformers.rotary_positions import lowers_tables
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.late import late_functions
from memsheet.plan.dtypes import BOOL, FP32
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import AttentionKind, Plan, RecomputeMode
from memsheet.plan.workload import PassShape
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.cross_attention import named_biases, saved_biases
    from memsheet.formulas.model_code.transformers.mixers import other_masks, other_tables
    from memsheet.formulas.model_code.transformers.picture_towers import kept_beside


TABLES_BY_KIND = frozenset({"gemma3_text", "gemma3", "olmo3"})
"""Families whose model makes rotary tables for windowed layers and for full ones (modeling_gemma3.py:549)."""


def shared_tables(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """What all layers share and keep for backward: rotary tables, which bucket a distance is in."""
    tables = [("model.rotary_emb", size) for size in _table_sizes(spec, shape, how, copied=False)]
    tables += [("model", size) for size in _lowered_tables(spec, plan, shape, how)]
    if has_pictures(spec):
        tables += kept_beside(spec, plan, how)
    saved = (
        saved_biases(spec, plan, shape, how)
        if reads_other_stack(spec) and not keeps_masks(spec, plan)
        else []
    )
    return BytesByPath.of(((Component.SAVED_ACTIVATIONS, path), size) for path, size in (*tables, *saved))


def _lowered_tables(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> list[Count]:
    """Bytes of fp32 rotary tables in the dtype that each layer is handed them in, a copy a layer; of those
    that a layer copies anew nothing stays, but what a checkpoint was called with.
    """
    called = plan.recompute.mode is RecomputeMode.FULL
    layers = [
        (at.rotary_dim, run.count)
        for stack in language_stacks(spec)
        for run in stack.runs
        for block in run.pattern
        for at in block.mixers
        if isinstance(at, Attention)
        and at.rotary_dim
        and lowers_tables(how, family_traits(block.kind))
        and (called or not family_traits(block.kind).own_tables)
    ]
    return [count * 2 * how.stream.nbytes(shape.tokens * width) for width, count in layers]


def _table_sizes(spec: ModelSpec, shape: PassShape, how: RunConfig, *, copied: bool) -> list[Count]:
    """Bytes of the model's rotary tables that layers compute with themselves, or of those that each layer
    copies.
    """
    kinds = {
        (
            at.rotary_dim // (2 if at.sinks else 1),
            kind in TABLES_BY_KIND and at.window is not None,
            FP32 if family_traits(kind).wide_tables else how.stream,
            family_traits(kind).tables_each or how.positions_each or bool({RING, EXCHANGED} & how.options),
        )
        for kind, at in attention_mixers(spec)
        if at.rotary_dim
        and (family_traits(kind).own_tables or lowers_tables(how, family_traits(kind))) is copied
        and not family_traits(kind).table_buffer
    }
    tables = [
        2 * dtype.nbytes((shape.sequences if each else 1) * shape.tokens * width)
        for width, _, dtype, each in sorted(kinds, key=lambda kind: kind[:2])
    ]
    return tables if copied else [*tables, *other_tables(language_blocks(spec), shape.tokens, how)]


def keeps_masks(spec: ModelSpec, plan: Plan) -> bool:
    """Whether checkpoints hold on to masks, which are arguments of layers and of attention, until they have
    run backward.
    """
    if _fills_masked_scores(spec) and not plan.offload.activations:
        return True
    attentions = {at.path.rpartition(".")[2] for _, at in attention_mixers(spec)}
    return plan.recompute.mode is RecomputeMode.FULL or bool(attentions & set(plan.recompute.modules))


def _fills_masked_scores(spec: ModelSpec) -> bool:
    """Whether scores are filled by a mask, which is saved for that."""
    return any(family_traits(kind).summed_bias for kind, _ in attention_mixers(spec))


def mask_and_rotary_bytes(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """What lives through the model's forward: a mask for each kind of attention, rotary tables that layers
    copy.

    A mask is of the compute dtype and for each sequence when eager, boolean and for all of them in sdpa.
    """
    keys = plan.past_tokens + shape.tokens
    if plan.attention is AttentionKind.EAGER:
        kinds = {
            None if family_traits(kind).own_window else at.window or at.chunk
            for kind, at in attention_mixers(spec)
            if at.causal
        } | other_masks(language_blocks(spec))
        kinds |= (
            {None, 0} if any(family_traits(kind).both_masks for kind, _ in attention_mixers(spec)) else set()
        )
        mask = (BOOL if _fills_masked_scores(spec) else how.stream).nbytes(
            shape.sequences * shape.tokens * keys
        )
    else:
        kinds, mask = (
            {
                at.window
                for kind, at in attention_mixers(spec)
                if not at.chunk and needs_mask(at, plan, shape, kind)
            },
            BOOL.nbytes(shape.tokens * keys),
        )
    component = (
        Component.SAVED_ACTIVATIONS if keeps_masks(spec, plan) else Component.TEMPORARIES
    )  # a checkpoint's argument
    lowered = any(lowers_tables(how, family_traits(kind)) for kind, _ in attention_mixers(spec))
    gone = lowered and keeps_masks(spec, plan)  # when forward is: checkpoints were handed copies
    tables = [
        ((component, "model.rotary_emb"), size)
        for size in _table_sizes(spec, shape, how, copied=True)
        if not gone
    ]
    named = (
        named_biases(spec, plan, shape, how, kept=keeps_masks(spec, plan)) if reads_other_stack(spec) else []
    )
    biases = [((component, "position_bias"), size) for size in named]
    chunked = any(
        at.chunk and needs_mask(at, plan, shape, kind) for kind, at in attention_mixers(spec)
    )  # one for each sequence
    tables += (
        [
            (
                (component, "model/chunked_mask"),
                BOOL.nbytes(shape.sequences * shape.tokens * shape.tokens),
            )
        ]
        if chunked
        else []
    )
    tables += [((component, "model/rotary_tables"), size) for size in _repeated_tables(spec, shape, how)]
    biases += [
        ((component, "model/linear_bias"), size) for size in _linear_bias_sizes(spec, shape, keys, how)
    ]
    return BytesByPath.of([*(((component, "model/causal_mask"), mask) for _ in kinds), *tables, *biases])


def _repeated_tables(spec: ModelSpec, shape: PassShape, how: RunConfig) -> list[Count]:
    """Bytes of the table of all positions that a layer repeats for each sequence before it takes rows of it
    (modeling_gptj.py:191, _get_embed_positions).
    """
    kinds = {
        at.rotary_dim
        for kind, at in attention_mixers(spec)
        if family_traits(kind).own_tables and family_traits(kind).table_buffer
    }
    times = shape.sequences if how.positions_each else 1
    return [FP32.nbytes(times * (spec.max_positions or shape.tokens) * width) for width in kinds]


def _linear_bias_sizes(spec: ModelSpec, shape: PassShape, keys: Count, how: RunConfig) -> list[Count]:
    """Bytes of what scores are biased by with distance: of every head, for each sequence, or in fp32 for all
    positions that there may be (modeling_bloom.py, build_alibi_tensor; modeling_mpt.py,
    build_mpt_alibi_tensor).
    """
    kinds = {
        (kind, at.heads)
        for kind, at in attention_mixers(spec)
        if at.position_bias and not is_t5(kind)  # whose biases are looked up by distance
    }
    return [
        FP32.nbytes(heads * (spec.max_positions or keys))
        if family_traits(kind).summed_bias
        else how.stream.nbytes(shape.sequences * heads * keys)
        for kind, heads in sorted(kinds)
    ]
