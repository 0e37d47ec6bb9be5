"""How SGLang loads weights."""

from __future__ import annotations

from memsheet.formulas.serving.loaded import Ways
from memsheet.plan.dtypes import FP32
from memsheet.sheet import FromCode

ROUTER = ".mlp.gate.weight"
WIDE = {
    "gemma3n": ("correct_output_scale",), "gemma3n_text": ("correct_output_scale",), "glm4_moe": (ROUTER,),
    "glm4v_moe": (ROUTER,), "glm4_moe_lite": (ROUTER,), "minimax_m2": (ROUTER,), "hy_v3": (ROUTER,),
}  # fmt: skip
"""Parameters in fp32 whatever the model's dtype, by type (v0.5.23 models/gemma3n_causal.py:183,
glm4_moe.py:390, glm4_moe_lite.py:161, minimax_m2.py:560, hunyuan_v3.py:116).
"""
WAYS = Ways(
    rope=FP32, absorbs=True, wide=WIDE, table=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/layers/vocab_parallel_embedding.py", 284),
    rotary=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/layers/rotary_embedding/base.py", 154),
    absorbed=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/models/deepseek_common/deepseek_weight_loader.py", 780),
)  # fmt: skip


def refuses_cut_block(*_: object) -> bool:
    """SGLang refuses weights that are cut inside a block of elements with one scale, but on AMD's cards,
    where its kernels pad (v0.5.23 layers/quantization/fp8.py create_fp8_moe_weight_).
    """
    return True
