"""Which release of vLLM first has code for a family, by model type."""

from __future__ import annotations

# fmt: off
_FIRST = {
    (0, 6, 5): "cohere2 glm olmo2",
    (0, 6, 6): "deepseek_v3 kimi_k2",
    (0, 7, 0): "internlm3",
    (0, 7, 2): "qwen2_5_vl",
    (0, 7, 3): "bamba mamba2",
    (0, 8, 0): "gemma3 gemma3_text granitemoeshared zamba2",
    (0, 8, 3): "llama4 llama4_text mistral3",
    (0, 8, 4): "glm4 qwen3 qwen3_moe smolvlm",
    (0, 8, 5): "qwen2_5_omni qwen2_5_omni_thinker",
    (0, 9, 0): "falcon_h1 granitemoehybrid",
    (0, 9, 1): "nemotron_h",
    (0, 9, 2): "dots1 ernie4_5_moe gemma3n gemma3n_text glm4v hunyuan_v1_moe",
    (0, 10, 0): "arcee bailing_moe exaone4 glm4_moe hunyuan_v1_dense",
    (0, 10, 1): "ernie4_5 glm4v_moe gpt_oss smollm3",
    (0, 10, 2): "apertus ernie4_5_vl_moe internvl lfm2 qwen3_next seed_oss",
    (0, 11, 0): "bailing_moe_v2 deepseek_v32 longcat_flash olmo3 qwen3_vl qwen3_vl_moe",
    (0, 11, 1): "afmoe flex_olmo kimi_linear lfm2_moe minimax_m2 qwen3_omni_moe qwen3_omni_moe_thinker",
    (0, 14, 0): "exaone_moe lfm2_vl mimo_v2_flash",
    (0, 15, 0): "glm4_moe_lite kimi_k25",
    (0, 15, 1): "step3p5",
    (0, 16, 0): "glm_moe_dsa",
    (0, 17, 0): "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text",
    (0, 19, 0): "gemma4 gemma4_text",
    (0, 20, 0): "exaone4_5 hy_v3",
    (0, 23, 0): "gemma4_unified gemma4_unified_text",
    (0, 24, 0): "minimax_m3_vl minimax_m3_vl_text",
    (0, 28, 0): "bailing_hybrid",
}
# fmt: on
SERVED_SINCE = {family: release for release, names in _FIRST.items() for family in names.split()}
"""By model type, the release whose model_executor/models/registry.py first names the family's
architecture, of those from v0.6.4.post1 on; what that release names is left out. A text model alone
counts from when its whole model does."""
