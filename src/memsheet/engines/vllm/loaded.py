"""How vLLM loads weights."""

from __future__ import annotations

from memsheet.engines.vllm.cut_blocks import refined_experts
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.serving.loaded import Ways, with_own_projections
from memsheet.plan.model import ModelSpec
from memsheet.sheet import FromCode

ROUTER = ".mlp.gate.weight"
WIDE = {
    "gemma3n": ("correct_output_scale",), "gemma3n_text": ("correct_output_scale",), "glm4_moe": (ROUTER,),
    "glm4v_moe": (ROUTER,), "glm4_moe_lite": (ROUTER,), "minimax_m2": (ROUTER,), "mimo_v2_flash": (ROUTER,),
    "mimo_v2": (ROUTER,), "step3p5": (ROUTER,), "step3p7": (ROUTER,), "hy_v3": (ROUTER,), "afmoe": (".router.gate.weight",),
}  # fmt: skip
"""Parameters in fp32 whatever the model's dtype, by type (v0.33.0 model_executor/models/gemma3n.py:122,
glm4_moe.py:145, which glm4_moe_lite.py and glm4_1v.py take theirs from, minimax_m2.py:114, mimo_v2.py:159,
step3p5.py:343, hy_v3.py:159, afmoe.py:90).
"""
WAYS = Ways(
    rope=None, absorbs=False, refines=refined_experts, wide=WIDE, turns_wide=frozenset({"gpt_oss"}),  # v0.33.0 model_executor/models/gpt_oss.py:114
    table=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/vocab_parallel_embedding.py", 227),
    rotary=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/rotary_embedding/base.py", 45),
    absorbed=FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/attention/backends/mla/common.py", 1084),
)  # fmt: skip
QUERIES_ALONE_SINCE = (0, 30)
"""From when on layers that read an earlier one's keys and values have no projections to their own (v0.30.0
model_executor/models/gemma4.py, gemma3n.py, which v0.29.0 joins in every layer).
"""


def as_built(part: ModelSpec, release: Release) -> ModelSpec:
    """The model with the matrices that a release makes."""
    return part if release.since >= QUERIES_ALONE_SINCE else with_own_projections(part)
