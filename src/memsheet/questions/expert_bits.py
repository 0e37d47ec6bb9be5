"""Whether experts of a model that bitsandbytes quantizes are among its linear layers, which depends on the
release of the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes import Case
from memsheet.exchange.verdict_doubts import Doubt
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.plan import RecomputeMode
from memsheet.plan.workload import Training
from memsheet.questions.length_doubts import resting_states

OF_LINEAR_LAYERS = frozenset({"nf4", "nf4-single", "fp4", "fp4-double", "int8"})
"""What bitsandbytes makes of linear layers, and of nothing else."""
BEFORE_STACKED = (
    "transformers before 5 has each expert's matrices as linear layers, which are quantized, and a stacked "
    "parameter of all experts is not: --engine-version says a newer one"
)
"""transformers v4.57 models/mixtral/modeling_mixtral.py, MixtralSparseMoeBlock: a ModuleList of experts, and
so in qwen2_moe, qwen3_moe and olmoe; v5 models/mixtral/modeling_mixtral.py, MixtralExperts: one parameter.
"""
STACKED_SINCE = 5


def expert_bits_doubt(answer: Answer | None, case: Case, flags: Mapping[str, Any]) -> Doubt:
    """Why a training with a quantized base that does not fit may fit: in an earlier release its experts take
    a few bits, too.
    """
    if answer is None or answer.verdict is None or answer.verdict.result is not Result.DOES_NOT_FIT:
        return Doubt("")
    stored = answer.plan.quantization
    if stored is None or stored.weights is None or stored.experts or _is_newer(flags):
        return Doubt("")
    linear = stored.weights.name in OF_LINEAR_LAYERS and isinstance(answer.plan.workload, Training)
    if not linear or not has_experts(answer.model):
        return Doubt("")
    earlier = case.ask({"quantization.experts": True})
    return Doubt(BEFORE_STACKED, resting_states(earlier) if earlier else 0)


ON_EXPERTS = frozenset({"all-linear", "all", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Targets that name the experts' matrices where those are linear layers; none said is all linear layers."""
BYTES_OF_ADAPTER = 16
"""Of a parameter that trains: itself, its gradient and two moments in fp32."""


def expert_adapter_doubt(answer: Answer | None, case: Case, flags: Mapping[str, Any]) -> Doubt:
    """Why a training of adapters that fits may not fit: in an earlier release each expert's matrices have
    adapters of their own, whole on each rank at the most.
    """
    if answer is None or answer.verdict is None or answer.cluster is None or _is_newer(flags):
        return Doubt("")
    job, adapter = answer.plan.workload, answer.plan.adapter
    targets = case.request.get("adapter.targets") or ["all-linear"]
    named = {str(one) for one in (targets if isinstance(targets, list | tuple) else str(targets).split(","))}
    if answer.verdict.result is not Result.FITS or not isinstance(job, Training):
        return Doubt("")
    if adapter is None or not adapter.rank or not named & ON_EXPERTS:
        return Doubt("")
    again = 1 if answer.plan.recompute.mode is RecomputeMode.FULL else answer.model.layers
    tokens = int(job.microbatch) * int(job.seq_len or 0)
    more = int(adapter.rank) * _expert_sides(answer.model) * BYTES_OF_ADAPTER
    more += tokens * again * _expert_inputs(answer.model)
    most = int(answer.verdict.device.high) + more
    if not more or most <= answer.cluster.device.framework_low_bytes:
        return Doubt("")
    return Doubt(EXPERT_ADAPTERS, int(answer.verdict.device.low), most)


EXPERT_ADAPTERS = (
    "transformers before 5 has each expert's matrices as linear layers, which have adapters then: "
    "--engine-version says a newer one"
)


def _expert_sides(model: ModelSpec) -> int:
    """The sides of all experts' three matrices, of which a rank's adapters have as many elements."""
    return sum(
        run.count * 3 * block.feed_forward.experts * (model.hidden + block.feed_forward.intermediate)
        for stack in model.stacks
        for run in stack.runs
        for block in run.pattern
        if isinstance(block.feed_forward, Moe)
    )


def _expert_inputs(model: ModelSpec) -> int:
    """Bytes of what a token's experts give their adapters in a layer, in fp32."""
    held = [block.feed_forward for block in model.blocks() if isinstance(block.feed_forward, Moe)]
    return max(
        (4 * one.experts_per_token * (2 * model.hidden + 3 * one.intermediate) for one in held), default=0
    )


def _is_newer(flags: Mapping[str, Any]) -> bool:
    major = str(flags.get("engine_version") or "").partition(".")[0]
    return major.isdecimal() and int(major) >= STACKED_SINCE
