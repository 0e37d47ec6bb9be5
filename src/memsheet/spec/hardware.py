"""What a card cannot run whatever its memory is."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.errors import Problem
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import FP32
from memsheet.spec.plan import AttentionKind, Plan

OTHER_STACKS = ("Google", "Intel", "Huawei")
"""Vendors whose cards the modelled engines do not drive through CUDA or ROCm, the allocator and libraries that are accounted."""
FLASH_MAJOR = 8
"""FlashAttention-2 needs Ampere, compute capability 8.0 (Dao-AILab/flash-attention README)."""

OWN_KERNELS = frozenset({"llama.cpp"})
"""Engines whose flash attention is their own and runs on older cards too (ggml/src/ggml-cuda/fattn.cu)."""


def unsupported(plan: Plan, cluster: Cluster) -> Iterator[Problem]:
    """Every choice of a plan that its card does not have."""
    device = cluster.device
    if device.vendor in OTHER_STACKS:
        reason = f"is not a card that {plan.engine} is accounted on"
        yield Problem(field="gpus", value=device.name, reason=reason, hint="cards of NVIDIA and AMD are")
    if plan.attention is not AttentionKind.FLASH or plan.engine in OWN_KERNELS:
        return
    major = (device.compute_capability or "").split(".")[0]
    if major.isdigit() and int(major) < FLASH_MAJOR:
        yield Problem(
            field="attention",
            value="flash",
            reason=f"needs compute capability {FLASH_MAJOR}.0; {device.name} has {device.compute_capability}",
            hint="--attention sdpa",
        )
    if plan.precision.compute is FP32:
        yield Problem(
            field="attention", value="flash", reason="computes in fp16 or bf16 only", hint="--attention sdpa, or a 16-bit precision"
        )
