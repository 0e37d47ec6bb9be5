"""What transformers alone refuses where it serves."""

from __future__ import annotations

from memsheet.engines.transformers.facts import ENGINE
from memsheet.late import late_functions
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.engine import EngineRules
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import Mesh, Precision, ServedAdapters
from memsheet.plan.verified_families import TP_EXPERTS_ONLY, TP_PLANS

with late_functions(__name__):
    from memsheet.engines.shared.adapter_room import adapter_dtype, loaded_adapters
    from memsheet.plan.adapter_targets import targets_of


def _check_mesh(gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None) -> None:
    """A layer is split only by its family's own plan."""
    kinds = {block.kind for block in model.blocks()} if model else set()
    if model is None or gaps.request.get("task") != "infer" or mesh.tp == 1 or kinds <= TP_PLANS:
        return
    experts = kinds <= TP_EXPERTS_ONLY | TP_PLANS
    why = (
        f"splits only the experts of {model.model_type}, which is not modelled"
        if experts
        else f"has no tensor-parallel plan for {model.model_type}"
    )
    gaps.wrong(
        "mesh.tp",
        mesh.tp,
        f"transformers {why}",
        f"--pp {mesh.tp * mesh.pp} puts whole layers on each GPU (device_map)",
    )


def _check_cache(gaps: RequestResolver, found: DType, precision: Precision, model: ModelSpec | None) -> None:
    """Keys of full attention alone are quantized (cache_utils.py:2188)."""
    loads = gaps.request.get("phase") == "load"
    if found is not precision.compute and not loads and _has_windows(model):
        reason = (
            f"is no cache of {model.name if model else ''} in transformers, which quantizes keys of "
            "full attention only"
        )
        given = gaps.request.get("serving.kv_dtype")
        gaps.wrong("serving.kv_dtype", given, reason, f"--kv-dtype {precision.compute.name}")


def _has_windows(model: ModelSpec | None) -> bool:
    mixers = model.mixers() if model else ()
    return any(isinstance(m, Attention) and (m.window or m.chunk) for m in mixers)


def _peft_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    """Adapters that are loaded and not merged, in fp32 unless peft is told to leave them
    (autocast_adapter_dtype).
    """
    if mesh.tp > 1:
        gaps.wrong(
            "mesh.tp",
            mesh.tp,
            "is not modelled beside peft's adapters",
            "--pp, or merge the adapter, which then costs nothing",
        )
    dtype = adapter_dtype(gaps, FP32, (precision.parameters,), "peft")
    return loaded_adapters(gaps, dtype, targets_of(gaps, model, ENGINE))


RULES = EngineRules(check_mesh=_check_mesh, check_cache=_check_cache, served_adapters=_peft_adapters)
