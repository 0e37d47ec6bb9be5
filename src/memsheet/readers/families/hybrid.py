"""Decoders that mix attention with state spaces, linear attention or recurrences from layer to layer."""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    FeedForward,
    LinearAttention,
    Mixer,
    ModelSpec,
    Moe,
    NormKind,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    gated_mlp,
    linear_weights,
    repeating_layer_runs,
    rms_norm,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import (
    causal_lm,
    experts_per_token,
    key_value_heads,
    layer_kinds,
    norm_pair,
    rotary_width,
    stacked_gated_moe,
)
from memsheet.readers.state_parts import (
    causal_conv,
    mamba2_mixer,
    mamba_mixer,
    served_state_dtype,
    step_rank,
)


def read(config: Fields) -> ModelSpec:
    match config.text("model_type", default="qwen3_next"):
        case "jamba":
            return _jamba_spec(config)
        case "bamba":
            return _bamba_spec(config)
        case "recurrent_gemma":
            return _recurrent_gemma(config)
        case _:
            return _qwen3_next(config)


# Qwen3-Next: gated delta net, every fourth layer gated attention; experts everywhere


def _qwen3_next(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=2048), config.layers(default=48)
    every = config.count("full_attention_interval", default=4)
    kinds = layer_kinds(
        config,
        "layer_types",
        layers,
        ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)],
    )
    mixers: dict[bool, Mixer] = {
        True: gated_delta_net(config, hidden, apart=False),
        False: gated_query_attention(config, hidden, kv_heads=2),
    }
    routed, dense = (
        gated_shared_experts(config, hidden, experts=512, per_token=10),
        gated_mlp(
            "mlp",
            hidden,
            config.count("intermediate_size", default=5632),
            config.text("hidden_act", default="silu"),
        ),
    )
    step, dense_layers = config.count("decoder_sparse_step", default=1), config.counts("mlp_only_layers")

    def make(key: tuple[bool, bool]) -> Block:
        linear_mixer, is_routed = key
        return Block(
            kind="qwen3_next",
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[linear_mixer],),
            feed_forward=routed if routed and is_routed else dense,
            norms=tuple(
                rms_norm(name, hidden, NormKind.RMS_OFFSET)
                for name in ("input_layernorm", "post_attention_layernorm")
            ),
        )

    keys = [
        (kinds[i] == "linear_attention", i not in dense_layers and (i + 1) % step == 0) for i in range(layers)
    ]
    return causal_lm(
        config,
        "qwen3_next",
        hidden,
        config.count("vocab_size", default=151936),
        repeating_layer_runs(keys, make),
        final_norm=rms_norm("norm", hidden, NormKind.RMS_OFFSET),
        positions=config.count("max_position_embeddings", default=32768),
    )


def gated_query_attention(config: Fields, hidden: int, *, kv_heads: int) -> Attention:
    """The query projection is twice as wide: the other half of each head gates the output through a
    sigmoid.
    """
    heads, head_dim = config.count("num_attention_heads", default=16), config.count("head_dim", default=256)
    bias = config.flag("attention_bias", default=False)
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        key_value_heads(config, heads, default=kv_heads),
        head_dim,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=rotary_width(config, head_dim, default=0.25),
        qk_norm=norm_pair("self_attn", ("q_norm", "k_norm"), (head_dim, head_dim), NormKind.RMS_OFFSET),
    )
    query = linear_weights(
        "self_attn.q_proj", 2 * heads * head_dim, hidden, bias=bias, cut="out", units=heads
    )
    return replace(
        mixer, gated_output=True, weights=(*query, *(w for w in mixer.weights if ".q_proj." not in w.path))
    )


def gated_delta_net(config: Fields, hidden: int, *, apart: bool) -> LinearAttention:
    """Keys, values and gates from two projections (``apart``: from four), a short convolution over q, k and
    v, a matrix state a value head.
    """
    k_heads, v_heads = (
        config.count("linear_num_key_heads", default=16),
        config.count("linear_num_value_heads", default=32),
    )
    k_dim, v_dim = (
        config.count("linear_key_head_dim", default=128),
        config.count("linear_value_head_dim", default=128),
    )
    config.divides(
        k_heads, "linear_num_value_heads", v_heads, "each key head serves the same number of value heads"
    )
    kernel = config.count("linear_conv_kernel_dim", default=4)
    keys, values, path = k_heads * k_dim, v_heads * v_dim, "linear_attn"
    return LinearAttention(
        path=path,
        kind="gated_delta_net",
        key_heads=k_heads,
        value_heads=v_heads,
        key_head_dim=k_dim,
        value_head_dim=v_dim,
        state_elements=v_heads * k_dim * v_dim,
        conv_elements=(2 * keys + values) * kernel,
        state_dtype=served_state_dtype(config, "mamba_ssm_dtype"),
        weights=(
            *(
                Weight(path=f"{path}.{name}", shape=(v_heads,), role=Role.OTHER, cut=0, units=v_heads)
                for name in ("dt_bias", "A_log")
            ),
            *causal_conv(f"{path}.conv1d", 2 * keys + values, kernel, bias=False, units=k_heads),
            *(
                weight
                for name, size in _delta_projections(keys, values, v_heads, apart=apart)
                for weight in linear_weights(f"{path}.{name}", size, hidden, cut="out", units=k_heads)
            ),
            Weight(path=f"{path}.norm.weight", shape=(v_dim,), role=Role.NORM),
            *linear_weights(f"{path}.out_proj", hidden, values, cut="in", units=v_heads),
        ),
    )


def _delta_projections(keys: int, values: int, heads: int, *, apart: bool) -> tuple[tuple[str, int], ...]:
    """Names and widths of what a delta net projects to."""
    if apart:
        return (
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", heads),
            ("in_proj_a", heads),
        )
    return ("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * heads)


def gated_shared_experts(config: Fields, hidden: int, *, experts: int, per_token: int) -> Moe | None:
    experts = config.count("num_experts", default=experts, low=0)
    per_token = experts_per_token(config, "num_experts_per_tok", default=per_token, experts=experts)
    width, shared = (
        config.count("moe_intermediate_size", default=512),
        config.count("shared_expert_intermediate_size", default=512),
    )
    if not experts:
        return None
    return stacked_gated_moe(
        config,
        "mlp",
        hidden,
        experts,
        per_token=per_token,
        intermediate=width,
        shared=gated_mlp("mlp.shared_expert", hidden, shared, config.text("hidden_act", default="silu")),
        extras=(Weight(path="mlp.shared_expert_gate.weight", shape=(1, hidden), role=Role.LINEAR),),
    )


# Jamba: one attention layer in eight, the rest Mamba; experts in every second layer


def _jamba_spec(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=32)
    attends, routes = (
        _layer_period_and_offset(config, "attn_layer", 8, 4),
        _layer_period_and_offset(config, "expert_layer", 2, 1),
    )
    heads = config.count("num_attention_heads", default=32)
    mixers: dict[bool, Mixer] = {
        # no rotary positions: the state spaces between know where they are
        True: separate_qkv_attention(
            "self_attn",
            hidden,
            heads,
            key_value_heads(config, heads, default=8),
            config.count("head_dim", default=hidden // heads or 1),
            rotary_dim=0,
        ),
        False: _jamba_mamba(config, hidden),
    }
    experts = config.count("num_local_experts", "num_experts", default=16)
    width, activation = (
        config.count("intermediate_size", default=14336),
        config.text("hidden_act", default="silu"),
    )
    dense: Dense = gated_mlp("feed_forward", hidden, width, activation)
    per_token = experts_per_token(config, "num_experts_per_tok", default=2, experts=max(experts, 2))
    routed = (
        stacked_gated_moe(
            config, "feed_forward", hidden, experts, per_token=per_token, intermediate=width, gate="router"
        )
        if experts > 1
        else dense
    )

    def make(key: tuple[bool, bool]) -> Block:
        return _hybrid_block("jamba", hidden, mixers[key[0]], routed if key[1] else dense)

    keys = [(i % attends[0] == attends[1], i % routes[0] == routes[1]) for i in range(layers)]
    return causal_lm(
        config,
        "jamba",
        hidden,
        config.count("vocab_size", default=65536),
        repeating_layer_runs(keys, make),
        final_norm=rms_norm("final_layernorm", hidden),
        positions=config.count("max_position_embeddings", default=262144),
    )


def _layer_period_and_offset(config: Fields, stem: str, period: int, offset: int) -> tuple[int, int]:
    """Period and offset of the layers that have something; an offset beyond the period would never be met."""
    period = config.count(f"{stem}_period", default=period)
    offset = config.count(f"{stem}_offset", default=offset, low=0)
    if offset >= period:
        config.wrong(f"{stem}_offset", offset, f"is not smaller than {stem}_period, {period}")
    return period, offset


def _jamba_mamba(config: Fields, hidden: int) -> StateSpace:
    return mamba_mixer(
        "mamba",
        hidden,
        config.count("mamba_expand", default=2) * hidden,
        config.count("mamba_d_state", default=16),
        kernel=config.count("mamba_d_conv", default=4),
        rank=step_rank(config, "mamba_dt_rank", hidden),
        norms=True,
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )


def _hybrid_block(kind: str, hidden: int, mixer: Mixer, feed_forward: FeedForward) -> Block:
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=feed_forward,
        norms=(rms_norm("input_layernorm", hidden), rms_norm("pre_ff_layernorm", hidden)),
    )


# Bamba: Mamba 2 with attention in listed layers, dense feed-forwards


def _bamba_spec(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=4096), config.layers(default=32)
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
            key_value_heads(config, heads, default=8),
            head_dim,
            qkv_bias=bias,
            out_bias=bias,
            rotary_dim=head_dim // 2,  # the family's code fixes the half
        ),
        False: expanded_mamba2(config, hidden),
    }
    dense = gated_mlp(
        "feed_forward",
        hidden,
        config.count("intermediate_size", default=14336),
        config.text("hidden_act", default="silu"),
        bias=config.flag("mlp_bias", default=False),
    )
    attends = frozenset(config.counts("attn_layer_indices"))
    return causal_lm(
        config,
        "bamba",
        hidden,
        config.count("vocab_size", default=128000),
        repeating_layer_runs(
            [i in attends for i in range(layers)],
            lambda key: _hybrid_block("bamba", hidden, mixers[key], dense),
        ),
        final_norm=rms_norm("final_layernorm", hidden),
        positions=config.count("max_position_embeddings", default=262144),
    )


def expanded_mamba2(config: Fields, hidden: int) -> StateSpace:
    """A Mamba 2 mixer of mamba_expand times the hidden size (bamba, granitemoehybrid)."""
    heads, inner = (
        config.count("mamba_n_heads", default=128),
        config.count("mamba_expand", default=2) * hidden,
    )
    config.divides(heads, "mamba_n_heads", inner, "heads share mamba_expand times hidden_size evenly")
    head_dim = (
        inner // heads
        if config.raw("mamba_d_head", default="auto") == "auto"
        else config.count("mamba_d_head")
    )
    if head_dim * heads != inner:
        config.wrong(
            "mamba_d_head",
            head_dim,
            f"times mamba_n_heads {heads} is not mamba_expand times hidden_size, {inner}",
        )
    return mamba2_mixer(
        "mamba",
        hidden,
        inner,
        heads=heads,
        head_dim=head_dim,
        state=config.count("mamba_d_state", default=256),
        groups=config.count("mamba_n_groups", default=1),
        kernel=config.count("mamba_d_conv", default=4),
        chunk=config.count("mamba_chunk_size", default=256),
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )


# RecurrentGemma: two gated linear recurrences, then local attention


def _recurrent_gemma(config: Fields) -> ModelSpec:
    hidden, layers = config.count("hidden_size", default=2560), config.layers(default=26)
    width, heads = config.count("lru_width", default=hidden), config.count("num_attention_heads", default=10)
    cycle = config.texts("block_types", default=("recurrent", "recurrent", "attention"))
    if not cycle:
        config.wrong("block_types", None, "names no block")
        cycle = ("attention",)
    mixers: dict[bool, Mixer] = {
        True: _rg_lru(hidden, width, heads, config.count("conv1d_width", default=4)),
        False: separate_qkv_attention(
            "temporal_block",
            hidden,
            heads,
            key_value_heads(config, heads, default=None),
            head_dim := _griffin_head(config, hidden, heads),
            qkv_bias=config.flag("attention_bias", default=False),
            out_bias=True,
            rotary_dim=rotary_width(config, head_dim, default=0.5),
            window=config.count("attention_window_size", "sliding_window", default=2048),
        ),
    }
    activation = config.text("hidden_activation", default="gelu_pytorch_tanh")
    # the config's intermediate_size counts gate and up together
    dense = gated_mlp(
        "mlp_block",
        hidden,
        config.count("intermediate_size", default=3 * 2560, low=2) // 2,
        activation,
        bias=True,
    )

    def make(recurrent: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        norms = tuple(
            rms_norm(name, hidden, NormKind.RMS_OFFSET) for name in ("temporal_pre_norm", "channel_pre_norm")
        )
        return Block(
            kind="recurrent_gemma",
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixers[recurrent],),
            feed_forward=dense,
            norms=norms,
        )

    return causal_lm(
        config,
        "recurrent_gemma",
        hidden,
        config.count("vocab_size", default=256000),
        repeating_layer_runs([cycle[i % len(cycle)] == "recurrent" for i in range(layers)], make),
        final_norm=rms_norm("final_norm", hidden, NormKind.RMS_OFFSET),
        tied=True,
        scaled_embeddings=True,
        softcap=config.number("logits_soft_cap", default=30.0),
    )


def _griffin_head(config: Fields, hidden: int, heads: int) -> int:
    return config.count("head_dim", default=hidden // heads or 1)


def _rg_lru(hidden: int, width: int, heads: int, kernel: int) -> Recurrent:
    """Two branches, one through a convolution and a gated linear recurrence; gates are block-diagonal, a
    block a head.
    """
    block, path = width // heads, "temporal_block"
    lru = f"{path}.rg_lru"
    gates = (
        (
            Weight(
                path=f"{lru}.{name}_gate_weight",
                shape=(heads, block, block),
                role=Role.OTHER,
                cut=0,
                units=heads,
            ),
            Weight(path=f"{lru}.{name}_gate_bias", shape=(heads, block), role=Role.BIAS, cut=0, units=heads),
        )
        for name in ("input", "recurrent")
    )
    return Recurrent(
        path=path,
        kind="rg_lru",
        width=width,
        state_elements=width,
        conv_elements=width * (kernel - 1),
        weights=(
            *linear_weights(f"{path}.linear_y", width, hidden, bias=True, cut="out", units=heads),
            *linear_weights(f"{path}.linear_x", width, hidden, bias=True, cut="out", units=heads),
            *linear_weights(f"{path}.linear_out", hidden, width, bias=True, cut="in", units=heads),
            *causal_conv(f"{path}.conv_1d", width, kernel, bias=True, units=heads),
            Weight(path=f"{lru}.recurrent_param", shape=(width,), role=Role.OTHER, cut=0, units=heads),
            *(weight for pair in gates for weight in pair),
        ),
    )
