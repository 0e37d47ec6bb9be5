"""ViT: an encoder of image patches with a class token, in every class of its modeling file."""

from __future__ import annotations

from memsheet.plan.model import Arrangement, Block, Embeddings, Head, ModelSpec, Stack, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.nested import architecture, labels, patches, tensor
from memsheet.readers.parts import attention, layer_norm, linear, plain_mlp, run_length
from memsheet.readers.vision import convolution, even_heads

_CLASSES = ("ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling")


def read(config: Fields) -> ModelSpec:
    """Defaults: ViTConfig. There is no vocabulary; max_positions is the class token and the patches of one image."""
    name = architecture(config, _CLASSES, _CLASSES[0])
    hidden = config.count("hidden_size", default=768)
    base = "" if name == "ViTModel" else "vit."
    _, count = patches(config, image=224, patch=16)
    return ModelSpec(
        name="", model_type="vit", hidden=hidden, vocab=0, max_positions=count + 1,
        embeddings=Embeddings(weights=_embeddings(config, f"{base}embeddings", hidden, masked=name == _CLASSES[2]), dropout=True),
        stacks=(Stack(
            path=f"{base}layers", hidden=hidden, runs=run_length([_block(config, hidden)] * config.layers(default=12)), role="vision",
            final_norms=(layer_norm(f"{base}layernorm", hidden),),
        ),),
        head=_head(config, name, hidden), extras=_pooler(config, hidden) if name == "ViTModel" else (),
    )  # fmt: skip


def _embeddings(config: Fields, path: str, hidden: int, *, masked: bool) -> tuple[Weight, ...]:
    patch, count = patches(config, image=224, patch=16)
    channels = config.count("num_channels", default=3)
    return (
        tensor(f"{path}.cls_token", 1, 1, hidden),
        *((tensor(f"{path}.mask_token", 1, 1, hidden),) if masked else ()),
        tensor(f"{path}.position_embeddings", 1, count + 1, hidden),
        *convolution(f"{path}.patch_embeddings.projection", hidden, channels, patch, bias=True),
    )


def _block(config: Fields, hidden: int) -> Block:
    own = config.optional("head_dim")  # transformers 5.23 modeling_vit.py:197
    heads = config.count("num_attention_heads", default=12) if own else even_heads(config, hidden, "num_attention_heads", default=12)
    return Block(
        kind="vit", hidden=hidden, arrangement=Arrangement.PRE,
        mixers=(attention(
            "attention", hidden, heads, heads, own or hidden // heads, causal=False, rotary_dim=0,
            qkv_bias=config.flag("qkv_bias", default=True), out_bias=True,
        ),),
        feed_forward=plain_mlp(
            "mlp", hidden, config.count("intermediate_size", default=3072), config.text("hidden_act", default="gelu"), bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(layer_norm("layernorm_before", hidden), layer_norm("layernorm_after", hidden)),
    )  # fmt: skip


def _pooler(config: Fields, hidden: int) -> tuple[Weight, ...]:
    return linear("pooler.dense", config.count("pooler_output_size", default=hidden), hidden, bias=True)


def _head(config: Fields, name: str, hidden: int) -> Head:
    match name:
        case "ViTForImageClassification":
            count = labels(config)
            return Head(kind="classification", width=count, weights=linear("classifier", count, hidden, bias=True) if count else ())
        case "ViTForMaskedImageModeling":
            # pixels of a patch of encoder_stride, from a convolution of one patch
            pixels = config.count("encoder_stride", default=16) ** 2 * config.count("num_channels", default=3)
            decoder = convolution("decoder.0", pixels, hidden, (1, 1), bias=True)
            return Head(kind="none", width=pixels, weights=decoder)
        case _:
            return Head(kind="none", width=hidden)
