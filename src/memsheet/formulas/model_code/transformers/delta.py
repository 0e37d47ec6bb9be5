"""The gated delta net as the transformers library trains it without optional packages (5.23,
modeling_qwen3_next.py:339-760): a short convolution over queries, keys and values, the delta rule by chunks
in plain operations of torch, a norm with a gate. Written over shape-only tensors; names stand for those of
its functions.

Axes besides those of ``blocks.py``: ``u`` heads of keys, of ``p`` elements; ``H`` of values, of ``w``, which
are ``g·w`` for each head of keys; ``K`` the convolution's channels, ``P`` and ``2·H`` the widths of both
projections, ``s+k`` positions with the convolution's padding. Chunks are in ``delta_chunks.py``.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.delta_chunks import chunk_axes, chunk_rule
from memsheet.formulas.model_code.transformers.norms import reciprocal_root, row_mean
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import LinearAttention, Weight
from memsheet.references import TRANSFORMERS, formula

CHANNELS: Shape = ("b", "K", "s")
KEYS: Shape = ("b", "s", "u", "p")
VALUES: Shape = ("b", "s", "H", "w")
NUMBERS: Shape = ("b", "s", "H")
"""One for each head of values and position."""
KEY_ROWS: Shape = ("b", "s", "u·p")
VALUE_ROWS: Shape = ("b", "s", "v")


@formula(
    cites=TRANSFORMERS,
    at="modeling_qwen3_next.py:588-627: projections and heads; the convolution pads its kernel less one",
)
def delta_axes(mixer: LinearAttention, seq_len: Count) -> dict[str, Count]:
    """Values of the axes that a mixer's tensors are named by."""
    keys, values = mixer.key_heads * mixer.key_head_dim, mixer.value_heads * mixer.value_head_dim
    return {
        "u": mixer.key_heads, "p": mixer.key_head_dim, "H": mixer.value_heads, "w": mixer.value_head_dim, "u·p": keys, "v": values,
        "g·w": values // mixer.key_heads, "K": 2 * keys + values, "P": 2 * (keys + values), "2·H": 2 * mixer.value_heads,
        "s+k": seq_len + _conv_kernel_size(mixer) - 1, **chunk_axes(seq_len),
    }  # fmt: skip


def _conv_kernel_size(mixer: LinearAttention) -> int:
    return next(w.shape[-1] for w in mixer.weights if w.path.endswith("conv1d.weight"))


def delta_net(r: Recorder, x: Tensor, mixer: LinearAttention, how: RunConfig) -> Tensor:
    """Qwen3NextGatedDeltaNet.forward (:675-760), without a cache."""
    weights, path = {w.path: w for w in mixer.weights}, mixer.path
    several, grouped = mixer.key_heads > 1, mixer.key_heads != mixer.value_heads
    project = _separate_projections if f"{path}.in_proj_qkv.weight" in weights else _projected_together
    mixed, z, b, a, *_named = project(r, x, mixer, weights, how)
    mixed = _depthwise_conv1d(r, mixed, mixer, how)
    q, k, v = r.split(r.view(mixed, ("b", "s", "K")), (KEY_ROWS, KEY_ROWS, VALUE_ROWS))
    del _named[2:]
    q, k = (r.view(t, KEYS) if grouped else r.transposed_view(t, KEYS) for t in (q, k))
    v = r.transposed_view(v, VALUES)
    beta = r.unary(b, path + "/beta", saves="output")
    decay = _log_decay_gate(r, a, path, how)
    made = chunk_rule(r, (q, k, v), decay, beta, path, how)
    made = _gated_norm(
        r,
        made,
        z if z.shape == VALUES else _flatten_heads(r, z, VALUES, path + "/z", copied=several and not grouped),
        path + ".norm",
        how,
    )
    return record_linear(r, r.view(made, VALUE_ROWS), weights, f"{path}.out_proj", "h", "v", how)


def _separate_projections(
    r: Recorder, x: Tensor, mixer: LinearAttention, weights: dict[str, Weight], how: RunConfig
) -> tuple[Tensor, ...]:
    """Channels, gates and both numbers of each head, a projection each (modeling_qwen3_5.py,
    Qwen3_5GatedDeltaNet).
    """
    path = mixer.path
    mixed = r.view(record_linear(r, x, weights, f"{path}.in_proj_qkv", "K", "h", how), CHANNELS)
    z = r.view(record_linear(r, x, weights, f"{path}.in_proj_z", "v", "h", how), VALUES)
    b = record_linear(r, x, weights, f"{path}.in_proj_b", "H", "h", how)
    return mixed, z, b, record_linear(r, x, weights, f"{path}.in_proj_a", "H", "h", how)


def _projected_together(
    r: Recorder, x: Tensor, mixer: LinearAttention, weights: dict[str, Weight], how: RunConfig
) -> tuple[Tensor, ...]:
    """The same out of two projections, whose heads lie beside each other (fix_query_key_value_ordering); then
    what forward names besides: both projections to its end, queries, keys and values until they are convolved
    (modeling_qwen3_next.py:690-724).
    """
    path, several, grouped = mixer.path, mixer.key_heads > 1, mixer.key_heads != mixer.value_heads
    joint = record_linear(r, x, weights, f"{path}.in_proj_qkvz", "P", "h", how)
    pair = record_linear(r, x, weights, f"{path}.in_proj_ba", "2·H", "h", how)
    q, k, v, z = r.split(joint, (KEYS, KEYS, ("b", "s", "u", "g·w"), ("b", "s", "u", "g·w")))
    b, a = r.split(pair, (NUMBERS, NUMBERS))
    v, z = (
        _flatten_heads(r, t, VALUES, f"{path}/{name}", copied=several and grouped)
        for t, name in ((v, "v"), (z, "z"))
    )
    b, a = (
        _flatten_heads(r, t, NUMBERS, f"{path}/{name}", copied=several and grouped)
        for t, name in ((b, "b"), (a, "a"))
    )
    q, k = (
        _flatten_heads(r, t, KEY_ROWS, f"{path}/{name}", copied=several) for t, name in ((q, "q"), (k, "k"))
    )
    v = _flatten_heads(r, v, VALUE_ROWS, path + "/v", copied=several and not grouped)
    mixed = r.view(r.cat((q, k, v), ("b", "s", "K"), path + "/mixed"), CHANNELS)
    return mixed, z, b, a, joint, pair, q, k, v


def _flatten_heads(r: Recorder, x: Tensor, shape: Shape, path: str, *, copied: bool) -> Tensor:
    """Heads that lie beside others are copied to lie beside each other."""
    return r.copy(x, shape, path) if copied else r.view(x, shape)


def _log_decay_gate(r: Recorder, a: Tensor, path: str, how: RunConfig) -> Tensor:
    """-exp(A_log) · softplus(a + dt_bias) in fp32 (:723)."""
    matrix = r.cast(
        r.parameter(f"{path}.A_log", ("H",), how.parameters, trains=how.trains), FP32, path + "/A_log"
    )
    rate = r.scale(r.unary(matrix, path + "/A_exp", saves="output"), path + "/A")
    bias = r.parameter(f"{path}.dt_bias", ("H",), how.parameters, trains=how.trains)
    return r.mul(
        r.unary(r.add(r.cast(a, FP32, path + "/a"), bias, path + "/a"), path + "/softplus", saves="input"),
        rate,
        path + "/decay",
    )


def _depthwise_conv1d(r: Recorder, x: Tensor, mixer: LinearAttention, how: RunConfig) -> Tensor:
    """Torch's convolution of each channel with positions besides, which a view leaves out, and its activation
    (:339-361). Its weight is a view, whose cast autocast does not keep.
    """
    path, dtype = f"{mixer.path}.conv1d", x.dtype
    shape: Shape = ("K", _conv_kernel_size(mixer))
    weight = r.view(r.parameter(path, shape, how.parameters, trains=how.trains), shape)
    wide = r.cast(x, how.parameters, path + "/wide")
    weight = r.autocast(weight, path)
    x = r.autocast(wide, path + "/input")
    metas = [(t.shape, t.dtype, t.needs_grad) for t in (x, weight)]

    def backward(_: Grad) -> list[Grad | None]:
        return [r.grad(s, d) if need else None for s, d, need in metas]

    made = r.tensor(mixer.path + "/convolution", ("b", "K", "s+k"), x.dtype)
    out = r.apply(made, (x, weight), (x, weight), backward)  # both are kept, frozen or not
    del wide, x, made
    return r.cast(
        r.unary(r.slice(out, CHANNELS), mixer.path + "/convolved", saves="input"),
        dtype,
        mixer.path + "/convolved",
    )


def _gated_norm(r: Recorder, x: Tensor, z: Tensor, path: str, how: RunConfig) -> Tensor:
    """A norm of each head, times an activated gate in fp32 (:61-70)."""
    weight, dtype = r.parameter(path, ("w",), how.parameters, trains=how.trains), x.dtype
    x = r.cast(x, FP32, path + "/fp32")
    variance = row_mean(r, r.unary(x, path + "/pow", saves="input", temporaries=2), path)
    x = r.mul(x, reciprocal_root(r, variance, path), path + "/normalized")
    x = r.mul(r.cast(x, dtype, path + "/normalized"), weight, path + "/scaled")
    gate = r.unary(r.cast(z, FP32, path + "/gate_fp32"), path + "/gate", saves="input")
    return r.cast(r.mul(x, gate, path + "/gated"), dtype, path + "/output")
