"""torchtune's model code (0.1 to 0.6): the decoders of its component builders, of the Llama, Mistral and
Qwen2 families.

Layers are in ``layers.py``, compiled ones in ``compiled.py``, the losses in ``loss.py``.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div
from memsheet.engines.torchtune.layers import compiled as torchtune_compiled
from memsheet.engines.torchtune.layers import layers as torchtune_layers
from memsheet.engines.torchtune.layers.gathered import buffers_at_loss
from memsheet.engines.torchtune.layers.layers import COMPILED
from memsheet.engines.torchtune.layers.loss import (
    PIECES,
    SHIFTED,
    hidden_states_for_loss,
    lm_head_cross_entropy,
    loss_input,
    named_logits_bytes,
)
from memsheet.errors import Problem
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.shapes import whole_axes, whole_ends
from memsheet.formulas.model_code.transformers import ends
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import GradientSum, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Weight,
)
from memsheet.plan.plan import Loss, OptimizerName, Plan, RecomputeMode
from memsheet.plan.workload import PassShape
from memsheet.references import TORCHTUNE_MODEL, formula

KINDS = frozenset({"llama", "mistral", "qwen2"})
POSITIONS = 131_072
"""Positions of the rotary cache where the model does not say how many it has
(models/llama3_1/_model_builders.py:34).
"""

OTHER_RECIPES = "shards by FullyShardedDataParallel, which is not modelled there"


def decoder_layer_forward(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    if COMPILED in how.options:
        return torchtune_compiled.compiled_layer_forward(r, x, block, how)
    return torchtune_layers.eager_layer_forward(r, x, block, how)


def torchtune_rms_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig) -> Tensor:
    return torchtune_layers.rms_norm(r, x, norm, how)


def torchtune_embeddings(
    r: Recorder, embeddings: Embeddings, how: RunConfig, tied: GradientSum
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One look-up, by a name that the first layer's result takes over."""
    return ends.input_embeddings(r, embeddings, how, tied)


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """Layers are compiled one by one, and the loss of a piece (training/_compile.py); embeddings, final norm
    and head are not. Before 0.3 the whole model is, whose layers run the same, and no loss.
    """
    several = plan.training.microbatch > 1 if isinstance(plan.training.microbatch, int) else True
    named = {COMPILED: plan.compile, SHIFTED: _before_chunks(plan.engine_version)}
    return replace(how, options=frozenset(name for name, on in named.items() if on), several=several)


def torchtune_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What it does not build, or what is not modelled of it."""
    blocks = spec.blocks()
    kinds = sorted({block.kind for block in blocks} - KINDS)
    plain = (
        all(_is_plain_decoder_block(block) for block in blocks) and len(spec.stacks) == 1 and not spec.towers
    )
    paged = plan.optimizer is not None and plan.optimizer.name in (
        OptimizerName.PAGED_ADAMW,
        OptimizerName.PAGED_ADAMW_8BIT,
    )
    older = _before_chunks(plan.engine_version)
    none, alone = plan.recompute.mode is RecomputeMode.NONE, agreed(plan.mesh.gpus == 1)
    rules: list[tuple[str, object, bool, str, str]] = [
        ("model", spec.name, bool(kinds), f"is built of {', '.join(kinds)} blocks, which are not modelled of torchtune", "engine transformers"),
        ("model", spec.name, not kinds and not plain, "has parts that torchtune's decoders do not have", "engine transformers"),
        ("engine_version", plan.engine_version, older and not alone, OTHER_RECIPES, "0.3 or later"),
        ("loss", "chunked", older and plan.loss is Loss.CHUNKED, "is not in that version", "plain"),
        ("offload.activations", True, older and plan.offload.activations, "is not in that version", "leave it out"),
        ("dropout", plan.dropout, plan.dropout > 0, "is not modelled there", "leave it out"),
        ("offload.activations", True, plan.offload.activations and none, "is modelled of recomputed layers alone", "add --recompute full"),
        ("offload.optimizer", plan.offload.optimizer, bool(plan.offload.optimizer) and alone and not paged,
         "is not what its single-device recipes do", "--optimizer paged_adamw_8bit keeps states in memory that the host backs"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, holds, reason, hint in rules
        if holds
    ]


def _before_chunks(version: str | None) -> bool:
    """Torchtune 0.1 and 0.2 (recipes/lora_finetune_distributed.py and lora_finetune_single_device.py of
    135cf2e), whose loss takes all logits at once.
    """
    return version is not None and version.split("-")[0].split(".")[:2] in (["0", "1"], ["0", "2"])


def _is_plain_decoder_block(block: Block) -> bool:
    at, ff = block.mixers[0], block.feed_forward
    if not isinstance(at, Attention) or not isinstance(ff, Dense):
        return False
    odd = at.qk_norm or at.fused_qkv or at.window or at.softcap or at.rotary_dim != at.head_dim
    norms = all(norm.kind is NormKind.RMS for norm in block.norms)
    return (
        not odd
        and norms
        and ff.gated
        and not ff.fused
        and ff.activation == "silu"
        and block.arrangement is Arrangement.PRE
    )


def block_numerics(_: Block, __: Plan, ___: PassShape, how: RunConfig) -> RunConfig:
    return how


@formula(cites=TORCHTUNE_MODEL, at="modules/transformer.py:400-420: the sequence in eight pieces")
def end_axes(spec: ModelSpec, plan: Plan, shape: PassShape) -> dict[str, Count]:
    pieces = PIECES if plan.loss is Loss.CHUNKED else 1
    sizes = {**whole_ends(spec, plan, shape), "s-1": shape.tokens - 1, "c": ceil_div(shape.tokens, pieces)}
    return {**sizes, **buffers_at_loss(spec, plan)}


def spec_with_rope_cache(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """With the rotary cache, a buffer of cosines and sines for all positions that every layer shares
    (position_embeddings.py:50-75). Before 0.3 layers are deep copies of one, its cache with them (0.1.1,
    modules/transformer.py, _get_clones).
    """
    at = spec.stacks[0].runs[0].pattern[0].mixers[0]
    if not isinstance(at, Attention):
        return spec
    times = spec.layers if _before_chunks(plan.engine_version) else 1
    cache = Weight(
        path="rope.cache",
        shape=(times * (spec.max_positions or POSITIONS), at.head_dim),
        role=Role.BUFFER,
        dtype="fp32",
    )
    return replace(spec, extras=(*spec.extras, cache))


CODE = ModelCode(
    forward=decoder_layer_forward, embed=torchtune_embeddings, head=hidden_states_for_loss, loss=lm_head_cross_entropy, loss_input=loss_input, problems=torchtune_problems, block_numerics=block_numerics,
    axes=whole_axes, end_axes=end_axes, normalise=torchtune_rms_norm, built=spec_with_rope_cache, plan_numerics=plan_numerics,
    named=named_logits_bytes, knows_shards=True,
)  # fmt: skip
