"""Mixtures of experts whose layers are a dense family's with a router and stacked experts in place of the
feed-forward: a dense recipe and one of experts each.

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.
"""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    ModelSpec,
    Moe,
    NormKind,
    Role,
    Weight,
)
from memsheet.readers.dense import (
    Ask,
    QkNorm,
    Recipe,
    Shape,
    Sizes,
    decoder_around,
    dense_decoder_block,
    read_shape,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import fused_gated_mlp, gated_mlp, linear_weights, repeating_layer_runs
from memsheet.readers.positions import (
    Position,
    every_nth_full,
    exaone4_layer_positions,
    sliding_from_max_window,
)
from memsheet.readers.sparse_parts import correction_bias, experts_per_token, stacked_gated_moe

_BIAS = Ask("attention_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A family's experts. ``width``: the key of one's width and its default, None where it is
    intermediate_size; ``shared``: the key of how many widths the shared one has and its default; ``dense``:
    the key of how many first layers have none; ``kinds``: that of a list that says it of each layer;
    ``correction``: the module that has the bias of the choice. Counts without a default are asked for.
    """

    count: tuple[str, ...]
    experts: int | None
    keys: tuple[str, ...] = ("num_experts_per_tok",)
    per_token: int | None
    path: str = "mlp"
    gate: str = "gate"
    width: tuple[str, int] | None = None
    shared: tuple[str, int | None] | None = None
    dense: tuple[str, int] | None = None
    kinds: str | None = None
    correction: str | None = None


# fmt: off
RECIPES: dict[str, tuple[Recipe, Experts]] = {
    #                           hidden   vocab heads  kv    head_dim  ffn  layers positions
    "minimax_m2": (
        Recipe(sizes=Sizes(3072, 200064, 48, 8, 128, 1536, 62, 196608), qk_norm=QkNorm(over="width"), rotary_share=1.0, rotary_key="rotary_dim"),
        Experts(count=("num_local_experts", "num_experts"), experts=256, per_token=8, correction="mlp"),
    ),
    "dots1": (
        Recipe(
            sizes=Sizes(4608, 152064, 32, 32, None, 10944, 62, 2048), qkv_bias=_BIAS, out_bias=_BIAS, qk_norm=QkNorm(over="head"),
            positions=sliding_from_max_window(4096, 62),
        ),
        Experts(
            count=("n_routed_experts", "num_local_experts"), experts=None, per_token=None, width=("moe_intermediate_size", 1408),
            shared=("n_shared_experts", None), dense=("first_k_dense_replace", 0), correction="mlp.gate",
        ),
    ),
    "hunyuan_v1_moe": (
        Recipe(
            sizes=Sizes(4096, 290943, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS,
            qk_norm=QkNorm(over="head", names=("query_layernorm", "key_layernorm")),
        ),
        Experts(count=("num_experts", "num_local_experts"), experts=1, keys=("moe_topk", "num_experts_per_tok"), per_token=1, gate="gate.wg"),
    ),
    "exaone_moe": (
        Recipe(sizes=Sizes(4096, 102400, 32, 32, None, 16384, 32, 2048), qk_norm=QkNorm(over="head"), positions=exaone4_layer_positions),
        Experts(
            count=("num_experts",), experts=64, per_token=8, width=("moe_intermediate_size", 1024), shared=("num_shared_experts", 1),
            dense=("first_k_dense_replace", 1), kinds="mlp_layer_types", correction="mlp.gate",
        ),
    ),
    "afmoe": (
        Recipe(
            sizes=Sizes(2048, 200192, 16, None, 128, 6144, 32, 16384), qkv_bias=_BIAS, out_bias=_BIAS, qk_norm=QkNorm(over="head"),
            norm=NormKind.RMS_FP32_SCALE, arrangement=Arrangement.SANDWICH,
            norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
            positions=every_nth_full(4, 1024, rotate_full=False, key="global_attn_every_n_layers"),
        ),
        Experts(
            count=("num_experts",), experts=64, per_token=6, gate="router.gate", width=("moe_intermediate_size", 1408),
            shared=("num_shared_experts", 2), dense=("num_dense_layers", 1),
        ),
    ),
    "granitemoeshared": (
        Recipe(
            sizes=Sizes(4096, 32000, 32, None, None, 11008, 32, 2048), qkv_bias=_BIAS, out_bias=_BIAS, residual_scale=True,
            embeddings_scaled=True, head_scaled=True,
        ),
        Experts(count=("num_local_experts",), experts=8, per_token=2, path="block_sparse_moe", gate="router"),
    ),
    "flex_olmo": (
        Recipe(
            sizes=Sizes(4096, 100352, 32, None, None, 11008, 32, 4096), qkv_bias=_BIAS, out_bias=_BIAS, norm=NormKind.RMS_FP32_SCALE,
            norms=("post_attention_layernorm", "post_feedforward_layernorm"), arrangement=Arrangement.POST_BRANCH, qk_norm=QkNorm(over="width"),
        ),
        Experts(count=("num_experts", "num_local_experts"), experts=7, per_token=5),
    ),
    "hy_v3": (
        Recipe(sizes=Sizes(4096, 120832, 64, 8, 128, 13312, 80, 131072), qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Ask("mlp_bias"), qk_norm=QkNorm(over="head")),
        Experts(
            count=("num_experts", "num_local_experts"), experts=192, per_token=8, width=("moe_intermediate_size", 1536),
            shared=("num_shared_experts", 1), dense=("first_k_dense_replace", 1), kinds="mlp_layer_types", correction="mlp",
        ),
    ),
}
# fmt: on


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="", choices=tuple(RECIPES)) or "minimax_m2"
    recipe, experts = RECIPES[kind]
    config = _with_one_choice(config, experts.keys[0])
    shape, layers = read_shape(config, recipe), config.layers(default=recipe.sizes.layers)
    routed = _experts_of(config, kind, shape, experts)
    keys = list(zip(recipe.positions(config, layers), _routed_layers(config, experts, layers), strict=True))

    def make(key: tuple[Position, bool]) -> Block:
        block = dense_decoder_block(config, recipe, shape, key[0], kind)
        block = replace(block, feed_forward=routed) if key[1] else block
        return _gated_block(block, shape) if kind == "afmoe" else block

    scaled = kind == "afmoe" and config.flag("mup_enabled", default=False)
    recipe = replace(recipe, embeddings_scaled=recipe.embeddings_scaled or scaled)
    spec = decoder_around(config, recipe, shape, repeating_layer_runs(keys, make))
    return replace(spec, router_loss=config.flag("output_router_logits", default=False))


def _with_one_choice(config: Fields, key: str) -> Fields:
    """A config that says of each layer how many experts a token goes to (hunyuan_v1_moe) as one that says it
    once.
    """
    if not isinstance(config.data.get(key), list):
        return config
    each = config.counts(key, low=1)
    if len(set(each)) != 1:
        config.wrong(key, list(each)[:8], "is not one number for all layers, and others are not modelled")
    return Fields({**config.data, key: each[0] if each else 1}, config.where, config.problems)


def _routed_layers(config: Fields, experts: Experts, layers: int) -> tuple[bool, ...]:
    """Which layers have experts; the others keep a dense feed-forward."""
    first = config.count(experts.dense[0], default=experts.dense[1], low=0) if experts.dense else 0
    kinds = config.texts(experts.kinds) if experts.kinds else ()
    if kinds and experts.kinds and (len(kinds) != layers or set(kinds) - {"dense", "sparse"}):
        config.wrong(
            experts.kinds, list(kinds)[:8], f"does not say dense or sparse for each of {layers} layers"
        )
        kinds = ()
    return tuple(kinds[i] == "sparse" if kinds else i >= first for i in range(layers))


def _experts_of(config: Fields, kind: str, shape: Shape, experts: Experts) -> Moe:
    count = (
        config.count(*experts.count)
        if experts.experts is None
        else config.count(*experts.count, default=experts.experts)
    )
    width = config.count(experts.width[0], default=experts.width[1]) if experts.width else shape.intermediate
    return stacked_gated_moe(
        config,
        experts.path,
        shape.hidden,
        count,
        per_token=experts_per_token(config, *experts.keys, default=experts.per_token, experts=count),
        intermediate=width,
        gate=experts.gate,
        shared=_shared_expert(config, kind, shape, experts, width),
        extras=_choice_bias(kind, experts, count),
        router_dtype="fp32" if kind == "hunyuan_v1_moe" else None,
    )


def _choice_bias(kind: str, experts: Experts, count: int) -> tuple[Weight, ...]:
    """What is added to scores for the choice alone; afmoe's is a parameter that asks for no gradient."""
    if kind == "afmoe":
        return (Weight(path="mlp.expert_bias", shape=(count,), role=Role.OTHER),)
    return (correction_bias(experts.correction, count),) if experts.correction else ()


def _shared_expert(config: Fields, kind: str, shape: Shape, experts: Experts, width: int) -> Dense | None:
    """The expert that every token goes through."""
    hidden, activation = shape.hidden, config.text("hidden_act", default="silu")
    match kind:
        case "granitemoeshared":  # beside the experts' module, gate and up in one matrix
            size = config.count("shared_intermediate_size", default=0, low=0)
            names = ("input_linear", "output_linear")
            return fused_gated_mlp("shared_mlp", hidden, size, activation, names=names) if size else None
        case "hunyuan_v1_moe":
            return gated_mlp("mlp.shared_mlp", hidden, width, activation)
        case _ if experts.shared is None:
            return None
    key, default = experts.shared
    count = config.count(key, low=0) if default is None else config.count(key, default=default, low=0)
    bias = kind == "hy_v3" and config.flag("mlp_bias", default=False)
    return gated_mlp("mlp.shared_experts", hidden, count * width, activation, bias=bias) if count else None


def _gated_block(block: Block, shape: Shape) -> Block:
    """A block whose attention's output is multiplied with the sigmoid of a projection of its own."""
    (at,) = block.mixers
    assert isinstance(at, Attention)
    gate = linear_weights(
        f"{at.path}.gate_proj", shape.heads * shape.head_dim, shape.hidden, cut="out", units=shape.heads
    )
    return replace(block, mixers=(replace(at, gated_output=True, weights=(*at.weights, *gate)),))
