"""Gemma 4, alone or with its towers: windows of narrow heads beside full attention of wide ones, last layers
that read an earlier layer's keys and values, tables of embeddings for every layer, experts beside a dense
feed-forward. The unified form (12B) has no towers: pictures and sound go through one projection each.

Defaults are those of the configuration classes of transformers 5.23 (configuration_gemma4.py,
configuration_gemma4_unified.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.frozen import NamedTuple, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    FeedForward,
    ModelSpec,
    Moe,
    NormKind,
    Role,
    Tower,
    Weight,
)
from memsheet.readers.families.gemma4_towers import gemma4_towers, unified_embedders
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, rename_path_roots
from memsheet.readers.parts import (
    embedding_table,
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
    router_weights,
    stacked_experts,
)

MOST_DIGITS = 7  # of a layer's number
PATTERN = 6  # every so many layers one sees every token
WIDE = NormKind.RMS_FP32_SCALE
_CLASSES = {
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
}


SANDWICH_NORMS = tuple(
    f"{name}_layernorm" for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
)
EXPERT_NORMS = (
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)


class _Layer(NamedTuple):
    """What one layer differs in."""

    full: bool
    shares: bool  # keys and values of an earlier layer of its kind
    head_dim: int
    kv_heads: int


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="gemma4")
    if kind.endswith("_text"):
        return _text_spec(config, kind)
    model_class_name(config, (_CLASSES[kind],), _CLASSES[kind])
    nested = config.sub("text_config")
    text = _text_spec(Fields(nested.data, nested.where, config.problems), f"{kind}_text")
    towers: tuple[Tower, ...] = ()
    extras: tuple[Weight, ...] = ()
    if kind == "gemma4":
        towers = gemma4_towers(config, text.hidden)
    else:
        extras = unified_embedders(config, text.hidden)
    renamed = rename_path_roots(text, {"model": "model.language_model"})
    head = causal_head(text.vocab, text.hidden, tied=config.flag("tie_word_embeddings", default=True))
    return replace(
        renamed,
        model_type=kind,
        head=replace(head, softcap=text.head.softcap),
        towers=towers,
        extras=(*renamed.extras, *extras),
    )


def _text_spec(config: Fields, kind: str) -> ModelSpec:
    unified = kind.startswith("gemma4_unified")
    hidden = config.count("hidden_size", default=2304)
    vocab = config.count("vocab_size", default=262144)
    layers = _layer_forms(config, config.layers(default=30))
    beside = 0 if unified else config.count("hidden_size_per_layer_input", default=256, low=0)
    softcap = config.number("final_logit_softcapping", default=0.0)
    spec = causal_lm(
        config,
        kind,
        hidden,
        vocab,
        repeating_layer_runs(
            layers, lambda layer: _decoder_block(config, kind, hidden, layer, beside=beside, unified=unified)
        ),
        final_norm=rms_norm("norm", hidden, WIDE),
        tied=True,
        scaled_embeddings=True,
        softcap=softcap or None,
        positions=config.count("max_position_embeddings", default=262144 if unified else 131072),
    )
    return with_layer_embeddings(config, spec, len(layers), beside) if beside else spec


def _layer_forms(config: Fields, layers: int) -> list[_Layer]:
    """Every layer's form; the last one sees every token whatever ``layer_types`` says."""
    usual = ["full_attention" if (i + 1) % PATTERN == 0 else "sliding_attention" for i in range(layers)]
    kinds = [*layer_kinds(config, "layer_types", layers, usual)[:-1], "full_attention"]
    heads = config.count("num_attention_heads", default=8)
    narrow, kv_heads = config.count("head_dim", default=256), key_value_heads(config, heads, default=4)
    wide = config.count("global_head_dim", default=512)
    same = config.flag("attention_k_eq_v", default=False)
    fewer = config.count("num_global_key_value_heads", default=kv_heads) if same else kv_heads
    shared = config.count("num_kv_shared_layers", default=0, low=0)
    own = layers - shared
    if shared and set(kinds[: max(own, 0)]) != set(kinds):
        config.wrong("num_kv_shared_layers", shared, "leaves no layer of a kind whose keys the others read")
    given = config.raw("per_layer_config")
    found = []
    for number, kind in enumerate(kinds):
        full = kind == "full_attention"
        form = _Layer(full, number >= own, wide if full else narrow, fewer if full else kv_heads)
        found.append(_overridden(config, given, number, form, (narrow, kv_heads)) if given else form)
    return found


def _overridden(config: Fields, given: object, number: int, form: _Layer, plain: tuple[int, int]) -> _Layer:
    """A layer's form where the config lists layers that differ; those that it leaves out are plain."""
    if not isinstance(given, Mapping):
        config.wrong("per_layer_config", given, "is not an object of layers")
        return form
    own: object = next((value for key, value in given.items() if _layer_number(key) == number), {})
    if not isinstance(own, Mapping):
        config.wrong("per_layer_config", own, f"says nothing of layer {number} that is an object")
        return form
    fields = Fields(own, f"{config.where}.per_layer_config.{number}".strip("."), config.problems)
    return form._replace(
        head_dim=fields.count("head_dim", default=plain[0]),
        kv_heads=fields.count("num_key_value_heads", default=plain[1]),
    )


def _layer_number(key: object) -> int | None:
    """The layer that a key of ``per_layer_config`` names: the library pads numbers to one width ("05")."""
    text = str(key)
    return int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else None


def _decoder_block(
    config: Fields, kind: str, hidden: int, layer: _Layer, *, beside: int, unified: bool
) -> Block:
    experts = not unified and config.flag("enable_moe_block", default=False)
    names = [*SANDWICH_NORMS, *(EXPERT_NORMS if experts else ())]
    if beside:
        names.append("post_per_layer_input_norm")
    gates = (
        *linear_weights("per_layer_input_gate", beside, hidden),
        *linear_weights("per_layer_projection", hidden, beside),
    )
    dense = _dense_mlp(config, hidden, layer)
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.OTHER,  # sandwiched, then a third branch of the layer's own embedding, scaled
        mixers=(_layer_attention(config, hidden, layer),),
        feed_forward=_experts_beside(config, hidden, dense) if experts else dense,
        norms=tuple(rms_norm(name, hidden, WIDE) for name in names),
        extras=(
            *(gates if beside else ()),
            Weight(path="layer_scalar", shape=(1,), role=Role.BUFFER),
        ),
    )


def _layer_attention(config: Fields, hidden: int, layer: _Layer) -> Attention:
    heads = config.count("num_attention_heads", default=8)
    bias = config.flag("attention_bias", default=False)
    everywhere = config.text("use_bidirectional_attention", default="") == "all"
    window = config.count("sliding_window", default=512)
    same = layer.full and config.flag("attention_k_eq_v", default=False)
    norms = norm_pair("self_attn", ("q_norm", "k_norm"), (layer.head_dim, layer.head_dim), WIDE)
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        layer.kv_heads,
        layer.head_dim,
        qkv_bias=bias,
        out_bias=bias,
        window=None if layer.full else window // 2 + 1 if everywhere else window,
        causal=not everywhere,
        qk_norm=norms,
    )
    if layer.shares:
        return without_own_keys(mixer)
    absent = (".v_proj.",) if same else ()
    return replace(
        mixer,
        value_is_key=same,
        weights=tuple(w for w in mixer.weights if not any(name in w.path for name in absent)),
    )


def without_own_keys(mixer: Attention) -> Attention:
    """Attention that reads an earlier layer's keys and values: queries, their norm and the output alone."""
    norm = mixer.qk_norm
    return replace(
        mixer,
        shares_kv=True,
        qk_norm=replace(norm, weights=norm.weights[:1]) if norm else None,
        weights=tuple(w for w in mixer.weights if ".k_proj." not in w.path and ".v_proj." not in w.path),
    )


def _dense_mlp(config: Fields, hidden: int, layer: _Layer) -> Dense:
    twice = layer.shares and config.flag("use_double_wide_mlp", default=False)
    width = config.count("intermediate_size", default=9216) * (2 if twice else 1)
    return gated_mlp("mlp", hidden, width, config.text("hidden_activation", default="gelu_pytorch_tanh"))


def _experts_beside(config: Fields, hidden: int, dense: Dense) -> FeedForward:
    """Experts that every token takes beside the dense layer; none of their sizes has a default."""
    experts = config.count("num_experts")
    return Moe(
        path="experts",
        experts=experts,
        experts_per_token=experts_per_token(config, "top_k_experts", default=None, experts=experts),
        intermediate=config.count("moe_intermediate_size"),
        shared=dense,
        activation=dense.activation,
        weights=(
            *router_weights("router.proj", experts, hidden),
            Weight(path="router.scale", shape=(hidden,), role=Role.OTHER),
            Weight(path="router.per_expert_scale", shape=(experts,), role=Role.OTHER),
            *stacked_experts("experts", experts, hidden, config.count("moe_intermediate_size")),
        ),
    )


def with_layer_embeddings(config: Fields, spec: ModelSpec, layers: int, beside: int) -> ModelSpec:
    """The model with a table that holds a vector of every word for every layer, and what projects the words'
    own embedding to as many.
    """
    words = config.count("vocab_size_per_layer_input", default=262144)
    table = embedding_table("model.embed_tokens_per_layer", words, layers * beside, vocabulary=True)
    projection = linear_weights("model.per_layer_model_projection", layers * beside, spec.hidden, cut="out")
    norm = rms_norm("model.per_layer_projection_norm", beside, WIDE)
    embeddings = replace(
        spec.embeddings, weights=(*spec.embeddings.weights, table), layer_elements=layers * beside
    )
    return replace(spec, embeddings=embeddings, extras=(*spec.extras, *projection, *norm.weights))
