"""Recompute in backward, by the model's own switch: each layer saves its input and runs its forward again."""

from __future__ import annotations

from torch import nn

from memsheet.errors import refuse
from memsheet.run.model import layers_of
from memsheet.spec.plan import Plan, RecomputeMode


def apply_recompute(model: nn.Module, plan: Plan) -> None:
    """Turn on what the plan asks for. Raises InputError for stretches of layers and for models without the switch."""
    recompute = plan.recompute
    if recompute.mode is RecomputeMode.NONE:
        return
    if recompute.segments or recompute.every > 1:
        raise refuse("recompute", recompute.segments or recompute.every, "stretches of layers are not run yet", "recompute every layer")
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise refuse("recompute", "full", f"{type(model).__name__} cannot recompute its layers")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    layers = layers_of(model)
    if recompute.layers is not None and layers is not None:
        for layer in list(layers)[recompute.layers :]:
            layer.gradient_checkpointing = False  # type: ignore[assignment]
