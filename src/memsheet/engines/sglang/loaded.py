"""How SGLang loads weights."""

from __future__ import annotations

from memsheet.formulas.serving.loaded import Ways
from memsheet.plan.dtypes import FP32
from memsheet.sheet import FromCode

WAYS = Ways(
    rope=FP32, absorbs=True, table=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/layers/vocab_parallel_embedding.py", 284),
    rotary=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/layers/rotary_embedding/base.py", 154),
    absorbed=FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/models/deepseek_common/deepseek_weight_loader.py", 780),
)  # fmt: skip


def refuses_cut_block(*_: object) -> bool:
    """SGLang refuses weights that are cut inside a block of elements with one scale, but on AMD's cards,
    where its kernels pad (v0.5.23 layers/quantization/fp8.py create_fp8_moe_weight_).
    """
    return True
