"""Gemma 3n, alone or with its towers: several streams of hidden states that layers mix (AltUp), a narrow
learned residual (LAuReL), tables of embeddings for every layer, last layers that read an earlier layer's keys
and values.

Defaults are those of the configuration classes of transformers 5.23 (configuration_gemma3n.py).
"""

from __future__ import annotations

from memsheet.frozen import NamedTuple, replace
from memsheet.plan.model import Arrangement, Attention, Block, ModelSpec, NormKind, Role, Tower, Weight
from memsheet.readers.families.gemma3n_towers import gemma3n_towers
from memsheet.readers.families.gemma4 import SANDWICH_NORMS, with_layer_embeddings, without_own_keys
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, rename_path_roots
from memsheet.readers.parts import (
    gated_mlp,
    linear_weights,
    repeating_layer_runs,
    rms_norm,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import causal_lm, key_value_heads, layer_kinds, norm_pair

PATTERN = 5  # every so many layers one sees every token
WIDE = NormKind.RMS_FP32_SCALE
WHOLE_MODEL = "Gemma3nForConditionalGeneration"


class _Layer(NamedTuple):
    """What one layer differs in."""

    full: bool
    shares: bool  # keys and values of an earlier layer of its kind
    intermediate: int


def read(config: Fields) -> ModelSpec:
    if config.text("model_type", default="gemma3n").endswith("_text"):
        return _text_spec(config)
    model_class_name(config, (WHOLE_MODEL,), WHOLE_MODEL)
    nested = config.sub("text_config")
    text = _text_spec(Fields(nested.data, nested.where, config.problems))
    towers: tuple[Tower, ...] = gemma3n_towers(config, text.hidden)
    renamed = rename_path_roots(text, {"model": "model.language_model"})
    head = causal_head(text.vocab, text.hidden, tied=config.flag("tie_word_embeddings", default=True))
    return replace(
        renamed, model_type="gemma3n", head=replace(head, softcap=text.head.softcap), towers=towers
    )


def _text_spec(config: Fields) -> ModelSpec:
    hidden = config.count("hidden_size", default=2048)
    vocab = config.count("vocab_size", default=262400)
    layers = _layer_forms(config, config.layers(default=35))
    beside = config.count("hidden_size_per_layer_input", default=256)
    streams = config.count("altup_num_inputs", default=4, high=64)
    softcap = config.number("final_logit_softcapping", default=30.0)
    spec = causal_lm(
        config,
        "gemma3n_text",
        hidden,
        vocab,
        repeating_layer_runs(layers, lambda layer: _decoder_block(config, hidden, layer, beside, streams)),
        final_norm=rms_norm("norm", hidden, WIDE),
        tied=True,
        scaled_embeddings=True,
        softcap=softcap or None,
        positions=config.count("max_position_embeddings", default=32768),
    )
    between = (
        replace(weight, copies=streams - 1)
        for name in ("altup_projections", "altup_unembed_projections")
        for weight in linear_weights(f"model.{name}.*", hidden, hidden, cut="out")
    )
    wider = with_layer_embeddings(config, spec, len(layers), beside)
    return replace(wider, extras=(*wider.extras, *(between if streams > 1 else ())))


def _layer_forms(config: Fields, layers: int) -> list[_Layer]:
    usual = ["full_attention" if (i + 1) % PATTERN == 0 else "sliding_attention" for i in range(layers)]
    kinds = layer_kinds(config, "layer_types", layers, usual)
    own = layers - config.count("num_kv_shared_layers", default=15, low=0)
    if own < layers and set(kinds[: max(own, 0)]) != set(kinds):
        config.wrong(
            "num_kv_shared_layers", layers - own, "leaves no layer of a kind whose keys the others read"
        )
    widths = _intermediate_sizes(config, layers)
    return [_Layer(kinds[i] == "full_attention", i >= own, widths[i]) for i in range(layers)]


def _intermediate_sizes(config: Fields, layers: int) -> tuple[int, ...]:
    """One width for all layers, or a list of theirs."""
    if not isinstance(config.raw("intermediate_size"), list):
        return (config.count("intermediate_size", default=16384),) * layers
    widths = config.counts("intermediate_size", low=1)
    if len(widths) != layers:
        config.wrong(
            "intermediate_size", None, f"names {len(widths)} layers where num_hidden_layers is {layers}"
        )
        return (1,) * layers
    return widths


def _decoder_block(config: Fields, hidden: int, layer: _Layer, beside: int, streams: int) -> Block:
    rank = config.count("laurel_rank", default=64)
    names = (*SANDWICH_NORMS, "post_per_layer_input_norm", "altup.router_norm", "laurel.post_laurel_norm")
    return Block(
        kind="gemma3n_text",
        hidden=hidden,
        arrangement=Arrangement.OTHER,  # streams predicted, a sandwich beside a narrow residual, corrected
        streams=streams,
        mixers=(_layer_attention(config, hidden, layer),),
        feed_forward=gated_mlp(
            "mlp", hidden, layer.intermediate, config.text("hidden_activation", default="gelu_pytorch_tanh")
        ),
        norms=tuple(rms_norm(name, hidden, WIDE) for name in names),
        extras=(
            Weight(path="altup.correct_output_scale", shape=(hidden,), role=Role.OTHER),
            *linear_weights("altup.correction_coefs", streams, streams),
            *linear_weights("altup.prediction_coefs", streams * streams, streams),
            *linear_weights("altup.modality_router", streams, hidden),
            *linear_weights("laurel.linear_left", rank, hidden, cut="out"),
            *linear_weights("laurel.linear_right", hidden, rank, cut="in"),
            *linear_weights("per_layer_input_gate", beside, hidden),
            *linear_weights("per_layer_projection", hidden, beside),
        ),
    )


def _layer_attention(config: Fields, hidden: int, layer: _Layer) -> Attention:
    heads = config.count("num_attention_heads", default=8)
    bias = config.flag("attention_bias", default=False)
    head_dim = config.count("head_dim", default=256)
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        key_value_heads(config, heads, default=2),
        head_dim,
        qkv_bias=bias,
        out_bias=bias,
        window=None if layer.full else config.count("sliding_window", default=512),
        qk_norm=norm_pair("self_attn", ("q_norm", "k_norm"), (head_dim, head_dim), WIDE),
    )
    return without_own_keys(mixer) if layer.shares else mixer
