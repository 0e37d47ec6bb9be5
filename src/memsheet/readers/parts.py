"""The pieces that model families are put together from: linear layers, norms, attention, feed-forwards, runs of blocks."""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.spec.model import Attention, Block, Dense, Norm, NormKind, Role, Run, Weight


def linear(
    path: str, out: int, width: int, *, bias: bool = False, cut: str | None = None, units: int = 0, role: Role = Role.LINEAR
) -> tuple[Weight, ...]:
    """Weight (and bias) of a linear layer ``width`` → ``out``.

    ``cut="out"`` splits the outputs over tensor-parallel ranks (column parallel; the bias goes along), ``cut="in"`` the inputs
    (row parallel; the bias is whole on every rank). ``units``: heads along the cut.
    """
    dimension = {"out": 0, "in": 1, None: None}[cut]
    weights = [Weight(path=f"{path}.weight", shape=(out, width), role=role, cut=dimension, units=units)]
    if bias:
        along = 0 if cut == "out" else None
        weights.append(Weight(path=f"{path}.bias", shape=(out,), role=Role.BIAS, cut=along, units=units if along == 0 else 0))
    return tuple(weights)


def rms_norm(path: str, size: int, kind: NormKind = NormKind.RMS) -> Norm:
    return Norm(path=path, kind=kind, size=size, weights=(Weight(path=f"{path}.weight", shape=(size,), role=Role.NORM),))


def layer_norm(path: str, size: int, *, weight: bool = True, bias: bool = True, kind: NormKind | None = None) -> Norm:
    weights = [Weight(path=f"{path}.weight", shape=(size,), role=Role.NORM)] if weight else []
    if bias:
        weights.append(Weight(path=f"{path}.bias", shape=(size,), role=Role.NORM))
    return Norm(path=path, kind=kind or (NormKind.LAYER if weight else NormKind.LAYER_NO_AFFINE), size=size, weights=tuple(weights))


def attention(
    path: str, hidden: int, heads: int, kv_heads: int, head_dim: int, *,
    qkv_bias: bool = False, out_bias: bool = False, names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    rotary_dim: int | None = None, window: int | None = None, qk_norm: Norm | None = None, causal: bool = True,
) -> Attention:  # fmt: skip
    """Attention with separate q, k, v and output projections. ``rotary_dim`` defaults to ``head_dim``."""
    q, k, v, o = (f"{path}.{name}" for name in names)
    return Attention(
        path=path, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window, qk_norm=qk_norm, causal=causal,
        rotary_dim=head_dim if rotary_dim is None else rotary_dim,
        weights=(
            *linear(q, heads * head_dim, hidden, bias=qkv_bias, cut="out", units=heads),
            *linear(k, kv_heads * head_dim, hidden, bias=qkv_bias, cut="out", units=kv_heads),
            *linear(v, kv_heads * head_dim, hidden, bias=qkv_bias, cut="out", units=kv_heads),
            *linear(o, hidden, heads * head_dim, bias=out_bias, cut="in", units=heads),
        ),
    )  # fmt: skip


def gated_mlp(
    path: str, hidden: int, intermediate: int, activation: str, *, bias: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Dense:  # fmt: skip
    """Gate and up projections, their product, a down projection."""
    gate, up, down = (f"{path}.{name}" for name in names)
    return Dense(
        path=path, intermediate=intermediate, activation=activation, gated=True,
        weights=(
            *linear(gate, intermediate, hidden, bias=bias, cut="out"),
            *linear(up, intermediate, hidden, bias=bias, cut="out"),
            *linear(down, hidden, intermediate, bias=bias, cut="in"),
        ),
    )  # fmt: skip


def plain_mlp(path: str, hidden: int, intermediate: int, activation: str, *, bias: bool, names: tuple[str, str] = ("up_proj", "down_proj")) -> Dense:
    """Two linear layers with an activation between them."""
    up, down = (f"{path}.{name}" for name in names)
    weights = (*linear(up, intermediate, hidden, bias=bias, cut="out"), *linear(down, hidden, intermediate, bias=bias, cut="in"))
    return Dense(path=path, intermediate=intermediate, activation=activation, gated=False, weights=weights)


def embedding(path: str, rows: int, width: int, *, vocabulary: bool = False) -> Weight:
    """A look-up table; a vocabulary table may be padded and split by rows, a position table is whole everywhere."""
    return Weight(path=f"{path}.weight", shape=(rows, width), role=Role.EMBEDDING, cut=0 if vocabulary else None, padded=vocabulary)


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
