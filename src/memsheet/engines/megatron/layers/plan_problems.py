"""What of a model and a plan is not accounted for Megatron-Core."""

from __future__ import annotations

from memsheet.arith import agreed
from memsheet.engines.megatron.layers.experts import has_expert_biases
from memsheet.engines.megatron.layers.graphs import graph_problems
from memsheet.errors import Problem
from memsheet.plan.dtypes import FP16, FP32
from memsheet.plan.model import Arrangement, Attention, Block, Dense, LatentAttention, ModelSpec, Moe
from memsheet.plan.plan import AttentionKind, ContextParallel, OptimizerName, Plan

GATED = frozenset({"silu", "swish"})
PLAIN = frozenset({"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2"})
DISPATCHERS = ("alltoall", "deepep", "hybridep", "flex")
MODULES = frozenset({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"})
"""What ``recompute.modules`` may name (transformer_config.py, recompute_modules)."""
RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4")
"""Of --fp8-recipe and --fp4-recipe (training/arguments.py), whose numbers TransformerEngine scales by itself.
"""


def megatron_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What of a model or plan is not modelled here."""
    found = [
        Problem(
            field="model",
            value=spec.name,
            reason=f"the layers of {block.kind} are not modelled for megatron: {why}",
        )
        for block in spec.blocks()
        if (why := _unmodelled_layer_reason(block))
    ]
    if plan.quantization is not None:
        name, reason = (
            plan.quantization.weights.name,
            "is no format that megatron's linear layers hold a frozen base in",
        )
        found.append(
            Problem(
                field="quantization.weights", value=name, reason=reason, hint="engine transformers or fsdp2"
            )
        )
    if spec.towers:
        found.append(
            Problem(field="model", value=spec.name, reason="its vision tower is not modelled for megatron")
        )
    if spec.head.kind not in ("causal_lm", "none") or len(spec.stacks) != 1:
        found.append(
            Problem(
                field="model",
                value=spec.name,
                reason=f"training a {spec.head.kind} model is not modelled for megatron",
            )
        )
    known = ", ".join(sorted(MODULES))
    found += [
        Problem(field="recompute.modules", value=name, reason="is none of megatron's", hint=known)
        for name in plan.recompute.modules
        if name not in MODULES
    ]
    found += _nothing_named(spec, plan)
    found += graph_problems(spec, plan)
    found += _muon_problems(plan)
    found += _sinks_and_expert_biases(spec, plan)
    if plan.fp8 is not None and plan.fp8.recipe not in RECIPES:
        found.append(
            Problem(
                field="fp8.recipe",
                value=plan.fp8.recipe,
                reason="is none of megatron's",
                hint=", ".join(RECIPES),
            )
        )
    if plan.fp8 is not None and plan.fp8.gathered and not plan.fp8.stored:
        reason = "gathers parameters that are kept in eight bits, and they are not"
        found.append(
            Problem(field="fp8.all_gather", value=True, reason=reason, hint="fp8.param_storage true")
        )
    if plan.context_parallel is not None:
        found += _context_parallel(spec, plan)
    if plan.routing is not None and plan.routing.dispatch not in DISPATCHERS:
        reason = "is none of megatron's token dispatchers that are modelled"
        found.append(
            Problem(
                field="moe.dispatch", value=plan.routing.dispatch, reason=reason, hint=", ".join(DISPATCHERS)
            )
        )
    if plan.sequence_parallel and not agreed(plan.mesh.tp > 1):
        found.append(
            Problem(
                field="sequence_parallel",
                value=True,
                reason="splits over tensor-parallel ranks, and there is one",
            )
        )
    if agreed(plan.mesh.vpp > 1) and agreed(
        plan.accumulation % plan.mesh.pp != 0
    ):  # pipeline_parallel/schedules.py raises
        reason = (
            f"makes micro-batches that are no multiple of {plan.mesh.pp} stages, which take turns in "
            "groups of as many"
        )
        found.append(
            Problem(
                field="global_batch",
                value=plan.training.global_batch,
                reason=reason,
                hint="another microbatch, or vpp 1",
            )
        )
    return found


def _sinks_and_expert_biases(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What learnable sinks run without (TransformerEngine pytorch/attention/dot_product_attention/utils.py:
    1114-1155), and what is not modelled of them and of experts with biases.
    """
    sinks = any(isinstance(m, Attention) and m.sinks for m in spec.mixers())
    biased = any(isinstance(b.feed_forward, Moe) and has_expert_biases(b.feed_forward) for b in spec.blocks())
    around, kernel = plan.context_parallel, plan.attention
    reasons = [
        ("attention", kernel.value, "is not modelled with sinks", sinks and kernel is AttentionKind.EAGER, "cudnn"),
        ("context_parallel_comm", around.value if around else None, "has no kernel with sinks", sinks and around not in (None, ContextParallel.ALL_TO_ALL), "all_to_all"),
        ("recompute.modules", "moe_act", "is not modelled of experts with biases", biased and "moe_act" in plan.recompute.modules, "leave it out"),
        ("fp8.recipe", plan.fp8.recipe if plan.fp8 else None, "is not modelled of experts with biases", biased and plan.fp8 is not None, "leave it out"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=reason, hint=hint)
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _muon_problems(plan: Plan) -> list[Problem]:
    """What Muon runs without (Megatron-LM d98e8a6 optimizer/__init__.py:770-776, 848-856,
    layer_wise_optimizer.py:575), or is not modelled with.
    """
    if plan.optimizer is None or plan.optimizer.name is not OptimizerName.MUON:
        return []
    precision = plan.precision
    reasons = [
        ("precision.parameters", precision.parameters.name, "is no precision of its", precision.parameters is FP16, "bf16"),
        ("precision.moments", precision.moments.name, "is not how it keeps momentum, which is that of the main parameter", precision.moments is not FP32, "fp32"),
        ("precision.master_weights", "int16-remainder", "belongs to the precision-aware Adam", precision.master_weights not in (FP32, None), "fp32"),
        ("mesh.dp_replicate", plan.mesh.dp_replicate, "divides no whole matrices between several instances", plan.zero == 1 and agreed(plan.mesh.dp_replicate > 1), "1"),
        ("fp8.param_storage", True, "is not modelled with it", plan.fp8 is not None and plan.fp8.stored, "leave it out"),
        ("offload.optimizer", plan.offload.optimizer, "is not modelled with it", bool(plan.offload.optimizer), "leave it out"),
        ("adapter.rank", plan.adapter.rank if plan.adapter else None, "is not modelled with it", plan.adapter is not None, "--optimizer adamw"),
    ]  # fmt: skip
    return [
        Problem(field=field, value=value, reason=f"{reason} (muon)", hint=hint)
        for field, value, reason, holds, hint in reasons
        if holds
    ]


def _nothing_named(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """Modules to recompute that no layer has: a feed-forward without experts, or experts."""
    kinds = {type(block.feed_forward) for block in spec.blocks()}
    absent = [
        *([] if Dense in kinds else ["mlp"]),
        *([] if Moe in kinds else ["moe_act", "moe", "shared_experts"]),
    ]
    return [
        Problem(
            field="recompute.modules",
            value=name,
            reason=f"names no part of {spec.name}'s layers",
            hint="leave it out",
        )
        for name in plan.recompute.modules
        if name in absent
    ]


def _context_parallel(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What attention over context-parallel ranks is not modelled for."""
    mixers = spec.mixers()
    latent = any(isinstance(m, LatentAttention) for m in mixers)
    shared = plan.context_parallel
    assert shared is not None
    found = _all_to_all(spec, plan) if shared is ContextParallel.ALL_TO_ALL else []
    if latent and shared is not ContextParallel.ALL_TO_ALL:
        reason = "is not modelled for latent attention"
        found.append(
            Problem(field="context_parallel_comm", value=shared.value, reason=reason, hint="all_to_all")
        )
    if plan.attention is AttentionKind.EAGER:
        reason = "does not exist with scores in full: only the fused kernels see other ranks' keys"
        found.append(Problem(field="mesh.cp", value=plan.mesh.cp, reason=reason, hint="--attention flash"))
    return found


def _all_to_all(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """All-to-all splits heads over context-parallel ranks (context_parallel.py, AttnFuncWithCPAndQKVOA2A)."""
    mixers = spec.mixers()
    heads = {
        (m.kv_heads if isinstance(m, Attention) else m.heads)
        for m in mixers
        if isinstance(m, Attention | LatentAttention)
    }
    degree = plan.mesh.tp * plan.mesh.cp
    return [
        Problem(
            field="mesh.cp",
            value=plan.mesh.cp,
            reason=f"does not divide {count} heads of keys and values over tp · cp ranks",
        )
        for count in sorted(heads)
        if agreed(count % degree != 0)
    ]


def _unmodelled_layer_reason(block: Block) -> str | None:
    if len(block.mixers) != 1 or not isinstance(block.mixers[0], Attention | LatentAttention):
        return f"its mixer is {' and '.join(type(m).__name__ for m in block.mixers) or 'missing'}"
    at, ff = block.mixers[0], block.feed_forward
    if isinstance(at, Attention) and (at.gated_output or at.position_bias or at.chunk or at.softcap):
        return "its attention has gates, biases or caps"
    if block.arrangement is not Arrangement.PRE:
        return "its norms are elsewhere than before attention and feed-forward"
    if not isinstance(ff, Dense | Moe):
        return f"its feed-forward is {type(ff).__name__}"
    return (
        None
        if ff.activation in (GATED if ff.gated else PLAIN)
        else f"its activation {ff.activation} has no fused kernel there"
    )
