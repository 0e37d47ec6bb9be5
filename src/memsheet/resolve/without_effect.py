"""Options that a whole plan has nothing for: they are refused, or said to change nothing, and never only
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from memsheet.arith import agreed
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts
from memsheet.plan.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Recurrent,
    StateSpace,
)
from memsheet.plan.plan import Plan, Schedule
from memsheet.plan.workload import Serving

OF_EXPERTS = (
    "mesh.ep", "moe.dispatch", "moe.capacity_factor", "moe.pad_to_capacity", "moe.grouped_gemm", "moe.permute_fusion", "moe.balanced",
    "serving.host_experts",
)  # fmt: skip
OF_STATES = ("serving.state_slots", "serving.state_ratio")
OF_RECIPES = ("fp8.param_storage", "fp8.all_gather", "fp8.skip")
OF_TORCH = ("allocator.expandable_segments",)
BATCHES = ("serving.batch", "microbatch")
ACCOUNTED = {"moe.grouped_gemm": "experts in grouped products", "moe.permute_fusion": "the fused permutation"}
"""What is accounted for experts whichever is asked for."""


def check_effects(gaps: RequestResolver, plan: Plan, engine: Engine, model: ModelSpec | None) -> None:
    """Every option that is given and has nothing to act on."""
    for keys, holds, reason, hint in _no_effect_rules(plan, engine, model):
        for key in [key for key in keys if key in gaps.request]:
            if (value := _effective_value(gaps, key)) is not None and holds(value):
                gaps.wrong(key, value, reason, hint)
    gaps.assumed += _no_effect_notes(gaps, plan)


def _effective_value(gaps: RequestResolver, key: str) -> Any:
    """The value of an option that asks for something."""
    value = gaps.request.get(key)
    return None if value in (False, 0, [], (), "") else value


Rule = tuple[tuple[str, ...], Callable[[Any], bool], str, str]
LEAVE = "leave it out"


def _matches_any_value(_: Any) -> bool:
    return True


def _no_effect_rules(plan: Plan, engine: Engine, model: ModelSpec | None) -> Iterator[Rule]:
    if model is not None:
        yield from _of_the_model(plan, model)
    if plan.fp8 is None:
        yield (
            OF_RECIPES,
            _matches_any_value,
            "is of products in eight bits, and no recipe is given",
            "add fp8.recipe",
        )
    yield from (_of_serving if isinstance(plan.workload, Serving) else _of_training)(plan, engine)
    if plan.schedule is Schedule.INTERLEAVED and plan.mesh.vpp == 1:
        yield (
            ("schedule",),
            _matches_any_value,
            "takes turns among chunks of a rank, and each has one",
            "--vpp 2, or 1f1b",
        )


def _of_training(plan: Plan, engine: Engine) -> Iterator[Rule]:
    if engine.own_kernel_steps:
        reason = f"is not how {engine.name} steps its flat buffers: a fused kernel does"
        yield (
            ("optimizer.implementation",),
            lambda value: value in ("foreach", "loop", "fused"),
            reason,
            LEAVE,
        )
    if not engine.autocast and not engine.sharding.gathers and plan.fp8 is None:
        reason = (
            f"is not what {engine.name} does: it computes in the {plan.precision.parameters.name} of "
            "its parameters"
        )
        yield ("precision.compute",), lambda _: plan.precision.casts, reason, "give precision.parameters"


def _of_the_model(plan: Plan, model: ModelSpec) -> Iterator[Rule]:
    mixers = model.mixers()
    if not has_experts(model):
        reason = f"is of routed experts, and {model.name} has none"
        yield OF_EXPERTS, lambda value: value != 1 or value is True, reason, LEAVE
        yield ("mesh.etp",), lambda value: value not in (1, plan.mesh.tp), reason, LEAVE
    if not model.vocab:
        reason = f"is of logits over a vocabulary, and {model.name} has none"
        yield ("loss",), lambda value: value != "plain", reason, LEAVE
    padded = any(weight.padded for weight in (*model.embeddings.weights, *model.head.weights, *model.extras))
    if not padded:
        yield (
            ("vocab_multiple",),
            lambda value: value != 1,
            f"pads a vocabulary, and {model.name} has none that is padded",
            LEAVE,
        )
    if not any(isinstance(mixer, StateSpace | LinearAttention | Recurrent) for mixer in mixers):
        yield OF_STATES, _matches_any_value, f"is of recurrent states, and {model.name} keeps none", LEAVE
    if not any(isinstance(mixer, Attention | LatentAttention | CrossAttention) for mixer in mixers):
        reason = f"is of keys and values, and {model.name} keeps none"
        yield (
            ("serving.kv_dtype", "serving.page_tokens"),
            lambda value: value != plan.precision.compute.name,
            reason,
            LEAVE,
        )
        yield (
            ("serving.attention_kernels",),
            _matches_any_value,
            f"is of attention, and {model.name} has none",
            LEAVE,
        )


def _of_serving(plan: Plan, engine: Engine) -> Iterator[Rule]:
    name = engine.name
    if not engine.serving.torch_memory:
        yield OF_TORCH, _matches_any_value, f"is of PyTorch's allocator, which {name} does not use", LEAVE
    if engine.limits.own_padding:
        yield (
            ("vocab_multiple",),
            lambda value: value != 1,
            f"is not an option of {name}, which pads by its own rule",
            LEAVE,
        )
    if engine.limits.own_compute(plan):
        reason = (
            f"is not an option of {name}, which computes by its own rule from "
            f"{plan.precision.parameters.name}"
        )
        yield ("precision.compute",), lambda _: plan.precision.casts, reason, LEAVE
    if engine.serving.captures_compiled and not plan.compile:
        reason = "are recorded by torch.compile there, and nothing is compiled"
        yield ("serving.cuda_graphs", "cuda_graphs"), _matches_any_value, reason, "add --compile"
    if plan.served_adapters is None and plan.adapter is None:
        yield (
            ("adapter.kind",),
            _matches_any_value,
            f"is not modelled for adapters that {name} serves",
            "merged, an adapter costs nothing",
        )
    most = plan.serving.max_sequences or 0
    yield (
        BATCHES,
        lambda value: value > most,
        f"is more than the {most} sequences that are served at once",
        "a larger --sequences",
    )


def _no_effect_notes(gaps: RequestResolver, plan: Plan) -> Iterator[str]:
    """Options that are taken and change no byte."""
    for key, what in ACCOUNTED.items():
        if gaps.request.get(key) is False and plan.routing is not None:
            yield f"{key} = false is accounted as {what}: what differs without is not modelled"
    if gaps.request.get("quantization.experts") and plan.quantization and not plan.quantization.experts:
        yield "quantization.experts = true changes nothing: no layer has experts"
    if gaps.request.get("recompute.reentrant") and not plan.recompute.reentrant:
        yield "recompute.reentrant = true changes nothing: no whole layer is recomputed"
    synced = gaps.request.get("gradient_sync")
    if synced and not isinstance(plan.workload, Serving) and agreed(plan.accumulation == 1):
        yield f"gradient_sync = {synced} is of steps of several micro-batches, and this has one"
    if isinstance(plan.workload, Serving):
        most = plan.workload.max_sequences
        for key in (key for key in BATCHES if (_effective_value(gaps, key) or most) != most):
            yield (
                f"{key} = {gaps.request[key]} is what runs at once; room is kept for "
                f"serving.max_sequences = {most}"
            )
    if _effective_value(gaps, "serving.logical_batch"):
        yield f"serving.logical_batch = {gaps.request['serving.logical_batch']} sizes what the host holds"
