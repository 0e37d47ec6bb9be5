"""Qwen2.5-Omni's thinker: a Qwen2 decoder that writes words, beside Qwen2.5-VL's vision tower with three
matrices for queries, keys and values, and an audio tower like Whisper's.

Of a whole model's config the thinker is read: servers load it alone, and what speaks (talker, token2wav) is
not written down. Defaults are those of transformers 5.23 (configuration_qwen2_5_omni.py).
"""

from __future__ import annotations

from typing import Any

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Attention, Block, ModelSpec, Role, Run, Stack, Tower, Weight
from memsheet.readers.families.qwen_vl import qwen2_5_vision_tower
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, of_kind, rename_path_roots, text_model
from memsheet.readers.parts import (
    embedding_table,
    layer_norm,
    linear_weights,
    plain_mlp,
    separate_qkv_attention,
)
from memsheet.readers.vision import even_heads

WHOLE, THINKER = "qwen2_5_omni", "qwen2_5_omni_thinker"
AUDIO = "model.audio_tower"
# Qwen2_5OmniTextConfig, where it differs from Qwen2Config
_TEXT: dict[str, Any] = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "max_window_layers": 28, "sliding_window": 32768,
}  # fmt: skip
_UNREAD = ("model_type", "head_dim", "tie_word_embeddings")
_KERNEL, _MARKS = 3, 2
"""Inputs of each convolution; vectors for where sound begins and ends."""


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default=THINKER, choices=(WHOLE, THINKER))
    name = f"Qwen2_5Omni{'' if kind == WHOLE else 'Thinker'}ForConditionalGeneration"
    known = ("Qwen2_5OmniModel", name) if kind == WHOLE else (name,)
    model_class_name(config, known, name)
    thinker = config.sub("thinker_config") if kind == WHOLE else config
    nested = thinker.sub("text_config")
    given = {key: value for key, value in nested.data.items() if key not in _UNREAD}
    text = text_model(
        Fields({**_TEXT, **given, "model_type": "qwen2"}, nested.where, config.problems), "qwen2"
    )
    return replace(
        of_kind(rename_path_roots(text, {"model": "model.language_model"}), kind),
        model_type=kind,
        head=causal_head(text.vocab, text.hidden, tied=thinker.flag("tie_word_embeddings", default=False)),
        towers=(
            _with_three_matrices(qwen2_5_vision_tower(thinker.sub("vision_config"), "qwen2_5_omni_vision")),
            _audio_tower(thinker.sub("audio_config")),
        ),
    )


def _with_three_matrices(tower: Tower) -> Tower:
    """The tower with queries, keys and values each from a matrix of its own."""

    def parted(block: Block) -> Block:
        (mixer,) = block.mixers
        assert isinstance(mixer, Attention)
        apart = separate_qkv_attention(
            "attn",
            block.hidden,
            mixer.heads,
            mixer.kv_heads,
            mixer.head_dim,
            qkv_bias=True,
            out_bias=True,
            names=("q", "k", "v", "proj"),
            causal=False,
        )
        return replace(block, mixers=(replace(apart, chunk=mixer.chunk),))

    runs = (replace(run, pattern=tuple(parted(block) for block in run.pattern)) for run in tower.stack.runs)
    return replace(tower, stack=replace(tower.stack, runs=tuple(runs)))


def _audio_tower(config: Fields) -> Tower:
    """Two convolutions over the spectrum, windows of it, and every two positions made one."""
    hidden = config.count("d_model", "hidden_size", default=1280)
    out = config.count("output_dim", default=3584)
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
            *_convolution(f"{AUDIO}.conv1", hidden, config.count("num_mel_bins", default=128)),
            *_convolution(f"{AUDIO}.conv2", hidden, hidden),
            embedding_table(f"{AUDIO}.audio_bos_eos_token", _MARKS, out),
        ),
        projector=(
            *layer_norm(f"{AUDIO}.ln_post", hidden).weights,
            *linear_weights(f"{AUDIO}.proj", out, hidden, bias=True, cut="out"),
        ),
    )


def _convolution(path: str, out: int, channels: int) -> tuple[Weight, ...]:
    return (
        Weight(path=f"{path}.weight", shape=(out, channels, _KERNEL), role=Role.OTHER),
        Weight(path=f"{path}.bias", shape=(out,), role=Role.BIAS),
    )


def _audio_block(config: Fields, hidden: int) -> Block:
    """Keys alone have no bias."""
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
    weights = tuple(weight for weight in mixer.weights if weight.path != "self_attn.k_proj.bias")
    mlp = plain_mlp(
        "",
        hidden,
        config.count("encoder_ffn_dim", "intermediate_size", default=5120),
        config.text("activation_function", default="gelu"),
        bias=True,
        names=("fc1", "fc2"),
    )
    return Block(
        kind="qwen2_5_omni_audio",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(replace(mixer, weights=weights),),
        feed_forward=mlp,
        norms=(layer_norm("self_attn_layer_norm", hidden), layer_norm("final_layer_norm", hidden)),
    )
