"""Llama 3.2 Vision: image tokens stay outside the text and are read by cross-attention layers between the
others.
"""

from __future__ import annotations

from memsheet.frozen import dataclass
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    CrossAttention,
    Embeddings,
    ModelSpec,
    Role,
    Stack,
    Tower,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, causal_head, model_class_name, patch_size_and_count
from memsheet.readers.parts import (
    embedding_table,
    gated_mlp,
    layer_norm,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
    run_length,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import key_value_heads, norm_pair
from memsheet.readers.vision import even_heads, patch_convolution_weights

TEXT = "model.language_model"
VISION = "model.vision_model"
_CROSS = (3, 8, 13, 18, 23, 28, 33, 38)  # MllamaTextConfig.cross_attention_layers
_IMAGE_TOKENS = 8  # rows of the embedding beyond the vocabulary (MllamaTextModel.embed_tokens)


def read(config: Fields) -> ModelSpec:
    """Head and embeddings are never tied: the model's code has no such entry."""
    model_class_name(config, ("MllamaForConditionalGeneration",), "MllamaForConditionalGeneration")
    text = config.sub("text_config")
    hidden = text.count("hidden_size", default=4096)
    vocab = text.count("vocab_size", default=128256)
    return ModelSpec(
        name="",
        model_type="mllama",
        hidden=hidden,
        vocab=vocab,
        stacks=(_text_stack(text, hidden),),
        embeddings=Embeddings(
            weights=(embedding_table(f"{TEXT}.embed_tokens", vocab + _IMAGE_TOKENS, hidden, vocabulary=True),)
        ),
        head=causal_head(vocab, hidden, tied=False),
        towers=_mllama_vision_towers(config.sub("vision_config"), hidden),
        max_positions=text.count("max_position_embeddings", default=131072),
    )


def _text_stack(config: Fields, hidden: int) -> Stack:
    crossing = set(config.counts("cross_attention_layers", _CROSS))
    heads = even_heads(config, hidden, "num_attention_heads", default=32)
    kv_heads = key_value_heads(config, heads, default=8)
    runs = repeating_layer_runs(
        [layer in crossing for layer in range(config.layers(default=40))],
        lambda cross: (_cross_block if cross else _self_block)(config, hidden, heads, kv_heads),
    )
    return Stack(
        path=f"{TEXT}.layers",
        hidden=hidden,
        runs=runs,
        final_norms=(rms_norm("norm", hidden),),
        final_path=TEXT,
    )


def _self_block(config: Fields, hidden: int, heads: int, kv_heads: int) -> Block:
    mixer = separate_qkv_attention("self_attn", hidden, heads, kv_heads, hidden // heads)
    return _mllama_text_block(config, "mllama_self", hidden, mixer)


def _cross_block(config: Fields, hidden: int, heads: int, kv_heads: int) -> Block:
    """Both branches pass a learned gate."""
    head_dim = hidden // heads
    mixer = CrossAttention(
        path="cross_attn",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        memory_hidden=hidden,
        qk_norm=norm_pair("cross_attn", ("q_norm", "k_norm"), (head_dim, head_dim)),
        weights=separate_qkv_attention("cross_attn", hidden, heads, kv_heads, head_dim).weights,
    )
    gates = (
        bare_parameter("cross_attn_attn_gate", 1, role=Role.OTHER),
        bare_parameter("cross_attn_mlp_gate", 1, role=Role.OTHER),
    )
    return _mllama_text_block(config, "mllama_cross", hidden, mixer, gates)


def _mllama_text_block(
    config: Fields, kind: str, hidden: int, mixer: Attention | CrossAttention, extras: tuple[Weight, ...] = ()
) -> Block:
    mlp = gated_mlp(
        "mlp",
        hidden,
        config.count("intermediate_size", default=14336),
        config.text("hidden_act", default="silu"),
    )
    norms = (rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden))
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=mlp,
        norms=norms,
        extras=extras,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """The sizes of the vision encoder. An image is cut into at most ``tiles`` tiles; ``ratios`` counts the
    allowed layouts and none.
    """

    hidden: int
    heads: int
    intermediate: int
    activation: str
    patch: tuple[int, int]
    tokens: int  # of one tile, the class token among them
    tiles: int
    ratios: int


def _mllama_image_sizes(config: Fields) -> _Image:
    hidden = config.count("hidden_size", default=1280)
    patch, count = patch_size_and_count(config, image=448, patch=14)
    ratios = config.raw("supported_aspect_ratios", default=[None] * 8)
    if not isinstance(ratios, list):
        config.wrong("supported_aspect_ratios", ratios, "is not a list of aspect ratios")
        ratios = []
    return _Image(
        hidden=hidden,
        heads=even_heads(config, hidden, "attention_heads", "num_attention_heads", default=16),
        intermediate=config.count("intermediate_size", default=5120),
        activation=config.text("hidden_act", default="gelu"),
        patch=patch,
        tokens=count + 1,
        tiles=config.count("max_num_tiles", default=4),
        ratios=len(ratios) + 1,
    )


def _mllama_vision_towers(config: Fields, text_hidden: int) -> tuple[Tower, Tower]:
    """The encoder of tiles, then a second one over all tiles at once, whose outputs and chosen inner ones are
    projected.
    """
    image = _mllama_image_sizes(config)
    local, final = config.layers(default=32), config.layers("num_global_layers", default=8)
    first = Tower(
        path=f"{VISION}.transformer",
        embeddings=_mllama_vision_embeddings(config, image),
        projector=(),
        stack=Stack(
            path=f"{VISION}.transformer.layers",
            hidden=image.hidden,
            role="vision",
            runs=run_length([_vision_block(image)] * local),
            final_norms=(layer_norm("layernorm_post", image.hidden),),
            final_path=VISION,
        ),
    )
    second = Tower(
        path=f"{VISION}.global_transformer",
        embeddings=_tile_position("post_tile_positional_embedding", image),
        projector=linear_weights(
            "model.multi_modal_projector",
            text_hidden,
            config.count("vision_output_dim", default=7680),
            bias=True,
        ),
        stack=Stack(
            path=f"{VISION}.global_transformer.layers",
            hidden=image.hidden,
            role="vision",
            runs=run_length([_vision_block(image, gated=True)] * final),
        ),
        tokens_per_image=image.tiles * image.tokens,
    )
    return first, second


def _mllama_vision_embeddings(config: Fields, image: _Image) -> tuple[Weight, ...]:
    gated = f"{VISION}.gated_positional_embedding"
    return (
        bare_parameter(f"{VISION}.class_embedding", image.hidden),
        *patch_convolution_weights(
            f"{VISION}.patch_embedding",
            image.hidden,
            config.count("num_channels", default=3),
            image.patch,
            bias=False,
        ),
        bare_parameter(f"{gated}.gate", 1, role=Role.OTHER),
        bare_parameter(f"{gated}.embedding", image.tokens, image.hidden),
        embedding_table(f"{gated}.tile_embedding", image.ratios, image.tiles * image.tokens * image.hidden),
        *_tile_position("pre_tile_positional_embedding", image),
        *layer_norm(f"{VISION}.layernorm_pre", image.hidden).weights,
    )


def _tile_position(name: str, image: _Image) -> tuple[Weight, ...]:
    path = f"{VISION}.{name}"
    return bare_parameter(f"{path}.gate", 1, role=Role.OTHER), embedding_table(
        f"{path}.embedding", image.ratios, image.tiles * image.hidden
    )


def _vision_block(image: _Image, *, gated: bool = False) -> Block:
    hidden, heads = image.hidden, image.heads
    gates = (
        (bare_parameter("gate_attn", 1, role=Role.OTHER), bare_parameter("gate_ffn", 1, role=Role.OTHER))
        if gated
        else ()
    )
    return Block(
        kind="mllama_vision_gated" if gated else "mllama_vision",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(
            separate_qkv_attention(
                "self_attn", hidden, heads, heads, hidden // heads, causal=False, rotary_dim=0
            ),
        ),
        feed_forward=plain_mlp(
            "mlp", hidden, image.intermediate, image.activation, bias=True, names=("fc1", "fc2")
        ),
        norms=(layer_norm("input_layernorm", hidden), layer_norm("post_attention_layernorm", hidden)),
        extras=gates,
    )
