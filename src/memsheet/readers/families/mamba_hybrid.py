"""Hybrids of Mamba 2 and attention that servers run: Nemotron-H (one mixer or feed-forward a layer),
Granite 4 (granitemoehybrid) and Falcon-H1 (both mixers in every layer).

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    Dense,
    FeedForward,
    Mixer,
    ModelSpec,
    Moe,
    Role,
    StateSpace,
    Weight,
)
from memsheet.readers.families.hybrid import expanded_mamba2
from memsheet.readers.fields import MAX_LAYERS, Fields
from memsheet.readers.parts import (
    fused_gated_mlp,
    gated_mlp,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import (
    causal_lm,
    correction_bias,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    router_weights,
    stacked_gated_moe,
)
from memsheet.readers.state_parts import mamba2_mixer

STATE, ATTENTION, EXPERTS, PLAIN = "linear_attention", "full_attention", "moe", "mlp"
_OLD_NAMES = {"mamba": STATE, "attention": ATTENTION}
_LETTERS = {"M": STATE, "E": EXPERTS, "*": ATTENTION, "-": PLAIN}


def read(config: Fields) -> ModelSpec:
    match config.text("model_type", default="nemotron_h"):
        case "granitemoehybrid":
            return _granite_hybrid(config)
        case "falcon_h1":
            return _falcon_h1(config)
        case _:
            return _nemotron_h(config)


# Nemotron-H: a norm and one of four modules a layer


def _nemotron_h(config: Fields) -> ModelSpec:
    hidden, kinds = config.count("hidden_size", default=4096), _nemotron_layers(config)
    made: dict[str, Block] = {}
    for kind in dict.fromkeys(kinds):
        made[kind] = _nemotron_block(config, kind, hidden)
    # the head is never tied: modeling_nemotron_h.py, _tied_weights_keys is empty
    untied = Fields({**config.data, "tie_word_embeddings": False}, config.where, config.problems)
    return causal_lm(
        untied,
        "nemotron_h",
        hidden,
        config.count("vocab_size", default=131072),
        repeating_layer_runs(kinds, made.__getitem__),
        final_norm=rms_norm("norm_f", hidden),
        embeddings="embeddings",
        positions=config.count("max_position_embeddings", default=4096),
    )


def _nemotron_layers(config: Fields) -> tuple[str, ...]:
    """What each layer is: by a list, or by a pattern of letters; their number is no field of its own
    (configuration_nemotron_h.py, num_hidden_layers).
    """
    key = next((key for key in ("layers_block_type", "layer_types") if config.raw(key) is not None), "")
    if key:
        kinds = tuple(_OLD_NAMES.get(kind, kind) for kind in config.texts(key))
    else:
        key = "hybrid_override_pattern"
        kinds = tuple(_LETTERS.get(letter, letter) for letter in config.text(key, default="ME*-"))
    unknown = sorted(set(kinds) - set(_LETTERS.values()))
    if unknown or not kinds:
        config.wrong(key, unknown[:8] or None, "names no layers" if not kinds else "are no known layers")
        return (STATE,)
    if len(kinds) > MAX_LAYERS:
        config.wrong(key, len(kinds), f"names more than {MAX_LAYERS} layers")
    return kinds[:MAX_LAYERS]


def _nemotron_block(config: Fields, kind: str, hidden: int) -> Block:
    mixers: tuple[Mixer, ...] = ()
    feed_forward: FeedForward | None = None
    match kind:
        case "linear_attention":
            mixers = (_nemotron_mamba(config, hidden),)
        case "full_attention":
            heads = config.count("num_attention_heads", default=32)
            kv_heads = key_value_heads(config, heads, default=8)
            head_dim = config.count("head_dim", default=128)
            mixers = (separate_qkv_attention("mixer", hidden, heads, kv_heads, head_dim, rotary_dim=0),)
        case "moe":
            feed_forward = _nemotron_experts(config, hidden)
        case _:
            feed_forward = _nemotron_mlp(
                config, "mixer", hidden, config.count("intermediate_size", default=21504)
            )
    return Block(
        kind="nemotron_h",
        hidden=hidden,
        arrangement=Arrangement.MIXER_ONLY if mixers else Arrangement.FEED_FORWARD_ONLY,
        mixers=mixers,
        feed_forward=feed_forward,
        norms=(rms_norm("norm", hidden),),
    )


def _nemotron_mamba(config: Fields, hidden: int) -> StateSpace:
    heads = config.count("mamba_num_heads", default=128)
    head_dim = config.count("mamba_head_dim", default=64)
    mixer = mamba2_mixer(
        "mixer",
        hidden,
        heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        state=config.count("ssm_state_size", default=128),
        groups=config.count("mamba_n_groups", "n_groups", default=8),
        kernel=config.count("mamba_d_conv", "conv_kernel", default=4),
        chunk=config.count("mamba_chunk_size", "chunk_size", default=128),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", "use_conv_bias", default=True),
    )
    return replace(mixer, state_dtype=config.text("mamba_ssm_cache_dtype", default="float32"))


def _nemotron_mlp(config: Fields, path: str, hidden: int, width: int) -> Dense:
    activation = config.text("mlp_hidden_act", default="relu2")
    return plain_mlp(path, hidden, width, activation, bias=config.flag("mlp_bias", default=False))


def _nemotron_experts(config: Fields, hidden: int) -> Moe:
    """Experts without a gate, of the hidden size or of a latent that all tokens are brought to first."""
    experts = config.count("n_routed_experts", "num_local_experts", default=8)
    width = config.count("moe_intermediate_size", default=7688)
    latent, bias = config.optional("moe_latent_size"), config.flag("mlp_bias", default=False)
    inner = latent or hidden
    through = (
        (
            *linear_weights("mixer.fc1_latent_proj", inner, hidden, bias=bias),
            *linear_weights("mixer.fc2_latent_proj", hidden, inner, bias=bias),
        )
        if latent
        else ()
    )
    return Moe(
        path="mixer",
        experts=experts,
        experts_per_token=experts_per_token(config, "num_experts_per_tok", default=2, experts=experts),
        intermediate=width,
        activation=config.text("mlp_hidden_act", default="relu2"),
        gated=False,
        groups=config.count("n_group", default=1),
        shared=_nemotron_mlp(
            config,
            "mixer.shared_experts",
            hidden,
            config.count("moe_shared_expert_intermediate_size", default=7688),
        ),
        weights=(
            *router_weights("mixer.gate", experts, hidden),
            Weight(path="mixer.experts.up_proj", shape=(experts, width, inner), role=Role.EXPERT, cut=1),
            Weight(path="mixer.experts.down_proj", shape=(experts, inner, width), role=Role.EXPERT, cut=2),
            *through,
            correction_bias("mixer.gate", experts),
        ),
    )


# Granite 4: granitemoeshared's feed-forward under Mamba 2 or attention


def _granite_hybrid(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=32)
    key = "layers_block_type" if config.raw("layer_types") is None else "layer_types"
    kinds = [_OLD_NAMES.get(kind, kind) for kind in layer_kinds(config, key, layers, [STATE] * layers)]
    heads, bias = (
        config.count("num_attention_heads", default=32),
        config.flag("attention_bias", default=False),
    )
    head_dim = config.count("head_dim", default=hidden // heads or 1)
    mixers: dict[bool, Mixer] = {
        True: separate_qkv_attention(
            "self_attn",
            hidden,
            heads,
            key_value_heads(config, heads, default=None),
            head_dim,
            qkv_bias=bias,
            out_bias=bias,
            rotary_dim=head_dim if config.text("position_embedding_type", default="") == "rope" else 0,
        ),
        False: expanded_mamba2(config, hidden),
    }
    feed_forward = _granite_feed_forward(config, hidden)

    def make(attends: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        return Block(
            kind="granitemoehybrid",
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[attends],),
            feed_forward=feed_forward,
            norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
            residual_scale=True,
        )

    return causal_lm(
        config,
        "granitemoehybrid",
        hidden,
        config.count("vocab_size", default=32000),
        repeating_layer_runs([kind == ATTENTION for kind in kinds], make),
        final_norm=rms_norm("norm", hidden),
        scaled_embeddings=True,
        scaled_logits=True,
        positions=config.count("max_position_embeddings", default=2048),
    )


def _granite_feed_forward(config: Fields, hidden: int) -> FeedForward:
    """The feed-forward of every layer, beside routed experts where there are some."""
    width, activation = (
        config.count("shared_intermediate_size", default=1024),
        config.text("hidden_act", default="silu"),
    )
    shared = fused_gated_mlp("shared_mlp", hidden, width, activation, names=("input_linear", "output_linear"))
    experts = config.count("num_local_experts", default=8, low=0)
    if not experts:
        return shared
    return stacked_gated_moe(
        config,
        "block_sparse_moe",
        hidden,
        experts,
        per_token=experts_per_token(config, "num_experts_per_tok", default=2, experts=experts),
        intermediate=config.count("intermediate_size", default=11008),
        gate="router",
        shared=shared,
    )


# Falcon-H1: Mamba 2 and attention side by side under one norm


def _falcon_h1(config: Fields) -> ModelSpec:
    hidden, heads = config.count("hidden_size", default=4096), config.count("num_attention_heads", default=32)
    bias = config.flag("attention_bias", default=False)
    head_dim = config.count("head_dim", default=hidden // heads or 1)
    attention = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        key_value_heads(config, heads, default=8),
        head_dim,
        qkv_bias=bias,
        out_bias=bias,
    )
    block = Block(
        kind="falcon_h1",
        hidden=hidden,
        arrangement=Arrangement.OTHER,
        mixers=(_falcon_mamba2(config, hidden), attention),
        feed_forward=gated_mlp(
            "feed_forward",
            hidden,
            config.count("intermediate_size", default=14336),
            config.text("hidden_act", default="silu"),
            bias=config.flag("mlp_bias", default=False),
        ),
        norms=(rms_norm("input_layernorm", hidden), rms_norm("pre_ff_layernorm", hidden)),
    )
    return causal_lm(
        config,
        "falcon_h1",
        hidden,
        config.count("vocab_size", default=128000),
        repeating_layer_runs(["falcon_h1"] * config.layers(default=32), lambda _: block),
        final_norm=rms_norm("final_layernorm", hidden),
        scaled_embeddings=True,
        scaled_logits=True,
        positions=config.count("max_position_embeddings", default=8192),
    )


def _falcon_mamba2(config: Fields, hidden: int) -> StateSpace:
    """Of a width of its own, its norm and the bias of its output asked for apart."""
    heads = config.count("mamba_n_heads", default=128)
    inner = (
        config.count("mamba_expand", default=2) * hidden
        if "mamba_d_ssm" in config.data and config.raw("mamba_d_ssm") is None
        else config.count("mamba_d_ssm", default=1024)
    )
    config.divides(heads, "mamba_n_heads", inner, "heads share the mixer's width evenly")
    mixer = mamba2_mixer(
        "mamba",
        hidden,
        inner,
        heads=heads,
        head_dim=inner // heads or 1,
        state=config.count("mamba_d_state", default=256),
        groups=config.count("mamba_n_groups", default=1),
        kernel=config.count("mamba_d_conv", default=4),
        chunk=config.count("mamba_chunk_size", default=256),
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )
    left_out = (
        ("mamba.out_proj.",)
        if config.flag("mamba_rms_norm", default=False)
        else (
            "mamba.out_proj.",
            "mamba.norm.",
        )
    )
    output = linear_weights(
        "mamba.out_proj",
        hidden,
        inner,
        bias=config.flag("projectors_bias", default=False),
        cut="in",
        units=heads,
    )
    kept = (weight for weight in mixer.weights if not weight.path.startswith(left_out))
    return replace(mixer, weights=(*kept, *output))
