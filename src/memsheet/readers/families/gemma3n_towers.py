"""What Gemma 3n sees and hears with: a MobileNet of convolutions (MobileNetV5 300M), a conformer for sound,
and an embedder for each.

Defaults are those of Gemma3nVisionConfig and Gemma3nAudioConfig, transformers 5.23; the convolutions are
those of timm 1.0.31 (timm/models/mobilenetv5.py, mobilenetv5_300m_enc), which the library runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, NormKind, Role, Run, Stack, Tower, Weight
from memsheet.readers.families.gemma4_towers import uncut
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    embedding_table,
    linear_weights,
    plain_mlp,
    rms_norm,
    separate_qkv_attention,
)

VISION, AUDIO = "model.vision_tower", "model.audio_tower"
WIDE = NormKind.RMS_FP32_SCALE
ENCODER, SEES = "mobilenetv5_300m_enc", 2048
"""The one tower of convolutions that is written down, and the width of what it makes."""
STEM = 64
EDGES = ((STEM, 128), (128, 128), (128, 128))  # channels in and out of blocks that expand by a 3 x 3
EDGE_EXPANSION = 4
BOTTLENECKS = {
    1: (128, 256, (3, 5, 6), ((5, 4), (3, 4), (5, 4), (3, 4)), ()),
    2: (256, 640, (5, 5, 6), ((5, 4),) * 7 + ((0, 1),), (14, 12, 64, True)),
    3: (640, 1280, (5, 5, 6), (), (19, 16, 96, False)),
}
"""Stages: channels in and out; kernels before and inside the first block, and its expansion; those before and
the expansion of the next ones; pairs of attention and feed-forward: how many, heads, their width, and whether
keys are taken of a shrunken picture.
"""
SIDE, LARGEST = 768 // 4, 512
"""Side of what the widest convolution makes of a picture of 768 x 768, and its channels."""


def gemma3n_towers(config: Fields, hidden: int) -> tuple[Tower, ...]:
    """The two towers, which are built whether the config has them or not."""
    return _vision_tower(config, hidden), _audio_tower(config.sub("audio_config"), hidden)


def _vision_tower(config: Fields, hidden: int) -> Tower:
    vision = config.sub("vision_config")
    encoder = vision.text("architecture", default=ENCODER)
    if encoder != ENCODER or vision.raw("model_args"):
        key = "architecture" if encoder != ENCODER else "model_args"
        vision.wrong(key, encoder, f"is not a tower that is read; {ENCODER} is, as released")
    width = vision.count("hidden_size", default=SEES)
    at = f"{VISION}.timm_model"
    return Tower(
        path=VISION,
        stack=Stack(path=f"{at}.blocks", hidden=SEES, runs=(), role="vision"),
        embeddings=tuple(_mobile_net(at)),
        projector=_embedder_weights("model.embed_vision", vision, width, hidden),
        tokens_per_image=config.count("vision_soft_tokens_per_image", default=256),
        widest=LARGEST * SIDE * SIDE,
    )


def _mobile_net(at: str) -> Iterator[Weight]:
    yield Weight(path=f"{at}.conv_stem.conv.weight", shape=(STEM, 3, 3, 3), role=Role.LINEAR)
    yield Weight(path=f"{at}.conv_stem.conv.bias", shape=(STEM,), role=Role.BIAS)
    yield _channel_scale(f"{at}.conv_stem.bn", STEM)
    for number, (into, out) in enumerate(EDGES):
        block, inner = f"{at}.blocks.0.{number}", EDGE_EXPANSION * into
        yield from _convolution_weights(f"{block}.conv_exp", f"{block}.bn1", inner, into, 3)
        yield from _convolution_weights(f"{block}.conv_pwl", f"{block}.bn2", out, inner, 1)
    for stage, (into, out, (before, inside, expansion), others, attention) in BOTTLENECKS.items():
        root = f"{at}.blocks.{stage}"
        yield from _bottleneck_weights(f"{root}.0", into, out, before, inside, expansion)
        for number, (kernel, times) in enumerate(others, start=1):
            yield from _bottleneck_weights(f"{root}.{number}", out, out, kernel, 0, times)
        if attention:
            pairs, heads, head_dim, shrinks = attention
            for pair in range(pairs):
                place = len(others) + 1 + 2 * pair
                yield from _attention(f"{root}.{place}", out, heads, head_dim, shrinks=bool(shrinks))
                yield from _bottleneck_weights(f"{root}.{place + 1}", out, out, 0, 0, 2)
    joined = sum(BOTTLENECKS[stage][1] for stage in (2, 3))
    yield from _bottleneck_weights(f"{at}.msfa.ffn", joined, SEES, 0, 0, 2, scaled=False)
    yield _channel_scale(f"{at}.msfa.norm", SEES)


def _channel_scale(path: str, channels: int, name: str = "weight") -> Weight:
    return Weight(path=f"{path}.{name}", shape=(channels,), role=Role.NORM)


def _convolution_weights(path: str, norm: str, out: int, into: int, kernel: int) -> Iterator[Weight]:
    yield Weight(path=f"{path}.weight", shape=(out, into, kernel, kernel), role=Role.LINEAR)
    yield _channel_scale(norm, out)


def _bottleneck_weights(
    path: str, into: int, out: int, before: int, inside: int, expansion: int, *, scaled: bool = True
) -> Iterator[Weight]:
    """Expansion and projection by 1 x 1, perhaps with one convolution a channel before and between them."""
    inner = into * expansion
    if before:
        yield from _convolution_weights(f"{path}.dw_start.conv", f"{path}.dw_start.bn", into, 1, before)
    yield from _convolution_weights(f"{path}.pw_exp.conv", f"{path}.pw_exp.bn", inner, into, 1)
    if inside:
        yield from _convolution_weights(f"{path}.dw_mid.conv", f"{path}.dw_mid.bn", inner, 1, inside)
    yield from _convolution_weights(f"{path}.pw_proj.conv", f"{path}.pw_proj.bn", out, inner, 1)
    if scaled:
        yield _channel_scale(f"{path}.layer_scale", out, "gamma")


def _attention(path: str, width: int, heads: int, head_dim: int, *, shrinks: bool) -> Iterator[Weight]:
    """Queries in heads over one head of keys and values."""

    def projection(name: str, out: int, into: int) -> Weight:
        return Weight(path=f"{path}.attn.{name}.proj.weight", shape=(out, into, 1, 1), role=Role.LINEAR)

    yield _channel_scale(f"{path}.norm", width)
    yield projection("query", heads * head_dim, width)
    for name in ("key", "value"):
        if shrinks:
            at = f"{path}.attn.{name}"
            yield from _convolution_weights(f"{at}.down_conv", f"{at}.norm", width, 1, 3)
        yield projection(name, head_dim, width)
    yield projection("output", width, heads * head_dim)
    yield _channel_scale(f"{path}.layer_scale", width, "gamma")


def _embedder_weights(path: str, own: Fields, width: int, hidden: int) -> tuple[Weight, ...]:
    """A table of a few words of its own, a norm for those and one for what the tower makes, a projection."""
    words = own.count("vocab_size", default=128)
    return (
        embedding_table(f"{path}.embedding", words, width, vocabulary=True),
        *rms_norm(f"{path}.hard_embedding_norm", width, WIDE).weights,
        *rms_norm(f"{path}.soft_embedding_norm", width, WIDE).weights,
        *linear_weights(f"{path}.embedding_projection", hidden, width, cut="in"),
    )


def _audio_tower(config: Fields, hidden: int) -> Tower:
    own = config.count("hidden_size", default=1536)
    block = _audio_block(config, own)
    layers = config.layers("conf_num_hidden_layers", default=12)
    return Tower(
        path=AUDIO,
        stack=Stack(
            path=f"{AUDIO}.conformer", hidden=own, runs=(Run(pattern=(block,), count=layers),), role="vision"
        ),
        embeddings=tuple(_sound_convolutions(config, own)),
        projector=_embedder_weights("model.embed_audio", config, own, hidden),
    )


def _sound_convolutions(config: Fields, own: int) -> Iterable[Weight]:
    """Two convolutions that shrink time and frequency, and what brings them to the tower's width."""
    channels = _pair_of(config, "sscp_conv_channel_size", (128, 32))
    kernels, strides = (
        [_inner_pair(config, key, i, default) for i in range(2)]
        for key, default in (("sscp_conv_kernel_size", 3), ("sscp_conv_stride_size", 2))
    )
    at, into, width = f"{AUDIO}.subsample_conv_projection", 1, config.count("input_feat_size", default=128)
    found: list[Weight] = []
    for i, (out, (height, across), (_, step)) in enumerate(zip(channels, kernels, strides, strict=True)):
        shape = (out, into, height, across)
        found.append(Weight(path=f"{at}.conv_{i}.conv.weight", shape=shape, role=Role.LINEAR))
        found.append(_channel_scale(f"{at}.conv_{i}.norm", out))
        into, width = out, max((width + 2 - across) // max(step, 1) + 1, 1)
    return (*found, *linear_weights(f"{at}.input_proj_linear", own, into * width))


def _pair_of(config: Fields, key: str, default: tuple[int, int]) -> tuple[int, int]:
    given = config.counts(key, default, low=1)
    if len(given) != 2:
        config.wrong(key, list(given), "does not name two convolutions")
        return default
    return given[0], given[1]


def _inner_pair(config: Fields, key: str, place: int, default: int) -> tuple[int, int]:
    """The sizes of one of the two convolutions in time and frequency."""
    given = config.raw(key)
    if given is None:
        return default, default
    inner = given[place] if isinstance(given, list) and len(given) == 2 else None
    return _pair_of(Fields({key: inner}, config.where, config.problems), key, (default, default))


def _audio_block(config: Fields, own: int) -> Block:
    heads = config.count("conf_num_attention_heads", default=8)
    config.divides(heads, "hidden_size", own, "each attention head takes an equal share")
    head_dim = max(own // heads, 1)
    path = "attention.attn"
    mixer = separate_qkv_attention(path, own, heads, heads, head_dim, rotary_dim=0, causal=False)
    names = ("ffw_layer_1", "ffw_layer_2")
    first, last = (
        plain_mlp(f"ffw_layer_{side}", own, 4 * own, "silu", bias=False, names=names)
        for side in ("start", "end")
    )
    norms = (
        *(f"ffw_layer_{side}.{name}_layer_norm" for side in ("start", "end") for name in ("pre", "post")),
        *(f"attention.{name}" for name in ("pre_attn_norm", "post_norm")),
        *(f"lconv1d.{name}" for name in ("pre_layer_norm", "conv_norm")),
        "norm",
    )
    kernel = config.count("conf_conv_kernel_size", default=5)
    kept = tuple(
        replace(w, path=w.path.replace(f"{path}.o_proj", "attention.post")) for w in uncut(mixer.weights)
    )
    return Block(
        kind="gemma3n_audio",
        hidden=own,
        arrangement=Arrangement.OTHER,
        mixers=(replace(mixer, weights=kept),),
        feed_forward=replace(first, weights=uncut(first.weights)),
        norms=tuple(rms_norm(name, own, WIDE) for name in norms),
        extras=(
            Weight(path=f"{path}.per_dim_scale", shape=(head_dim,), role=Role.OTHER),
            *linear_weights(f"{path}.relative_position_embedding.pos_proj", own, own),
            *uncut(last.weights),
            *linear_weights("lconv1d.linear_start", 2 * own, own),
            *linear_weights("lconv1d.linear_end", own, own),
            Weight(path="lconv1d.depthwise_conv1d.weight", shape=(own, 1, kernel), role=Role.OTHER),
        ),
    )
