"""Which release of SGLang first has code for a family, by model type."""

from __future__ import annotations

# fmt: off
_FIRST = {
    (0, 4, 4): "gemma3 gemma3_text",
    (0, 4, 5): "llama4 llama4_text",
    (0, 4, 6): "qwen3 qwen3_moe",
    (0, 4, 7): "mistral3",
    (0, 4, 8): "glm4",
    (0, 4, 9): "gemma3n gemma3n_text hunyuan_v1_moe",
    (0, 4, 10): "arcee glm4_moe granitemoe hunyuan_v1_dense phi phimoe",
    (0, 5, 1): "bailing_moe ernie4_5_moe glm4v glm4v_moe gpt_oss",
    (0, 5, 2): "longcat_flash opt qwen3_next",
    (0, 5, 3): "apertus bailing_moe_v2 deepseek_v32 falcon_h1 qwen3_vl qwen3_vl_moe starcoder2",
    (0, 5, 4): "kimi_linear minimax_m2 nemotron_h",
    (0, 5, 7): "mimo_v2_flash",
    (0, 5, 8): "afmoe glm4_moe_lite",
    (0, 5, 9):
        "ernie4_5_vl_moe exaone4 glm_moe_dsa gptj granitemoehybrid kimi_k25 "
        "lfm2 lfm2_moe qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text step3p5",
    (0, 5, 10): "lfm2_vl",
    (0, 5, 11): "gemma4 gemma4_text hy_v3",
    (0, 5, 13): "gemma4_unified gemma4_unified_text",
    (0, 5, 16): "minimax_m3_vl minimax_m3_vl_text",
    (0, 5, 19): "bailing_hybrid granitemoeshared",
    (0, 5, 20): "falcon_mamba mamba mamba2",
    (0, 5, 22): "exaone_moe",
}
# fmt: on
SERVED_SINCE = {family: release for release, names in _FIRST.items() for family in names.split()}
"""By model type, the release of which a file in python/sglang/srt/models first has the family's
architecture as its EntryClass, of those from v0.4.3.post4 on; what that release has is left out. Posts
count with their release. A text model alone counts from when its whole model does."""
