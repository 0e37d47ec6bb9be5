"""Dense decoders as a recipe: what a family's layers, norms and biases are, and the sizes a config.json may
leave out.
"""

from __future__ import annotations

from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Run,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import (
    embedding_table,
    fused_attention,
    fused_gated_mlp,
    gated_mlp,
    norm_of_kind,
    plain_mlp,
    repeating_layer_runs,
    separate_qkv_attention,
    vocabulary_head,
)
from memsheet.readers.positions import Position, Positions, everywhere_full


class Sizes(NamedTuple):
    """The defaults of a family's configuration class. ``kv_heads`` None: as many as heads; ``head_dim`` None:
    hidden over heads.
    """

    hidden: int
    vocab: int
    heads: int
    kv_heads: int | None
    head_dim: int | None
    intermediate: int
    layers: int
    positions: int


class Ask(NamedTuple):
    """A yes or no that the config may answer."""

    key: str
    default: bool = False
    alias: str | None = None  # another spelling of the key


@dataclass(frozen=True, slots=True, kw_only=True)
class QkNorm:
    """Norms on queries and keys. ``over``: ``head`` one weight of head_dim for all heads, ``width`` one over
    the whole projection, ``each_head`` a module a head, ``matrix`` a (heads, head_dim) weight normalised a
    head at a time.
    """

    over: str
    names: tuple[str, str] = ("q_norm", "k_norm")
    when: Ask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where a family differs from Llama."""

    sizes: Sizes
    norm: NormKind = NormKind.RMS
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    arrangement: Arrangement = Arrangement.PRE
    parallel: Ask | None = None  # yes: attention and feed-forward side by side, under the first norm
    qkv_bias: bool | Ask = False
    out_bias: bool | Ask = False
    mlp_bias: bool | Ask = False
    mlp: str = "gated"  # gated, fused (gate and up in one matrix), plain
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")  # of a plain one
    fused_qkv: bool = False
    qk_norm: QkNorm | None = None
    rotary_share: float | None = (
        None  # default share of head_dim that is rotated; None where the code rotates all of it
    )
    rotary_key: str | None = None  # says in elements what is rotated, where a config has it
    fixed_head_dim: bool = False  # the code takes hidden over heads whatever the config says
    positions: Positions = everywhere_full
    activation: str = "silu"
    activation_key: str = "hidden_act"
    gelu_means_tanh: bool = (
        False  # the first gemma releases say gelu and mean its tanh form; transformers reads it so too
    )
    tied: bool = False
    softcap: float | None = None  # of attention scores, under attn_logit_softcapping
    head_softcap: tuple[str, float | None] | None = None
    head_scaled: bool = False
    embeddings_scaled: bool = False
    embeddings_dropout: bool = False
    residual_scale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one config."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rotary_dim: int


def read_dense(config: Fields, recipe: Recipe, prefix: str = "model") -> ModelSpec:
    """The decoder that ``config`` describes, its modules named from ``prefix`` on."""
    model_type = config.text("model_type", default="")
    shape = read_shape(config, recipe)
    runs = repeating_layer_runs(
        recipe.positions(config, config.layers(default=recipe.sizes.layers)),
        lambda position: dense_decoder_block(config, recipe, shape, position, model_type),
    )
    return decoder_around(config, recipe, shape, runs, prefix)


def decoder_around(
    config: Fields, recipe: Recipe, shape: Shape, runs: tuple[Run, ...], prefix: str = "model"
) -> ModelSpec:
    """Embeddings, ``runs`` of layers, the final norm and the head."""
    vocab = config.count("vocab_size", default=recipe.sizes.vocab)
    tied = config.flag("tie_word_embeddings", default=recipe.tied)
    return ModelSpec(
        name="",
        model_type=config.text("model_type", default=""),
        hidden=shape.hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(embedding_table(f"{prefix}.embed_tokens", vocab, shape.hidden, vocabulary=True),),
            scaled=recipe.embeddings_scaled,
            dropout=recipe.embeddings_dropout,
        ),
        stacks=(
            Stack(
                path=f"{prefix}.layers",
                hidden=shape.hidden,
                final_norms=(norm_of_kind("norm", shape.hidden, recipe.norm),),
                final_path=prefix,
                runs=runs,
            ),
        ),
        head=Head(
            kind="causal_lm",
            width=vocab,
            tied=tied,
            scaled=recipe.head_scaled,
            softcap=softcap_or_none(config, *recipe.head_softcap) if recipe.head_softcap else None,
            weights=() if tied else vocabulary_head("lm_head", vocab, shape.hidden),
        ),
        max_positions=config.count("max_position_embeddings", default=recipe.sizes.positions),
    )


def read_shape(config: Fields, recipe: Recipe) -> Shape:
    sizes = recipe.sizes
    hidden = config.count("hidden_size", default=sizes.hidden)
    heads = config.count("num_attention_heads", default=sizes.heads)
    kv_heads = config.count(
        "num_key_value_heads",
        default=default_unless_null(config, "num_key_value_heads", sizes.kv_heads, heads),
    )
    config.divides(
        kv_heads, "num_attention_heads", heads, "each key/value head serves the same number of query heads"
    )
    whole = hidden // heads
    given = (
        whole
        if recipe.fixed_head_dim
        else config.count(
            "head_dim", default=default_unless_null(config, "head_dim", sizes.head_dim, whole), low=0
        )
    )
    told = any(problem.field.endswith("hidden_size") for problem in config.problems)
    if given < 1 and not told:
        config.wrong("num_attention_heads", heads, f"leaves no width for a head of hidden_size {hidden}")
    elif not told and config.data.get("head_dim") is None and config.data.get("model_type") in WHOLE_HEADS:
        config.divides(heads, "hidden_size", hidden, "the library refuses heads that leave a rest of it")
    return Shape(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=given,
        intermediate=config.count("intermediate_size", default=sizes.intermediate),
        rotary_dim=_rotary_width(config, recipe, given),
    )


WHOLE_HEADS = ("llama", "arcee", "cwm", "jais2")
"""Families whose heads share the hidden size where no width is given, and whose configuration raises where
they leave a rest of it (transformers 5.23.0 configuration_llama.py:96 and theirs, validate_architecture).
"""


def _rotary_width(config: Fields, recipe: Recipe, head_dim: int) -> int:
    if recipe.rotary_share is None:
        return head_dim
    share = rotary_share(config, recipe.rotary_share)
    if recipe.rotary_key is None or config.data.get(recipe.rotary_key) is None:
        return int(head_dim * share)
    return config.count(recipe.rotary_key, high=head_dim)


def default_unless_null(config: Fields, key: str, default: int | None, otherwise: int) -> int:
    """A missing key takes the family's default, an explicit null (or a family without one) ``otherwise``."""
    return otherwise if default is None or key in config.data else default


def rotary_share(config: Fields, default: float, key: str = "partial_rotary_factor") -> float:
    """The rotated share of a head: from the rope parameters, else from the config itself, else the family's
    default.
    """
    rope = config.sub("rope_scaling" if config.data.get("rope_scaling") else "rope_parameters")
    share = rope.number("partial_rotary_factor", default=config.number(key, default=default))
    if not 0 <= share <= 1:
        config.wrong(key, share, "is not a share between 0 and 1")
        return default
    return share


def softcap_or_none(config: Fields, key: str, default: float | None) -> float | None:
    """A soft cap; a null switches it off."""
    if config.data.get(key) is None:
        return None if key in config.data else default
    return config.number(key, default=0.0)


def recipe_flag(config: Fields, question: bool | Ask) -> bool:  # noqa: FBT001 - a constant or a question
    if not isinstance(question, Ask):
        return question
    keys = (question.key, question.alias) if question.alias else (question.key,)
    return config.flag(*keys, default=question.default)


def dense_decoder_block(config: Fields, recipe: Recipe, shape: Shape, position: Position, kind: str) -> Block:
    parallel = recipe.parallel is not None and recipe_flag(config, recipe.parallel)
    names = recipe.norms[:1] if parallel else recipe.norms
    return Block(
        kind=kind,
        hidden=shape.hidden,
        arrangement=Arrangement.PARALLEL if parallel else recipe.arrangement,
        mixers=(dense_self_attention(config, recipe, shape, position),),
        feed_forward=feed_forward(config, recipe, shape),
        norms=tuple(norm_of_kind(name, shape.hidden, recipe.norm) for name in names),
        residual_scale=recipe.residual_scale,
    )


def dense_self_attention(config: Fields, recipe: Recipe, shape: Shape, position: Position) -> Attention:
    sizes = (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim)
    qkv_bias, out_bias = recipe_flag(config, recipe.qkv_bias), recipe_flag(config, recipe.out_bias)
    rotary, window = shape.rotary_dim if position.rotary else 0, position.window
    if recipe.fused_qkv:
        return fused_attention(
            "self_attn", *sizes, qkv_bias=qkv_bias, out_bias=out_bias, rotary_dim=rotary, window=window
        )
    return separate_qkv_attention(
        "self_attn",
        *sizes,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        rotary_dim=rotary,
        window=window,
        qk_norm=qk_norm(config, recipe, shape),
        softcap=None
        if recipe.softcap is None
        else softcap_or_none(config, "attn_logit_softcapping", recipe.softcap),
    )


def feed_forward(config: Fields, recipe: Recipe, shape: Shape) -> Dense:
    activation = config.text(recipe.activation_key, default=recipe.activation)
    if recipe.gelu_means_tanh and activation == "gelu":
        activation = recipe.activation
    bias = recipe_flag(config, recipe.mlp_bias)
    match recipe.mlp:
        case "plain":
            plain = plain_mlp(
                "mlp", shape.hidden, shape.intermediate, activation, bias=bias, names=recipe.mlp_names
            )
            return replace(plain, weights=(*plain.weights, *activation_weights("mlp.act_fn", activation)))
        case "fused":
            return fused_gated_mlp("mlp", shape.hidden, shape.intermediate, activation)
        case _:
            return gated_mlp("mlp", shape.hidden, shape.intermediate, activation, bias=bias)


def activation_weights(path: str, activation: str) -> tuple[Weight, ...]:
    """What an activation learns: two numbers of xielu, beside two constants (activations.py,
    XIELUActivation).
    """
    if activation != "xielu":
        return ()
    learned = (Weight(path=f"{path}.{name}", shape=(1,), role=Role.OTHER) for name in ("alpha_p", "alpha_n"))
    constant = (Weight(path=f"{path}.{name}", shape=(1,), role=Role.BUFFER) for name in ("beta", "eps"))
    return (*learned, *constant)


def qk_norm(config: Fields, recipe: Recipe, shape: Shape) -> Norm | None:
    style = recipe.qk_norm
    if style is None or (style.when is not None and not recipe_flag(config, style.when)):
        return None
    size = shape.heads * shape.head_dim if style.over == "width" else shape.head_dim
    weights = tuple(
        _qk_weight(f"self_attn.{name}", style.over, heads, shape.head_dim)
        for name, heads in zip(style.names, (shape.heads, shape.kv_heads), strict=True)
    )
    return Norm(path=f"self_attn.{style.names[0]}", kind=recipe.norm, size=size, weights=weights)


def _qk_weight(path: str, over: str, heads: int, head_dim: int) -> Weight:
    match over:
        case "width":
            return Weight(path=f"{path}.weight", shape=(heads * head_dim,), role=Role.NORM)
        case "each_head":
            return Weight(path=f"{path}.norms.*.weight", shape=(head_dim,), role=Role.NORM, copies=heads)
        case "matrix":
            return Weight(path=f"{path}.weight", shape=(heads, head_dim), role=Role.NORM)
        case _:
            return Weight(path=f"{path}.weight", shape=(head_dim,), role=Role.NORM)
