"""Whisper: sound through an encoder of its own, which a decoder of words reads by cross-attention.

The encoder stands beside the decoder as a vision tower does: what it makes of half a minute has one length,
whatever the words.
"""

from __future__ import annotations

from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    CrossAttention,
    Embeddings,
    Head,
    ModelSpec,
    Picture,
    Role,
    Stack,
    Tower,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import model_class_name
from memsheet.readers.parts import (
    embedding_table,
    layer_norm,
    linear_weights,
    plain_mlp,
    run_length,
    vocabulary_head,
)
from memsheet.readers.vision import even_heads

_CLASS = "WhisperForConditionalGeneration"
_FRAMES = 2
"""Frames of the spectrum that become one position: the stride of the second convolution."""
_KERNEL = 3


def read(config: Fields) -> ModelSpec:
    """Defaults: WhisperConfig."""
    model_class_name(config, (_CLASS,), _CLASS)
    hidden = config.count("d_model", "hidden_size", default=384)
    vocab = config.count("vocab_size", default=51865)
    places = config.count("max_target_positions", default=448)
    tied = config.flag("tie_word_embeddings", default=True)
    path = "model.decoder"
    return ModelSpec(
        name="",
        model_type="whisper",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(
                embedding_table(f"{path}.embed_tokens", vocab, hidden, vocabulary=True),
                embedding_table(f"{path}.embed_positions", places, hidden),
            ),
            dropout=True,
        ),
        stacks=(_whisper_stack(config, "decoder", hidden),),
        head=Head(
            kind="sequence_to_sequence",
            width=vocab,
            tied=tied,
            weights=() if tied else vocabulary_head("proj_out", vocab, hidden),
        ),
        towers=(_whisper_encoder(config, hidden),),
        max_positions=places,
    )


def _whisper_encoder(config: Fields, hidden: int) -> Tower:
    """Two convolutions over the spectrum, and as many positions as the table of them has."""
    path = "model.encoder"
    bins = config.count("num_mel_bins", default=80)
    places = config.count("max_source_positions", default=1500)
    return Tower(
        path=path,
        stack=_whisper_stack(config, "encoder", hidden),
        embeddings=(
            *_convolution(f"{path}.conv1", hidden, bins),
            *_convolution(f"{path}.conv2", hidden, hidden),
            embedding_table(f"{path}.embed_positions", places, hidden),
        ),
        projector=(),
        tokens_per_image=places,
        largest=Picture(embeddings=places, places=places, pixels=bins * _FRAMES * places),
    )


def _convolution(path: str, out: int, channels: int) -> tuple[Weight, ...]:
    return (
        Weight(path=f"{path}.weight", shape=(out, channels, _KERNEL), role=Role.OTHER),
        Weight(path=f"{path}.bias", shape=(out,), role=Role.BIAS),
    )


def _whisper_stack(config: Fields, role: str, hidden: int) -> Stack:
    path = f"model.{role}"
    layers = config.layers(f"{role}_layers", default=4)
    return Stack(
        path=f"{path}.layers",
        hidden=hidden,
        runs=run_length([_whisper_block(config, role, hidden)] * layers),
        final_norms=(layer_norm("layer_norm", hidden),),
        final_path=path,
        role="decoder" if role == "decoder" else "vision",
    )


def _whisper_block(config: Fields, role: str, hidden: int) -> Block:
    decodes = role == "decoder"
    heads = even_heads(config, hidden, f"{role}_attention_heads", default=6, width="d_model")
    names = ("self_attn", *(("encoder_attn",) if decodes else ()))
    own = Attention(
        path="self_attn",
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        causal=decodes,
        weights=_attention_weights("self_attn", hidden, heads),
    )
    cross = CrossAttention(
        path="encoder_attn",
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        memory_hidden=hidden,
        weights=_attention_weights("encoder_attn", hidden, heads),
    )
    return Block(
        kind="whisper" if decodes else "whisper_encoder",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(own, cross) if decodes else (own,),
        feed_forward=plain_mlp(
            "",
            hidden,
            config.count(f"{role}_ffn_dim", default=1536),
            config.text("activation_function", default="gelu"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=tuple(layer_norm(f"{name}_layer_norm", hidden) for name in (*names, "final")),
    )


def _attention_weights(path: str, hidden: int, heads: int) -> tuple[Weight, ...]:
    """Keys alone have no bias."""
    return (
        *linear_weights(f"{path}.q_proj", hidden, hidden, bias=True, cut="out", units=heads),
        *linear_weights(f"{path}.k_proj", hidden, hidden, cut="out", units=heads),
        *linear_weights(f"{path}.v_proj", hidden, hidden, bias=True, cut="out", units=heads),
        *linear_weights(f"{path}.out_proj", hidden, hidden, bias=True, cut="in", units=heads),
    )
