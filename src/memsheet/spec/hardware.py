"""What a card cannot run whatever its memory is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.errors import Problem
from memsheet.spec.device import Cluster, Device
from memsheet.spec.dtypes import BF16, FP8, FP16, FP32, DType
from memsheet.spec.model import Attention, ModelSpec
from memsheet.spec.plan import AttentionKind, Plan

FLASH_UNITS = (8, 0)
"""FlashAttention-2 needs Ampere, compute capability 8.0 (Dao-AILab/flash-attention README)."""
BF16_UNITS = (8, 0)
"""vLLM refuses bf16 below it (v0.6.4.post1 worker/worker.py _check_if_gpu_supports_dtype, v0.33.0 platforms/cuda.py:638)."""
NO_HALF, HALF_SINCE = frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"}), (0, 9, 0)
"""Families that vLLM does not compute in fp16 (_FLOAT16_NOT_SUPPORTED_MODELS: v0.9.2 config.py:3221, v0.33.0 config/model.py:2398), and from when on
it takes another dtype by itself where nobody says one (_resolve_auto_dtype, v0.9.2 config.py:3284).
"""
FP8_UNITS = (8, 9)
"""Compute capability from which a card converts eight-bit numbers by itself (vLLM v0.33.0 v1/attention/backends/triton_attn.py:515)."""
TRITON_ALONE = ((0, 11, 0), (0, 12, 0))
"""Releases of vLLM in which eight bits below Hopper are Triton's alone, and the older engine that others were left to is gone (v0.11.0
platforms/cuda.py:360; v0.10.2 engine/arg_utils.py:1465 falls back to it; v0.12.0 asks each backend, and FlashInfer unpacks them).
"""
SINKS_SINCE = (0, 12, 0)
"""From when on FlashInfer is asked whether it has attention sinks, which it has on newer cards alone (v0.12.0 v1/attention/backends/flashinfer.py:358,
v0.33.0 :707): what is left is Triton.
"""
AMPERE_SINCE = (0, 24, 0)
"""From when on FlashInfer is left to cards of Ampere and newer (v0.24.0 v1/attention/backends/flashinfer.py:432)."""

OWN_KERNELS = frozenset({"llama.cpp"})
"""Engines whose flash attention is their own and runs on older cards too (ggml/src/ggml-cuda/fattn.cu)."""


def unsupported(plan: Plan, cluster: Cluster, model: ModelSpec | None = None) -> Iterator[Problem]:
    """Every choice of a plan that its card does not have."""
    device = cluster.device
    if device.engines is not None and plan.engine not in device.engines:
        reason = f"is not a device that {plan.engine} is accounted on"
        hint = f"accounted there: {', '.join(device.engines)}" if device.engines else "cards of NVIDIA and AMD are"
        yield Problem(field="gpus", value=device.name, reason=reason, hint=hint)
    if (words := eight_bit_cache(plan, device, model)) and refuses_eight_bits(plan, device, model):
        other = "fp16" if plan.precision.compute is not BF16 else "bf16"
        yield Problem(field="serving.kv_dtype", value="fp8", reason=words, hint=f"--kv-dtype {other}, or a card from Ada and Hopper on")
    if plan.attention is AttentionKind.FLASH and plan.engine not in OWN_KERNELS:
        yield from _flash(plan, device)


def version_of(version: str | None) -> tuple[int, int, int]:
    """An engine's number, past all where none is said."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (10**6, 0, 0)


def capability_of(device: Device) -> tuple[int, int] | None:
    """Compute capability, where the card has one."""
    major, _, minor = (device.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def below(device: Device, units: tuple[int, int]) -> bool:
    """Whether a card is known to be older than ``units``."""
    found = capability_of(device)
    return found is not None and found < units


def eight_bit_cache(plan: Plan, device: Device, model: ModelSpec | None = None) -> str:
    """What an eight-bit cache comes to on a card that converts no eight-bit numbers, in words; nothing where it does."""
    if plan.kv_dtype is not FP8 or plan.engine not in ("vllm", "sglang") or not below(device, FP8_UNITS):
        return ""
    if refuses_eight_bits(plan, device, model):
        return f"has no kernel on {device.name}, which converts no fp8: Triton's alone are left, and they refuse it"
    return f"{device.name} converts no fp8: kernels of Triton refuse such a cache, others unpack every token that is read"


def refuses_eight_bits(plan: Plan, device: Device, model: ModelSpec | None = None) -> bool:
    """Whether vLLM has nothing but Triton's kernels for an eight-bit cache, which refuse it on such a card."""
    if plan.engine != "vllm" or plan.kv_dtype is not FP8 or not below(device, FP8_UNITS):
        return False
    version = version_of(plan.engine_version)
    old = version >= AMPERE_SINCE and below(device, (8, 0))
    return old or TRITON_ALONE[0] <= version < TRITON_ALONE[1] or (version >= SINKS_SINCE and _has_sinks(model))


def _has_sinks(model: ModelSpec | None) -> bool:
    mixers = (m for stack in model.stacks for run in stack.runs for block in run.pattern for m in block.mixers) if model else ()
    return any(isinstance(mixer, Attention) and mixer.sinks for mixer in mixers)


def not_served_in(engine: str, version: str | None, device: Device | None, family: str) -> Mapping[DType, str]:
    """Dtypes that a server refuses to compute in, and why."""
    found: dict[DType, str] = {}
    if engine == "vllm" and device is not None and below(device, BF16_UNITS):
        found[BF16] = f"needs compute capability 8.0 in vllm; {device.name} has {device.compute_capability}"
    if engine == "vllm" and family in NO_HALF and version_of(version) >= HALF_SINCE:
        found[FP16] = f"is refused by vllm for {family}, whose numbers it overflows"
    return found


def _flash(plan: Plan, device: Device) -> Iterator[Problem]:
    if below(device, FLASH_UNITS):
        reason = f"needs compute capability {FLASH_UNITS[0]}.0; {device.name} has {device.compute_capability}"
        yield Problem(field="attention", value="flash", reason=reason, hint="--attention sdpa")
    if plan.precision.compute is FP32:
        yield Problem(
            field="attention", value="flash", reason="computes in fp16 or bf16 only", hint="--attention sdpa, or a 16-bit precision"
        )
