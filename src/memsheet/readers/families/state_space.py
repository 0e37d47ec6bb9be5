"""Decoders without attention: Mamba, Mamba 2, Falcon Mamba (a state space a layer) and RWKV (a recurrence and
a channel mix).
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    Dense,
    ModelSpec,
    Norm,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import layer_norm, linear_weights, repeating_layer_runs, rms_norm
from memsheet.readers.sparse_parts import causal_lm
from memsheet.readers.state_parts import mamba2_mixer, mamba_mixer, step_rank


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="mamba")
    match kind:
        case "rwkv":
            return _rwkv_spec(config)
        case "mamba2":
            return _mamba_model(config, kind, 4096, 32768, 64, tied=False)
        case _:
            return _mamba_model(config, kind, 768, 50280, 32, tied=True)


def _mamba_model(config: Fields, kind: str, hidden: int, vocab: int, layers: int, *, tied: bool) -> ModelSpec:
    hidden = config.count("hidden_size", default=hidden)
    mixer = (
        _read_mamba2_mixer(config, hidden) if kind == "mamba2" else _read_mamba_mixer(config, hidden, kind)
    )
    block = Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.MIXER_ONLY,
        mixers=(mixer,),
        norms=(rms_norm("norm", hidden),),
        wide_residual=config.flag("residual_in_fp32", default=True),
    )
    runs = repeating_layer_runs([kind] * config.layers(default=layers), lambda _: block)
    vocab = config.count("vocab_size", default=vocab)
    made = causal_lm(
        config,
        kind,
        hidden,
        vocab,
        runs,
        final_norm=rms_norm("norm_f", hidden),
        base="backbone",
        embeddings="embeddings",
        tied=tied,
    )
    return replace(made, head=replace(made.head, wide=True))


def _read_mamba_mixer(config: Fields, hidden: int, kind: str) -> StateSpace:
    # a config's own intermediate_size overrides expand: Falcon Mamba 7B has expand 16 and an inner width of
    # twice the hidden size
    inner = config.count("intermediate_size", default=config.count("expand", default=2) * hidden)
    state, rank = config.count("state_size", default=16), step_rank(config, "time_step_rank", hidden)
    names = (("dt", inner), ("b", state), ("c", state)) if kind == "falcon_mamba" else ()
    return mamba_mixer(
        "mixer",
        hidden,
        inner,
        state,
        kernel=config.count("conv_kernel", default=4),
        rank=rank,
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
        # ones that stand in for weights in the fused kernels; in no checkpoint
        extras=tuple(
            Weight(path=f"mixer.{name}_layernorm.weight", shape=(size,), role=Role.BUFFER)
            for name, size in names
        ),
    )


def _read_mamba2_mixer(config: Fields, hidden: int) -> StateSpace:
    heads, head_dim = config.count("num_heads", default=128), config.count("head_dim", default=64)
    groups, inner = config.count("n_groups", default=8), config.count("expand", default=2) * hidden
    if heads * head_dim != inner:
        config.wrong(
            "num_heads", heads, f"times head_dim {head_dim} is not expand times hidden_size, {inner}"
        )
    config.divides(groups, "num_heads", heads, "each group of B and C serves the same number of heads")
    return mamba2_mixer(
        "mixer",
        hidden,
        inner,
        heads=heads,
        head_dim=head_dim,
        state=config.count("state_size", default=128),
        groups=groups,
        kernel=config.count("conv_kernel", default=4),
        chunk=config.count("chunk_size", default=256),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )


def _rwkv_spec(config: Fields) -> ModelSpec:
    hidden = config.count("hidden_size", default=4096)
    width = config.count("attention_hidden_size", default=hidden)
    layers = config.layers(default=32)
    mixer, feed_forward = (
        _time_mix(hidden, width),
        _channel_mix(hidden, config.count("intermediate_size", default=4 * hidden)),
    )

    def make(first: bool) -> Block:  # noqa: FBT001  a key of the sequence below
        before: tuple[Norm, ...] = (
            (layer_norm("pre_ln", hidden),) if first else ()
        )  # the embeddings' norm lives in the first layer
        norms = (*before, layer_norm("ln1", hidden), layer_norm("ln2", hidden))
        return Block(
            kind="rwkv",
            hidden=hidden,
            arrangement=Arrangement.PRE,
            mixers=(mixer,),
            feed_forward=feed_forward,
            norms=norms,
        )

    return causal_lm(
        config,
        "rwkv",
        hidden,
        config.count("vocab_size", default=50277),
        repeating_layer_runs([i == 0 for i in range(layers)], make),
        final_norm=layer_norm("ln_out", hidden),
        base="rwkv",
        layers="blocks",
        embeddings="embeddings",
        head="head",
        positions=config.count("context_length", "max_position_embeddings", default=1024),
    )


def _time_mix(hidden: int, width: int) -> Recurrent:
    """Weighted sums of the past a channel. Kept for a sequence: numerator, denominator and maximum; and the
    last input, for each half.

    transformers sizes every state by hidden_size, whatever the width of the mixer.
    """
    path = "attention"
    return Recurrent(
        path=path,
        kind="rwkv",
        width=width,
        state_elements=3 * hidden,
        conv_elements=2 * hidden,
        weights=(
            *(
                Weight(path=f"{path}.{name}", shape=(width,), role=Role.OTHER, cut=0)
                for name in ("time_decay", "time_first")
            ),
            *_token_shifts(path, hidden, ("key", "value", "receptance")),
            *(
                w
                for name in ("key", "value", "receptance")
                for w in linear_weights(f"{path}.{name}", width, hidden, cut="out")
            ),
            *linear_weights(f"{path}.output", hidden, width, cut="in"),
        ),
    )


def _channel_mix(hidden: int, intermediate: int) -> Dense:
    """Two layers around a squared ReLU, times a sigmoid of the input (the receptance)."""
    path = "feed_forward"
    return Dense(
        path=path,
        intermediate=intermediate,
        activation="relu2",
        gated=False,
        weights=(
            *_token_shifts(path, hidden, ("key", "receptance")),
            *linear_weights(f"{path}.key", intermediate, hidden, cut="out"),
            *linear_weights(f"{path}.receptance", hidden, hidden),
            *linear_weights(f"{path}.value", hidden, intermediate, cut="in"),
        ),
    )


def _token_shifts(path: str, hidden: int, names: tuple[str, ...]) -> tuple[Weight, ...]:
    """How much of the previous token each input takes, a value a channel."""
    return tuple(
        Weight(path=f"{path}.time_mix_{name}", shape=(1, 1, hidden), role=Role.OTHER) for name in names
    )
