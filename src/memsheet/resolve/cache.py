"""The format of the cache: as the plan says, else as the checkpoint names it where the server heeds that,
else what is computed in.
"""

from __future__ import annotations

from memsheet.plan.device import Device
from memsheet.plan.dtypes import FP8, DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import capability_of, version_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Precision

IN_FOUR_BITS = "--engine llama.cpp --kv-dtype q4_0"
"""The one engine here whose cache has a format of four bits (ggml-org/llama.cpp common/arg.cpp,
--cache-type-k).
"""


def kv_dtype_of(
    gaps: RequestResolver,
    precision: Precision,
    engine: Engine,
    model: ModelSpec | None = None,
    device: Device | None = None,
) -> DType:
    """The cache's format."""
    given = gaps.request.get("serving.kv_dtype")
    found = dtype_named(given) if given else engine.serving.usual_dtype or precision.compute
    named = _checkpoint_cache_dtype(gaps, engine, model)
    if named is not None and model is not None:
        found = _checked_cache_dtype(gaps, engine, model, found, named)
    elif given is None and _takes_eight_bits(gaps, engine, model, device):
        found = FP8
        gaps.assumed.append(
            f"serving.kv_dtype = fp8 (what {engine.name} takes for {model.model_type if model else ''} on "
            f"{device.name if device else ''}; latents counted packed with their scales)"
        )
    assert found is not None
    _check_honoured(gaps, engine, model, precision, found)
    return found


def _takes_eight_bits(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, device: Device | None
) -> bool:
    """Whether a server takes fp8 for a family by itself on a card."""
    if model is None or device is None or gaps.request.get("task") != "infer":
        return False
    rule, units = engine.serving.eight_bits.get(model.model_type), capability_of(device)
    if rule is None or units is None:
        return False
    return rule.units <= units < rule.below and version_of(gaps.request.get("engine_version")) >= rule.since


def _check_honoured(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, precision: Precision, found: DType
) -> None:
    """A format that the engine's cache does not have."""
    given, field = gaps.request.get("serving.kv_dtype"), "serving.kv_dtype"
    if given is None or gaps.request.get("task") != "infer":
        return
    if (
        engine.cache_dtypes is not None
        and found is not precision.compute
        and found.name not in engine.cache_dtypes
    ):
        known = ", ".join(dict.fromkeys((precision.compute.name, *engine.cache_dtypes)))
        four = f"; in four bits {IN_FOUR_BITS}" if found.bits <= 4 else ""
        gaps.wrong(
            field,
            given,
            f"is not what {engine.name} keeps keys and values in",
            f"{known}, or leave it out{four}",
        )
    rules_of(engine.name).check_cache(gaps, found, precision, model)


def _checkpoint_cache_dtype(gaps: RequestResolver, engine: Engine, model: ModelSpec | None) -> str | None:
    """What the checkpoint names, where the plan keeps its weights as released and a server reads that."""
    stored = model.quantization if model is not None else None
    if not engine.serving.heeded_caches or stored is None or gaps.request.get("task") != "infer":
        return None
    return stored.cache if gaps.request.get("quantization.weights") is None else None


def _checked_cache_dtype(
    gaps: RequestResolver, engine: Engine, model: ModelSpec, found: DType | None, named: str
) -> DType | None:
    stored, given = model.quantization, gaps.request.get("serving.kv_dtype")
    assert stored is not None
    version = version_of(gaps.request.get("engine_version"))
    heeded = engine.serving.heeded_caches[stored.method]
    old = version < heeded.since
    other = heeded.fixed_scales and not stored.cache_fixed
    if given is None and named != FP8.name and not old:
        gaps.wrong(
            "serving.kv_dtype",
            named,
            "is what the checkpoint names for the cache, and is not modelled",
            "--kv-dtype fp8 or bf16",
        )
    elif given is None and (old or other):
        why = "does not heed that" if old else "heeds a fixed scale a tensor alone"
        gaps.assumed.append(
            f"serving.kv_dtype = {found.name if found else ''} (the checkpoint names {named}; this "
            f"release of {engine.name} {why})"
        )
    elif given is None:
        gaps.assumed.append(f"serving.kv_dtype = {named} (the checkpoint names it for the cache)")
        return FP8
    elif (
        heeded.overrules is not None
        and heeded.overrules[0] <= version < heeded.overrules[1]
        and found is not FP8
    ):
        gaps.wrong(
            "serving.kv_dtype",
            given,
            f"is not heeded by that release of {engine.name}: the checkpoint names fp8",
            "leave it out",
        )
    return found
