"""Qwen3-Omni's thinker: a routed Qwen3 decoder that writes words, beside a vision tower with deepstack and an
audio tower of windows.

Of a whole model's config the thinker is read: servers load it alone, and what speaks (talker, code2wav) is
not written down. Defaults are those of transformers 5.23 (configuration_qwen3_omni_moe.py).
"""

from __future__ import annotations

from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, ModelSpec, Role, Run, Stack, Tower, Weight
from memsheet.readers.families.qwen3_vl import Merger, qwen3_vision_tower
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, of_kind, rename_path_roots, text_model
from memsheet.readers.parts import layer_norm, linear_weights, plain_mlp, separate_qkv_attention
from memsheet.readers.vision import even_heads

WHOLE, THINKER = "qwen3_omni_moe", "qwen3_omni_moe_thinker"
AUDIO = "model.audio_tower"
# Qwen3OmniMoeTextConfig, where it differs from Qwen3MoeConfig
_TEXT: dict[str, Any] = {
    "vocab_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "hidden_size": 2048,
}  # fmt: skip
_UNREAD = ("model_type", "sliding_window", "use_sliding_window", "layer_types", "tie_word_embeddings")
"""Keys of Qwen3's that the thinker's code reads nothing of: every layer sees every token."""
_DEEPSTACK = (8, 16, 24)
_MERGER = Merger(more="merger_list", norm="ln_q", first="mlp.0", second="mlp.2")
_KERNEL, _CONVOLUTIONS = 3, 3


def read(config: Fields) -> ModelSpec:
    whole = config.text("model_type", default=THINKER) == WHOLE
    name = f"Qwen3OmniMoe{'' if whole else 'Thinker'}ForConditionalGeneration"
    model_class_name(config, (name,), name)
    thinker = config.sub("thinker_config") if whole else config
    kind = WHOLE if whole else THINKER
    return replace(of_kind(_read_thinker(thinker), kind), model_type=kind)


def _read_thinker(config: Fields) -> ModelSpec:
    nested = config.sub("text_config")
    given = {**_TEXT, **{key: value for key, value in nested.data.items() if key not in _UNREAD}}
    text = text_model(
        Fields({**_even_head(given), **given, "model_type": "qwen3_moe"}, nested.where, config.problems),
        "qwen3_moe",
    )
    vision = config.sub("vision_config")
    sees = qwen3_vision_tower(
        vision,
        vision.counts("deepstack_visual_indexes", _DEEPSTACK),
        kind="qwen3_omni_vision",
        merger=_MERGER,
    )
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        head=causal_head(text.vocab, text.hidden, tied=config.flag("tie_word_embeddings", default=False)),
        towers=(sees, _audio_tower(config.sub("audio_config"))),
    )


def _even_head(given: dict[str, Any]) -> dict[str, Any]:
    """Heads share the width where no config says how wide they are."""
    hidden, heads = given["hidden_size"], given["num_attention_heads"]
    return {"head_dim": hidden // heads} if type(hidden) is int and type(heads) is int and heads > 0 else {}


def _audio_tower(config: Fields) -> Tower:
    """Three convolutions over the spectrum, each halving it, a linear layer, windows, two linear layers."""
    hidden = config.count("d_model", "hidden_size", default=1280)
    channels = config.count("downsample_hidden_size", default=480)
    bins = config.count("num_mel_bins", default=128)
    for _ in range(_CONVOLUTIONS):
        bins = (bins + 1) // 2
    out = config.count("output_dim", default=3584)
    convolutions = (
        weight
        for place in range(_CONVOLUTIONS)
        for weight in _convolution(f"{AUDIO}.conv2d{place + 1}", channels, channels if place else 1)
    )
    return Tower(
        path=AUDIO,
        stack=Stack(
            path=f"{AUDIO}.layers",
            hidden=hidden,
            runs=(
                Run(
                    pattern=(_audio_block(config, hidden),),
                    count=config.layers("encoder_layers", "num_hidden_layers", default=32),
                ),
            ),
            role="vision",
        ),
        embeddings=(
            *convolutions,
            *linear_weights(f"{AUDIO}.conv_out", hidden, channels * bins, cut="out"),
        ),
        projector=(
            *layer_norm(f"{AUDIO}.ln_post", hidden).weights,
            *linear_weights(f"{AUDIO}.proj1", hidden, hidden, bias=True, cut="out"),
            *linear_weights(f"{AUDIO}.proj2", out, hidden, bias=True, cut="in"),
        ),
    )


def _convolution(path: str, out: int, channels: int) -> tuple[Weight, ...]:
    return (
        Weight(path=f"{path}.weight", shape=(out, channels, _KERNEL, _KERNEL), role=Role.OTHER),
        Weight(path=f"{path}.bias", shape=(out,), role=Role.BIAS),
    )


def _audio_block(config: Fields, hidden: int) -> Block:
    heads = even_heads(
        config, hidden, "encoder_attention_heads", "num_attention_heads", default=20, width="d_model"
    )
    mixer = separate_qkv_attention(
        "self_attn",
        hidden,
        heads,
        heads,
        hidden // heads,
        qkv_bias=True,
        out_bias=True,
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        rotary_dim=0,
        causal=False,
    )
    mlp = plain_mlp(
        "",
        hidden,
        config.count("encoder_ffn_dim", "intermediate_size", default=5120),
        config.text("activation_function", default="gelu"),
        bias=True,
        names=("fc1", "fc2"),
    )
    return Block(
        kind="qwen3_omni_audio",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=mlp,
        norms=(layer_norm("self_attn_layer_norm", hidden), layer_norm("final_layer_norm", hidden)),
    )
