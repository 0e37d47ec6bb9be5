"""What Gemma 4 sees and hears with: a vision tower of sandwiched layers, a conformer for sound, and a
projection for each; in the unified form the projections alone.

Defaults are those of Gemma4VisionConfig, Gemma4AudioConfig and the unified ones, transformers 5.23. A server
may run the library's own towers, whole on every rank (``READ_IN``).
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, NormKind, Role, Run, Stack, Tower, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter
from memsheet.readers.parts import (
    gated_mlp,
    layer_norm,
    linear_weights,
    plain_mlp,
    rms_norm,
    separate_qkv_attention,
)
from memsheet.readers.sparse_parts import norm_pair

VISION, AUDIO = "model.vision_tower", "model.audio_tower"
WIDE = NormKind.RMS_FP32_SCALE
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def gemma4_towers(config: Fields, hidden: int) -> tuple[Tower, ...]:
    """The towers that the config has: one that is left out is not built."""
    towers = []
    if config.raw("vision_config") is not None:
        towers.append(_vision_tower(config.sub("vision_config"), hidden))
    if config.raw("audio_config") is not None:
        towers.append(_audio_tower(config.sub("audio_config"), hidden))
    return tuple(towers)


def unified_embedders(config: Fields, hidden: int) -> tuple[Weight, ...]:
    """What brings patches and frames of sound to the words' width."""
    found: list[Weight] = []
    if config.raw("vision_config") is not None:
        found += _patch_embedder(config.sub("vision_config"), hidden)
    if config.raw("audio_config") is not None:
        frame = config.sub("audio_config").count("audio_embed_dim", default=640)
        found += linear_weights("model.embed_audio.embedding_projection", hidden, frame)
    return tuple(found)


def _patch_embedder(vision: Fields, hidden: int) -> Iterable[Weight]:
    side = vision.count("patch_size", default=16) * vision.count("pooling_kernel_size", default=3)
    width, path = vision.count("mm_embed_dim", default=3840), "model.embed_vision"
    places = vision.count("mm_posemb_size", default=1120)
    return (
        *layer_norm(f"{path}.patch_ln1", 3 * side * side).weights,
        *linear_weights(f"{path}.patch_dense", width, 3 * side * side, bias=True),
        *layer_norm(f"{path}.patch_ln2", width).weights,
        bare_parameter(f"{path}.pos_embedding", places, 2, width),
        *layer_norm(f"{path}.pos_norm", width).weights,
        *linear_weights(
            f"{path}.multimodal_embedder.embedding_projection",
            hidden,
            vision.count("output_proj_dims", default=3840),
        ),
    )


def _vision_tower(config: Fields, hidden: int) -> Tower:
    own = config.count("hidden_size", default=768)
    heads, head_dim = config.count("num_attention_heads", default=12), config.count("head_dim", default=64)
    mixer = separate_qkv_attention(
        "self_attn",
        own,
        heads,
        config.count("num_key_value_heads", default=12),
        head_dim,
        qk_norm=norm_pair("self_attn", ("q_norm", "k_norm"), (head_dim, head_dim), WIDE),
        causal=False,
        names=("q_proj.linear", "k_proj.linear", "v_proj.linear", "o_proj.linear"),
    )
    mlp = gated_mlp(
        "mlp",
        own,
        config.count("intermediate_size", default=3072),
        config.text("hidden_activation", default="gelu_pytorch_tanh"),
        names=("gate_proj.linear", "up_proj.linear", "down_proj.linear"),
    )
    around = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    clipped = config.flag("use_clipped_linears", default=False)
    block = Block(
        kind="gemma4_vision",
        hidden=own,
        arrangement=Arrangement.SANDWICH,
        mixers=(replace(mixer, weights=uncut(mixer.weights)),),
        feed_forward=replace(mlp, weights=uncut(mlp.weights)),
        norms=tuple(rms_norm(f"{name}_layernorm", own, WIDE) for name in around),
        extras=_linear_bounds((*mixer.weights, *mlp.weights)) if clipped else (),
    )
    shifts = ("std_bias", "std_scale") if config.flag("standardize", default=False) else ()
    patch = config.count("patch_size", default=16)
    return Tower(
        path=VISION,
        stack=_tower_stack(f"{VISION}.encoder.layers", block, config.layers(default=16)),
        embeddings=(
            *linear_weights(f"{VISION}.patch_embedder.input_proj", own, 3 * patch * patch),
            bare_parameter(
                f"{VISION}.patch_embedder.position_embedding_table",
                2,
                config.count("position_embedding_size", default=10240),
                own,
            ),
        ),
        projector=(
            *(Weight(path=f"{VISION}.{name}", shape=(own,), role=Role.BUFFER) for name in shifts),
            *linear_weights(
                "model.embed_vision.embedding_projection",
                hidden,
                config.count("output_proj_dims", default=own),
            ),
        ),
    )


def _tower_stack(path: str, block: Block, layers: int) -> Stack:
    return Stack(path=path, hidden=block.hidden, runs=(Run(pattern=(block,), count=layers),), role="vision")


def _audio_tower(config: Fields, hidden: int) -> Tower:
    """A conformer: two convolutions, layers of attention and convolution between two feed-forwards."""
    own = config.count("hidden_size", default=1024)
    first, second = _convolution_channels(config)
    at, out = f"{AUDIO}.subsample_conv_projection", config.count("output_proj_dims", default=1536)
    return Tower(
        path=AUDIO,
        stack=_tower_stack(f"{AUDIO}.layers", _audio_block(config, own), config.layers(default=12)),
        embeddings=(
            Weight(path=f"{at}.layer0.conv.weight", shape=(first, 1, 3, 3), role=Role.LINEAR),
            *layer_norm(f"{at}.layer0.norm", first, bias=False).weights,
            Weight(path=f"{at}.layer1.conv.weight", shape=(second, first, 3, 3), role=Role.LINEAR),
            *layer_norm(f"{at}.layer1.norm", second, bias=False).weights,
            *linear_weights(f"{at}.input_proj_linear", own, first // 4 * second),
        ),
        projector=(
            *linear_weights(f"{AUDIO}.output_proj", out, own, bias=True),
            *linear_weights("model.embed_audio.embedding_projection", hidden, out),
        ),
    )


def _convolution_channels(config: Fields) -> tuple[int, int]:
    given = config.counts("subsampling_conv_channels", (128, 32), low=1)
    if len(given) != 2:
        config.wrong("subsampling_conv_channels", list(given), "does not name two convolutions")
        return 128, 32
    return given[0], given[1]


def _audio_block(config: Fields, own: int) -> Block:
    heads = config.count("num_attention_heads", default=8)
    config.divides(heads, "hidden_size", own, "each attention head takes an equal share")
    head_dim = max(own // heads, 1)
    mixer = separate_qkv_attention(
        "self_attn",
        own,
        heads,
        heads,
        head_dim,
        rotary_dim=0,
        causal=False,
        names=("q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear"),
    )
    activation, names = (
        config.text("hidden_act", default="silu"),
        ("ffw_layer_1.linear", "ffw_layer_2.linear"),
    )
    first, last = (
        plain_mlp(f"feed_forward{number}", own, 4 * own, activation, bias=False, names=names)
        for number in (1, 2)
    )
    around = tuple(
        rms_norm(f"feed_forward{number}.{name}", own, WIDE)
        for number in (1, 2)
        for name in ("pre_layer_norm", "post_layer_norm")
    )
    light = (
        *linear_weights("lconv1d.linear_start.linear", 2 * own, own),
        *linear_weights("lconv1d.linear_end.linear", own, own),
    )
    kernel = config.count("conv_kernel_size", default=5)
    clipped = config.flag("use_clipped_linears", default=True)
    return Block(
        kind="gemma4_audio",
        hidden=own,
        arrangement=Arrangement.OTHER,
        mixers=(
            replace(
                mixer,
                weights=(
                    *uncut(mixer.weights),
                    *linear_weights("self_attn.relative_k_proj", heads * head_dim, own),
                    Weight(path="self_attn.per_dim_scale", shape=(head_dim,), role=Role.OTHER),
                ),
            ),
        ),
        feed_forward=replace(first, weights=uncut(first.weights)),
        norms=(
            *around,
            *(rms_norm(f"lconv1d.{name}", own, WIDE) for name in ("pre_layer_norm", "conv_norm")),
            *(rms_norm(name, own, WIDE) for name in ("norm_pre_attn", "norm_post_attn", "norm_out")),
        ),
        extras=(
            *uncut(last.weights),
            *light,
            Weight(path="lconv1d.depthwise_conv1d.weight", shape=(own, 1, kernel), role=Role.OTHER),
            *(_linear_bounds((*mixer.weights, *first.weights, *last.weights, *light)) if clipped else ()),
        ),
    )


def uncut(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """The same tensors, whole on every rank."""
    return tuple(replace(weight, cut=None, units=0) for weight in weights)


def _linear_bounds(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """Four numbers between which a linear layer's input and output are kept (Gemma4ClippableLinear)."""
    return tuple(
        Weight(path=f"{weight.path.removesuffix('.linear.weight')}.{name}", shape=(1,), role=Role.BUFFER)
        for weight in weights
        for name in BOUNDS
    )
