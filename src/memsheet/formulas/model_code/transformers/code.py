"""The transformers library's model code (5.23): its parts in one table, and what its axes are.

``blocks.py``          its blocks, operation by operation
``ends.py``            embeddings, head and loss, likewise
``chosen_kernels.py``  which attention kernel a block runs
``shared_tables.py``   what all layers share: rotary tables and masks
``plan_problems.py``   what was not compared with the real code
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.formulas.model_code import ModelCode, nothing_beside, nothing_let_go, nothing_shared
from memsheet.formulas.model_code.transformers.families import CLASSES, VISION, family_traits, of_tower
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.model import Attention, Block, ModelSpec, Moe
from memsheet.plan.plan import Plan
from memsheet.plan.real_step import asks_embeddings
from memsheet.plan.workload import PassShape, Training
from memsheet.references import TRANSFORMERS, formula

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.blocks import decoder_block_forward
    from memsheet.formulas.model_code.transformers.chosen_kernels import block_numerics
    from memsheet.formulas.model_code.transformers.cross_attention import (
        let_go,
        looked_up_again,
        t5_norm,
        two_stacks,
    )
    from memsheet.formulas.model_code.transformers.encoders import pooler_weights
    from memsheet.formulas.model_code.transformers.ends import (
        head_output_loss,
        input_embeddings,
        logits_or_states,
        loss_input,
    )
    from memsheet.formulas.model_code.transformers.experts import expert_options
    from memsheet.formulas.model_code.transformers.first_qwen import spec_with_fused_qkv
    from memsheet.formulas.model_code.transformers.losses import chunk_of
    from memsheet.formulas.model_code.transformers.mixers import (
        kernel_notes,
        mixer_axes,
        spec_with_fp32_stream,
        weights_of_units_inside,
    )
    from memsheet.formulas.model_code.transformers.picture_towers import (
        named_beside,
        tower_axes,
        with_pictures,
    )
    from memsheet.formulas.model_code.transformers.pictures import of_pictures, patch_values
    from memsheet.formulas.model_code.transformers.plan_problems import transformers_problems
    from memsheet.formulas.model_code.transformers.pooled import pools_states, with_pooled_head
    from memsheet.formulas.model_code.transformers.prefixes import prefix_axes, spec_with_prefix
    from memsheet.formulas.model_code.transformers.prompts import (
        named_by_wrapper,
        prompt_axes,
        spec_with_norms,
        spec_with_prompts,
        spec_with_shared_matrices,
    )
    from memsheet.formulas.model_code.transformers.ring import part_of_rank, ring_options
    from memsheet.formulas.model_code.transformers.shared_tables import (
        keeps_masks,
        mask_and_rotary_bytes,
        shared_tables,
    )
    from memsheet.formulas.packed_linear import awq_axes
    from memsheet.formulas.tapes.evaluate import with_products

if TYPE_CHECKING:
    from memsheet.formulas.model_code.shared_tables import LetGo
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.bytes_by_path import BytesByPath
    from memsheet.formulas.tapes.evaluate import Beside
with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.language_stacks import attention_mixers, has_pictures
    from memsheet.formulas.numerics import casts_arguments
    from memsheet.plan.torch_versions import softmax_keeps_input


BOTH = 2
"""Stacks of an encoder-decoder."""


@formula(
    cites=TRANSFORMERS,
    at="modeling files: shapes of a layer's tensors; heads and widths divided over tensor-parallel ranks",
)
def block_axes(block: Block, plan: Plan, shape: PassShape) -> dict[str, Count]:
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
        **experts, **(_attention_axes(at, plan, shape) if isinstance(at, Attention) else mixer_axes(at, shape.tokens)),
        "b": shape.sequences, "s": shape.tokens, "h": block.hidden, "f": ceil_div(width, plan.mesh.tp),
        "r": plan.adapter.rank if plan.adapter else 0, "s32": -(-shape.tokens // 32) * 32, "s8": -(-shape.tokens // 8) * 8,
        **awq_axes(shape.sequences * shape.tokens),
    })  # fmt: skip


def _attention_axes(at: Attention, plan: Plan, shape: PassShape) -> dict[str, Count]:
    return {
        "a": ceil_div(at.heads, plan.mesh.tp),
        "2·a·d": 2 * ceil_div(at.heads, plan.mesh.tp) * at.head_dim,
        "k": maximum(1, ceil_div(at.kv_heads, plan.mesh.tp)),
        "d": at.head_dim,
        "s+1": shape.tokens + 1,
        "prefix": plan.past_tokens,
        "cp": plan.mesh.cp,
        "k+": maximum(at.kv_heads, plan.mesh.cp),
        "p+s": plan.past_tokens + shape.tokens,
        "p+s8": -(-(plan.past_tokens + shape.tokens) // 8) * 8,
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


def end_axes(spec: ModelSpec, plan: Plan, shape: PassShape) -> dict[str, Count]:
    tokens = shape.sequences * shape.tokens
    return {
        "b": shape.sequences, "s": shape.tokens, **prompt_axes(plan, shape), **prefix_axes(spec, plan), "h": spec.hidden, "V": ceil_div(spec.vocab, plan.mesh.tp), "V0": spec.vocab,
        "n": spec.head.width, "r": plan.adapter.rank if plan.adapter else 0, "s-1": shape.tokens - 1, "p": patch_values(spec.embeddings) if of_pictures(spec.embeddings) else 0, "c": chunk_of(plan.loss, tokens, spec.hidden, spec.vocab),
    }  # fmt: skip


def transformers_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with a pooler as a part of the head that takes what it makes, and with projections joined as
    the plan names them.
    """
    if plan.adapter is not None or spec.source.own_code:
        spec = spec_with_fused_qkv(spec, plan)
    if plan.virtual_tokens:
        spec = spec_with_prompts(spec, plan)
    if plan.adapter is not None:
        spec = spec_with_norms(spec_with_prefix(spec_with_shared_matrices(spec, plan), plan), plan)
    if any(block.wide_residual for block in spec.blocks()):
        spec = spec_with_fp32_stream(spec)
    job = plan.workload if isinstance(plan.workload, Training) else None
    if job and spec.model_type in VISION and spec.towers and agreed(job.image_tokens > 0):
        spec = with_pictures(spec, plan)
    if job and of_pictures(spec.embeddings) and spec.head.kind == "classification" and spec.head.weights:
        return replace(spec, head=replace(spec.head, kind=CLASSES))
    own = pooler_weights(spec.extras, spec.head) if spec.extras else ()
    if own:
        return replace(spec, extras=(), head=replace(spec.head, weights=(*own, *spec.head.weights)))
    if job and pools_states(spec) and agreed(plan.mesh.pp == 1):
        return with_pooled_head(spec)
    trained_pair = job and spec.head.kind == "sequence_to_sequence" and len(spec.stacks) == BOTH
    return two_stacks(t5_norm(spec)) if trained_pair else spec


def positions_each(spec: ModelSpec) -> bool:
    """Whether learned positions are looked up for each sequence."""
    return any(family_traits(kind).positions_each for kind, _ in attention_mixers(spec))


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """What an older torch kept besides, and whether peft asks embeddings for a gradient
    (enable_input_require_grads).
    """
    options = how.options
    if plan.context_parallel is not None:
        options |= ring_options(plan)
    if plan.quantization is not None:
        options |= expert_options(plan)
    return replace(
        how,
        options=options,
        keeps_scores=softmax_keeps_input(plan.engine_version),
        asks_grad=asks_embeddings(plan),
        handed_low=casts_arguments(plan),
    )


def _part_of_rank(plan: Plan) -> Plan:
    return plan if plan.context_parallel is None else part_of_rank(plan)


def _named_by_wrapper(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    return named_by_wrapper(spec, plan, shape, how) if plan.virtual_tokens else nothing_shared()


def _named_beside(spec: ModelSpec, plan: Plan, how: RunConfig) -> Beside:
    return named_beside(spec, plan, how) if has_pictures(spec) else nothing_beside()


def _let_go(spec: ModelSpec, plan: Plan, how: RunConfig) -> LetGo:
    return let_go(spec, plan, how) if len(spec.stacks) >= BOTH else nothing_let_go()


def _looked_up_again(spec: ModelSpec, plan: Plan, how: RunConfig) -> BytesByPath:
    return looked_up_again(spec, plan, how) if len(spec.stacks) >= BOTH else nothing_shared()


CODE = ModelCode(
    built=transformers_spec, of_rank=_part_of_rank, notes=kernel_notes, beside=_named_beside, let_go=_let_go, made_again=_looked_up_again, plan_numerics=plan_numerics,
    forward=decoder_block_forward, embed=input_embeddings, head=logits_or_states, loss=head_output_loss, loss_input=loss_input, problems=transformers_problems, block_numerics=block_numerics,
    axes=block_axes, end_axes=end_axes, on_rank=on_rank, shared=shared_tables, masks=mask_and_rotary_bytes, keeps_masks=keeps_masks, positions_each=positions_each, inside=weights_of_units_inside, any_kernel=True, until_loss=_named_by_wrapper,
)  # fmt: skip
