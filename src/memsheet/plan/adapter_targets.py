"""The layers that an adapter stands beside: as asked, else as the engine or the library has them."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.plan.defaults import FUSED_TARGETS, LORA_TARGETS
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import linear_names
from memsheet.plan.model import Attention, LatentAttention, ModelSpec, Role

ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head (target_modules)."""


def targets_of(gaps: RequestResolver, model: ModelSpec | None, engine: Engine) -> tuple[str, ...]:
    targets = gaps.request.get("adapter.targets")
    if targets is None and engine.usual_targets:
        gaps.assumed.append(f"adapter.targets = {','.join(engine.usual_targets)} ({engine.name}'s default)")
        return engine.usual_targets
    if targets is None:
        found = LORA_TARGETS.get(model.model_type) if model else None
        if found is not None:
            gaps.assumed.append(f"adapter.targets = {','.join(found)} (peft's default)")
        elif model is not None and (found := _attention_linears(model)):
            why = f"attention's own, peft has no default for {model.model_type}"
            gaps.assumed.append(f"adapter.targets = {','.join(found)} ({why})")
        else:
            gaps.wrong(
                "adapter.targets",
                None,
                "is missing; this family has no default",
                "for example --lora-targets q_proj,v_proj",
            )
        targets = found or ()
    if model is None:
        return tuple(targets)
    present = linear_names(model)
    if list(targets) == [ALL_LINEAR]:
        gaps.assumed.append(f"adapter.targets = {','.join(sorted(present))} (all-linear)")
        return tuple(sorted(present))
    for target in targets:
        if (
            target not in present
            and target not in engine.targets
            and not _joined_from(gaps, target, targets, present)
        ):
            hint = f"it has {', '.join(sorted(present))}; or all-linear alone"
            gaps.wrong("adapter.targets", target, f"names no linear layer of {model.name}", hint)
    return tuple(targets)


def _attention_linears(model: ModelSpec) -> tuple[str, ...]:
    """Last names of the linear layers of softmax attention."""
    return tuple(
        dict.fromkeys(
            weight.path.removesuffix(".weight").rpartition(".")[2]
            for mixer in model.mixers()
            if isinstance(mixer, Attention | LatentAttention)
            for weight in mixer.weights
            if weight.role is Role.LINEAR
        )
    )


def _joined_from(gaps: RequestResolver, target: str, targets: Sequence[str], present: set[str]) -> bool:
    """Whether a target joins layers that the model has in parts, none of which is a target too."""
    parts = FUSED_TARGETS.get(target)
    if parts is None or not present.issuperset(parts) or set(parts) & set(targets):
        return False
    gaps.assumed.append(f"{target} = {', '.join(parts)} as one layer, by code that joins them")
    return True
