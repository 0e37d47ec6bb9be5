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
from memsheet.plan.workload import Training
from memsheet.questions.doubts_of_files import resting_states

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


def _is_newer(flags: Mapping[str, Any]) -> bool:
    major = str(flags.get("engine_version") or "").partition(".")[0]
    return major.isdecimal() and int(major) >= STACKED_SINCE
