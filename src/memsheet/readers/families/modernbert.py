"""ModernBERT: an encoder with rotary positions, gated feed-forwards and windows between full layers, in every
class of its modeling file.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.frozen import replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    Role,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, class_label_count, model_class_name
from memsheet.readers.parts import (
    embedding_table,
    fused_attention,
    fused_gated_mlp,
    layer_norm,
    linear_weights,
    repeating_layer_runs,
    vocabulary_head,
)
from memsheet.readers.positions import sliding_layers
from memsheet.readers.vision import even_heads

_CLASSES = (
    "ModernBertForMaskedLM", "ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForTokenClassification",
    "ModernBertForQuestionAnswering", "ModernBertForMultipleChoice",
)  # fmt: skip


def read(config: Fields) -> ModelSpec:
    """Defaults: ModernBertConfig. Only the first layer has no norm before its attention."""
    name = model_class_name(config, _CLASSES, _CLASSES[0])
    base = "" if name == "ModernBertModel" else "model."
    hidden = config.count("hidden_size", default=768)
    vocab = config.count("vocab_size", default=50368)
    norm = _norm_maker(config, hidden)
    layers = config.layers(default=22)
    every = config.count("global_attn_every_n_layers", default=3)
    slides = sliding_layers(config, layers, lambda layer: bool(layer % every))
    return ModelSpec(
        name="",
        model_type="modernbert",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(embedding_table(f"{base}embeddings.tok_embeddings", vocab, hidden, vocabulary=True),),
            norms=(norm(f"{base}embeddings.norm"),),
            dropout=True,
        ),
        stacks=(
            Stack(
                path=f"{base}layers",
                hidden=hidden,
                role="encoder",
                runs=repeating_layer_runs(
                    [(layer == 0, slide) for layer, slide in enumerate(slides)],
                    lambda key: _modernbert_block(config, hidden, norm, first=key[0], slides=key[1]),
                ),
                final_norms=(norm("final_norm"),),
                final_path=base.removesuffix("."),
            ),
        ),
        head=_modernbert_head(config, name, hidden, vocab, norm),
        max_positions=config.count("max_position_embeddings", default=8192),
    )


def _norm_maker(config: Fields, hidden: int) -> Callable[[str], Norm]:
    bias = config.flag("norm_bias", default=False)
    return lambda path: layer_norm(path, hidden, bias=bias)


def _modernbert_block(
    config: Fields, hidden: int, norm: Callable[[str], Norm], *, first: bool, slides: bool
) -> Block:
    heads = even_heads(config, hidden, "num_attention_heads", default=12)
    bias, window = (
        config.flag("attention_bias", default=False),
        config.count("local_attention", default=128),
    )
    mixer: Attention = fused_attention(
        "attn", hidden, heads, heads, hidden // heads, qkv_bias=bias, out_bias=bias, names=("Wqkv", "Wo"),
        rotary_dim=hidden // heads, window=window if slides else None,
    )  # fmt: skip
    return Block(
        kind="modernbert",
        hidden=hidden,
        arrangement=Arrangement.OTHER if first else Arrangement.PRE,
        mixers=(replace(mixer, causal=False),),
        feed_forward=fused_gated_mlp(
            "mlp",
            hidden,
            config.count("intermediate_size", default=1152),
            config.text("hidden_activation", default="gelu"),
            bias=config.flag("mlp_bias", default=False),
            names=("Wi", "Wo"),
        ),
        norms=(*(() if first else (norm("attn_norm"),)), norm("mlp_norm")),
    )


def _modernbert_head(config: Fields, name: str, hidden: int, vocab: int, norm: Callable[[str], Norm]) -> Head:
    if name == "ModernBertModel":
        return Head(kind="none", width=hidden)
    dense = linear_weights("head.dense", hidden, hidden, bias=config.flag("classifier_bias", default=False))
    before: tuple[Weight, ...] = (*dense, *norm("head.norm").weights)
    if name == "ModernBertForMaskedLM":
        tied = config.flag("tie_word_embeddings", default=True)
        matrix = () if tied else vocabulary_head("decoder", vocab, hidden)
        bias = replace(bare_parameter("decoder.bias", vocab, role=Role.BIAS), cut=0, padded=True)
        biased = (bias,) if config.flag("decoder_bias", default=True) else ()
        return Head(kind="masked_lm", width=vocab, tied=tied, weights=(*before, *matrix, *biased))
    count = 1 if name == "ModernBertForMultipleChoice" else class_label_count(config)
    out = linear_weights("classifier", count, hidden, bias=True)
    return Head(kind="classification", width=count, weights=(*before, *out))
