"""Which module of ``families`` reads which ``model_type``. Modules are imported only when a model needs
them.
"""

from __future__ import annotations

_MODULES = {
    "llama": (
        "llama mistral qwen2 qwen3 smollm3 granite olmo olmo2 phi3 stablelm starcoder2 nemotron glm "
        "glm4 exaone4 ernie4_5 cohere cohere2 olmo3 seed_oss ministral ministral3 arcee apertus "
        "hunyuan_v1_dense internlm3 mimo"
    ),
    "gemma": "gemma gemma2 gemma3_text",
    "gpt": "gpt2 gpt_neo gptj gpt_neox gpt_bigcode opt bloom falcon mpt phi",
    "moe": "mixtral qwen2_moe qwen3_moe phimoe olmoe granitemoe glm4_moe gpt_oss ernie4_5_moe",
    "routed": "minimax_m2 dots1 hunyuan_v1_moe exaone_moe afmoe granitemoeshared flex_olmo hy_v3",
    "latent": "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite mistral4 deepseek_v32 glm_moe_dsa",
    "hybrid": "qwen3_next jamba bamba recurrent_gemma",
    "qwen3_5": "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text",
    "mamba_hybrid": "nemotron_h granitemoehybrid falcon_h1",
    "short_conv": "lfm2 lfm2_moe",
    "qwen3_vl": "qwen3_vl qwen3_vl_moe",
    "glm4v": "glm4v glm4v_moe",
    "qwen3_omni": "qwen3_omni_moe qwen3_omni_moe_thinker",
    "qwen2_5_omni": "qwen2_5_omni qwen2_5_omni_thinker",
    "delta_latent": "kimi_linear bailing_hybrid",
    "bailing": "bailing_moe bailing_moe_v2",
    "lightning": "minimax",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl",
    "longcat": "longcat_flash",
    "window_routed": "mimo_v2_flash mimo_v2 step3p5",
    "zamba": "zamba2",
    "state_space": "mamba mamba2 falcon_mamba rwkv",
    "multimodal": "gemma3 llava mistral3",
    "tiled": "lfm2_vl idefics3 smolvlm internvl paligemma llava_next llava_onevision",
    "exaone4_5": "exaone4_5",
    "ernie4_5_vl": "ernie4_5_vl_moe",
    "qwen_vl": "qwen2_vl qwen2_5_vl",
    "gemma3n": "gemma3n gemma3n_text",
    "gemma4": "gemma4 gemma4_text gemma4_unified gemma4_unified_text",
    "kimi_vision": "kimi_k25",
    "mllama": "mllama",
    "llama4": "llama4 llama4_text",
    "encoder": "bert roberta xlm-roberta",
    "modernbert": "modernbert",
    "encoder_kin": "distilbert electra deberta-v2",
    "t5": "t5 mt5",
    "bart": "bart mbart pegasus",
    "speech": "whisper",
    "vit": "vit",
}
FAMILIES = {model_type: module for module, names in _MODULES.items() for model_type in names.split()}
"""model_type → module of ``memsheet.readers.families`` that reads it."""
