"""How vLLM loads weights."""

from __future__ import annotations

from memsheet.engines.vllm.cut_blocks import refined_experts
from memsheet.formulas.serving.loaded import Ways
from memsheet.sheet import FromCode

WAYS = Ways(
    rope=None, absorbs=False, refines=refined_experts, table=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/vocab_parallel_embedding.py", 227),
    rotary=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/rotary_embedding/base.py", 45),
    absorbed=FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/attention/backends/mla/common.py", 1084),
)  # fmt: skip
