"""Decoders with multi-head latent attention and experts: DeepSeek-V2, V3 and V3.2, and their kin.

Keys and values come from one narrow latent and a rotary key that all heads share. Multi-token heads of a
checkpoint are not part of the model that transformers builds, and are not counted.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, Dense, LatentAttention, ModelSpec, Moe, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    gated_mlp,
    layer_norm,
    linear_weights,
    repeating_layer_runs,
    rms_norm,
)
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    layer_kinds,
    nullable_count,
    stacked_gated_moe,
)

# fmt: off
# defaults of DeepseekV2Config and DeepseekV3Config, transformers 5.23
_V2: dict[str, int | None] = {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407, "num_hidden_layers": 32,
       "num_attention_heads": 32, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": None, "first_k_dense_replace": 0,
       "max_position_embeddings": 2048}
_V3: dict[str, int | None] = {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
       "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
       "max_position_embeddings": 4096}
_LITE: dict[str, int | None] = {"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47,
         "num_attention_heads": 20, "n_shared_experts": 1, "n_routed_experts": 64, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
         "max_position_embeddings": 202752, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
_MISTRAL4: dict[str, int | None] = {"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 36,
             "num_attention_heads": 32, "n_shared_experts": 1, "n_routed_experts": 128, "num_experts_per_tok": 4, "first_k_dense_replace": 0,
             "max_position_embeddings": 1048576, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64}
_K2 = _V3 | {"vocab_size": 163840, "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1, "max_position_embeddings": 131072}
_V32 = _V3 | {"max_position_embeddings": 163840, "index_n_heads": 64}
_GLM_DSA = _V3 | {"vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "num_hidden_layers": 78, "num_attention_heads": 64,
                  "max_position_embeddings": 202752, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32}
# fmt: on
_DEFAULTS = {
    "deepseek_v2": _V2,
    "deepseek_v3": _V3,
    "kimi_k2": _K2,
    "glm4_moe_lite": _LITE,
    "mistral4": _MISTRAL4,
    "deepseek_v32": _V32,
    "glm_moe_dsa": _GLM_DSA,
}
_RUN_AS = {"kimi_k2": "deepseek_v3"}
"""Families whose layers another's code runs (configuration_kimi_k25.py; ``READ_IN``)."""
_SOFTMAX_ROUTED = ("deepseek_v2", "mistral4")
"""Families whose router has no bias for the choice."""


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="deepseek_v3")
    known = _DEFAULTS[kind]
    kind = _RUN_AS.get(kind, kind)
    hidden = config.count("hidden_size", default=known["hidden_size"])
    layers = config.layers(default=known["num_hidden_layers"])
    sparse, indexed = (
        _routed_layers(config, kind, layers, known),
        _indexed_layers(config, kind, layers, known),
    )
    mixer, dense, routed = (
        latent_attention(config, hidden, known),
        _deepseek_dense_mlp(config, hidden, known, kind),
        _deepseek_moe(config, hidden, known, kind),
    )

    def make(key: tuple[bool, bool]) -> Block:
        is_routed, has_indexer = key
        return Block(
            kind=kind,
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(_with_indexer(config, mixer, hidden, known) if has_indexer else mixer,),
            feed_forward=routed if is_routed else dense,
            norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
        )

    return causal_lm(
        config,
        kind,
        hidden,
        config.count("vocab_size", default=known["vocab_size"]),
        repeating_layer_runs(list(zip(sparse, indexed, strict=True)), make),
        final_norm=rms_norm("norm", hidden),
        positions=config.count("max_position_embeddings", default=known["max_position_embeddings"]),
    )


def _routed_layers(config: Fields, kind: str, layers: int, known: dict[str, int | None]) -> tuple[bool, ...]:
    """Which layers have experts: by ``mlp_layer_types`` where the family has it, else but for the first."""
    first = known["first_k_dense_replace"]
    if kind != "glm4_moe_lite":
        first = config.count("first_k_dense_replace", default=first, low=0)
    usual = ["dense" if i < (first or 0) else "sparse" for i in range(layers)]
    if kind in ("deepseek_v2", "deepseek_v3", "mistral4"):
        return tuple(name == "sparse" for name in usual)
    return tuple(name == "sparse" for name in layer_kinds(config, "mlp_layer_types", layers, usual))


def _indexed_layers(config: Fields, kind: str, layers: int, known: dict[str, int | None]) -> tuple[bool, ...]:
    """Which layers pick for themselves what they attend to; of glm_moe_dsa some take what the layer before
    them picked (configuration_glm_moe_dsa.py, ``indexer_types``).
    """
    if "index_n_heads" not in known:
        return (False,) * layers
    if kind == "deepseek_v32":
        return (True,) * layers
    pattern = config.data.get("index_topk_pattern")
    if isinstance(pattern, str) and len(pattern) == layers:
        return tuple(letter == "F" for letter in pattern)
    every = max(config.count("index_topk_freq", default=1, low=0), 1)
    offset = config.count("index_skip_topk_offset", default=2, low=0)
    usual = ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(layers)]
    return tuple(name == "full" for name in layer_kinds(config, "indexer_types", layers, usual))


def _with_indexer(
    config: Fields, mixer: LatentAttention, hidden: int, known: dict[str, int | None]
) -> LatentAttention:
    """Attention with the indexer's queries, its one key a token with a norm, and a weight a head; whole on
    every rank (modeling_deepseek_v32.py, DeepseekV32Indexer).
    """
    heads = config.count("index_n_heads", default=known["index_n_heads"])
    width, path = config.count("index_head_dim", default=128), f"{mixer.path}.indexer"
    if mixer.q_lora_rank is None:
        config.wrong("q_lora_rank", None, "is null, and the indexer takes what the queries' latent is")
    return replace(
        mixer,
        index_dim=width,
        index_tokens=config.count("index_topk", default=2048),
        weights=(
            *mixer.weights,
            *linear_weights(f"{path}.wq_b", heads * width, mixer.q_lora_rank or 1),
            *linear_weights(f"{path}.wk", width, hidden),
            *layer_norm(f"{path}.k_norm", width).weights,
            *linear_weights(f"{path}.weights_proj", heads, hidden),
        ),
    )


def latent_attention(config: Fields, hidden: int, known: dict[str, int | None]) -> LatentAttention:
    """Attention over a latent. ``known``: defaults of the family; a rank of None is no latent of queries."""
    heads = config.count("num_attention_heads", default=known["num_attention_heads"])
    q_rank = nullable_count(config, "q_lora_rank", known.get("q_lora_rank", 1536))
    kv_rank = config.count("kv_lora_rank", default=known.get("kv_lora_rank") or 512)
    nope = config.count("qk_nope_head_dim", default=known.get("qk_nope_head_dim") or 128)
    # Glm4MoeLiteConfig's attribute_map: head_dim is another name of the turned part
    alias = ("head_dim",) if config.data.get("model_type") == "glm4_moe_lite" else ()
    rope = config.count(*alias, "qk_rope_head_dim", default=64)
    value = config.count("v_head_dim", default=known.get("v_head_dim") or 128)
    bias = config.flag("attention_bias", default=False)
    return LatentAttention(
        path="self_attn",
        heads=heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        weights=(
            *_query_projection_weights(hidden, heads, heads * (nope + rope), q_rank, bias=bias),
            *linear_weights("self_attn.kv_a_proj_with_mqa", kv_rank + rope, hidden, bias=bias),
            *rms_norm("self_attn.kv_a_layernorm", kv_rank).weights,
            *linear_weights("self_attn.kv_b_proj", heads * (nope + value), kv_rank, cut="out", units=heads),
            *linear_weights("self_attn.o_proj", hidden, heads * value, bias=bias, cut="in", units=heads),
        ),
    )


def _query_projection_weights(
    hidden: int, heads: int, width: int, rank: int | None, *, bias: bool
) -> tuple[Weight, ...]:
    """Down to ``rank``, a norm, up to all heads; or straight to all heads where there is no rank."""
    if rank is None:
        return linear_weights("self_attn.q_proj", width, hidden, cut="out", units=heads)
    return (
        *linear_weights("self_attn.q_a_proj", rank, hidden, bias=bias),
        *rms_norm("self_attn.q_a_layernorm", rank).weights,
        *linear_weights("self_attn.q_b_proj", width, rank, cut="out", units=heads),
    )


def _deepseek_dense_mlp(config: Fields, hidden: int, known: dict[str, int | None], kind: str) -> Dense:
    width = config.count("intermediate_size", default=known["intermediate_size"])
    return gated_mlp(
        "mlp", hidden, width, config.text("hidden_act", default="silu"), bias=_mlp_bias(config, kind)
    )


def _mlp_bias(config: Fields, kind: str) -> bool:
    return kind == "deepseek_v2" and config.flag("mlp_bias", default=False)


def _deepseek_moe(config: Fields, hidden: int, known: dict[str, int | None], kind: str) -> Moe:
    alias = "num_experts" if kind == "deepseek_v2" else "num_local_experts"
    experts = config.count("n_routed_experts", alias, default=known["n_routed_experts"])
    width = config.count("moe_intermediate_size", default=known["moe_intermediate_size"])
    shared = config.count("n_shared_experts", default=known["n_shared_experts"], low=0)
    activation, bias = config.text("hidden_act", default="silu"), _mlp_bias(config, kind)
    limited = kind == "deepseek_v2" and config.text("topk_method", default="greedy") == "group_limited_greedy"
    made = stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=experts_per_token(
            config, "num_experts_per_tok", default=known["num_experts_per_tok"], experts=experts
        ),
        intermediate=width,
        shared=gated_mlp("mlp.shared_experts", hidden, shared * width, activation, bias=bias)
        if shared
        else None,
        extras=() if kind in _SOFTMAX_ROUTED else (correction_bias("mlp.gate", experts),),
    )
    return replace(made, groups=config.count("n_group", default=1)) if limited else made
