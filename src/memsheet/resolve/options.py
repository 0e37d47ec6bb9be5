"""The choices of a plan that only some engines offer: how a sequence is shared, how tokens go to experts,
eight-bit products, graphs.
"""

from __future__ import annotations

from typing import Any

from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import (
    BackwardPrefetch,
    ContextParallel,
    Fp8,
    Gathers,
    GradientSync,
    Mesh,
    Routing,
)


def optional_plan_fields(
    gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None, engine: Engine
) -> dict[str, Any]:
    """Fields of a plan that are off unless they are asked for."""
    sequence_parallel = _sequence_parallel(gaps, mesh, model, engine)
    context_parallel = _context_parallel(gaps, mesh, engine)
    _check_image_tokens(gaps, model)
    return {
        "sequence_parallel": sequence_parallel,
        "context_parallel": context_parallel,
        "compile": _resolve_compile(gaps, engine),
        "gradient_sync": GradientSync(synced) if (synced := gaps.request.get("gradient_sync")) else None,
        "gathers": _resolve_gathers(gaps, engine),
        "async_tp": bool(gaps.get("async_tp", False, silent=True)),
        "routing": _resolve_routing(gaps, model),
        "fp8": _resolve_fp8(gaps),
        "cuda_graphs": _resolve_cuda_graphs(gaps),
    }


def _resolve_gathers(gaps: RequestResolver, engine: Engine) -> Gathers:
    """The engine's own where a request says the same."""
    asked = gaps.request.get("backward_prefetch")
    backward = BackwardPrefetch(asked) if asked else None
    return Gathers(
        secondary_shard=gaps.get("secondary_shard", 1, silent=True),
        backward=backward if backward is not engine.flat_wrapping.backward_prefetch else None,
        forward=bool(gaps.get("forward_prefetch", False, silent=True)),
        limited=bool(gaps.get("limit_all_gathers", True, silent=True)),
    )


def _resolve_compile(gaps: RequestResolver, engine: Engine) -> bool:
    """Whether steps run through torch.compile. A server's passes are accounted as it runs them where nobody
    says.
    """
    given: bool | None = gaps.request.get("compile")
    if engine.serving.compiles is None or given is None:
        return bool(given)
    usual = engine.serving.compiles(gaps.request.get("engine_version"))
    if given != usual:
        does = (
            "compiles by itself, and passes that are not compiled are"
            if usual
            else "does not compile by itself, and compiled passes are"
        )
        gaps.wrong(
            "compile", given, f"is not modelled for {engine.name}: it {does} not accounted", "leave it out"
        )
    return given


def _sequence_parallel(gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None, engine: Engine) -> bool:
    """On where the plan says so, or where the engine trains experts over tensor-parallel ranks in no other
    way.
    """
    needed = engine.scatters_for_experts and mesh.tp > 1 and model is not None and has_experts(model)
    given: bool | None = gaps.request.get("sequence_parallel")
    if needed and given is False:
        reason = f"is refused by {engine.name} for experts over tensor-parallel ranks"
        gaps.wrong("sequence_parallel", False, reason, "give it, or tp 1")
    return bool(gaps.get("sequence_parallel", needed, silent=not needed))


def _check_image_tokens(gaps: RequestResolver, model: ModelSpec | None) -> None:
    """Of each sequence. Pictures need a tower and room among the words."""
    given: int = gaps.get("image_tokens", 0, silent=True)
    length = gaps.request.get("seq_len")
    if gaps.is_wrong("image_tokens"):
        return
    if given and model is not None and not model.towers:
        gaps.wrong(
            "image_tokens",
            given,
            f"is for models that take pictures, and {model.name} takes none",
            "leave it out",
        )
    if length is not None and given > length:
        gaps.wrong(
            "image_tokens", given, f"is more than the {length} tokens of a sequence", "give a longer seq_len"
        )


def _context_parallel(gaps: RequestResolver, mesh: Mesh, engine: Engine) -> ContextParallel | None:
    given = gaps.request.get("context_parallel_comm")
    if mesh.cp == 1:
        if given is not None:
            gaps.wrong(
                "context_parallel_comm",
                given,
                "is how ranks share a sequence, and each has its own",
                "give cp, or leave it out",
            )
        return None
    if not engine.context_parallel:  # whose ranks share none: the degree is refused
        return None
    return gaps.choice(
        "context_parallel_comm", engine.context_parallel[0], engine.context_parallel, engine.name
    )


def _resolve_routing(gaps: RequestResolver, model: ModelSpec | None) -> Routing | None:
    """How tokens go to experts, where there are any."""
    if model is None or not has_experts(model):
        return None
    capacity = gaps.request.get("moe.capacity_factor")
    padded = bool(gaps.request.get("moe.pad_to_capacity"))
    if padded and capacity is None:
        gaps.wrong(
            "moe.pad_to_capacity", padded, "pads to a capacity, and there is none", "give moe.capacity_factor"
        )
    return Routing(
        dispatch=gaps.get("moe.dispatch", "alltoall", silent=True),
        capacity_factor=capacity,
        padded=padded,
        balanced=bool(gaps.request.get("moe.balanced")),
    )


def _resolve_fp8(gaps: RequestResolver) -> Fp8 | None:
    recipe = gaps.request.get("fp8.recipe")
    if recipe is None:
        return None
    return Fp8(
        recipe=recipe,
        stored=bool(gaps.request.get("fp8.param_storage")),
        gathered=bool(gaps.request.get("fp8.all_gather")),
        skip=tuple(gaps.request.get("fp8.skip") or ()),
    )


def _resolve_cuda_graphs(gaps: RequestResolver) -> tuple[str, ...]:
    given = gaps.request.get("cuda_graphs")
    if not given:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else ("all",)
