"""What llama.cpp alone refuses and reads of a plan."""

from __future__ import annotations

from memsheet.engines.llama_cpp.facts import MAX_SEQUENCES, is_fork
from memsheet.engines.llama_cpp.gguf_mixes import gguf_named
from memsheet.engines.llama_cpp.options import LlamaCppOptions
from memsheet.engines.llama_cpp.splits import MAX_DEVICES, split_points
from memsheet.engines.shared.adapter_room import adapter_dtype, check_target_names, loaded_adapters
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.dtypes import BF16, FP16, FP32, dtype_named
from memsheet.plan.engine import EngineRules
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import linear_names
from memsheet.plan.model import ModelSpec, StoredQuantization
from memsheet.plan.plan import Mesh, Precision, ServedAdapters
from memsheet.plan.tensor_rules import tensor_rules

UNPACKED = frozenset({"fp8", "gptq", "compressed-tensors"})
"""Released formats that a GGUF file has no types for, whose tensors are whole in it unless somebody quantizes
them again (ggml-org/llama.cpp 00bd27a6 conversion/base.py dequant_model).
"""


def _own_options(gaps: RequestResolver) -> LlamaCppOptions:
    """The options that only llama.cpp has."""
    given, fork = gaps.request.get("serving.k_dtype"), is_fork(gaps.request.get("engine_version"))
    values = dtype_named(gaps.request.get("serving.kv_dtype") or "fp16")
    if values is not None and values.block > 1 and gaps.request.get("attention") not in (None, "flash"):
        gaps.wrong(
            "serving.kv_dtype",
            values.name,
            "needs flash attention in llama.cpp, which stores values turned without it",
            "--attention flash",
        )
    if gaps.request.get("serving.page_tokens") not in (None, 1):
        gaps.wrong(
            "serving.page_tokens",
            gaps.request["serving.page_tokens"],
            "does not exist in llama.cpp, whose cache has no pages",
            "leave it out",
        )
    for key in ("serving.mla_mode", "serving.attn_max_batch"):
        if gaps.request.get(key) and not fork:
            gaps.wrong(key, gaps.request[key], "is the fork's alone", "--engine-version ik_llama.cpp")
    if gaps.request.get("serving.fused_moe") not in (None, True) or (
        gaps.request.get("serving.fused_moe") and not fork
    ):
        gaps.wrong(
            "serving.fused_moe",
            gaps.request["serving.fused_moe"],
            "is not modelled for this version",
            "leave it out",
        )
    split = str(gaps.get("serving.tensor_split", "", silent=True))
    mode, main = (
        gaps.get("serving.split_mode", "layer", silent=True),
        gaps.get("serving.main_gpu", 0, silent=True),
    )
    if split and split_points(split, MAX_DEVICES) is None:
        gaps.wrong("serving.tensor_split", split, "is no list of shares", "for example --tensor-split 3,1")
    if split and mode == "none":
        gaps.wrong(
            "serving.tensor_split", split, "deals layers, and one device has all", "leave one of them out"
        )
    if main and mode != "none":
        gaps.wrong("serving.main_gpu", main, "has no meaning where layers are dealt", "--split-mode none")
    sequences = gaps.request.get("serving.max_sequences") or 1
    if sequences > MAX_SEQUENCES and not fork:
        gaps.wrong(
            "serving.max_sequences",
            sequences,
            f"is above what one llama.cpp context has: {MAX_SEQUENCES}",
            "--sequences 256",
        )
    if sequences > 1:
        gaps.assumed.append(
            f"serving.max_model_len is llama.cpp's -c: the cells of all {sequences} sequences together"
        )
    return LlamaCppOptions(
        k_dtype=dtype_named(given) if given else None,
        gpu_layers=gaps.get("serving.gpu_layers", silent=True),
        host_experts=gaps.get("serving.host_experts", 0, silent=True),
        tensor_overrides=_rules_of_tensors(gaps),
        tensor_split=split,
        split_mode=mode,
        main_gpu=main,
        kv_unified=gaps.get("serving.kv_unified", False, silent=True),
        swa_full=gaps.get("serving.swa_full", False, silent=True),
        host_cache=gaps.get("serving.host_cache", False, silent=True),
        mla_mode=gaps.get("serving.mla_mode", 0, silent=True),
        attn_max_batch=gaps.get("serving.attn_max_batch", 0, silent=True),
    )


def _rules_of_tensors(gaps: RequestResolver) -> str:
    text = str(gaps.get("serving.tensor_overrides", "", silent=True))
    if text and tensor_rules(text) is None:
        reason = "is no list of rules that are read: PATTERN=CPU or PATTERN=CUDA0 between commas"
        gaps.wrong("serving.tensor_overrides", text, reason, r"for example 'blk\.[0-9]\.ffn_.*_exps=CPU'")
        return ""
    return text


def _read_adapters(gaps: RequestResolver, model: ModelSpec | None, _: Mesh, __: Precision) -> ServedAdapters:
    """Files of adapters, each in the type it was converted to (ggml-org/llama.cpp 0b03adaa
    convert_lora_to_gguf.py: f32 unless told otherwise).
    """
    dtype = adapter_dtype(gaps, FP32, (FP16, BF16), "llama.cpp")
    given = gaps.request.get("adapter.targets")
    if given is None or list(given) == [ALL_LINEAR]:
        gaps.assumed.append("adapter.targets = every linear layer (what the files have is what is loaded)")
        return loaded_adapters(gaps, dtype, None)
    if model is not None:
        check_target_names(gaps, given, linear_names(model), model)
    return loaded_adapters(gaps, dtype, tuple(given))


def _keeps_stored(stored: StoredQuantization) -> bool:
    return stored.method not in UNPACKED


RULES = EngineRules(
    own_options=_own_options,
    served_adapters=_read_adapters,
    stored_dtype=gguf_named,
    keeps_stored=_keeps_stored,
)
