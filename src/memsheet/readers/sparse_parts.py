"""The pieces that mixture-of-experts, hybrid and state-space decoders share: routers, stacked experts, the
shell around the layers.
"""

from __future__ import annotations

from memsheet.plan.model import (
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Moe,
    Norm,
    NormKind,
    Role,
    Run,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.parts import embedding_table, vocabulary_head


def router_weights(
    path: str, experts: int, hidden: int, *, bias: bool = False, dtype: str | None = None
) -> tuple[Weight, ...]:
    """The matrix that scores every expert for a token; whole on every rank."""
    weights = [Weight(path=f"{path}.weight", shape=(experts, hidden), role=Role.ROUTER, dtype=dtype)]
    if bias:
        weights.append(Weight(path=f"{path}.bias", shape=(experts,), role=Role.ROUTER))
    return tuple(weights)


def correction_bias(path: str, experts: int) -> Weight:
    """The load-balancing bias added to router scores: kept in fp32, updated by rule and not by gradient."""
    return Weight(path=f"{path}.e_score_correction_bias", shape=(experts,), role=Role.BUFFER, dtype="fp32")


def stacked_experts(path: str, experts: int, hidden: int, intermediate: int) -> tuple[Weight, ...]:
    """All routed experts in two tensors: gate and up projections together, then the down projections (out, in
    of each last).
    """
    return (
        Weight(
            path=f"{path}.gate_up_proj", shape=(experts, 2 * intermediate, hidden), role=Role.EXPERT, cut=1
        ),
        Weight(path=f"{path}.down_proj", shape=(experts, hidden, intermediate), role=Role.EXPERT, cut=2),
    )


def stacked_gated_moe(
    config: Fields,
    path: str,
    hidden: int,
    experts: int,
    *,
    per_token: int,
    intermediate: int,
    gate: str = "gate",
    shared: Dense | None = None,
    extras: tuple[Weight, ...] = (),
    router_dtype: str | None = None,
) -> Moe:
    """A router and its stacked, gated experts. ``gate`` is the router's name, ``extras`` what belongs to
    neither.
    """
    return Moe(
        path=path,
        experts=experts,
        experts_per_token=per_token,
        intermediate=intermediate,
        shared=shared,
        activation=config.text("hidden_act", default="silu"),
        weights=(
            *router_weights(f"{path}.{gate}", experts, hidden, dtype=router_dtype),
            *stacked_experts(f"{path}.experts", experts, hidden, intermediate),
            *extras,
        ),
    )


def experts_per_token(config: Fields, *keys: str, default: int | None, experts: int) -> int:
    """How many experts a token goes to; more than there are is a problem, and so is a family without a
    default.
    """
    count = config.count(*keys) if default is None else config.count(*keys, default=default)
    if experts and count > experts:
        config.wrong(keys[0], count, f"is more than the {experts} experts there are")
    return count


def key_value_heads(config: Fields, heads: int, *, default: int | None) -> int:
    """Key/value heads. A null means as many as query heads; a missing key takes ``default`` (None: query
    heads too).
    """
    absent = default if default is not None and "num_key_value_heads" not in config.data else heads
    kv_heads = config.count("num_key_value_heads", default=absent)
    config.divides(
        kv_heads, "num_attention_heads", heads, "each key/value head serves the same number of query heads"
    )
    return kv_heads


def nullable_count(config: Fields, key: str, default: int | None) -> int | None:
    """A count that null switches off; only a missing key takes ``default``."""
    return config.optional(key) if key in config.data else default


def rotary_width(config: Fields, head_dim: int, *, default: float = 1.0) -> int:
    """How many elements of a head are rotated, from ``partial_rotary_factor`` wherever a config keeps it."""
    inside = (
        config.sub("rope_parameters")
        if config.raw("rope_parameters") is not None
        else config.sub("rope_scaling")
    )
    factor = inside.number(
        "partial_rotary_factor", default=config.number("partial_rotary_factor", default=default)
    )
    return int(head_dim * min(max(factor, 0.0), 1.0))


def norm_pair(
    path: str, names: tuple[str, str], sizes: tuple[int, int], kind: NormKind = NormKind.RMS
) -> Norm:
    """The norms of query and key as one entry; ``path`` is the attention's, ``sizes`` theirs in that
    order.
    """
    weights = tuple(
        Weight(path=f"{path}.{name}.weight", shape=(size,), role=Role.NORM)
        for name, size in zip(names, sizes, strict=True)
    )
    return Norm(path=f"{path}.{names[0]}", kind=kind, size=sizes[0], weights=weights)


def layer_kinds(config: Fields, key: str, layers: int, default: list[str]) -> tuple[str, ...]:
    """One text a layer under ``key``, or ``default``; a list of another length is a problem."""
    kinds = config.texts(key, default=default)
    if len(kinds) != layers:
        config.wrong(key, None, f"names {len(kinds)} layers where num_hidden_layers is {layers}")
        return tuple(default)
    return kinds


def causal_lm(
    config: Fields,
    model_type: str,
    hidden: int,
    vocab: int,
    runs: tuple[Run, ...],
    *,
    final_norm: Norm,
    base: str = "model",
    layers: str = "layers",
    embeddings: str = "embed_tokens",
    head: str = "lm_head",
    tied: bool = False,
    head_bias: bool = False,
    scaled_embeddings: bool = False,
    scaled_logits: bool = False,
    softcap: float | None = None,
    positions: int | None = None,
) -> ModelSpec:
    """A decoder around ``runs``. ``tied``: what the family's config does when ``tie_word_embeddings`` is
    missing.
    """
    tied = config.flag("tie_word_embeddings", default=tied)
    matrix = vocabulary_head(head, vocab, hidden, bias=head_bias)
    return ModelSpec(
        name="",
        model_type=model_type,
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(embedding_table(f"{base}.{embeddings}", vocab, hidden, vocabulary=True),),
            scaled=scaled_embeddings,
        ),
        stacks=(
            Stack(
                path=f"{base}.{layers}", hidden=hidden, runs=runs, final_norms=(final_norm,), final_path=base
            ),
        ),
        head=Head(
            kind="causal_lm",
            width=vocab,
            tied=tied,
            softcap=softcap,
            scaled=scaled_logits,
            weights=matrix[1:] if tied else matrix,  # a tied head keeps its bias
        ),
        max_positions=positions,
        router_loss=config.flag("output_router_logits", default=False),
    )
