"""Vision encoders of multimodal families, as their vision_config names them: CLIP, SigLIP and Pixtral, which
several share, and those of Idefics3 and InternVL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import Arrangement, Block, Norm, Role, Stack, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, height_and_width, patch_size_and_count
from memsheet.readers.parts import (
    embedding_table,
    gated_mlp,
    layer_norm,
    linear_weights,
    plain_mlp,
    rms_norm,
    run_length,
    separate_qkv_attention,
)

_ENCODERS = (
    "clip_vision_model", "siglip_vision_model", "pixtral", "idefics3_vision", "smolvlm_vision", "internvl_vision",
    "siglip2_vision_model",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision encoder under its path in the whole model."""

    hidden: int
    stack: Stack
    embeddings: tuple[Weight, ...]
    extras: tuple[Weight, ...] = ()
    patches: int | None = None  # of one image; None: depends on the image
    class_token: bool = False


def vision_model(
    config: Fields, path: str, default_type: str, absent: Mapping[str, Any] | None = None
) -> Vision:
    """The encoder that ``vision_config`` describes (``absent`` where there is none), its modules under
    ``path``.
    """
    vision = config.sub("vision_config", absent)
    match vision.text("model_type", default=default_type, choices=_ENCODERS):
        case "idefics3_vision" | "smolvlm_vision":
            return _idefics3_vision_model(vision, path)
        case "internvl_vision":
            return _internvl_vision_model(vision, path)
        case "pixtral":
            return _pixtral_vision_model(vision, path)
        case "siglip2_vision_model":
            return _siglip2_vision_model(vision, path)
        case "siglip_vision_model":
            return _siglip_vision_model(vision, path)
        case _:
            return _clip_vision_model(vision, path)


def patch_convolution_weights(
    path: str, hidden: int, channels: int, kernel: tuple[int, ...], *, bias: bool
) -> tuple[Weight, ...]:
    """Patches to vectors: a convolution whose stride is its kernel, used as a linear layer."""
    weight = Weight(path=f"{path}.weight", shape=(hidden, channels, *kernel), role=Role.LINEAR)
    return (weight, Weight(path=f"{path}.bias", shape=(hidden,), role=Role.BIAS)) if bias else (weight,)


def even_heads(config: Fields, hidden: int, *keys: str, default: int, width: str = "hidden_size") -> int:
    """Attention heads, each an equal share of ``hidden``, which the config calls ``width``."""
    heads = config.count(*keys, default=default)
    config.divides(heads, width, hidden, "each attention head takes an equal share")
    return heads


def clip_block(config: Fields, kind: str, hidden: int, intermediate: int, activation: str) -> Block:
    heads = even_heads(config, hidden, "num_attention_heads", default=12)
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(
            separate_qkv_attention(
                "self_attn",
                hidden,
                heads,
                heads,
                hidden // heads,
                qkv_bias=True,
                out_bias=True,
                causal=False,
                rotary_dim=0,
                names=("q_proj", "k_proj", "v_proj", "out_proj"),
            ),
        ),
        feed_forward=plain_mlp("mlp", hidden, intermediate, activation, bias=True, names=("fc1", "fc2")),
        norms=(layer_norm("layer_norm1", hidden), layer_norm("layer_norm2", hidden)),
    )


def vision_encoder_stack(
    path: str, config: Fields, block: Block, *final: Norm, layers: int = 12, at: str = "encoder.layers"
) -> Stack:
    return Stack(
        path=f"{path}.{at}",
        hidden=block.hidden,
        runs=run_length([block] * config.layers(default=layers)),
        final_norms=final,
        final_path=path,
        role="vision",
    )


def _clip_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: CLIPVisionConfig. The last norm sees only the class token."""
    hidden = config.count("hidden_size", default=768)
    patch, count = patch_size_and_count(config, image=224, patch=32)
    block = clip_block(
        config,
        "clip_vision_model",
        hidden,
        config.count("intermediate_size", default=3072),
        config.text("hidden_act", default="quick_gelu"),
    )
    embeddings = (
        bare_parameter(f"{path}.embeddings.class_embedding", hidden),
        *patch_convolution_weights(
            f"{path}.embeddings.patch_embedding",
            hidden,
            config.count("num_channels", default=3),
            patch,
            bias=False,
        ),
        embedding_table(f"{path}.embeddings.position_embedding", count + 1, hidden),
        *layer_norm(f"{path}.pre_layrnorm", hidden).weights,  # spelt so in the model's code
    )
    stack = vision_encoder_stack(path, config, block, layer_norm("post_layernorm", hidden))
    return Vision(hidden=hidden, stack=stack, embeddings=embeddings, patches=count, class_token=True)


def _siglip_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: SiglipVisionConfig."""
    hidden = config.count("hidden_size", default=768)
    intermediate = config.count("intermediate_size", default=3072)
    patch, count = patch_size_and_count(config, image=224, patch=16)
    block = clip_block(
        config,
        "siglip_vision_model",
        hidden,
        intermediate,
        config.text("hidden_act", default="gelu_pytorch_tanh"),
    )
    embeddings = (
        *patch_convolution_weights(
            f"{path}.embeddings.patch_embedding",
            hidden,
            config.count("num_channels", default=3),
            patch,
            bias=True,
        ),
        embedding_table(f"{path}.embeddings.position_embedding", count, hidden),
    )
    pooling = (
        _siglip_pooling(f"{path}.head", hidden, intermediate)
        if config.flag("vision_use_head", default=True)
        else ()
    )
    stack = vision_encoder_stack(path, config, block, layer_norm("post_layernorm", hidden))
    return Vision(hidden=hidden, stack=stack, embeddings=embeddings, extras=pooling, patches=count)


def _siglip2_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: Siglip2VisionConfig. SigLIP over patches that are cut before it, of pictures of any shape."""
    hidden = config.count("hidden_size", default=768)
    intermediate = config.count("intermediate_size", default=3072)
    activation = config.text("hidden_act", default="gelu_pytorch_tanh")
    side = config.count("patch_size", default=16)
    pixels = config.count("num_channels", default=3) * side * side
    block = clip_block(config, "siglip2_vision_model", hidden, intermediate, activation)
    embeddings = (
        *linear_weights(f"{path}.embeddings.patch_embedding", hidden, pixels, bias=True),
        embedding_table(
            f"{path}.embeddings.position_embedding", config.count("num_patches", default=256), hidden
        ),
    )
    pooling = (
        _siglip_pooling(f"{path}.head", hidden, intermediate)
        if config.flag("vision_use_head", default=True)
        else ()
    )
    stack = vision_encoder_stack(path, config, block, layer_norm("post_layernorm", hidden))
    return Vision(hidden=hidden, stack=stack, embeddings=embeddings, extras=pooling)


def _siglip_pooling(path: str, hidden: int, intermediate: int) -> tuple[Weight, ...]:
    """Attention of one learned query over the patches. No family here uses its output, its tensors are there
    all the same.
    """
    return (
        bare_parameter(f"{path}.probe", 1, 1, hidden),
        bare_parameter(f"{path}.attention.in_proj_weight", 3 * hidden, hidden, role=Role.LINEAR),
        bare_parameter(f"{path}.attention.in_proj_bias", 3 * hidden, role=Role.BIAS),
        *linear_weights(f"{path}.attention.out_proj", hidden, hidden, bias=True),
        *layer_norm(f"{path}.layernorm", hidden).weights,
        *plain_mlp(f"{path}.mlp", hidden, intermediate, "", bias=True, names=("fc1", "fc2")).weights,
    )


def _pixtral_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: PixtralVisionConfig. Images keep their shape, so the number of patches is theirs."""
    hidden = config.count("hidden_size", default=1024)
    heads = even_heads(config, hidden, "num_attention_heads", default=16)
    block = Block(
        kind="pixtral",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(separate_qkv_attention("attention", hidden, heads, heads, hidden // heads, causal=False),),
        feed_forward=gated_mlp(
            "feed_forward",
            hidden,
            config.count("intermediate_size", default=4096),
            config.text("hidden_act", default="gelu"),
        ),
        norms=(rms_norm("attention_norm", hidden), rms_norm("ffn_norm", hidden)),
    )
    embeddings = (
        *patch_convolution_weights(
            f"{path}.patch_conv",
            hidden,
            config.count("num_channels", default=3),
            height_and_width(config, "patch_size", 16),
            bias=False,
        ),
        *rms_norm(f"{path}.ln_pre", hidden).weights,
    )
    return Vision(
        hidden=hidden,
        stack=vision_encoder_stack(path, config, block, layers=24, at="transformer.layers"),
        embeddings=embeddings,
    )


def _idefics3_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: Idefics3VisionConfig and SmolVLMVisionConfig. SigLIP's modules without its pooling."""
    hidden = config.count("hidden_size", default=1152)
    patch, count = patch_size_and_count(config, image=224, patch=32)
    side = height_and_width(config, "image_size", 224)[0] // patch[0]
    block = clip_block(
        Fields({"num_attention_heads": 16, **config.data}, config.where, config.problems),
        config.text("model_type", default="idefics3_vision"),
        hidden,
        config.count("intermediate_size", default=3072),
        config.text("hidden_act", default="gelu_pytorch_tanh"),
    )
    channels = config.count("num_channels", default=3)
    embeddings = (
        *patch_convolution_weights(
            f"{path}.embeddings.patch_embedding", hidden, channels, (patch[0], patch[0]), bias=True
        ),
        embedding_table(f"{path}.embeddings.position_embedding", side * side, hidden),
    )
    stack = vision_encoder_stack(path, config, block, layer_norm("post_layernorm", hidden))
    return Vision(hidden=hidden, stack=stack, embeddings=embeddings, patches=count)


def _internvl_vision_model(config: Fields, path: str) -> Vision:
    """Defaults: InternVLVisionConfig. ViT's layers with a learned scale of each branch."""
    hidden = config.count("hidden_size", default=1024)
    patch, count = patch_size_and_count(config, image=448, patch=14)
    masked = config.flag("use_mask_token", default=False)
    placed = config.flag("use_absolute_position_embeddings", default=True)
    embeddings = (
        bare_parameter(f"{path}.embeddings.cls_token", 1, 1, hidden),
        *((bare_parameter(f"{path}.embeddings.mask_token", 1, 1, hidden),) if masked else ()),
        *(
            (bare_parameter(f"{path}.embeddings.position_embeddings", 1, count + 1, hidden),)
            if placed
            else ()
        ),
        *patch_convolution_weights(
            f"{path}.embeddings.patch_embeddings.projection",
            hidden,
            config.count("num_channels", default=3),
            patch,
            bias=True,
        ),
    )
    final = () if config.flag("use_mean_pooling", default=True) else (layer_norm("layernorm", hidden),)
    stack = vision_encoder_stack(
        path, config, _internvl_vision_block(config, hidden), *final, layers=24, at="encoder.layer"
    )
    return Vision(hidden=hidden, stack=stack, embeddings=embeddings, patches=count, class_token=True)


def _internvl_vision_block(config: Fields, hidden: int) -> Block:
    heads = even_heads(config, hidden, "num_attention_heads", default=16)
    style = config.text("norm_type", default="layer_norm", choices=("layer_norm", "rms_norm"))
    norm = layer_norm if style == "layer_norm" else rms_norm
    normed = config.flag("use_qk_norm", default=False)
    scales = tuple(
        weight for name in ("q_norm", "k_norm") for weight in rms_norm(f"attention.{name}", hidden).weights
    )
    mixer = separate_qkv_attention(
        "attention", hidden, heads, heads, hidden // heads, qkv_bias=config.flag("attention_bias", default=False),
        out_bias=True, causal=False, rotary_dim=0, names=("q_proj", "k_proj", "v_proj", "projection_layer"),
        qk_norm=replace(rms_norm("attention.q_norm", hidden), weights=scales) if normed else None,
    )  # fmt: skip
    return Block(
        kind="internvl_vision",
        hidden=hidden,
        arrangement=Arrangement.PRE,
        mixers=(mixer,),
        feed_forward=plain_mlp(
            "mlp",
            hidden,
            config.count("intermediate_size", default=4096),
            config.text("hidden_act", default="gelu"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=(norm("layernorm_before", hidden), norm("layernorm_after", hidden)),
        extras=tuple(bare_parameter(f"lambda_{n}", hidden, role=Role.OTHER) for n in (1, 2)),
    )
