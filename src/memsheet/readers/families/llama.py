"""Dense decoders built like Llama: rotary positions, grouped attention, a gated or plain feed-forward; one
line of differences each.

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.0.
"""

from __future__ import annotations

from memsheet.plan.model import Arrangement, ModelSpec, NormKind
from memsheet.readers.dense import Ask, QkNorm, Recipe, Sizes, read_dense
from memsheet.readers.fields import Fields
from memsheet.readers.positions import (
    every_nth_full,
    everywhere_sliding,
    exaone4_layer_positions,
    sliding_after,
    sliding_unless_listed,
    smollm3_layer_positions,
)

_BIAS = Ask("attention_bias")
_ATTENTION_BIAS = Ask("attention_bias", alias="qkv_bias")
_USE_BIAS = Ask("use_bias")
_BRANCH_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_GLM_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")

RECIPES: dict[str, Recipe] = {
    #                           hidden   vocab heads  kv    head_dim  ffn  layers positions
    "llama": Recipe(sizes=Sizes(4096, 32000, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias")),
    "mistral": Recipe(sizes=Sizes(4096, 32000, 32, 8, None, 14336, 32, 131072), positions=everywhere_sliding(4096)),
    "qwen2": Recipe(sizes=Sizes(4096, 151936, 32, 32, None, 22016, 32, 32768), qkv_bias=True, positions=sliding_after),
    "qwen3": Recipe(
        sizes=Sizes(4096, 151936, 32, 32, 128, 22016, 32, 32768),
        qkv_bias=_BIAS, out_bias=_BIAS, qk_norm=QkNorm(over="head"), positions=sliding_after,
    ),
    "smollm3": Recipe(
        sizes=Sizes(2048, 128256, 16, 4, None, 11008, 36, 32768),
        qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias"), positions=smollm3_layer_positions, tied=True,
    ),
    "granite": Recipe(
        sizes=Sizes(4096, 32000, 32, None, None, 11008, 32, 2048),
        qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias"), residual_scale=True, embeddings_scaled=True, head_scaled=True,
    ),
    "olmo": Recipe(
        sizes=Sizes(4096, 50304, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS, norm=NormKind.LAYER_WIDE,
    ),
    "olmo2": Recipe(
        sizes=Sizes(4096, 50304, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS,
        norm=NormKind.RMS_FP32_SCALE, norms=_BRANCH_NORMS, arrangement=Arrangement.POST_BRANCH, qk_norm=QkNorm(over="width"),
    ),
    "phi3": Recipe(
        sizes=Sizes(3072, 32064, 32, None, None, 8192, 32, 4096),
        fused_qkv=True, mlp="fused", rotary_share=1.0, positions=everywhere_sliding(None),
    ),
    "stablelm": Recipe(
        sizes=Sizes(2560, 50304, 32, 32, None, 6912, 32, 4096), qkv_bias=Ask("use_qkv_bias"), norm=NormKind.LAYER,
        fixed_head_dim=True, rotary_share=0.25, parallel=Ask("use_parallel_residual"),
        qk_norm=QkNorm(over="each_head", names=("q_layernorm", "k_layernorm"), when=Ask("qk_layernorm")),
    ),
    "starcoder2": Recipe(
        sizes=Sizes(3072, 49152, 24, 2, None, 12288, 30, 4096), norm=NormKind.LAYER, mlp="plain", mlp_names=("c_fc", "c_proj"),
        qkv_bias=Ask("use_bias", default=True), out_bias=Ask("use_bias", default=True), mlp_bias=Ask("use_bias", default=True),
        positions=everywhere_sliding(None), activation="gelu_pytorch_tanh", embeddings_dropout=True, tied=True,
    ),
    "nemotron": Recipe(
        sizes=Sizes(6144, 256000, 48, None, None, 24576, 32, 4096), norm=NormKind.LAYER_OFFSET, mlp="plain",
        qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias"), rotary_share=0.5, activation="relu2",
    ),
    "glm": Recipe(
        sizes=Sizes(4096, 151552, 32, 2, 128, 13696, 40, 131072),
        qkv_bias=Ask("attention_bias", default=True), mlp="fused", rotary_share=0.5,
    ),
    "glm4": Recipe(
        sizes=Sizes(4096, 151552, 32, 2, 128, 13696, 40, 131072), qkv_bias=Ask("attention_bias", default=True), mlp="fused",
        rotary_share=0.5, norms=_GLM_NORMS, arrangement=Arrangement.SANDWICH,
    ),
    "exaone4": Recipe(
        sizes=Sizes(4096, 102400, 32, 32, None, 16384, 32, 2048),
        norms=_BRANCH_NORMS, arrangement=Arrangement.POST_BRANCH, qk_norm=QkNorm(over="head"), positions=exaone4_layer_positions,
    ),
    "olmo3": Recipe(
        sizes=Sizes(4096, 50304, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS,
        norm=NormKind.RMS_FP32_SCALE, norms=_BRANCH_NORMS, arrangement=Arrangement.POST_BRANCH, qk_norm=QkNorm(over="width"),
        positions=every_nth_full(4, 4096, fixed=True),
    ),
    "seed_oss": Recipe(
        sizes=Sizes(4096, 155136, 80, 8, 128, 27648, 64, 524288),
        qkv_bias=Ask("attention_bias", default=True), out_bias=Ask("attention_out_bias"), mlp_bias=Ask("mlp_bias"),
    ),
    "ministral": Recipe(sizes=Sizes(4096, 32000, 32, 8, None, 14336, 32, 131072), positions=sliding_unless_listed(4096)),
    "ministral3": Recipe(sizes=Sizes(4096, 131072, 32, 8, 128, 14336, 34, 262144), positions=everywhere_sliding(None)),
    "arcee": Recipe(
        sizes=Sizes(2560, 32000, 32, None, None, 18432, 32, 4096), qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias"),
        mlp="plain", activation="relu2",
    ),
    "apertus": Recipe(
        sizes=Sizes(4096, 131072, 32, None, None, 14336, 32, 65536), qkv_bias=_BIAS, out_bias=_BIAS, mlp="plain", activation="xielu",
        norms=("attention_layernorm", "feedforward_layernorm"), qk_norm=QkNorm(over="head"),
    ),
    "hunyuan_v1_dense": Recipe(
        sizes=Sizes(4096, 290943, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS,
        qk_norm=QkNorm(over="head", names=("query_layernorm", "key_layernorm")),
    ),
    "internlm3": Recipe(
        sizes=Sizes(4096, 128512, 32, 2, 128, 10240, 48, 32768), qkv_bias=_ATTENTION_BIAS, out_bias=_ATTENTION_BIAS,
        mlp_bias=Ask("mlp_bias", alias="bias"),
    ),
    "ernie4_5": Recipe(
        sizes=Sizes(1024, 103424, 16, 2, 128, 3072, 18, 131072),
        qkv_bias=_USE_BIAS, out_bias=_USE_BIAS, mlp_bias=_USE_BIAS, tied=True,
    ),
    "cohere": Recipe(
        sizes=Sizes(8192, 256000, 64, None, None, 22528, 40, 8192), qkv_bias=_BIAS, out_bias=_BIAS, norm=NormKind.LAYER_UNFUSED,
        norms=("input_layernorm",), arrangement=Arrangement.PARALLEL, qk_norm=QkNorm(over="matrix", when=Ask("use_qk_norm")),
        head_scaled=True, tied=True,
    ),
    "cohere2": Recipe(
        sizes=Sizes(8192, 256000, 64, None, None, 22528, 40, 8192), qkv_bias=_BIAS, out_bias=_BIAS, norm=NormKind.LAYER_UNFUSED,
        norms=("input_layernorm",), arrangement=Arrangement.PARALLEL, positions=every_nth_full(4, 4096, rotate_full=False),
        head_scaled=True, tied=True,
    ),
}  # fmt: skip


OTHERS_CODE = {"mimo": "qwen2"}
"""Model types whose own code is a class of another's without a change of its layers, and that one's
(XiaomiMiMo/MiMo-7B-RL modeling_mimo.py and vllm-project/vllm v0.33.0 vllm/model_executor/models/mimo.py:
MiMoForCausalLM is a Qwen2ForCausalLM; its layers for further tokens are counted beside).
"""


def read(config: Fields, prefix: str = "model") -> ModelSpec:
    given = config.text("model_type", default="llama")
    model_type = OTHERS_CODE.get(given, given)
    asked = (
        config
        if model_type == given
        else Fields({**config.data, "model_type": model_type}, config.where, config.problems)
    )
    return read_dense(asked, RECIPES[model_type], prefix)
