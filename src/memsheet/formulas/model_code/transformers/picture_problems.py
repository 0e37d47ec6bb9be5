"""What of a tower that pictures pass through was not compared with its real code."""

from __future__ import annotations

from memsheet.arith import agreed
from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.families import VISION, of_tower
from memsheet.formulas.model_code.transformers.language_stacks import has_pictures
from memsheet.formulas.model_code.transformers.picture_towers import (
    MERGED_PATCHES,
    patches_per_token,
)
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Loss, Plan, RecomputeMode


def picture_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What a batch with pictures was not compared with the real code for."""
    if not agreed(plan.training.image_tokens > 0):
        return []
    again, alone = plan.recompute, "leave it out, or no image_tokens"
    if not has_pictures(spec):
        reason = (
            f"pictures in a batch are not modelled for {spec.model_type}; modelled for {', '.join(VISION)}"
        )
        return [
            Problem(
                field="image_tokens",
                value=plan.training.image_tokens,
                reason=reason,
                hint="image_tokens 0: the tower without a picture",
            )
        ]
    reached = sorted(_tower_names(spec) & set(plan.adapter.targets)) if plan.adapter else []
    full = list(plan.adapter.full_modules) if plan.adapter else []
    whole = (
        again.mode is not RecomputeMode.SELECTIVE
        and not again.stretched
        and again.layers is None
        and not again.by_layers
    )
    stored = plan.quantization.weights.name if plan.quantization is not None else ""
    reasons = [
        ("attention", plan.attention.value, "beside pictures is not modelled", plan.attention is not AttentionKind.SDPA, "sdpa"),
        ("recompute.mode", again.mode.value, "of some layers or modules is not modelled beside pictures", not whole, "none or full"),
        ("adapter.targets", reached, "are in the tower too, which is not modelled beside pictures", bool(reached), "the language model's alone"),
        ("adapter.full_modules", full, "beside pictures is not modelled", bool(full), alone),
        ("offload.activations", True, "beside pictures is not modelled", plan.offload.activations, alone),
        ("image_tokens", plan.training.image_tokens, f"beside quantization.weights = {stored} is not modelled", bool(stored), "0: the sheet is then of the text alone"),
        ("loss", plan.loss.value, "beside pictures is not modelled", plan.loss is not Loss.PLAIN, "plain"),
        ("dropout", plan.dropout, "beside pictures is not modelled", plan.dropout > 0, alone),
        ("model", spec.name, f"merges {patches_per_token(spec)} patches; modelled: {MERGED_PATCHES}", patches_per_token(spec) != MERGED_PATCHES, "spatial_merge_size 2"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _tower_names(spec: ModelSpec) -> set[str]:
    """The last names of what adapters would find in the tower."""
    blocks = [block for block in spec.blocks() if of_tower(block.kind)]
    return {weight.path.split(".")[-2] for block in blocks for weight in block.weights}
