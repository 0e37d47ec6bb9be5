"""LoRA adapters that a server keeps room for: how many, of which rank, on which layers, by what each engine
takes where nobody says.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import LatentAttention, LinearAttention, ModelSpec, Recurrent, StateSpace
from memsheet.plan.plan import Mesh, Precision, ServedAdapters

ROOM = ("serving.max_loras", "serving.max_cpu_loras", "serving.fully_sharded_loras")
WANTED = ("adapter.rank", "serving.max_loras")


def served_adapters_of(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters | None:
    """The room that is asked for; None where no adapter is, which costs nothing."""
    asked = [gaps.request.get(key) for key in WANTED]
    if gaps.request.get("task") != "infer":
        for key in (key for key in ROOM if gaps.request.get(key) and key in engine.models):
            gaps.wrong(key, gaps.request[key], "has no meaning in train", "leave it out")
        return None
    room = rules_of(engine.name).served_adapters
    if room is None or asked == [None, None] or asked[1] == 0:
        for key in (key for key in ROOM[1:] if gaps.request.get(key) and key in engine.models and room):
            gaps.wrong(
                key, gaps.request[key], "is of adapters, and there is room for none", "add --lora-rank 16"
            )
        return None
    kind = gaps.request.get("adapter.kind")
    if kind not in (None, "lora"):
        gaps.wrong("adapter.kind", kind, f"is not modelled for adapters that {engine.name} serves", "lora")
    if model is not None:
        _check_family(gaps, engine, model)
    if mesh.attn_dp != 1:
        gaps.wrong(
            "mesh.attn_dp",
            mesh.attn_dp,
            "is not modelled beside served adapters",
            "leave it out, or leave the adapters out",
        )
    return room(gaps, model, mesh, precision)


def _check_family(gaps: RequestResolver, engine: Engine, model: ModelSpec) -> None:
    mixers = model.mixers()
    if any(isinstance(mixer, StateSpace | LinearAttention | Recurrent) for mixer in mixers):
        what = "has recurrent layers, whose joined projections have adapters of another shape"
        gaps.wrong(
            "adapter.rank",
            gaps.request.get("adapter.rank"),
            f"is not modelled: {model.name} {what}",
            "leave the adapters out",
        )
    if not engine.serving.adapts_whole_queries and any(
        isinstance(mixer, LatentAttention) and mixer.q_lora_rank is None for mixer in mixers
    ):
        why = f"is not modelled: {model.name} has latent attention with queries of full rank"
        gaps.wrong("adapter.rank", gaps.request.get("adapter.rank"), why, "leave the adapters out")
