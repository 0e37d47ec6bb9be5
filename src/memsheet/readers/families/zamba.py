"""Zamba 2: Mamba 2 layers, some of which also run one of a few transformer blocks that they share.

A hybrid layer is two entries of the stack: the shared block (its tensors once, its keys and values at every
call), then the layer's own tensors: the projection that joins the two, the low-rank adapters of this call,
and the Mamba mixer.
"""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import Arrangement, Attention, Block, Dense, ModelSpec, Run, StateSpace, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import linear_weights, rms_norm
from memsheet.readers.sparse_parts import causal_lm, key_value_heads, layer_kinds
from memsheet.readers.state_parts import mamba2_mixer

_SHARED = "shared_transformer"
_OLD_NAMES = {"mamba": "linear_attention"}
_M, _H = "linear_attention", "hybrid"
_DEFAULT_LAYERS = [_M, *[_M, _M, _M, _M, _M, _H] * 7, *[_M] * 4, _H, *[_M] * 3, _H, *[_M] * 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    hidden: int
    wide: int  # a shared block reads the layer's input beside the embeddings: twice the hidden size
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    activation: str
    rotary_dim: int
    bias: bool
    adapter_rank: int
    attention_adapters: bool


def read(config: Fields) -> ModelSpec:
    sizes, layers = _read_zamba_sizes(config), config.layers(default=54)
    key = (
        "layer_types"
        if config.raw("layers_block_type") is None and config.raw("layer_types") is not None
        else "layers_block_type"
    )
    kinds = tuple(_OLD_NAMES.get(kind, kind) for kind in layer_kinds(config, key, layers, _DEFAULT_LAYERS))
    return causal_lm(
        config,
        "zamba2",
        sizes.hidden,
        config.count("vocab_size", default=32000),
        _zamba_layer_runs(config, sizes, kinds),
        final_norm=rms_norm("final_layernorm", sizes.hidden),
        tied=True,
        positions=_zamba_max_positions(config),
    )


def _zamba_max_positions(config: Fields) -> int:
    return (
        16384
        if config.flag("use_long_context", default=False)
        else config.count("max_position_embeddings", default=4096)
    )


def _read_zamba_sizes(config: Fields) -> _Sizes:
    hidden, heads = config.count("hidden_size", default=2560), config.count("num_attention_heads", default=32)
    wide = config.count("attention_hidden_size", default=2 * hidden)
    head_dim = config.count("attention_head_dim", "head_dim", default=2 * hidden // heads or 1)
    return _Sizes(
        hidden=hidden,
        wide=wide,
        heads=heads,
        kv_heads=key_value_heads(config, heads, default=None),
        head_dim=head_dim,
        intermediate=config.count("intermediate_size", default=4 * hidden),
        activation=config.text("hidden_act", default="gelu"),
        rotary_dim=head_dim if config.flag("use_mem_rope", default=False) else 0,
        bias=config.flag("add_bias_linear", default=False),
        adapter_rank=config.count("adapter_rank", default=128),
        attention_adapters=config.flag("use_shared_attention_adapter", default=False),
    )


def _zamba_layer_runs(config: Fields, sizes: _Sizes, kinds: tuple[str, ...]) -> tuple[Run, ...]:
    """Mamba layers in runs; a hybrid layer as a shared run and its own, the shared blocks taken in turn."""
    blocks, calls = config.count("num_mem_blocks", default=1), kinds.count(_H)
    # transformers ties the shared blocks with the embeddings: a config that unties those has every block, and
    # its adapters, at every call
    tied = config.flag("tie_word_embeddings", default=True)
    mamba, shared = _mamba_layer(config, sizes), _shared_block(sizes)
    runs: list[Run] = []
    hybrids = 0
    for kind in kinds:
        if kind == _H:
            turn = hybrids % blocks
            own = _hybrid_layer(config, sizes, 1 if tied else len(range(turn, calls, blocks)))
            key = f"{_SHARED}.{turn}" if tied else None
            runs += [Run(pattern=(shared,), count=1, shared=key), Run(pattern=(own,), count=1)]
            hybrids += 1
        elif runs and runs[-1].pattern[0] is mamba:
            runs[-1] = Run(pattern=(mamba,), count=runs[-1].count + 1)
        else:
            runs.append(Run(pattern=(mamba,), count=1))
    return tuple(runs)


def _zamba_mamba_mixer(config: Fields, sizes: _Sizes, path: str) -> StateSpace:
    heads, inner = (
        config.count("n_mamba_heads", default=8),
        config.count("mamba_expand", default=2) * sizes.hidden,
    )
    return mamba2_mixer(
        path,
        sizes.hidden,
        inner,
        heads=heads,
        head_dim=config.count("mamba_headdim", default=inner // heads or 1),
        state=config.count("mamba_d_state", default=64),
        groups=config.count("mamba_ngroups", default=1),
        kernel=config.count("mamba_d_conv", default=4),
        bias=sizes.bias,
    )


def _mamba_layer(config: Fields, sizes: _Sizes) -> Block:
    return Block(
        kind="zamba2",
        hidden=sizes.hidden,
        arrangement=Arrangement.MIXER_ONLY,
        mixers=(_zamba_mamba_mixer(config, sizes, "mamba"),),
        norms=(rms_norm("input_layernorm", sizes.hidden),),
    )


def _hybrid_layer(config: Fields, sizes: _Sizes, slots: int) -> Block:
    """What a hybrid layer owns. Adapters live in the shared block's lists, one of ``slots`` a call."""
    attention, feed_forward = f"{_SHARED}.self_attn", f"{_SHARED}.feed_forward"
    attention_adapters = tuple(
        weight
        for name in ("q", "k", "v")
        if sizes.attention_adapters
        for weight in _shared_block_adapter(
            f"{attention}.linear_{name}_adapter_list", sizes.wide, sizes.wide, sizes.adapter_rank, slots
        )
    )
    return Block(
        kind="zamba2",
        hidden=sizes.hidden,
        arrangement=Arrangement.OTHER,
        mixers=(_zamba_mamba_mixer(config, sizes, "mamba_decoder.mamba"),),
        norms=(rms_norm("mamba_decoder.input_layernorm", sizes.hidden),),
        extras=(
            *linear_weights("linear", sizes.hidden, sizes.hidden),
            *attention_adapters,
            *_shared_block_adapter(
                f"{feed_forward}.gate_up_proj_adapter_list",
                sizes.hidden,
                2 * sizes.intermediate,
                sizes.adapter_rank,
                slots,
            ),
        ),
    )


def _shared_block_adapter(path: str, width: int, out: int, rank: int, slots: int) -> tuple[Weight, ...]:
    """Down to ``rank`` and up: two linear layers, numbered in their list."""
    down, up = linear_weights(f"{path}.*.0", rank, width), linear_weights(f"{path}.*.1", out, rank, cut="out")
    return tuple(replace(weight, copies=slots) for weight in (*down, *up))


def _shared_block(sizes: _Sizes) -> Block:
    path = f"{_SHARED}.feed_forward"
    feed_forward = Dense(
        path=path,
        intermediate=sizes.intermediate,
        activation=sizes.activation,
        gated=True,
        fused=True,
        weights=(
            *linear_weights(
                f"{path}.gate_up_proj", 2 * sizes.intermediate, sizes.hidden, bias=sizes.bias, cut="out"
            ),
            *linear_weights(f"{path}.down_proj", sizes.hidden, sizes.intermediate, bias=sizes.bias, cut="in"),
        ),
    )
    return Block(
        kind="zamba2",
        hidden=sizes.hidden,
        arrangement=Arrangement.OTHER,
        mixers=(_shared_block_attention(sizes),),
        feed_forward=feed_forward,
        norms=(
            rms_norm(f"{_SHARED}.input_layernorm", sizes.wide),
            rms_norm(f"{_SHARED}.pre_ff_layernorm", sizes.hidden),
        ),
    )


def _shared_block_attention(sizes: _Sizes) -> Attention:
    path, heads, kv_heads, head_dim = f"{_SHARED}.self_attn", sizes.heads, sizes.kv_heads, sizes.head_dim
    return Attention(
        path=path,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=sizes.rotary_dim,
        weights=(
            *linear_weights(f"{path}.q_proj", heads * head_dim, sizes.wide, cut="out", units=heads),
            *linear_weights(f"{path}.k_proj", kv_heads * head_dim, sizes.wide, cut="out", units=kv_heads),
            *linear_weights(f"{path}.v_proj", kv_heads * head_dim, sizes.wide, cut="out", units=kv_heads),
            *linear_weights(f"{path}.o_proj", sizes.hidden, heads * head_dim, cut="in", units=heads),
        ),
    )
