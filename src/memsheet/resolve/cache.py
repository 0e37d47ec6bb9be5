"""The format of the cache: as the plan says, else as the checkpoint names it where the server heeds that,
else what is computed in.
"""

from __future__ import annotations

from memsheet.plan.dtypes import FP8, FP8_E5M2, FP16, DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import version_of
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import Precision

HEEDED_SINCE = {
    ("vllm", "compressed-tensors"): (0, 15, 0), ("vllm", "modelopt"): (0, 14, 0), ("sglang", "compressed-tensors"): (0, 5, 20), ("sglang", "modelopt"): (0, 5, 4),
}  # fmt: skip
"""From when on a server that is told nothing keeps the cache in what the checkpoint names: vLLM v0.15.0
attention/layer.py:199 (v0.14.0 does not; v0.33.0 model_executor/layers/attention/attention.py:287) and
v0.14.0 utils/torch_utils.py:238; SGLang v0.5.23 compressed_tensors.py:143, mem_cache/kv_cache_dtype.py:49 and
v0.5.4.post3 model_executor/model_runner.py:1511.
"""
OVERRULED = ((0, 15, 0), (0, 22, 0))
"""Releases of vLLM that take what compressed-tensors names whatever they are told (v0.16.0 attention.py:232,
v0.21.0 :233; v0.33.0 :288 does not).
"""


IN_FOUR_BITS = "--engine llama.cpp --kv-dtype q4_0"
"""The one engine here whose cache has a format of four bits (ggml-org/llama.cpp common/arg.cpp,
--cache-type-k).
"""


def kv_dtype_of(
    gaps: RequestResolver, precision: Precision, engine: Engine | None = None, model: ModelSpec | None = None
) -> DType:
    """The cache's format; llama.cpp's is fp16 whatever the file stores."""
    given = gaps.request.get("serving.kv_dtype")
    usual = FP16 if engine is not None and engine.server == "llama_cpp" else precision.compute
    found = dtype_named(given) if given else usual
    named = _checkpoint_cache_dtype(gaps, engine, model)
    if named is not None and engine is not None and model is not None:
        found = _checked_cache_dtype(gaps, engine, model, found, named)
    assert found is not None
    _check_honoured(gaps, engine, model, precision, found)
    return found


def _check_honoured(
    gaps: RequestResolver, engine: Engine | None, model: ModelSpec | None, precision: Precision, found: DType
) -> None:
    """A format that the engine's cache does not have."""
    given, field = gaps.request.get("serving.kv_dtype"), "serving.kv_dtype"
    if engine is None or given is None or gaps.request.get("task") != "infer":
        return
    if (
        engine.cache_dtypes is not None
        and found is not precision.compute
        and found.name not in engine.cache_dtypes
    ):
        known = ", ".join(dict.fromkeys((precision.compute.name, *engine.cache_dtypes)))
        four = f"; in four bits {IN_FOUR_BITS}" if found.bits <= 4 and engine.server != "llama_cpp" else ""
        gaps.wrong(
            field,
            given,
            f"is not what {engine.name} keeps keys and values in",
            f"{known}, or leave it out{four}",
        )
    if (
        engine.server == "transformers"
        and found is not precision.compute
        and gaps.request.get("phase") != "load"
        and _has_windows(model)
    ):
        reason = (
            f"is no cache of {model.name if model else ''} in transformers, which quantizes keys of "
            "full attention only"
        )
        gaps.wrong(field, given, reason, f"--kv-dtype {precision.compute.name}")  # cache_utils.py:2188
    stored = model.quantization.method if model is not None and model.quantization is not None else ""
    if (
        engine.name == "vllm"
        and found is FP8_E5M2
        and "fp8" in (stored, gaps.request.get("quantization.weights"))
    ):
        gaps.wrong(
            field,
            given,
            "is refused by vllm beside weights in fp8 (model_executor/layers/attention/attention.py)",
            "--kv-dtype fp8",
        )


def _has_windows(model: ModelSpec | None) -> bool:
    mixers = model.mixers() if model else ()
    return any(isinstance(m, Attention) and (m.window or m.chunk) for m in mixers)


def _checkpoint_cache_dtype(
    gaps: RequestResolver, engine: Engine | None, model: ModelSpec | None
) -> str | None:
    """What the checkpoint names, where the plan keeps its weights as released and a server reads that."""
    stored = model.quantization if model is not None else None
    if engine is None or stored is None or stored.cache is None or gaps.request.get("task") != "infer":
        return None
    known = any(server == engine.name for server, _ in HEEDED_SINCE)
    return stored.cache if known and gaps.request.get("quantization.weights") is None else None


def _checked_cache_dtype(
    gaps: RequestResolver, engine: Engine, model: ModelSpec, found: DType | None, named: str
) -> DType | None:
    stored, given = model.quantization, gaps.request.get("serving.kv_dtype")
    assert stored is not None
    version = version_of(gaps.request.get("engine_version"))
    old = version < HEEDED_SINCE[engine.name, stored.method]
    other = engine.name == "sglang" and stored.method == "compressed-tensors" and not stored.cache_fixed
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
        engine.name == "vllm"
        and stored.method == "compressed-tensors"
        and OVERRULED[0] <= version < OVERRULED[1]
        and found is not FP8
    ):
        gaps.wrong(
            "serving.kv_dtype",
            given,
            "is not heeded by that release of vllm: the checkpoint names fp8",
            "leave it out",
        )
    return found
