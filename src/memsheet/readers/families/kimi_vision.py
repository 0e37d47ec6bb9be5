"""Kimi K2.5: DeepSeek-V3's text model behind a vision tower of layers with separate heads and a merging
projector.

Defaults and tensor names are those of Kimi_K25Config, Kimi_K25VisionConfig and modeling_kimi_k25.py,
transformers 5.23.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, ModelSpec, Run, Stack, Tower
from memsheet.readers.fields import Fields
from memsheet.readers.nested import (
    bare_parameter,
    causal_head,
    height_and_width,
    model_class_name,
    rename_path_roots,
    text_model,
)
from memsheet.readers.parts import layer_norm, linear_weights, plain_mlp, separate_qkv_attention
from memsheet.readers.vision import even_heads, patch_convolution_weights

TOWER, PROJECTOR = "model.vision_tower", "model.mm_projector"


def read(config: Fields) -> ModelSpec:
    model_class_name(
        config,
        ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
        "KimiK25ForConditionalGeneration",
    )
    text = text_model(config.sub("text_config"), "deepseek_v3")
    vision = config.sub("vision_config")
    hidden = vision.count("hidden_size", "vt_hidden_size", default=1152)
    merged = _merged_patches(vision) * hidden
    projector = (
        *layer_norm(f"{PROJECTOR}.pre_norm", config.count("projection_hidden_size", default=1152)).weights,
        *linear_weights(f"{PROJECTOR}.in_proj", merged, merged, bias=True),
        *linear_weights(f"{PROJECTOR}.out_proj", text.hidden, merged, bias=True),
    )
    tied = config.flag("tie_word_embeddings", default=True)
    tower = Tower(
        path=TOWER,
        stack=_vision_layers(vision, hidden),
        projector=projector,
        embeddings=(
            *patch_convolution_weights(
                f"{TOWER}.patch_embed.proj",
                hidden,
                3,
                height_and_width(vision, "patch_size", 14),
                bias=True,
            ),
            bare_parameter(
                f"{TOWER}.patch_embed.pos_emb.position_embeddings",
                vision.count("pos_emb_height", "init_pos_emb_height", default=64),
                vision.count("pos_emb_width", "init_pos_emb_width", default=64),
                hidden,
            ),
        ),
    )
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        model_type="kimi_k25",
        head=causal_head(text.vocab, text.hidden, tied=tied),
        towers=(tower,),
    )


def _merged_patches(vision: Fields) -> int:
    """Patches that become one embedding."""
    sides = vision.counts("merge_kernel_size", (2, 2), low=1, high=64)
    if len(sides) != 2:
        vision.wrong("merge_kernel_size", list(sides)[:8], "is not a height and a width")
        return 4
    return sides[0] * sides[1]


def _vision_layers(vision: Fields, hidden: int) -> Stack:
    heads = even_heads(vision, hidden, "num_attention_heads", "vt_num_attention_heads", default=16)
    width = vision.count("intermediate_size", "vt_intermediate_size", default=4304)
    attention = separate_qkv_attention(
        "attn",
        hidden,
        heads,
        heads,
        hidden // heads or 1,
        qkv_bias=True,
        out_bias=True,
        names=("q_proj", "k_proj", "v_proj", "proj"),
        causal=False,
    )
    block = Block(
        kind="kimi_k25_vision",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(attention,),
        feed_forward=plain_mlp(
            "mlp",
            hidden,
            width,
            vision.text("hidden_act", default="gelu_pytorch_tanh"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(layer_norm("norm1", hidden), layer_norm("norm2", hidden)),
    )
    layers = vision.layers("num_hidden_layers", "vt_num_hidden_layers", default=27)
    return Stack(
        path=f"{TOWER}.layers",
        hidden=hidden,
        runs=(Run(pattern=(block,), count=layers),),
        final_norms=(layer_norm("final_layernorm", hidden),),
        final_path=TOWER,
        role="vision",
    )
