"""MiniMax-M3 with its tower for pictures: pre-normed layers over patches of any number, a projector, and a
merger of four neighbours into one place of the text.

Defaults and tensor names are of MiniMaxM3VLConfig, MiniMaxM3VLVisionConfig and modeling_minimax_m3_vl.py
of transformers 5.23. vLLM cuts the tower as it does the text (``READ_IN``).
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, ModelSpec, Role, Run, Stack, Tower, Weight
from memsheet.readers.families.minimax_m3 import read as text_spec
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, rename_path_roots, tied_by_either
from memsheet.readers.parts import layer_norm, linear_weights, plain_mlp, separate_qkv_attention

WHOLE_MODEL = "MiniMaxM3SparseForConditionalGeneration"
VISION, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"


def read(config: Fields) -> ModelSpec:
    model_class_name(config, (WHOLE_MODEL,), WHOLE_MODEL)
    nested = config.sub("text_config")
    text = text_spec(Fields(nested.data, nested.where, config.problems))
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        model_type="minimax_m3_vl",
        head=causal_head(text.vocab, text.hidden, tied=tied_by_either(config, nested)),
        towers=(_picture_tower(config, text.hidden),),
    )


def _picture_tower(config: Fields, hidden: int) -> Tower:
    vision = config.sub("vision_config")
    own = vision.count("hidden_size", default=1280)
    patch, frames = vision.count("patch_size", default=14), vision.count("temporal_patch_size", default=2)
    shape = (own, vision.count("num_channels", default=3), frames, patch, patch)
    merged = hidden * vision.count("spatial_merge_size", default=2) ** 2
    between = config.count("projector_hidden_size", default=6144)
    block, layers = _tower_layer(vision, own), vision.layers(default=32)
    return Tower(
        path=VISION,
        stack=Stack(
            path=f"{VISION}.layers", hidden=own, runs=(Run(pattern=(block,), count=layers),), role="vision"
        ),
        embeddings=(
            Weight(path=f"{VISION}.embeddings.proj.weight", shape=shape, role=Role.LINEAR),
            *layer_norm(f"{VISION}.pre_layrnorm", own).weights,
        ),
        projector=(
            *linear_weights(f"{PROJECTOR}.linear_1", between, own, bias=True, cut="out"),
            *linear_weights(f"{PROJECTOR}.linear_2", hidden, between, bias=True, cut="in"),
            *linear_weights(f"{PROJECTOR}.merge_linear_1", between, merged, bias=True, cut="out"),
            *linear_weights(f"{PROJECTOR}.merge_linear_2", hidden, between, bias=True, cut="in"),
        ),
    )


def _tower_layer(vision: Fields, own: int) -> Block:
    heads = vision.count("num_attention_heads", default=16)
    vision.divides(heads, "hidden_size", own, "each attention head takes an equal share")
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    width, activation = (
        vision.count("intermediate_size", default=5120),
        vision.text("hidden_act", default="gelu"),
    )
    return Block(
        kind="minimax_m3_vl_vision",
        hidden=own,
        arrangement=Arrangement.PRE,
        mixers=(
            separate_qkv_attention(
                "self_attn",
                own,
                heads,
                heads,
                max(own // heads, 1),
                names=names,
                qkv_bias=True,
                out_bias=True,
                causal=False,
            ),
        ),
        feed_forward=plain_mlp("mlp", own, width, activation, bias=True, names=("fc1", "fc2")),
        norms=(layer_norm("layer_norm1", own), layer_norm("layer_norm2", own)),
    )
