"""Kernels that vLLM's releases have for an eight-bit cache on cards that convert no eight-bit numbers."""

from __future__ import annotations

from memsheet.plan.device import Device
from memsheet.plan.hardware import is_older_device, version_of
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import Plan

TRITON_ALONE = ((0, 11, 0), (0, 12, 0))
"""Releases in which eight bits below Hopper are Triton's alone, and the older engine that others were left to
is gone (v0.11.0 platforms/cuda.py:360; v0.10.2 engine/arg_utils.py:1465 falls back to it; v0.12.0 asks each
backend, and FlashInfer unpacks them).
"""
SINKS_SINCE = (0, 12, 0)
"""From when on FlashInfer is asked whether it has attention sinks, which it has on newer cards alone (v0.12.0
v1/attention/backends/flashinfer.py:358, v0.33.0 :707): what is left is Triton.
"""
AMPERE_SINCE = (0, 24, 0)
"""From when on FlashInfer is left to cards of Ampere and newer (v0.24.0
v1/attention/backends/flashinfer.py:432).
"""


def refuses_eight_bits(plan: Plan, device: Device, model: ModelSpec | None) -> bool:
    """Whether nothing but Triton's kernels is left for an eight-bit cache on such a card, which refuse it."""
    version = version_of(plan.engine_version)
    old = version >= AMPERE_SINCE and is_older_device(device, (8, 0))
    return (
        old or TRITON_ALONE[0] <= version < TRITON_ALONE[1] or (version >= SINKS_SINCE and _has_sinks(model))
    )


def _has_sinks(model: ModelSpec | None) -> bool:
    mixers = model.mixers() if model else ()
    return any(isinstance(mixer, Attention) and mixer.sinks for mixer in mixers)
