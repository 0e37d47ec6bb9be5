"""What a card cannot run whatever its memory is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.errors import Problem
from memsheet.plan.device import Cluster, Device
from memsheet.plan.dtypes import BF16, FP8, FP16, FP32, DType
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import AttentionKind, Plan

FLASH_UNITS = (8, 0)
"""FlashAttention-2 needs Ampere, compute capability 8.0 (Dao-AILab/flash-attention README)."""
BF16_UNITS = (8, 0)
"""vLLM refuses bf16 below it (v0.6.4.post1 worker/worker.py _check_if_gpu_supports_dtype, v0.33.0
platforms/cuda.py:638).
"""
CASTS_DOWN = frozenset({"sglang"})
"""Servers that compute in fp16 below it whatever dtype is asked for, and log that (sgl-project/sglang 00c614b
python/sglang/srt/model_executor/model_runner_components/load_model_utils.py:75-86,
maybe_downgrade_dtype_for_legacy_gpu).
"""
NO_HALF, HALF_SINCE = frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"}), (0, 9, 0)
"""Families that vLLM does not compute in fp16 (_FLOAT16_NOT_SUPPORTED_MODELS: v0.9.2 config.py:3221, v0.33.0
config/model.py:2398), and from when on it takes another dtype by itself where nobody says one
(_resolve_auto_dtype, v0.9.2 config.py:3284).
"""
FP8_UNITS = (8, 9)
"""Compute capability from which a card converts eight-bit numbers by itself (vLLM v0.33.0
v1/attention/backends/triton_attn.py:515).
"""
TRITON_ALONE = ((0, 11, 0), (0, 12, 0))
"""Releases of vLLM in which eight bits below Hopper are Triton's alone, and the older engine that others were
left to is gone (v0.11.0 platforms/cuda.py:360; v0.10.2 engine/arg_utils.py:1465 falls back to it; v0.12.0
asks each backend, and FlashInfer unpacks them).
"""
SINKS_SINCE = (0, 12, 0)
"""From when on FlashInfer is asked whether it has attention sinks, which it has on newer cards alone (v0.12.0
v1/attention/backends/flashinfer.py:358, v0.33.0 :707): what is left is Triton.
"""
AMPERE_SINCE = (0, 24, 0)
"""From when on FlashInfer is left to cards of Ampere and newer (v0.24.0
v1/attention/backends/flashinfer.py:432).
"""

OWN_KERNELS = frozenset({"llama.cpp"})
"""Engines whose flash attention is their own and runs on older cards too (ggml/src/ggml-cuda/fattn.cu)."""


def unsupported_choices(plan: Plan, cluster: Cluster, model: ModelSpec | None = None) -> Iterator[Problem]:
    """Every choice of a plan that its card does not have."""
    device = cluster.device
    if device.engines is not None and plan.engine not in device.engines:
        reason = f"is not a device that {plan.engine} is accounted on"
        hint = (
            f"accounted there: {', '.join(device.engines)}"
            if device.engines
            else "cards of NVIDIA and AMD are"
        )
        yield Problem(field="gpus", value=device.name, reason=reason, hint=hint)
    if (words := eight_bit_cache(plan, device, model)) and refuses_eight_bits(plan, device, model):
        other = "fp16" if plan.precision.compute is not BF16 else "bf16"
        yield Problem(
            field="serving.kv_dtype",
            value="fp8",
            reason=words,
            hint=f"--kv-dtype {other}, or a card from Ada and Hopper on",
        )
    yield from _too_old(plan, device)
    if plan.attention in (AttentionKind.FLASH, AttentionKind.CUDNN) and plan.engine not in OWN_KERNELS:
        yield from _flash_attention_problems(plan, device)


def version_of(version: str | None) -> tuple[int, int, int]:
    """An engine's number, past all where none is said."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (10**6, 0, 0)


def capability_of(device: Device) -> tuple[int, int] | None:
    """Compute capability, where the card has one."""
    major, _, minor = (device.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def is_older_device(device: Device, units: tuple[int, int]) -> bool:
    """Whether a card is known to be older than ``units``."""
    found = capability_of(device)
    return found is not None and found < units


def eight_bit_cache(plan: Plan, device: Device, model: ModelSpec | None = None) -> str:
    """What an eight-bit cache comes to on a card that converts no eight-bit numbers, in words; nothing where
    it does.
    """
    if (
        plan.kv_dtype is not FP8
        or plan.engine not in ("vllm", "sglang")
        or not is_older_device(device, FP8_UNITS)
    ):
        return ""
    if refuses_eight_bits(plan, device, model):
        return (
            f"has no kernel on {device.name}, which converts no fp8: Triton's alone are left, and they "
            "refuse it"
        )
    return (
        f"{device.name} converts no fp8: kernels of Triton refuse such a cache, others unpack every "
        "token that is read"
    )


def refuses_eight_bits(plan: Plan, device: Device, model: ModelSpec | None = None) -> bool:
    """Whether vLLM has nothing but Triton's kernels for an eight-bit cache, which refuse it on such a
    card.
    """
    if plan.engine != "vllm" or plan.kv_dtype is not FP8 or not is_older_device(device, FP8_UNITS):
        return False
    version = version_of(plan.engine_version)
    old = version >= AMPERE_SINCE and is_older_device(device, (8, 0))
    return (
        old or TRITON_ALONE[0] <= version < TRITON_ALONE[1] or (version >= SINKS_SINCE and _has_sinks(model))
    )


def _has_sinks(model: ModelSpec | None) -> bool:
    mixers = model.mixers() if model else ()
    return any(isinstance(mixer, Attention) and mixer.sinks for mixer in mixers)


def not_served_in(
    engine: str, version: str | None, device: Device | None, family: str
) -> Mapping[DType, str]:
    """Dtypes that a server does not compute in, and why."""
    found: dict[DType, str] = {}
    if engine in ("vllm", "sglang") and device is not None and is_older_device(device, BF16_UNITS):
        found[BF16] = (
            f"needs compute capability 8.0 in {engine}; {device.name} has {device.compute_capability}"
        )
    if engine in CASTS_DOWN and BF16 in found:
        found[FP32] = found[BF16]
    if engine == "vllm" and family in NO_HALF and version_of(version) >= HALF_SINCE:
        found[FP16] = f"is refused by vllm for {family}, whose numbers it overflows"
    return found


def lowers_itself(engine: str | None, version: str | None) -> bool:
    """Whether a server takes another dtype by itself where the card or the family has none for the
    checkpoint's.
    """
    return engine in CASTS_DOWN or version_of(version) >= HALF_SINCE


def _too_old(plan: Plan, device: Device) -> Iterator[Problem]:
    """Cards whose compute capability an engine refuses, and eight-bit products that they have no units
    for.
    """
    major, minor = capability_of(device) or (0, 0)
    if (
        plan.engine == "sglang" and major and major < BF16_UNITS[0] and minor < 5
    ):  # its own test: 7.5, and none other before 8.0
        reason = "is refused by sglang, which supports compute capability 7.5 and above"
        yield Problem(field="gpus", value=device.name, reason=reason, hint="--engine vllm, or a newer card")
    needs = FP8_RECIPES.get(plan.fp8.recipe, FP8_UNITS) if plan.fp8 is not None else None
    if needs is not None and is_older_device(device, needs):
        reason = (
            f"needs compute capability {needs[0]}.{needs[1]}; {device.name} has {device.compute_capability}"
        )
        yield Problem(
            field="fp8.recipe",
            value=plan.fp8.recipe if plan.fp8 else None,
            reason=reason,
            hint="leave fp8 out",
        )


FP8_RECIPES = {"blockwise": (9, 0), "mxfp8": (10, 0), "nvfp4": (10, 0)}
"""Scalings that need more than units for eight bits (TransformerEngine pytorch/quantization.py,
check_fp8_block_scaling_support, check_mxfp8_support, check_nvfp4_support; check_fp8_support for the rest).
"""


def emulated_bf16(plan: Plan, device: Device) -> str:
    """What bf16 comes to on a card without units for it, in words; nothing where it has them, or nothing is
    computed in bf16 (torch 2.13 cuda/__init__.py, is_bf16_supported: tensors of it are all that is asked
    for).
    """
    if (
        not is_older_device(device, BF16_UNITS)
        or plan.precision.compute is not BF16
        or plan.engine in OWN_KERNELS
    ):
        return ""
    rate = "its products are priced at the rate of fp32, and conversions come on top"
    return f"{device.name} has no bf16 units: torch emulates bf16, {rate}; fp16 runs on its units"


def written_scores(plan: Plan, device: Device, model: ModelSpec) -> str:
    """Said where sdpa has no fused kernel on a card, and makes matrices of scores (torch 2.13
    sdp_utils.cpp).
    """
    if (
        not plan.before_ampere
        or plan.attention is not AttentionKind.SDPA
        or plan.engine in ("vllm", "sglang")
    ):
        return ""
    mixers = model.mixers()
    grouped = any(isinstance(m, Attention) and m.heads != m.kv_heads for m in mixers)
    if plan.precision.compute is not BF16 and not grouped:
        return ""
    what = "bf16" if plan.precision.compute is BF16 else "fewer heads of keys than of queries"
    return (
        f"no fused attention of torch takes {what} on {device.name}: sdpa writes its scores out, which "
        "grow with the square of seq_len"
    )


def _flash_attention_problems(plan: Plan, device: Device) -> Iterator[Problem]:
    kind = plan.attention.value
    if is_older_device(device, FLASH_UNITS):
        reason = f"needs compute capability {FLASH_UNITS[0]}.0; {device.name} has {device.compute_capability}"
        yield Problem(
            field="attention",
            value=kind,
            reason=reason,
            hint="--attention eager" if plan.engine == "megatron" else "--attention sdpa",
        )
    if plan.attention is AttentionKind.CUDNN:
        return
    if plan.precision.compute is FP32:
        yield Problem(
            field="attention",
            value="flash",
            reason="computes in fp16 or bf16 only",
            hint="--attention sdpa, or a 16-bit precision",
        )
