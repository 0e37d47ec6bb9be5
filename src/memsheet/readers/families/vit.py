"""ViT: an encoder of image patches with a class token, in every class of its modeling file."""

from __future__ import annotations

from memsheet.plan.model import Arrangement, Block, Embeddings, Head, ModelSpec, Stack, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, class_label_count, model_class_name, patch_size_and_count
from memsheet.readers.parts import layer_norm, linear_weights, plain_mlp, run_length, separate_qkv_attention
from memsheet.readers.vision import even_heads, patch_convolution_weights

_CLASSES = ("ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling")


def read(config: Fields) -> ModelSpec:
    """Defaults: ViTConfig. There is no vocabulary; max_positions is the class token and the patches of one
    image.
    """
    name = model_class_name(config, _CLASSES, _CLASSES[0])
    hidden = config.count("hidden_size", default=768)
    base = "" if name == "ViTModel" else "vit."
    _, count = patch_size_and_count(config, image=224, patch=16)
    return ModelSpec(
        name="",
        model_type="vit",
        hidden=hidden,
        vocab=0,
        max_positions=count + 1,
        embeddings=Embeddings(
            weights=_vit_patch_embeddings(config, f"{base}embeddings", hidden, masked=name == _CLASSES[2]),
            dropout=True,
        ),
        stacks=(
            Stack(
                path=f"{base}layers",
                hidden=hidden,
                runs=run_length([_vit_encoder_block(config, hidden)] * config.layers(default=12)),
                role="vision",
                final_norms=(layer_norm(f"{base}layernorm", hidden),),
            ),
        ),
        head=_vit_task_head(config, name, hidden),
        extras=_vit_pooler_weights(config, hidden) if name == "ViTModel" else (),
    )


def _vit_patch_embeddings(config: Fields, path: str, hidden: int, *, masked: bool) -> tuple[Weight, ...]:
    patch, count = patch_size_and_count(config, image=224, patch=16)
    channels = config.count("num_channels", default=3)
    return (
        bare_parameter(f"{path}.cls_token", 1, 1, hidden),
        *((bare_parameter(f"{path}.mask_token", 1, 1, hidden),) if masked else ()),
        bare_parameter(f"{path}.position_embeddings", 1, count + 1, hidden),
        *patch_convolution_weights(f"{path}.patch_embeddings.projection", hidden, channels, patch, bias=True),
    )


def _vit_encoder_block(config: Fields, hidden: int) -> Block:
    own = config.optional("head_dim")  # transformers 5.23 modeling_vit.py:197
    heads = (
        config.count("num_attention_heads", default=12)
        if own
        else even_heads(config, hidden, "num_attention_heads", default=12)
    )
    return Block(
        kind="vit",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(
            separate_qkv_attention(
                "attention",
                hidden,
                heads,
                heads,
                own or hidden // heads,
                causal=False,
                rotary_dim=0,
                qkv_bias=config.flag("qkv_bias", default=True),
                out_bias=True,
            ),
        ),
        feed_forward=plain_mlp(
            "mlp",
            hidden,
            config.count("intermediate_size", default=3072),
            config.text("hidden_act", default="gelu"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(layer_norm("layernorm_before", hidden), layer_norm("layernorm_after", hidden)),
    )


def _vit_pooler_weights(config: Fields, hidden: int) -> tuple[Weight, ...]:
    return linear_weights(
        "pooler.dense", config.count("pooler_output_size", default=hidden), hidden, bias=True
    )


def _vit_task_head(config: Fields, name: str, hidden: int) -> Head:
    match name:
        case "ViTForImageClassification":
            count = class_label_count(config)
            return Head(
                kind="classification",
                width=count,
                weights=linear_weights("classifier", count, hidden, bias=True) if count else (),
            )
        case "ViTForMaskedImageModeling":
            # pixels of a patch of encoder_stride, from a convolution of one patch
            pixels = config.count("encoder_stride", default=16) ** 2 * config.count("num_channels", default=3)
            decoder = patch_convolution_weights("decoder.0", pixels, hidden, (1, 1), bias=True)
            return Head(kind="none", width=pixels, weights=decoder)
        case _:
            return Head(kind="none", width=hidden)
