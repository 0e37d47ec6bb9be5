"""The GPT line and its kin: layer norms with biases, a plain feed-forward, each family with names and habits
of its own.

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.0.
"""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Stack,
    Weight,
)
from memsheet.readers.dense import rotary_share
from memsheet.readers.families.gpt_layouts import LAYOUTS, Layout
from memsheet.readers.fields import MAX_LAYERS, Fields
from memsheet.readers.parts import (
    embedding_table,
    fused_attention,
    layer_norm,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    separate_qkv_attention,
    vocabulary_head,
)
from memsheet.readers.positions import Position

HEAD_DIM = frozenset({"phi"})
"""Families whose code reads ``head_dim`` (transformers 5.23 modeling_phi.py:159); the others divide the width
by the heads whatever it says.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt:
    """One config's sizes beside its family's layout."""

    config: Fields
    layout: Layout
    kind: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    intermediate: int
    positions: int


def read(config: Fields) -> ModelSpec:
    gpt = _read_sizes(config)
    layout, base = gpt.layout, gpt.layout.base
    tied = config.flag("tie_word_embeddings", default=layout.tied)
    width = _embedding_width(gpt)
    head = vocabulary_head("lm_head", gpt.vocab, width, bias=layout.head_bias)
    return ModelSpec(
        name="",
        model_type=gpt.kind,
        hidden=gpt.hidden,
        vocab=gpt.vocab,
        embeddings=_gpt_embeddings(gpt, width),
        stacks=(
            Stack(
                path=f"{base}.{layout.layers}",
                hidden=gpt.hidden,
                final_path=base,
                final_norms=_final_norms(gpt),
                runs=repeating_layer_runs(
                    _gpt_layer_positions(gpt), lambda position: _gpt_decoder_block(gpt, position)
                ),
            ),
        ),
        head=Head(kind="causal_lm", width=gpt.vocab, tied=tied, weights=head[1:] if tied else head),
        max_positions=gpt.positions,
        extras=_gpt_extra_weights(gpt, width),
    )


def _read_sizes(config: Fields) -> Gpt:
    kind = config.text("model_type", default="gpt2")
    layout = LAYOUTS[kind]
    keys, sizes = layout.keys, layout.sizes
    hidden = config.count(*keys.hidden, default=sizes.hidden)
    heads = config.count(*keys.heads, default=sizes.heads)
    intermediate = (
        4 * hidden
        if keys.intermediate is None
        else config.count(keys.intermediate, default=sizes.intermediate or 4 * hidden)
    )
    kv_heads = _kv_heads(config, kind, heads)
    own = config.optional("head_dim") if kind in HEAD_DIM else None
    if own is None:
        config.divides(heads, keys.hidden[-1], hidden, "each attention head has the same width")
    config.divides(
        kv_heads, keys.heads[-1], heads, "each key/value head serves the same number of query heads"
    )
    if config.flag("add_cross_attention", default=False):
        config.wrong(
            "add_cross_attention", value=True, reason="is not covered: this reads decoders that stand alone"
        )
    return Gpt(
        config=config,
        layout=layout,
        kind=kind,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=own or hidden // heads,
        vocab=config.count("vocab_size", default=sizes.vocab),
        layers=config.layers(*keys.layers, default=sizes.layers),
        intermediate=intermediate,
        positions=config.count(*keys.positions, default=sizes.positions),
    )


def _kv_heads(config: Fields, kind: str, heads: int) -> int:
    multi_query = config.flag("multi_query", default=True)
    match kind:
        case "phi":
            return config.count("num_key_value_heads", default=heads)
        case "gpt_bigcode":
            return 1 if multi_query else heads
        case "falcon" if config.flag("new_decoder_architecture", default=False):
            return config.count("num_kv_heads", default=heads)
        case "falcon":
            return 1 if multi_query else heads
        case _:
            return heads


def _embedding_width(gpt: Gpt) -> int:
    """OPT may look tokens up in a narrower table and project them."""
    return gpt.config.count("word_embed_proj_dim", default=gpt.hidden) if gpt.kind == "opt" else gpt.hidden


def _gpt_embeddings(gpt: Gpt, width: int) -> Embeddings:
    layout, base = gpt.layout, gpt.layout.base
    tables = [embedding_table(f"{base}.{layout.embed}", gpt.vocab, width, vocabulary=True)]
    if layout.learned:
        tables.append(
            embedding_table(f"{base}.{layout.learned}", gpt.positions + layout.position_offset, gpt.hidden)
        )
    if width != gpt.hidden:
        tables.extend(linear_weights(f"{base}.project_in", gpt.hidden, width))
    norms = (layer_norm(f"{base}.{layout.embed_norm}", gpt.hidden),) if layout.embed_norm else ()
    return Embeddings(weights=tuple(tables), norms=norms, dropout=layout.embed_dropout)


def _gpt_extra_weights(gpt: Gpt, width: int) -> tuple[Weight, ...]:
    """What stands beside the layers: OPT's way back to the narrow table, StarCoder's causal mask."""
    base = gpt.layout.base
    if width != gpt.hidden:
        return linear_weights(f"{base}.project_out", width, gpt.hidden)
    if gpt.kind == "gpt_bigcode":
        return (
            Weight(path=f"{base}.bias", shape=(gpt.positions, gpt.positions), role=Role.BUFFER, dtype="bool"),
        )
    return ()


def _gpt_layer_norm(gpt: Gpt, path: str) -> Norm:
    affine = gpt.config.flag("layer_norm_elementwise_affine", default=True) if gpt.kind == "opt" else True
    return layer_norm(path, gpt.hidden, weight=affine, bias=affine and gpt.layout.norm_bias)


def _final_norms(gpt: Gpt) -> tuple[Norm, ...]:
    config = gpt.config
    if gpt.kind == "opt" and (
        not config.flag("do_layer_norm_before", default=True)
        or config.flag("_remove_final_layer_norm", default=False)
    ):
        return ()
    return (_gpt_layer_norm(gpt, gpt.layout.final),)


def _gpt_layer_positions(gpt: Gpt) -> tuple[Position, ...]:
    """GPT-Neo's layers take turns; everywhere else all layers are alike."""
    if gpt.kind != "gpt_neo":
        return (Position(),) * gpt.layers
    local = Position(window=gpt.config.count("window_size", default=256))
    kinds = _attention_types(gpt.config)
    if len(kinds) != gpt.layers:
        gpt.config.wrong(
            "attention_types", len(kinds), f"names as many layers, but num_layers is {gpt.layers}"
        )
    return tuple(local if kind == "local" else Position() for kind in kinds)


def _attention_types(config: Fields) -> tuple[str, ...]:
    """``[[["global", "local"], 12]]`` → global, local, twelve times over."""
    groups = config.raw("attention_types", default=[[["global", "local"], 12]])
    kinds: list[str] = []
    for group in groups if isinstance(groups, list) else [groups]:
        if not _is_group(group) or len(kinds) + len(group[0]) * group[1] > MAX_LAYERS:
            config.wrong("attention_types", groups, "is not a list of [[global or local, …], times]")
            break
        kinds.extend(group[0] * group[1])
    return tuple(kinds)


def _is_group(group: object) -> bool:
    match group:
        case [[*names], int(times)] if not isinstance(times, bool) and 0 <= times <= MAX_LAYERS:
            return all(name in ("global", "local") for name in names)
        case _:
            return False


def _gpt_decoder_block(gpt: Gpt, position: Position) -> Block:
    arrangement, norms = _gpt_block_arrangement(gpt)
    return Block(
        kind=gpt.kind,
        hidden=gpt.hidden,
        arrangement=arrangement,
        mixers=(_gpt_self_attention(gpt, position),),
        feed_forward=_feed_forward(gpt),
        norms=tuple(_gpt_layer_norm(gpt, name) for name in norms),
        extras=_gpt_layer_buffers(gpt),
    )


def _gpt_block_arrangement(gpt: Gpt) -> tuple[Arrangement, tuple[str, ...]]:
    """How the block is joined, and the norms it then has."""
    config, norms = gpt.config, gpt.layout.norms
    match gpt.kind:
        case "gpt_neox" if not config.flag("use_parallel_residual", default=True):
            return Arrangement.PRE, norms
        case "opt" if not config.flag("do_layer_norm_before", default=True):
            return Arrangement.POST, norms
        case "falcon" if not config.flag("parallel_attn", default=True):
            return Arrangement.PRE, ("input_layernorm", "post_attention_layernorm")
        case "falcon" if _falcon_norms(config) == 2:
            return Arrangement.PARALLEL_TWO_NORMS, ("ln_attn", "ln_mlp")
        case _:
            return gpt.layout.arrangement, norms


def _falcon_norms(config: Fields) -> int:
    return config.count(
        "num_ln_in_parallel_attn", default=2 if config.flag("new_decoder_architecture", default=False) else 1
    )


def _rotary_dim(gpt: Gpt) -> int:
    match gpt.kind:
        case "gptj":
            return gpt.config.count("rotary_dim", default=64)
        case "gpt_neox":
            return int(gpt.head_dim * rotary_share(gpt.config, 0.25, "rotary_pct"))
        case "phi":
            return int(gpt.head_dim * rotary_share(gpt.config, 0.5))
        case "falcon":
            return 0 if _uses_alibi(gpt) else gpt.head_dim
        case _:
            return 0


def _uses_alibi(gpt: Gpt) -> bool:
    return gpt.config.flag("alibi", default=False) if gpt.kind == "falcon" else gpt.layout.alibi


def _linear_bias_flag(gpt: Gpt, *, default: bool) -> bool:
    return gpt.config.flag(gpt.layout.bias_key, default=default) if gpt.layout.bias_key else default


def _gpt_self_attention(gpt: Gpt, position: Position) -> Attention:
    layout = gpt.layout
    qkv_bias, out_bias = (
        _linear_bias_flag(gpt, default=layout.qkv_bias),
        _linear_bias_flag(gpt, default=layout.out_bias),
    )
    rotary, sizes = _rotary_dim(gpt), (gpt.hidden, gpt.heads, gpt.kv_heads, gpt.head_dim)
    if len(layout.qkv) == 3:
        q, k, v = layout.qkv
        separate = separate_qkv_attention(
            layout.attention,
            *sizes,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            names=(q, k, v, layout.out),
            rotary_dim=rotary,
            window=position.window,
            qk_norm=_qk_norm(gpt),
        )
        return replace(separate, caches_all=position.window is not None)
    mixer = fused_attention(
        layout.attention,
        *sizes,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        names=(layout.qkv[0], layout.out),
        rotary_dim=rotary,
        position_bias=_uses_alibi(gpt),
    )
    return replace(mixer, weights=_transpose_conv1d_weights(mixer.weights)) if layout.transposed else mixer


def _qk_norm(gpt: Gpt) -> Norm | None:
    if gpt.kind != "phi" or not gpt.config.flag("qk_layernorm", default=False):
        return None
    q, k = (
        layer_norm(f"{gpt.layout.attention}.{name}", gpt.head_dim) for name in ("q_layernorm", "k_layernorm")
    )
    return replace(q, weights=(*q.weights, *k.weights), kind=NormKind.LAYER)


def _feed_forward(gpt: Gpt) -> Dense:
    layout = gpt.layout
    activation = (
        gpt.config.text(layout.activation_key, default=layout.activation)
        if layout.activation_key
        else layout.activation
    )
    bias = (
        gpt.config.flag(layout.bias_key, default=layout.mlp_bias)
        if layout.bias_key in {"bias", "enable_bias"}
        else layout.mlp_bias
    )
    mlp = plain_mlp(layout.mlp, gpt.hidden, gpt.intermediate, activation, bias=bias, names=layout.mlp_names)
    if not layout.mlp:  # the layers stand in the block itself
        mlp = replace(
            mlp, weights=tuple(replace(weight, path=weight.path.removeprefix(".")) for weight in mlp.weights)
        )
    return replace(mlp, weights=_transpose_conv1d_weights(mlp.weights)) if layout.transposed else mlp


def _transpose_conv1d_weights(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """GPT-2 keeps its matrices as (in, out)."""
    return tuple(
        replace(w, shape=w.shape[::-1], cut=None if w.cut is None else 1 - w.cut, transposed=True)
        if len(w.shape) == 2
        else w
        for w in weights
    )


def _gpt_layer_buffers(gpt: Gpt) -> tuple[Weight, ...]:
    """Buffers that every layer keeps for itself: GPT-Neo's mask, GPT-J's sines and cosines."""
    side = gpt.positions
    match gpt.kind:
        case "gpt_neo":
            return (
                Weight(path="attn.attention.bias", shape=(1, 1, side, side), role=Role.BUFFER, dtype="bool"),
            )
        case "gptj":
            return (
                Weight(
                    path="attn.embed_positions",
                    shape=(side, _rotary_dim(gpt)),
                    role=Role.BUFFER,
                    dtype="fp32",
                ),
            )
        case _:
            return ()
