"""Sparse, latent, hybrid and state-space families against the models that transformers builds: every name,
every element.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import kv_elements_per_token
from memsheet.formulas.states.params import buffer_tensors, fold_path_indices
from memsheet.plan.model import Run
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_tensors, meta_model, meta_tensors, our_tensors

SMALL: dict[str, Any] = {
    "vocab_size": 1000,
    "num_hidden_layers": 3,
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
MAMBA: dict[str, Any] = {"vocab_size": 1000, "num_hidden_layers": 3, "hidden_size": 96}
LATENT: dict[str, Any] = {
    **SMALL, "num_key_value_heads": 6, "q_lora_rank": 26, "kv_lora_rank": 30, "n_routed_experts": 8, "n_group": 1, "topk_group": 1,
    "attention_bias": True, "moe_intermediate_size": 14, "n_shared_experts": 2, "num_experts_per_tok": 2,
}  # fmt: skip
DELTA: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 7, "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 10, "linear_value_head_dim": 14,
    "attention_bias": True, "intermediate_size": 44,
}  # fmt: skip
KIMI: dict[str, Any] = {
    **SMALL, "num_key_value_heads": 6, "pad_token_id": 0, "kv_lora_rank": 30, "attention_bias": True, "num_local_experts": 6, "num_experts_per_tok": 2,
    "n_shared_experts": 2, "moe_intermediate_size": 14,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20, "mamba_num_heads": 6, "mamba_head_dim": 10,
    "n_groups": 2, "ssm_state_size": 14, "n_routed_experts": 6, "moe_intermediate_size": 22, "moe_shared_expert_intermediate_size": 30, "intermediate_size": 50,
}  # fmt: skip
DEEP: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 14,
}
ZAMBA = ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"]

# (model_type, overrides): defaults with few layers, then odd widths, other expert counts, the other kind of
# head, other layer patterns
CHEAP: list[tuple[str, dict[str, Any]]] = [
    ("mixtral", {**SMALL, "intermediate_size": 52, "num_local_experts": 3, "head_dim": 20, "tie_word_embeddings": True}),
    ("qwen2_moe", {**SMALL, "num_experts": 5, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 36,
                   "intermediate_size": 44, "decoder_sparse_step": 2, "qkv_bias": False}),
    ("gpt_oss", {**SMALL, "num_local_experts": 6, "intermediate_size": 40, "head_dim": 24, "tie_word_embeddings": True}),
    ("ernie4_5_moe", {**SMALL, "moe_num_experts": 7, "moe_intermediate_size": 12, "intermediate_size": 40, "use_bias": True,
                      "moe_layer_interval": 2, "moe_num_shared_experts": 3}),
    ("deepseek_v3", {**SMALL, "q_lora_rank": None, "kv_lora_rank": 30, "n_routed_experts": 8, "n_group": 1, "topk_group": 1,
                     "attention_bias": True, "moe_intermediate_size": 14, "n_shared_experts": 2, "first_k_dense_replace": 1}),
    ("qwen3_next", {**SMALL, "num_hidden_layers": 9, "num_experts": 10, "mlp_only_layers": [2], "linear_num_key_heads": 3,
                    "linear_num_value_heads": 6, "linear_key_head_dim": 10, "linear_value_head_dim": 14, "attention_bias": True}),
    ("zamba2", {**SMALL, "num_hidden_layers": 6, "layers_block_type": ZAMBA, "num_mem_blocks": 2, "n_mamba_heads": 12, "adapter_rank": 9,
                "use_shared_attention_adapter": True, "add_bias_linear": True, "tie_word_embeddings": False}),
    ("falcon_mamba", {**MAMBA, "expand": 16, "intermediate_size": 192, "use_bias": True, "use_conv_bias": False}),
    ("rwkv", {**MAMBA, "attention_hidden_size": 80, "intermediate_size": 200}),
    ("glm4_moe_lite", {**LATENT, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ("deepseek_v32", {**LATENT, "first_k_dense_replace": 1, "index_n_heads": 3, "index_head_dim": 70}),
    ("glm_moe_dsa", {**LATENT, "first_k_dense_replace": 0, "index_n_heads": 3, "index_topk_freq": 2}),
    ("qwen3_5_text", {**DELTA, "full_attention_interval": 2, "head_dim": 22, "tie_word_embeddings": True}),
    ("qwen3_5_moe_text", {**DELTA, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                          "shared_expert_intermediate_size": 18}),
    ("minimax_m2", {**SMALL, "head_dim": 20, "rotary_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 22}),
    ("dots1", {**SMALL, **DEEP, "head_dim": 20, "attention_bias": True, "first_k_dense_replace": 2}),
    ("hunyuan_v1_moe", {**SMALL, "head_dim": 20, "num_experts": 5, "moe_topk": 2, "intermediate_size": 30, "attention_bias": True}),
    ("exaone_moe", {**SMALL, "head_dim": 20, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 3,
                    "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ("afmoe", {**SMALL, "head_dim": 20, "num_experts": 6, "num_experts_per_tok": 2, "num_dense_layers": 2, "attention_bias": True}),
    ("granitemoeshared", {**SMALL, "num_local_experts": 5, "shared_intermediate_size": 31, "tie_word_embeddings": True}),
    ("flex_olmo", {**SMALL, "head_dim": 20, "num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 22, "pad_token_id": 0}),
    ("hy_v3", {**SMALL, "head_dim": 20, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2, "mlp_bias": True, "attention_bias": True,
               "mlp_layer_types": ["sparse", "dense", "sparse"], "moe_intermediate_size": 14, "tie_word_embeddings": True}),
    ("mimo_v2_flash", {**SMALL, "num_attention_heads": 12, "head_dim": 20, "v_head_dim": 14, "n_routed_experts": 6, "num_experts_per_tok": 2,
                       "attention_bias": True, "moe_intermediate_size": 14, "mlp_layer_types": ["sparse", "dense", "sparse"],
                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": True}),
    ("minimax", {**SMALL, "head_dim": 20, "num_local_experts": 5, "intermediate_size": 22, "block_size": 16, "tie_word_embeddings": True,
                 "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    ("minimax_m3_vl_text", {**SMALL, "head_dim": 20, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 14, "rotary_dim": 10,
                            "shared_intermediate_size": 18, "dense_intermediate_size": 40, "moe_layer_freq": [0, 1, 1], "tie_word_embeddings": True,
                            "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_attention_freq": [0, 1, 1]}}),
    ("kimi_linear", {**KIMI, "q_lora_rank": 26, "tie_word_embeddings": True, "linear_attn_config": {
        "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 12, "num_heads": 5, "short_conv_kernel_size": 3}}),
    ("bailing_hybrid", {**KIMI, "num_local_experts": 16, "head_dim": 12, "layer_group_size": 2, "short_conv_kernel_size": 3, "first_k_dense_replace": 1}),
    ("longcat_flash", {**SMALL, "num_layers": 2, "num_key_value_heads": 6, "q_lora_rank": 26, "kv_lora_rank": 30, "zero_expert_num": 0, "moe_topk": 2,
                       "n_routed_experts": 6, "expert_ffn_hidden_size": 14, "ffn_hidden_size": 40, "attention_bias": True}),
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "MEM*E-", "conv_kernel": 3, "use_bias": True, "mlp_bias": True, "use_conv_bias": False,
                    "moe_latent_size": 40, "tie_word_embeddings": True}),
    ("granitemoehybrid", {**SMALL, "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 12, "mamba_n_groups": 2, "mamba_d_state": 10,
                          "attention_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False, "num_local_experts": 5,
                          "shared_intermediate_size": 31, "intermediate_size": 20, "tie_word_embeddings": True}),
    ("falcon_h1", {**SMALL, "mamba_d_ssm": None, "mamba_n_heads": 12, "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_rms_norm": True,
                   "attention_bias": True, "mlp_bias": True, "projectors_bias": True, "tie_word_embeddings": True}),
    ("lfm2", {**SMALL, "full_attn_idxs": [1], "conv_bias": True, "conv_L_cache": 5, "intermediate_size": 100, "block_multiple_of": 16,
              "block_ffn_dim_multiplier": 1.3, "tie_word_embeddings": False}),
    ("lfm2_moe", {**SMALL, "num_dense_layers": 1, "num_experts": 6, "use_expert_bias": False, "layer_types": ["conv", "full_attention", "conv"],
                  "moe_intermediate_size": 20, "intermediate_size": 44, "conv_bias": True}),
]  # fmt: skip
FULL: list[tuple[str, dict[str, Any]]] = [
    *((name, {"num_hidden_layers": 2}) for name in ("minimax_m2", "exaone_moe", "afmoe", "granitemoeshared")),
    *((name, {"num_hidden_layers": 4}) for name in ("glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "qwen3_5_text", "qwen3_5_moe_text")),
    *((name, {"num_hidden_layers": 6}) for name in ("hy_v3", "mimo_v2_flash", "minimax", "minimax_m3_vl_text", "kimi_linear", "bailing_hybrid")),
    ("nemotron_h", {}),
    ("nemotron_h", {**NEMOTRON, "layers_block_type": ["mamba", "attention", "moe", "mlp"]}),
    *((name, {"num_hidden_layers": 2}) for name in ("granitemoehybrid", "falcon_h1", "lfm2")),
    ("granitemoehybrid", {**SMALL, "mamba_n_heads": 12, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}),
    ("falcon_h1", {**SMALL, "head_dim": 20, "mamba_d_ssm": 60, "mamba_n_heads": 12, "mamba_proj_bias": True, "mamba_conv_bias": False}),
    ("lfm2", {**SMALL, "layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 1000, "block_auto_adjust_ff_dim": False, "tie_embedding": False}),
    ("lfm2_moe", {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    ("glm4_moe_lite", {**LATENT, "q_lora_rank": None}),
    ("glm_moe_dsa", {**LATENT, "num_hidden_layers": 4, "index_topk_pattern": "FSSF"}),
    ("dots1", {"num_hidden_layers": 2, **DEEP}),
    ("hunyuan_v1_moe", {"num_hidden_layers": 2, "head_dim": 128}),
    ("flex_olmo", {"num_hidden_layers": 2, "pad_token_id": 0}),
    ("exaone_moe", {**SMALL, "num_experts": 6, "num_experts_per_tok": 2, "first_k_dense_replace": 2}),
    ("granitemoeshared", {**SMALL, "num_local_experts": 5, "attention_bias": True}),
    ("minimax_m2", {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "tie_word_embeddings": True}),
    ("mixtral", {"num_hidden_layers": 2}),
    ("mixtral", {**SMALL, "sliding_window": 64, "num_experts": 4}),
    ("qwen2_moe", {"num_hidden_layers": 2}),
    ("qwen2_moe", {**SMALL, "num_experts": 0, "intermediate_size": 44, "tie_word_embeddings": True}),
    ("qwen2_moe", {**SMALL, "num_hidden_layers": 6, "mlp_only_layers": [0, 4], "use_sliding_window": True, "max_window_layers": 3}),
    ("qwen3_moe", {"num_hidden_layers": 2}),
    ("qwen3_moe", {**SMALL, "num_experts": 9, "head_dim": 22, "attention_bias": True, "tie_word_embeddings": True, "mlp_only_layers": [1]}),
    ("phimoe", {"num_hidden_layers": 2}),
    ("phimoe", {**SMALL, "attention_bias": True, "lm_head_bias": True, "num_local_experts": 5, "intermediate_size": 30}),
    ("phimoe", {**SMALL, "lm_head_bias": True, "tie_word_embeddings": True}),
    ("olmoe", {"num_hidden_layers": 2}),
    ("olmoe", {**SMALL, "num_experts": 9, "intermediate_size": 22, "attention_bias": True, "tie_word_embeddings": True}),
    ("granitemoe", {"num_hidden_layers": 2}),
    ("granitemoe", {**SMALL, "num_local_experts": 5, "intermediate_size": 30, "attention_bias": True, "tie_word_embeddings": True}),
    ("glm4_moe", {"num_hidden_layers": 3}),
    ("glm4_moe", {**SMALL, "use_qk_norm": True, "head_dim": 20, "attention_bias": True, "n_routed_experts": 9, "n_shared_experts": 2,
                  "first_k_dense_replace": 2, "moe_intermediate_size": 18, "intermediate_size": 50, "tie_word_embeddings": True}),
    ("glm4_moe", {**SMALL, "n_shared_experts": 0, "first_k_dense_replace": 0}),
    ("gpt_oss", {"num_hidden_layers": 3}),
    ("gpt_oss", {**SMALL, "attention_bias": False, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    ("ernie4_5_moe", {"num_hidden_layers": 3}),
    ("ernie4_5_moe", {**SMALL, "num_hidden_layers": 6, "moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_num_shared_experts": 0,
                      "tie_word_embeddings": False}),
    ("deepseek_v2", {"num_hidden_layers": 2, "num_experts_per_tok": 6}),
    ("deepseek_v2", {**SMALL, "num_experts_per_tok": 2, "q_lora_rank": None, "kv_lora_rank": 30, "qk_nope_head_dim": 12, "qk_rope_head_dim": 10,
                     "v_head_dim": 14, "mlp_bias": True, "attention_bias": True, "first_k_dense_replace": 1, "moe_intermediate_size": 11}),
    ("deepseek_v3", {"num_hidden_layers": 4}),
    ("deepseek_v3", {**SMALL, "q_lora_rank": 26, "attention_bias": True, "num_local_experts": 16, "tie_word_embeddings": True}),
    ("qwen3_next", {"num_hidden_layers": 4}),
    ("qwen3_next", {**SMALL, "num_hidden_layers": 6, "num_experts": 0, "full_attention_interval": 2, "tie_word_embeddings": True}),
    ("qwen3_next", {**SMALL, "decoder_sparse_step": 2, "num_experts": 20, "layer_types": ["full_attention", "linear_attention", "full_attention"]}),
    ("jamba", {"num_hidden_layers": 8}),
    ("jamba", {**SMALL, "num_hidden_layers": 7, "attn_layer_period": 3, "attn_layer_offset": 2, "expert_layer_period": 4,
               "expert_layer_offset": 0, "num_experts": 5, "intermediate_size": 50, "mamba_dt_rank": 11, "mamba_d_state": 6,
               "mamba_conv_bias": False, "mamba_proj_bias": True, "mamba_expand": 3, "tie_word_embeddings": True}),
    ("jamba", {**SMALL, "num_experts": 1}),
    ("zamba2", {}),
    ("zamba2", {**SMALL, "num_hidden_layers": 6, "layers_block_type": ZAMBA, "num_mem_blocks": 1, "mamba_ngroups": 2, "intermediate_size": 50}),
    ("zamba2", {**SMALL, "num_hidden_layers": 6, "layers_block_type": ZAMBA, "num_mem_blocks": 5, "use_shared_attention_adapter": True}),
    ("bamba", {"num_hidden_layers": 3, "attn_layer_indices": [1]}),
    ("bamba", {**SMALL, "num_hidden_layers": 5, "attn_layer_indices": [0, 3], "mamba_n_heads": 12, "mamba_n_groups": 2, "mamba_d_state": 10,
               "mamba_d_head": 16, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False,
               "tie_word_embeddings": True}),
    ("recurrent_gemma", {"num_hidden_layers": 3}),
    ("recurrent_gemma", {**SMALL, "num_hidden_layers": 5, "lru_width": 120, "num_key_value_heads": 1, "head_dim": 20, "attention_bias": True,
                         "conv1d_width": 3, "intermediate_size": 101, "block_types": ["attention", "recurrent"], "tie_word_embeddings": False}),
    ("mamba", {"num_hidden_layers": 2}),
    ("mamba", {**MAMBA, "expand": 3, "state_size": 7, "conv_kernel": 3, "time_step_rank": 13, "use_bias": True, "tie_word_embeddings": False}),
    ("mamba2", {"num_hidden_layers": 2}),
    ("mamba2", {**MAMBA, "num_heads": 12, "head_dim": 16, "n_groups": 3, "state_size": 10, "use_bias": True, "tie_word_embeddings": True}),
    ("falcon_mamba", {"num_hidden_layers": 2}),
    ("rwkv", {"num_hidden_layers": 2}),
    ("rwkv", {**MAMBA, "tie_word_embeddings": True}),
]  # fmt: skip

# Released models: the sizes of their config.json and the elements published, multi-token heads left out. For
# DeepSeek-V3 those
# count the 58 × 256 load-balancing biases, which transformers keeps as buffers.
RELEASED: list[tuple[str, dict[str, Any], int]] = [
    ("mixtral", {}, 46_702_792_704),  # Mixtral-8x7B
    ("deepseek_v3", {}, 671_026_419_200),  # DeepSeek-V3
    ("qwen3_moe", {"num_hidden_layers": 48, "head_dim": 128}, 30_532_122_624),  # Qwen3-30B-A3B
    ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),  # gpt-oss-20b
    ("gpt_oss", {}, 116_829_156_672),  # gpt-oss-120b
]


def named(case: tuple[str, dict[str, Any]]) -> str:
    return f"{case[0]}-{len(case[1])}"


@pytest.mark.parametrize("case", CHEAP, ids=named)
def test_small_models_have_the_real_tensors(case):
    assert_same_tensors({"model_type": case[0], **case[1]})


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=named)
def test_models_have_the_real_tensors(case):
    assert_same_tensors({"model_type": case[0], **case[1]})


@pytest.mark.parametrize("overrides", [{"num_hidden_layers": 2}, LATENT])
def test_a_text_model_without_a_class_of_its_own_among_the_automatic_ones(overrides):
    """mistral4 is built inside another model; its own class has the same tensors."""
    assert_same_tensors({"model_type": "mistral4", **overrides}, "Mistral4ForCausalLM")


VISION: dict[str, Any] = {
    "hidden_size": 60, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 70, "merge_kernel_size": [2, 3], "pos_emb_height": 8,
    "pos_emb_width": 10,
}  # fmt: skip


def test_a_text_model_behind_a_tower_of_its_own_has_the_real_tensors():
    config = {
        "model_type": "kimi_k25",
        "tie_word_embeddings": False,
        "projection_hidden_size": 60,
        "text_config": LATENT,
        "vision_config": VISION,
    }
    assert_same_tensors(config, "AutoModelForImageTextToText")


def test_identity_experts_have_no_matrices():
    """The library makes a gate for each, which no checkpoint has."""
    config = {"model_type": "longcat_flash", "num_layers": 1}
    real, ours = meta_tensors(config), our_tensors(read_hf_config(config))
    gates = "model.layers.*.mlp.experts.gate_up_proj"
    assert {path for path in real if real[path] != ours[path]} == {gates}
    assert real[gates] - ours[gates] == 256 * 2 * 2048 * 6144


@pytest.mark.parametrize("overrides", [
    {"num_hidden_layers": 5},
    {**SMALL, "head_dim": 20, "moe_top_k": 2, "moe_num_experts": 6, "moe_intermediate_size": 14, "share_expert_dim": 18, "attention_bias": True,
     "mlp_bias": True, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "moe_layers_enum": "1,2",
     "attention_other_setting": {"num_attention_heads": 12}},
])  # fmt: skip
def test_a_text_model_that_is_only_inside_another_has_its_tensors(overrides):
    """step3p5: embeddings, layers and the final norm; its head stands in the whole model."""
    config = {"model_type": "step3p5", **overrides}
    ours = our_tensors(read_hf_config(config))
    assert ours.pop("lm_head.weight") == ours["model.embed_tokens.weight"]
    real = meta_tensors(config, "Step3p7TextModel")
    assert {f"model.{path}": size for path, size in real.items()} == ours


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "overrides", "parameters"), RELEASED)
def test_released_models_have_their_published_size(model_type, overrides, parameters):
    config = {"model_type": model_type, **overrides}
    assert_same_tensors(config)
    corrections = sum(weight.elements * times for _, weight, times in buffer_tensors(read_hf_config(config)))
    assert sum(meta_tensors(config).values()) + corrections == parameters


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe", "falcon_mamba", "mixtral"])
def test_buffers_are_those_of_the_real_model(model_type):
    """Rotary frequencies aside: a few hundred bytes a model, in no family's description."""
    config = {"model_type": model_type, **MAMBA, "first_k_dense_replace": 1}
    real: Counter[str] = Counter()
    for name, buffer in meta_model(config).named_buffers():
        real[fold_path_indices(name)] += 0 if "rotary_emb" in name else buffer.numel()
    ours = {path: weight.elements * times for path, weight, times in buffer_tensors(read_hf_config(config))}
    assert ours == +real


# What a sequence keeps: tiny models run once on the CPU, and the states they hold counted.
TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
}
STATES: list[tuple[str, dict[str, Any]]] = [
    ("mamba", {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 5, "conv_kernel": 3}),
    ("falcon_mamba", {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 6, "intermediate_size": 80}),
    ("mamba2", {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 16, "n_groups": 2, "state_size": 7}),
    ("jamba", {**TINY, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "mamba_d_state": 5}),
    ("bamba", {**TINY, "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 6, "mamba_d_state": 7, "mamba_n_groups": 2}),
    ("zamba2", {**TINY, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba"], "n_mamba_heads": 6}),
    ("qwen3_next", {**TINY, "num_hidden_layers": 4, "num_experts": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16,
                    "linear_key_head_dim": 6, "linear_value_head_dim": 10, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}),
    ("qwen3_5_text", {**TINY, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16,
                      "linear_key_head_dim": 6, "linear_value_head_dim": 10}),
    ("nemotron_h", {**TINY, "head_dim": 12, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2,
                    "ssm_state_size": 7}),
    ("kimi_linear", {**TINY, "num_hidden_layers": 2, "num_key_value_heads": 4, "pad_token_id": 0, "num_local_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_heads": 3, "linear_head_dim": 8}),
    ("granitemoehybrid", {**TINY, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "mamba_n_heads": 6, "mamba_d_state": 7,
                          "num_local_experts": 0, "num_experts_per_tok": 0}),
    ("falcon_h1", {**TINY, "num_hidden_layers": 2, "mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_state": 7}),
    ("lfm2", {**TINY, "num_hidden_layers": 3, "full_attn_idxs": [1], "conv_L_cache": 4}),
    ("recurrent_gemma", {**TINY, "num_hidden_layers": 3, "lru_width": 48, "conv1d_width": 5}),
    ("rwkv", {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2}),
]  # fmt: skip
TOKENS = 9


def described(config: dict[str, Any]) -> tuple[int, int, int]:
    """Recurrent state, convolution state and key/value elements of one sequence, from our description."""

    def mixers(run: Run):
        return [mixer for block in run.pattern for mixer in block.mixers] * run.count

    found = [mixer for stack in read_hf_config(config).stacks for run in stack.runs for mixer in mixers(run)]
    keys_values = sum(kv_elements_per_token(mixer) * TOKENS for mixer in found)
    return (
        sum(getattr(m, "state_elements", 0) for m in found),
        sum(getattr(m, "conv_elements", 0) for m in found),
        keys_values,
    )


def kept(config: dict[str, Any]) -> tuple[int, int, int]:
    """The same three from the real model after one forward pass."""
    import torch
    import transformers

    values = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(values)
    model = transformers.AutoModelForCausalLM.from_config(built).eval()
    with torch.no_grad():
        out = model(input_ids=torch.ones(1, TOKENS, dtype=torch.long), use_cache=True)
    if config["model_type"] == "rwkv":  # five states, of which the first two are the last inputs of each half
        return sum(s.numel() for s in out.state[2:]), sum(s.numel() for s in out.state[:2]), 0
    if config["model_type"] == "recurrent_gemma":  # states live in the modules; its output carries no cache
        blocks = [layer.temporal_block for layer in model.model.layers]
        recurrent = [block for block in blocks if hasattr(block, "rg_lru")]
        attends = [block for block in blocks if not hasattr(block, "rg_lru")]
        keys_values = sum(2 * b.num_key_value_heads * b.head_dim * TOKENS for b in attends)
        return (
            sum(b.rg_lru.recurrent_states.numel() for b in recurrent),
            sum(b.conv1d_state.numel() for b in recurrent),
            keys_values,
        )
    cache = getattr(out, "cache_params", None) or out.past_key_values
    states = [
        t for layer in cache.layers for t in getattr(layer, "recurrent_states", {}).values() if t is not None
    ]
    convs = [t for layer in cache.layers for t in getattr(layer, "conv_states", {}).values() if t is not None]
    pairs = [
        t
        for layer in cache.layers
        for t in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if t is not None
    ]
    return tuple(sum(t.numel() for t in tensors) for tensors in (states, convs, pairs))


@pytest.mark.slow
@pytest.mark.parametrize("case", STATES, ids=named)
def test_states_of_a_sequence_are_those_the_real_model_keeps(case):
    config = {"model_type": case[0], **case[1]}
    assert described(config) == kept(config)


def test_the_shared_blocks_of_zamba2_are_held_once_and_called_often():
    spec = read_hf_config({"model_type": "zamba2", "num_mem_blocks": 2})
    shared = [run.shared for run in spec.stacks[0].runs if run.shared]
    assert (len(shared), len(set(shared))) == (9, 2)


def test_repeating_layers_fold_into_one_run():
    runs = read_hf_config({"model_type": "qwen3_next"}).stacks[0].runs
    assert [(len(run.pattern), run.count) for run in runs] == [(4, 12)]
    runs = read_hf_config({"model_type": "deepseek_v3"}).stacks[0].runs
    assert [(len(run.pattern), run.count) for run in runs] == [(1, 3), (1, 58)]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok"),
        ({"model_type": "mamba2", "num_heads": 100}, "num_heads"),
        ({"model_type": "jamba", "attn_layer_offset": 8}, "attn_layer_offset"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "zamba2", "num_hidden_layers": 3}, "layers_block_type"),
        ({"model_type": "bamba", "mamba_n_heads": 7}, "mamba_n_heads"),
        ({"model_type": "recurrent_gemma", "block_types": []}, "block_types"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused_by_name(config, field):
    with pytest.raises(InputError) as error:
        read_hf_config(config)
    assert field in [problem.field for problem in error.value.problems]
