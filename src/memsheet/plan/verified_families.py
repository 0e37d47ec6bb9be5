"""Families of transformers whose layers were compared with a trace of their real code, and those that have no
sdpa.

The trace ran the library on tensors without memory, in bf16 and under bf16 autocast, with and without
recompute; the peaks of forward and backward agree within 0.1 %. What is not listed is refused rather than
guessed.
"""

from __future__ import annotations

from memsheet.plan.plan import AttentionKind

_BOTH = frozenset({AttentionKind.EAGER, AttentionKind.SDPA, AttentionKind.FLASH})
_EAGER = frozenset({AttentionKind.EAGER})

VERIFIED: dict[str, frozenset[AttentionKind]] = {
    "llama4_text": frozenset({AttentionKind.EAGER, AttentionKind.SDPA}),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo", "olmo2", "exaone4", "ernie4_5"), _BOTH),
    **dict.fromkeys(("olmo3", "seed_oss", "ministral", "ministral3", "arcee", "apertus", "hunyuan_v1_dense", "internlm3"), _BOTH),
    **dict.fromkeys(("minimax_m2", "dots1", "hunyuan_v1_moe", "exaone_moe", "afmoe", "granitemoeshared", "flex_olmo", "glm4_moe_lite", "qwen3_5_text", "qwen3_5_moe_text"), _BOTH),
    **dict.fromkeys(("phi", "phi3", "stablelm", "starcoder2", "nemotron", "glm", "glm4", "cohere", "cohere2", "gemma", "gemma3_text"), _BOTH),
    **dict.fromkeys(("gpt2", "gpt_neox", "gpt_bigcode", "opt"), _BOTH),
    **dict.fromkeys(("bert", "roberta"), _BOTH),
    "falcon": frozenset({AttentionKind.EAGER, AttentionKind.SDPA}),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), _BOTH),
    "qwen": frozenset({AttentionKind.FLASH}),  # read, not compared: no library has its code
    **dict.fromkeys(("bloom", "mpt", "gemma2", "gpt_neo", "gptj", "gpt_oss", "mamba", "mamba2", "falcon_mamba"), _EAGER),
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "granitemoe", "deepseek_v2", "deepseek_v3", "jamba", "phimoe", "glm4_moe", "ernie4_5_moe", "bamba"), _BOTH),
    "qwen3_next": _BOTH,
}  # fmt: skip

OF_PICTURES: dict[str, frozenset[AttentionKind]] = {"vit": _BOTH - {AttentionKind.FLASH}}
"""Families that are shown pictures, compared in the same way."""

NO_SDPA = frozenset(
    {
        "gemma2",
        "gpt_neo",
        "gptj",
        "bloom",
        "mpt",
        "gpt_oss",
        "mimo_v2_flash",
        "mamba",
        "mamba2",
        "falcon_mamba",
        "rwkv",
        "deberta-v2",
    }
)
"""transformers 5.23 raises when one of these is built with sdpa (``_supports_sdpa`` is false). Every family
that is read was looked up.
"""

WRITES_SCORES = frozenset({"internlm", "internlm2", "xverse", "aquila", "orion"})
"""Families of the hub whose own code is Llama's of 2023, which writes scores out unless FlashAttention is
asked for; InternLM2's configuration itself says ``attn_implementation`` eager (catalog/models/internlm2-7b).
"""
JOINED_QKV = frozenset({"internlm2", "baichuan", "qwen", "chatglm"})
"""Families of the hub whose own code has queries, keys and values in one matrix (wqkv, W_pack, c_attn,
query_key_value).
"""

TP_TRAINED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families whose training step was compared with its trace under tensor parallelism, cut as their own plan
says.
"""

TP_PLANS = frozenset({
    "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4", "gemma", "gemma2", "gemma3",
    "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_neox", "granite", "llama", "llama4", "llama4_text", "mistral", "mixtral",
    "nemotron", "olmo", "olmo2", "olmoe", "phi", "phi3", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe",
    "qwen3_next", "smollm3", "starcoder2", "olmo3", "seed_oss", "ministral", "ministral3", "arcee", "apertus", "internlm3",
    "minimax_m2", "dots1", "exaone_moe", "flex_olmo", "glm4_moe_lite", "qwen3_5_text", "qwen3_5_moe_text",
    "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe", "hy_v3", "mimo_v2_flash", "minimax",
})  # fmt: skip
"""Families whose configuration has a ``base_model_tp_plan`` that cuts its linear layers. Those of multimodal
models are their text model's.
"""

TP_EXPERTS_ONLY = frozenset({
    "granitemoe", "granitemoeshared", "jamba", "phimoe", "hunyuan_v1_moe", "afmoe",
    "granitemoehybrid", "lfm2_moe",
})  # fmt: skip
"""Families whose plan cuts the routed experts and nothing else."""

TP_LATENT = frozenset({"deepseek_v2"})
"""Families of latent attention whose plan splits its heads; that of deepseek_v3 leaves attention whole."""
