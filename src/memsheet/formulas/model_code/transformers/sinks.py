"""Attention with sinks as the transformers library runs it (5.23, modeling_gpt_oss.py:207-327), written over
shape-only tensors.

Every head has one logit that stands for no token: it is joined to the scores before their softmax, and its
probability is left out. Axes besides those of ``blocks.py``: ``s+1`` positions and the sink.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.attention import HEADS, MERGED, repeat_kv
from memsheet.formulas.model_code.transformers.latent import broadcast_subtract, pairs_turned
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import INT64
from memsheet.plan.model import Attention

JOINED: Shape = ("b", "a", "s", "s+1")


def sink_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> tuple[Tensor, Tensor]:
    """Projections, rotary positions by halves of a head, attention, output projection; and the
    probabilities.
    """
    weights = {w.path: w for w in at.weights}
    names = [f"{at.path}.{name}_proj" for name in "qkv"]
    q, k, v = (
        r.transposed_view(
            r.view(record_linear(r, x, weights, name, f"{n}·d", "h", how), ("b", "s", n, "d")),
            ("b", n, "s", "d"),
        )
        for name, n in zip(names, "akk", strict=True)
    )
    q, k = _half_table_rotary(r, q, at.path + "/q", how), _half_table_rotary(r, k, at.path + "/k", how)
    context, probabilities = _eager_sink_attention(r, q, k, v, at, how)
    return record_linear(
        r, r.view(context, ("b", "s", "a·d")), weights, f"{at.path}.o_proj", "h", "a·d", how
    ), probabilities


def _half_table_rotary(r: Recorder, x: Tensor, path: str, how: RunConfig) -> Tensor:
    """The model's tables have a number for each pair."""
    half: Shape = (*x.shape[:-1], "d/2")
    first, second = r.split(x, (half, half))
    return pairs_turned(r, first, second, Tensor(None, ("s", "d/2"), how.stream), path, "d")


def _eager_sink_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig
) -> tuple[Tensor, Tensor]:
    """Scores and sinks side by side, from which the largest is taken; their softmax in their own dtype; the
    sinks left out.
    """
    path = at.path
    k, v = repeat_kv(r, k, path + "/k", at), repeat_kv(r, v, path + "/v", at)
    one = how.several and at.kv_heads == 1  # a head that is a view for all queries is joined by a copy
    weights = r.product(q, k, ("b", "a", "s", "s"), path + "/scores", copies=(False, one))
    weights = r.scale(weights, path + "/scores")
    weights = r.add(weights, Tensor(None, ("b", 1, "s", "s"), how.stream), path + "/scores")
    joined = r.cat((weights, _sink_logits(r, path + ".sinks", how)), JOINED, path + "/joined")
    joined = broadcast_subtract(r, joined, _row_maximum(r, joined, path), path + "/joined")
    shares = r.unary(joined, path + "/softmax", saves="output")
    weights = r.cast(
        r.dropout(r.slice(shares, ("b", "a", "s", "s")), path + "/dropout", active=how.dropout),
        v.dtype,
        path + "/probabilities",
    )
    out = r.product(
        weights, v, HEADS, path + "/context", copies=(False, how.several and at.kv_heads in (at.heads, 1))
    )
    return r.copy(out, MERGED, path + "/context"), weights


def _sink_logits(r: Recorder, path: str, how: RunConfig) -> Tensor:
    sinks = r.parameter(path, ("a",), how.parameters, trains=how.trains)
    return r.apply(
        Tensor(None, ("b", "a", "s", 1), sinks.dtype),
        (sinks,),
        (),
        lambda _: [r.grad(("a",), how.parameters)],
    )


def _row_maximum(r: Recorder, x: Tensor, path: str) -> Tensor:
    """The largest of each row and its place."""
    shape, dtype = x.shape, x.dtype
    line: Shape = (*shape[:-1], 1)
    place = r.tensor(path + "/place", line, INT64)
    return r.apply(r.tensor(path + "/largest", line, dtype), (x,), (place,), lambda _: [r.grad(shape, dtype)])
