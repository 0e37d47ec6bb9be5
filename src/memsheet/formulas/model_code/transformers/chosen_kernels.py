"""Which attention kernel a block runs: what its shapes, its masks and the card allow."""

from __future__ import annotations

from memsheet.arith import agreed
from memsheet.errors import input_error
from memsheet.formulas.model_code.transformers.families import FusedQkvLayout, family_traits, is_t5, of_tower
from memsheet.formulas.numerics import AttentionKernel, RunConfig
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.model import Attention, Block, LatentAttention, LinearAttention
from memsheet.plan.plan import AttentionKind, ContextParallel, Plan
from memsheet.plan.workload import PassShape

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.delta_chunks import chunk_options
    from memsheet.formulas.model_code.transformers.picture_towers import tower_numerics
    from memsheet.formulas.model_code.transformers.ulysses import exchange_options


HEAD_ALIGNMENT = 8


def block_numerics(block: Block, plan: Plan, shape: PassShape, how: RunConfig) -> RunConfig:
    """What depends on the block: the attention kernel its shapes and masks allow, padding of its heads."""
    if of_tower(block.kind):
        return tower_numerics(block, plan, how)
    how = replace(how, transposed=True) if family_traits(block.kind).transposed else how
    at = block.mixers[0]
    if plan.context_parallel is ContextParallel.ALL_TO_ALL and isinstance(at, Attention):
        return replace(how, options=how.options | exchange_options(at, plan), by_sequences=True)
    if isinstance(at, LinearAttention):
        return replace(how, options=chunk_options(shape.tokens))
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
    if plan.attention is AttentionKind.XFORMERS:
        # torch's kernel is what it calls: queries, keys, values, output and statistics are saved, and windows
        # are numbers (facebookresearch/xformers ce4f89d5 xformers/ops/fmha/cutlass.py:165,
        # 272-307; __init__.py:105-111)
        return replace(how, attention=AttentionKernel.EFFICIENT)
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
            own.always_masked and has_grouped_kv_heads(at, block.kind)
        )
        kernel = AttentionKernel.MATH if plain else AttentionKernel.PROCESSOR
        return replace(how, attention=kernel, mask=needs_mask(at, plan, shape, block.kind))
    if plan.before_ampere and compute is BF16:  # sdp_utils.cpp, less_than_sm80_mem_efficient_dtypes
        return replace(how, attention=AttentionKernel.MATH, mask=needs_mask(at, plan, shape, block.kind))
    masked = needs_mask(at, plan, shape, block.kind)
    unrepeated = has_grouped_kv_heads(at, block.kind) and (
        not masked or family_traits(block.kind).always_masked
    )
    if compute is FP32 or plan.before_ampere:  # check_flash_attention_hardware_support
        kernel = AttentionKernel.MATH if unrepeated else AttentionKernel.EFFICIENT
        return replace(how, attention=kernel, mask=masked)
    if masked:
        return replace(
            how, attention=AttentionKernel.MATH if unrepeated else AttentionKernel.EFFICIENT, mask=True
        )
    short = at.head_dim % HEAD_ALIGNMENT
    return replace(how, padded_head=at.head_dim + HEAD_ALIGNMENT - short) if short else how


BIAS_ALIGNMENT = 8
"""Elements that a row of a bias is padded to (torch 2.13 aten native/transformers/attention.cpp,
preprocess_mask).
"""


def has_grouped_kv_heads(at: Attention, kind: str) -> bool:
    """Whether queries come with fewer heads of keys, which falcon repeats by itself where there are
    several.
    """
    return at.heads != at.kv_heads and (
        family_traits(kind).joint is not FusedQkvLayout.PICKED or at.kv_heads == 1
    )


def needs_mask(at: Attention, plan: Plan, shape: PassShape, kind: str) -> bool:
    """A window that the sequence fills is a mask in sdpa (transformers 5.23, masking_utils.py:302); the
    flash-attn package takes it as a number. So are keys that are more than the queries (the same file,
    304-308).
    """
    if plan.attention is AttentionKind.SDPA and (family_traits(kind).always_masked or plan.past_tokens):
        return True
    if is_t5(kind):  # a bias, which is there anyway: whether its rows are padded
        return plan.attention is AttentionKind.SDPA and agreed(shape.tokens % BIAS_ALIGNMENT != 0)
    span = at.window or at.chunk
    return plan.attention is AttentionKind.SDPA and span is not None and agreed(span <= shape.tokens)
