"""What backward computes again."""

from __future__ import annotations

from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, Dense, ModelSpec
from memsheet.plan.plan import Recompute, RecomputeMode


def recompute_of(gaps: RequestResolver, engine: Engine, model: ModelSpec | None) -> Recompute:
    every, segments = gaps.request.get("recompute.every"), gaps.request.get("recompute.segments")
    counted = gaps.request.get("recompute.layers")
    named = RecomputeMode.SELECTIVE if gaps.request.get("recompute.modules") else RecomputeMode.NONE
    by_layers = (
        tuple(gaps.request.get("recompute.modules") or ()) == ("layer",) and "layer" in engine.policies
    )
    implied = RecomputeMode.FULL if (every and not by_layers) or segments or counted else named
    if implied not in engine.recompute and gaps.request.get("recompute.mode") is None:
        key = next(
            f"recompute.{part}"
            for part in ("modules", "every", "layers", "segments")
            if gaps.request.get(f"recompute.{part}")
        )
        hint = f"modelled: {', '.join(known.value for known in engine.recompute)}"
        gaps.wrong(
            key,
            gaps.request[key],
            f"asks for recompute {implied.value}, which is not modelled for {engine.name} yet",
            hint,
        )
    usual = engine.usual_recompute if implied is RecomputeMode.NONE else implied
    mode = gaps.choice(
        "recompute.mode", usual, engine.recompute, engine.name, silent=gaps.request.get("task") == "infer"
    )
    layers = model.layers if model else None
    if mode not in engine.recompute and gaps.request.get("recompute.mode") is None:
        chosen = ", ".join(one.value for one in engine.recompute)
        gaps.wrong(
            "recompute.modules",
            gaps.request.get("recompute.modules"),
            f"is not modelled for {engine.name} yet",
            f"modelled: {chosen}",
        )
    if mode is not RecomputeMode.FULL and implied is RecomputeMode.FULL:
        gaps.wrong(
            "recompute.mode",
            mode.value,
            "recomputes nothing layer by layer, and every, layers or segments is given",
            "leave those out, or give --recompute full",
        )
    if sum(x is not None for x in (every, segments, counted)) > 1:
        gaps.wrong("recompute", None, "every, layers and segments exclude one another")
    for key, value in (("segments", segments), ("layers", counted)):
        if value is not None and layers is not None and value > layers:
            gaps.wrong(f"recompute.{key}", value, f"exceeds the model's {layers} layers")
    modules = tuple(gaps.request.get("recompute.modules") or ())
    if mode is RecomputeMode.SELECTIVE and not modules:
        modules = engine.selective or _attention_modules(model)
        gaps.assumed += [f"recompute.modules = {','.join(modules)}"] if modules else []
    if mode is RecomputeMode.FULL and modules:  # whole layers are computed again, and those modules with them
        gaps.assumed.append(
            f"recompute.modules = none (recompute full takes {','.join(modules)} with the rest of each layer)"
        )
        modules = ()
    if (mode is RecomputeMode.SELECTIVE) != bool(modules):
        hint = (
            "for example --recompute-modules mlp"
            if not modules
            else "leave the modules out, or give --recompute selective"
        )
        gaps.wrong("recompute.modules", modules or None, f"does not go with recompute {mode.value}", hint)
    if gaps.request.get("recompute.reentrant") and engine.layers is not None:
        why = f"is a choice of torch's checkpoint, and {engine.name} has its own"
        gaps.wrong("recompute.reentrant", True, why, "leave it out")
    reentrant = bool(gaps.request.get("recompute.reentrant")) and mode is RecomputeMode.FULL
    return Recompute(
        mode=mode, every=every or 1, segments=segments, layers=counted, modules=modules, reentrant=reentrant
    )


def _attention_modules(model: ModelSpec | None) -> tuple[str, ...]:
    """What selective recompute is of where nobody names modules and the engine has no default: attention
    (Korthikanti et al. 2022, section 5), else the feed-forward, else norms, by the model's own names.
    """
    blocks = model.blocks() if model else []
    attention = [mixer.path for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)]
    feed_forward = [block.feed_forward.path for block in blocks if isinstance(block.feed_forward, Dense)]
    norms = [norm.path for block in blocks for norm in block.norms]
    found = ({path.rpartition(".")[2] for path in paths} - {""} for paths in (attention, feed_forward, norms))
    return tuple(sorted(next(filter(None, found), ())))
