"""What other rooms take of vLLM's code: a change there is a change of what is named here.

Formulas cite it themselves (``PAGED_SERVER_CODE``, which ``memsheet explain`` prints).
"""

from __future__ import annotations

_MODELS, _LAYERS = "vllm/model_executor/models", "vllm/model_executor/layers"

READ_IN: dict[str, tuple[str, ...]] = {
    "plan.hardware.FP8_UNITS": ("v0.33.0 vllm/v1/attention/backends/triton_attn.py:515",),
    "plan.speculative.HEADS": (
        f"v0.33.0 {_MODELS}/deepseek_mtp.py:70, glm4_moe_mtp.py, qwen3_next_mtp.py:46, qwen3_5_mtp.py:65",
        f"v0.33.0 {_MODELS}/glm4_moe_lite_mtp.py:88, deepseek_v2.py:1168 (an indexer in every one of them)",
        f"v0.33.0 {_MODELS}/hy_v3_mtp.py:93",
    ),
    "trace.recordings.hand_over.TOP": ("v0.33.0 vllm/transformers_utils/config.py CONFIG_FIELD_ALIASES",),
    "readers.families.minimax_m3_vl": ("v0.33.0 vllm/models/minimax_m3/common/vision_tower.py:77-600",),
    "resolve.precision._served_in_place": (
        "v0.11.0 vllm/platforms/cuda.py current_platform.supported_dtypes: bf16, fp16, fp32",
    ),
    "resolve.precision._served_weight_dtype": ("v0.11.0 vllm/config/model.py _resolve_auto_dtype",),
    "resolve.serving.attention_of": ("002db49 vllm/platforms/cuda.py _get_backend_priorities",),
    "resolve.attention._check_dispatch": (f"v0.33.0 {_LAYERS}/fused_moe/config.py:1035",),
    "readers.model._with_modelopt": ("v0.33.0 vllm/transformers_utils/config.py:956",),
    "readers.rope_lengths.WITHIN": ("v0.11.0 vllm/config/model.py _get_and_verify_max_len",),
    "readers.rope_lengths.scaled_positions": ("v0.11.0 vllm/config/model.py _get_and_verify_max_len",),
    "readers.modelopt.read_modelopt": (f"v0.33.0 {_LAYERS}/quantization/modelopt.py:325",),
    "readers.modelopt.ALGORITHMS": (f"v0.33.0 {_LAYERS}/quantization/modelopt.py:141-156",),
    "readers.quantization._fbgemm_fp8_scheme": (f"v0.33.0 {_LAYERS}/quantization/fbgemm_fp8.py",),
    "readers.stored_cache.ALGORITHMS": ("v0.33.0 vllm/utils/torch_utils.py:78",),
    "readers.families.bailing": (f"v0.33.0 {_MODELS}/bailing_moe.py:74-360",),
    "readers.families.gemma4_towers": (f"v0.33.0 {_MODELS}/gemma4_mm.py:7 AutoModel.from_config",),
    "readers.hf_config.AHEAD": (f"v0.33.0 {_MODELS}/qwen3_next_mtp.py:61",),
    "readers.families.latent._RUN_AS": (f"v0.33.0 {_MODELS}/kimi_k25.py",),
    "readers.families.delta_latent._kimi_delta_mixer": (
        f"v0.33.0 {_LAYERS}/mamba/mamba_utils.py:137 kda_state_dtype, kda_state_shape",
    ),
    "readers.families.longcat._longcat_experts": (f"v0.33.0 {_MODELS}/longcat_flash.py zero_expert_num",),
    "readers.families.window_routed._mimo_layers": (f"v0.33.0 {_MODELS}/mimo_v2.py:402-438",),
    "readers.draft.LAYERS_READ": (f"v0.33.0 {_MODELS}/llama_eagle3.py:199",),
    "readers.draft.eagle_head": (
        f"v0.33.0 {_MODELS}/llama_eagle.py",
        f"v0.11.0 {_MODELS}/llama_eagle.py:30-75",
    ),
    "readers.draft.eagle3_head": (f"v0.33.0 {_MODELS}/llama_eagle3.py:66-370",),
    "formulas.serving.drafts.draft_plan": ("v0.33.0 vllm/config/speculative.py:435, 1265",),
    "formulas.serving.widest_layer.CHUNK_TOKENS": ("v0.11.0 vllm/envs.py:778 VLLM_FUSED_MOE_CHUNK_SIZE",),
    "formulas.serving_time.layers.JOINED": (
        f"v0.11.0 {_MODELS}/llama.py QKVParallelLinear, MergedColumnParallelLinear",
        f"v0.11.0 {_MODELS}/deepseek_v2.py fused_qkv_a_proj",
    ),
    "formulas.serving_time.layers.SHORT": (f"v0.11.0 {_MODELS}/llama.py",),
    "formulas.serving_time.layers.short_kernels": ("v0.11.0 csrc/layernorm_kernels.cu fused_add_rms_norm",),
    "formulas.serving_time.operators._state_s": (
        f"v0.11.0 {_LAYERS}/mamba/mamba_mixer2.py mamba_chunk_scan_combined_varlen, selective_state_update",
    ),
    "formulas.serving_time.between.FASTEST": (
        "custom_allreduce_perf of serving_rates.toml: 0.24.0's takes 4.3 us of two H100, SGLang 0.5.14's 2.4",
    ),
}
"""Name below ``memsheet`` → release or commit, file and line of vllm-project/vllm. Where a docstring of
another room says ``READ_IN``, this is meant.
"""
