"""The pieces that model families are put together from: linear layers, norms, attention, feed-forwards, runs
of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from memsheet.frozen import replace
from memsheet.plan.model import Attention, Block, Dense, Norm, NormKind, Role, Run, Weight

Key = TypeVar("Key")


def linear_weights(
    path: str,
    out: int,
    width: int,
    *,
    bias: bool = False,
    cut: str | None = None,
    units: int = 0,
    role: Role = Role.LINEAR,
) -> tuple[Weight, ...]:
    """Weight (and bias) of a linear layer ``width`` → ``out``.

    ``cut="out"`` splits the outputs over tensor-parallel ranks (column parallel; the bias goes along),
    ``cut="in"`` the inputs (row parallel; the bias is whole on every rank). ``units``: heads along the cut.
    """
    dimension = {"out": 0, "in": 1, None: None}[cut]
    weights = [Weight(path=f"{path}.weight", shape=(out, width), role=role, cut=dimension, units=units)]
    if bias:
        along = 0 if cut == "out" else None
        weights.append(
            Weight(
                path=f"{path}.bias", shape=(out,), role=Role.BIAS, cut=along, units=units if along == 0 else 0
            )
        )
    return tuple(weights)


def rms_norm(path: str, size: int, kind: NormKind = NormKind.RMS) -> Norm:
    return Norm(
        path=path,
        kind=kind,
        size=size,
        weights=(Weight(path=f"{path}.weight", shape=(size,), role=Role.NORM),),
    )


def layer_norm(
    path: str, size: int, *, weight: bool = True, bias: bool = True, kind: NormKind | None = None
) -> Norm:
    weights = [Weight(path=f"{path}.weight", shape=(size,), role=Role.NORM)] if weight else []
    if bias:
        weights.append(Weight(path=f"{path}.bias", shape=(size,), role=Role.NORM))
    return Norm(
        path=path,
        kind=kind or (NormKind.LAYER if weight else NormKind.LAYER_NO_AFFINE),
        size=size,
        weights=tuple(weights),
    )


def norm_of_kind(path: str, size: int, kind: NormKind, *, bias: bool = True) -> Norm:
    """A norm of any kind; ``bias`` is asked only of torch's layer norm, the others have none."""
    match kind:
        case NormKind.LAYER | NormKind.LAYER_OFFSET:
            return layer_norm(path, size, bias=bias, kind=kind)
        case NormKind.LAYER_UNFUSED:
            return layer_norm(path, size, bias=False, kind=kind)
        case NormKind.LAYER_NO_AFFINE | NormKind.LAYER_WIDE | NormKind.L2:
            return layer_norm(path, size, weight=False, bias=False, kind=kind)
        case (
            NormKind.RMS
            | NormKind.RMS_OFFSET
            | NormKind.RMS_FP32_SCALE
            | NormKind.RMS_UNCAST
            | NormKind.GATED_RMS
        ):
            return rms_norm(path, size, kind)


def separate_qkv_attention(
    path: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    rotary_dim: int | None = None,
    window: int | None = None,
    qk_norm: Norm | None = None,
    causal: bool = True,
    softcap: float | None = None,
) -> Attention:
    """Attention with separate q, k, v and output projections. ``rotary_dim`` defaults to ``head_dim``."""
    q, k, v, o = (f"{path}.{name}" for name in names)
    return Attention(
        path=path,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        qk_norm=qk_norm,
        causal=causal,
        softcap=softcap,
        rotary_dim=head_dim if rotary_dim is None else rotary_dim,
        weights=(
            *linear_weights(q, heads * head_dim, hidden, bias=qkv_bias, cut="out", units=heads),
            *linear_weights(k, kv_heads * head_dim, hidden, bias=qkv_bias, cut="out", units=kv_heads),
            *linear_weights(v, kv_heads * head_dim, hidden, bias=qkv_bias, cut="out", units=kv_heads),
            *linear_weights(o, hidden, heads * head_dim, bias=out_bias, cut="in", units=heads),
        ),
    )


def fused_attention(
    path: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    names: tuple[str, str] = ("qkv_proj", "o_proj"),
    rotary_dim: int = 0,
    window: int | None = None,
    position_bias: bool = False,
) -> Attention:
    """Attention whose q, k and v come out of one matrix."""
    qkv, out = (f"{path}.{name}" for name in names)
    return Attention(
        path=path,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        fused_qkv=True,
        rotary_dim=rotary_dim,
        position_bias=position_bias,
        weights=(
            *_joined_weights(qkv, hidden, heads, kv_heads, head_dim, bias=qkv_bias),
            *linear_weights(out, hidden, heads * head_dim, bias=out_bias, cut="in", units=heads),
        ),
    )


def _joined_weights(
    path: str, hidden: int, heads: int, kv_heads: int, head_dim: int, *, bias: bool
) -> Iterator[Weight]:
    """Queries, keys and values in one matrix, in which ranks that outnumber heads of keys repeat those."""
    pieces, both = heads + 2 * kv_heads, 2 * kv_heads * head_dim
    for weight in linear_weights(path, pieces * head_dim, hidden, bias=bias, cut="out", units=pieces):
        grouped = kv_heads < heads and weight.cut is not None
        yield replace(weight, units=heads, repeated=both, groups=kv_heads) if grouped else weight


def gated_mlp(
    path: str,
    hidden: int,
    intermediate: int,
    activation: str,
    *,
    bias: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Dense:
    """Gate and up projections, their product, a down projection."""
    gate, up, down = (f"{path}.{name}" for name in names)
    return Dense(
        path=path,
        intermediate=intermediate,
        activation=activation,
        gated=True,
        weights=(
            *linear_weights(gate, intermediate, hidden, bias=bias, cut="out"),
            *linear_weights(up, intermediate, hidden, bias=bias, cut="out"),
            *linear_weights(down, hidden, intermediate, bias=bias, cut="in"),
        ),
    )


def fused_gated_mlp(
    path: str,
    hidden: int,
    intermediate: int,
    activation: str,
    *,
    bias: bool = False,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
) -> Dense:
    """The same with gate and up in one matrix."""
    both, down = (f"{path}.{name}" for name in names)
    weights = (
        *linear_weights(both, 2 * intermediate, hidden, bias=bias, cut="out"),
        *linear_weights(down, hidden, intermediate, bias=bias, cut="in"),
    )
    return Dense(
        path=path, intermediate=intermediate, activation=activation, gated=True, fused=True, weights=weights
    )


def plain_mlp(
    path: str,
    hidden: int,
    intermediate: int,
    activation: str,
    *,
    bias: bool,
    names: tuple[str, str] = ("up_proj", "down_proj"),
) -> Dense:
    """Two linear layers with an activation between them; without a ``path``, modules of the block itself."""
    up, down = (f"{path}.{name}".removeprefix(".") for name in names)
    weights = (
        *linear_weights(up, intermediate, hidden, bias=bias, cut="out"),
        *linear_weights(down, hidden, intermediate, bias=bias, cut="in"),
    )
    return Dense(path=path, intermediate=intermediate, activation=activation, gated=False, weights=weights)


def embedding_table(path: str, rows: int, width: int, *, vocabulary: bool = False) -> Weight:
    """A look-up table; a vocabulary table may be padded and split by rows, a position table is whole
    everywhere.
    """
    return Weight(
        path=f"{path}.weight",
        shape=(rows, width),
        role=Role.EMBEDDING,
        cut=0 if vocabulary else None,
        padded=vocabulary,
    )


def vocabulary_head(path: str, vocab: int, width: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """The untied output projection."""
    weights = [Weight(path=f"{path}.weight", shape=(vocab, width), role=Role.HEAD, cut=0, padded=True)]
    if bias:
        weights.append(Weight(path=f"{path}.bias", shape=(vocab,), role=Role.BIAS, cut=0, padded=True))
    return tuple(weights)


def run_length(blocks: Iterable[Block]) -> tuple[Run, ...]:
    """Consecutive equal blocks folded into runs."""
    runs: list[Run] = []
    for block in blocks:
        if runs and runs[-1].pattern[0] == block:
            runs[-1] = Run(pattern=(block,), count=runs[-1].count + 1)
        else:
            runs.append(Run(pattern=(block,), count=1))
    return tuple(runs)


def repeating_layer_runs(keys: Sequence[Key], make: Callable[[Key], Block]) -> tuple[Run, ...]:
    """Layers that ``keys`` tell apart, as few runs as an exact repetition allows; ``make`` is called once a
    distinct key.

    ``s s f s s f s`` becomes ``(s s f) x 2`` and ``s``, so that cost grows with distinct layers.
    """
    made: dict[Key, Block] = {}
    for key in keys:
        if key not in made:
            made[key] = make(key)
    period = _shortest_repeat_period(keys)
    whole = len(keys) // period if period else 0
    runs = (Run(pattern=tuple(made[key] for key in keys[:period]), count=whole),) if whole > 1 else ()
    rest = keys[period * whole :] if whole > 1 else keys
    return (*runs, *run_length(made[key] for key in rest))


def _shortest_repeat_period(keys: Sequence[Key]) -> int:
    """The shortest prefix that the whole sequence repeats (the last time perhaps in part), 0 where there is
    none.

    Linear in the length: the period is the length less the longest border (Knuth, Morris and Pratt 1977).
    """
    border = [0] * len(keys)
    for i in range(1, len(keys)):
        length = border[i - 1]
        while length and keys[i] != keys[length]:
            length = border[length - 1]
        border[i] = length + (keys[i] == keys[length])
    period = len(keys) - border[-1] if keys else 0
    return period if period <= len(keys) // 2 else 0
