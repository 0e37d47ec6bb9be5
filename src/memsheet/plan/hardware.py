"""What a card cannot run whatever its memory is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.errors import Problem
from memsheet.plan.device import Cluster, Device
from memsheet.plan.dtypes import BF16, FP8, FP16, FP32, DType
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import PAGED_SERVER, engine_of, find_engine
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.plan.server_limits import ASKED, Capability, FormatNeeds

FLASH_UNITS = (8, 0)
"""FlashAttention-2 needs Ampere, compute capability 8.0 (Dao-AILab/flash-attention README)."""
BF16_UNITS = (8, 0)
"""Units for bf16 came with Ampere (torch 2.13 cuda/__init__.py, is_bf16_supported)."""
FP8_UNITS = (8, 9)
"""Compute capability from which a card converts eight-bit numbers by itself (``READ_IN``)."""


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
        yield Problem(field="gpus", value=device.name, reason=reason, hint=hint, refused=True)
    engine = engine_of(plan)
    if (words := eight_bit_cache(plan, device, model)) and engine.limits.refuses_cache(plan, device, model):
        other = "fp16" if plan.precision.compute is not BF16 else "bf16"
        yield Problem(
            field="serving.kv_dtype",
            value="fp8",
            reason=words,
            hint=f"--kv-dtype {other}, or a card from Ada and Hopper on",
            refused=True,
        )
    yield from _too_old(plan, engine, device)
    yield from format_problems(plan, device, model)
    if plan.attention in (AttentionKind.FLASH, AttentionKind.CUDNN) and not engine.limits.own_kernels:
        yield from _flash_attention_problems(plan, engine, device)
    if (
        plan.attention is AttentionKind.XFORMERS
        and plan.precision.compute is BF16
        and is_older_device(device, BF16_UNITS)
    ):
        reason = (
            "has no kernel for bf16 before compute capability 8.0; "
            f"{device.name} has {device.compute_capability}"
        )
        yield Problem(
            field="attention", value="xformers", reason=reason, hint="fp16, or --attention sdpa", refused=True
        )


def version_of(version: str | None) -> tuple[int, int, int]:
    """An engine's number, past all where none is said."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version) if version else None
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
    limits = engine_of(plan).limits
    if (
        plan.cache.kv_dtype is not FP8
        or not limits.unpacks_eight_bits
        or not is_older_device(device, FP8_UNITS)
    ):
        return ""
    if limits.refuses_cache(plan, device, model):
        return (
            f"has no kernel on {device.name}, which converts no fp8: Triton's alone are left, and they "
            "refuse it"
        )
    return (
        f"{device.name} converts no fp8: kernels of Triton refuse such a cache, others unpack every "
        "token that is read"
    )


def not_served_in(
    engine: Engine, version: str | None, device: Device | None, family: str
) -> Mapping[DType, str]:
    """Dtypes that a server does not compute in, and why."""
    found, limits = dict[DType, str](), engine.limits
    if limits.bf16_units and device is not None and is_older_device(device, limits.bf16_units):
        needed = ".".join(map(str, limits.bf16_units))
        found[BF16] = (
            f"needs compute capability {needed} in {engine.name}; {device.name} has "
            f"{device.compute_capability}"
        )
    if limits.casts_down and BF16 in found:
        found[FP32] = found[BF16]
    if family in limits.overflowing and _knows_overflow(engine, version):
        found[FP16] = f"is refused by {engine.name} for {family}, whose numbers it overflows"
    return found


def _knows_overflow(engine: Engine, version: str | None) -> bool:
    since = engine.limits.lowers_since
    return since is not None and version_of(version) >= since


def format_problems(plan: Plan, device: Device | None, model: ModelSpec | None = None) -> Iterator[Problem]:
    """Weights of a format that a server does not read on a card (any where it is None), or into what the plan
    computes in. A card on which no format starts is told as that alone.
    """
    if plan.quantization is None:
        return
    engine, name = engine_of(plan), plan.quantization.weights.name
    needs = list(_needs_of_format(plan, engine, model))
    units = max((one.units for one in needs), default=(0, 0))
    starts = device is None or not is_older_device(device, _least_units(engine, plan.engine_version))
    if device is not None and starts and is_older_device(device, units):
        reason = (
            f"needs compute capability {units[0]}.{units[1]} in {engine.name}; {device.name} has "
            f"{device.compute_capability}"
        )
        hint = _other_formats(plan, device, engine)
        yield Problem(field="quantization.weights", value=name, reason=reason, hint=hint, refused=True)
    taken = [one.dtypes for one in needs if one.dtypes and plan.precision.compute not in one.dtypes]
    if taken:
        takes = " or ".join(dtype.name for dtype in min(taken, key=len))
        reason = (
            f"is multiplied in {takes} by {engine.name}, and {plan.precision.compute.name} is computed in"
        )
        hint = f"compute in {takes}, where the card and the model have it, or leave the format out"
        yield Problem(field="quantization.weights", value=name, reason=reason, hint=hint, refused=True)


def _needs_of_format(plan: Plan, engine: Engine, model: ModelSpec | None) -> Iterator[FormatNeeds]:
    """The rows that hold for a plan's format: the checkpoint's own method where it is stored so."""
    name = plan.quantization.weights.name if plan.quantization is not None else ""
    stored = model.quantization if model is not None else None
    method = stored.method if stored is not None and stored.weights == name else ASKED
    version = version_of(plan.engine_version)
    for one in engine.limits.format_needs:
        applies = name in one.weights and (not one.methods or method in one.methods)
        if applies and (one.before is None or version < one.before):
            yield one


def _other_formats(plan: Plan, device: Device, engine: Engine) -> str:
    """What such a card is left with."""
    version = version_of(plan.engine_version)
    lacking = {
        name
        for one in engine.limits.format_needs
        if ASKED in (one.methods or (ASKED,))
        and is_older_device(device, one.units)
        and (one.before is None or version < one.before)
        for name in one.weights
    }
    left = [name for name in SERVED_FORMATS if name not in lacking]
    others = f"a checkpoint in {' or '.join(left)}, " if left else ""
    return f"{others}weights that are not quantized, or a newer card"


SERVED_FORMATS = ("awq-int4", "gptq-int4", "fp8")
"""Formats that most models are published in."""


def lowers_itself(engine: Engine, version: str | None) -> bool:
    """Whether a server takes another dtype by itself where the card or the family has none for the
    checkpoint's.
    """
    return engine.limits.casts_down or _knows_overflow(engine, version)


def _least_units(engine: Engine, version: str | None) -> Capability:
    """The least compute capability that a release starts on."""
    number = version_of(version)
    needs = engine.limits.card_needs
    return next((one.units for one in needs if one.before is None or number < one.before), (0, 0))


def _earlier_releases(engine: Engine, device: Device) -> Iterator[str]:
    """A release of an engine that starts on a card, as it is typed."""
    for one in engine.limits.card_needs:
        if one.before is not None and not is_older_device(device, one.units):
            first = ".".join(map(str, one.before))
            yield f"a release before {first}, as --engine-version {one.release} asks for"


def _other_server(engine: Engine, device: Device) -> Iterator[str]:
    """Another server that starts on a card, and at which release where its newest does not."""
    other = find_engine(PAGED_SERVER)
    if other is None or other.name == engine.name:
        return
    if not is_older_device(device, _least_units(other, None)):
        yield f"--engine {PAGED_SERVER}"
    yield from (f"--engine {PAGED_SERVER} in {words}" for words in _earlier_releases(other, device))


def _too_old(plan: Plan, engine: Engine, device: Device) -> Iterator[Problem]:
    """Cards whose compute capability an engine refuses, and eight-bit products that they have no units
    for.
    """
    least = _least_units(engine, plan.engine_version)
    if is_older_device(device, least):
        reason = (
            f"is refused by {engine.name}, which supports compute capability {least[0]}.{least[1]} and above"
        )
        others = (*_earlier_releases(engine, device), *_other_server(engine, device))
        hint = f"{others[0] if others else 'an engine without that limit'}, or a newer card"
        yield Problem(field="gpus", value=device.name, reason=reason, hint=hint, refused=True)
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
            refused=True,
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
        or engine_of(plan).limits.own_kernels
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
        or not engine_of(plan).limits.writes_scores
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


def _flash_attention_problems(plan: Plan, engine: Engine, device: Device) -> Iterator[Problem]:
    kind = plan.attention.value
    eager = AttentionKind.EAGER in engine.attention and AttentionKind.SDPA not in engine.attention
    other = AttentionKind.EAGER if eager else AttentionKind.SDPA
    if is_older_device(device, FLASH_UNITS):
        reason = f"needs compute capability {FLASH_UNITS[0]}.0; {device.name} has {device.compute_capability}"
        yield Problem(
            field="attention",
            value=kind,
            reason=reason,
            hint=f"--attention {other.value}",
            refused=True,
        )
    if plan.attention is AttentionKind.CUDNN:
        return
    if plan.precision.compute is FP32:
        yield Problem(
            field="attention",
            value="flash",
            reason="computes in fp16 or bf16 only",
            hint="--attention sdpa, or a 16-bit precision",
            refused=True,
        )
