"""State-space mixers as the transformers library trains them on a GPU, written over shape-only tensors.

With the causal-conv1d and mamba-ssm packages, which is how anyone trains them: without, the library runs
Python over the tokens (5.23, modeling_mamba.py:174-238). What their kernels keep and make is read off their
sources, causal-conv1d at 0d2252d1 and mamba at e9594ce1. Axes besides those of ``blocks.py``: ``c`` channels,
``n`` elements of a channel's state, ``w`` the convolution's width, ``R`` the rank of the time steps, ``g``
pieces of the sequence between two states that are kept.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import Norm, NormKind, StateSpace, Weight
from memsheet.references import MAMBA, TRANSFORMERS, formula

PIECE = 2048
"""Tokens between two states that the scan keeps (mamba csrc/selective_scan/selective_scan.cpp:307)."""
CHANNELS: Shape = ("b", "c", "s")
TOKENS: Shape = ("b", "s", "c")
MATRIX: Shape = ("c", "n")
STEPS: Shape = ("b", "s", "R")
STATES: Shape = ("b", "s", "n")

Weights = dict[str, Weight]


@formula(
    cites=MAMBA,
    at=(
        "csrc/selective_scan/selective_scan.cpp:294-313: two numbers for each element of a channel's "
        "state, every 2048 tokens"
    ),
)
def scan_state_checkpoints(seq_len: Count) -> Count:
    """How many times a sequence's states are kept."""
    return ceil_div(seq_len, PIECE)


@formula(
    cites=TRANSFORMERS,
    at="modeling_jamba.py:453-502, modeling_mamba.py:287-326: channels, state, steps' rank",
)
def state_space_axes(mixer: StateSpace, seq_len: Count) -> dict[str, Count]:
    """Values of the axes that a mixer's tensors are named by."""
    rank = next((w.shape[1] for w in mixer.weights if w.path.endswith("dt_proj.weight")), 0)
    return {
        "c": mixer.inner, "2·c": 2 * mixer.inner, "n": mixer.state, "2·n": 2 * mixer.state, "w": mixer.conv_kernel, "R": rank,
        "R+2n": rank + 2 * mixer.state, "g": scan_state_checkpoints(seq_len),
    }  # fmt: skip


def unfused_mamba_mixer(r: Recorder, x: Tensor, mixer: StateSpace, how: RunConfig) -> Tensor:
    """Projection, convolution, norms of time steps and of both state projections, scan and gate, one after
    another, and the output projection (modeling_jamba.py:505-621).
    """
    weights, path = {w.path: w for w in mixer.weights}, mixer.path
    projected = transpose_tokens_channels(
        r, record_linear(r, x, weights, f"{path}.in_proj", "2·c", "h", how), ("b", "2·c", "s"), how
    )
    decay = decay_of(r, mixer, how)
    u, gate = r.split(projected, (CHANNELS, CHANNELS))
    u = _channel_token_view(r, _mamba_conv1d(r, u, mixer, how), TOKENS)
    low, b, c = r.split(
        record_linear(r, u, weights, f"{path}.x_proj", "R+2n", "c", how), (STEPS, STATES, STATES)
    )
    low, b, c = (
        _state_rms_norm(r, t, f"{path}.{name}_layernorm", weights, how)
        for t, name in ((low, "dt"), (b, "b"), (c, "c"))
    )
    low = _time_step_projection(r, low, mixer, how)
    bias = fp32_parameter(r, f"{path}.dt_proj.bias", ("c",), how)
    skip = fp32_parameter(r, f"{path}.D", ("c",), how)
    made = _selective_scan(r, (u, low, decay, b, c, gate), (skip, bias), path, how)
    return _mamba_output_projection(
        r, r.cast(made, x.dtype, f"{path}.out_proj/cast"), weights, f"{path}.out_proj", how
    )


# ---- pieces ------------------------------------------------------------------------------------------------


def state_space_parameter(r: Recorder, path: str, shape: Shape, how: RunConfig) -> Tensor:
    return r.parameter(path, shape, how.parameters, trains=how.trains)


def fp32_parameter(r: Recorder, path: str, shape: Shape, how: RunConfig) -> Tensor:
    """A parameter in fp32."""
    return r.cast(state_space_parameter(r, path, shape, how), FP32, path + "/fp32")


def decay_of(r: Recorder, mixer: StateSpace, how: RunConfig) -> Tensor:
    """-exp(A_log) in fp32."""
    path = f"{mixer.path}.A_log"
    return r.scale(
        r.unary(fp32_parameter(r, path, MATRIX, how), path + "/exp", saves="output"), path + "/neg"
    )


def transpose_tokens_channels(r: Recorder, x: Tensor, shape: Shape, how: RunConfig) -> Tensor:
    """Tokens and channels change places: a view, whose gradient is copied unless one sequence is all there
    is.
    """
    return r.transposed_view(x, shape) if how.several else r.view(x, shape)


def _channel_token_view(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Channels and tokens change places: a view both ways."""
    return r.view(x, shape)


def _laid_out(r: Recorder, x: Tensor, shape: Shape, path: str, how: RunConfig) -> Tensor:
    """A contiguous copy of a transposed view, whose gradient is copied back unless one sequence is all there
    is.
    """
    if not how.several:
        return r.copy(x, shape, path)
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def _time_step_projection(r: Recorder, low: Tensor, mixer: StateSpace, how: RunConfig) -> Tensor:
    """A matrix times each sequence's transposed time steps: one product that is copied to its place; a batch
    of products where the matrix does not train (aten native/LinearAlgebra.cpp, should_fold).
    """
    path = f"{mixer.path}.dt_proj"
    made = r.linear(low, state_space_parameter(r, path, ("c", "R"), how), "c", path)
    return _laid_out(r, made, CHANNELS, path + "/steps", how) if how.trains else r.view(made, CHANNELS)


def _mamba_output_projection(
    r: Recorder, made: Tensor, weights: Weights, path: str, how: RunConfig
) -> Tensor:
    """The output projection of several sequences' transposed rows: they are copied for one product; a matrix
    that does not train is multiplied as they lie, and what an adapter multiplies is copied beside its cast.
    """
    if how.trains:
        low = r.autocast(made, path + "/input")
        rows = _laid_out(r, low, TOKENS, path + "/rows", how) if how.several else r.view(low, TOKENS)
        return record_linear(r, rows, weights, path, "h", "c", how)
    adapted = how.several and r.saves and r.compute is None and path.rpartition(".")[2] in how.adapter_targets
    copied = how.adapter_dtype if adapted else None
    cast = r.tensor(path + "/lora_cast", TOKENS, copied) if copied is not None else None
    out = record_linear(r, r.view(made, TOKENS), weights, path, "h", "c", how)
    del cast
    return out


def _state_rms_norm(r: Recorder, x: Tensor, path: str, weights: Weights, how: RunConfig) -> Tensor:
    weight = weights[f"{path}.weight"]
    return apply_norm(r, x, Norm(path=path, kind=NormKind.RMS, size=weight.shape[0], weights=(weight,)), how)


def _mamba_conv1d(r: Recorder, x: Tensor, mixer: StateSpace, how: RunConfig) -> Tensor:
    """A convolution of each channel and its activation: keeps its input; weights' gradients are summed in
    fp32 and cast; what arrives is laid out as the input is (causal_conv1d_interface.py:9-94,
    cpp_functions.py:94-160, csrc/causal_conv1d.cpp:297-298).
    """
    path = f"{mixer.path}.conv1d"
    weight = state_space_parameter(r, path, ("c", "w"), how)
    biases = [
        state_space_parameter(r, f"{path}.bias", ("c",), how)
        for w in mixer.weights
        if w.path == f"{path}.bias"
    ]
    shape, dtype, trains, needs = x.shape, x.dtype, weight.needs_grad, x.needs_grad

    def backward(_: Grad) -> list[Grad | None]:
        of_x = r.grad(shape, dtype)
        wide = [r.grad(t.shape, FP32) for t in (weight, *biases)]
        laid = r.grad(shape, dtype)
        grads = [
            r.grad(t.shape, t.dtype) if t.dtype is not FP32 else g
            for t, g in zip((weight, *biases), wide, strict=True)
        ]
        del wide, laid
        return [of_x if needs else None, *(g if trains else None for g in grads)]

    return r.apply(r.tensor(f"{path}/output", shape, dtype), (x, weight, *biases), (x,), backward)


def _selective_scan(
    r: Recorder, operands: tuple[Tensor, ...], vectors: tuple[Tensor, ...], path: str, how: RunConfig
) -> Tensor:
    """The selective scan and its gate (mamba ops/selective_scan_interface.py:34-95): operands by channel, its
    own output and the states at every piece's end are kept; gradients of both state projections are summed in
    fp32 and cast.
    """
    u, steps, decay, b, c, gate = operands
    u, b, c, gate = (
        _by_channel(r, t, shape, path)
        for t, shape in ((u, CHANNELS), (b, ("b", "n", "s")), (c, ("b", "n", "s")), (gate, CHANNELS))
    )
    out = r.tensor(path + "/scanned", CHANNELS, steps.dtype)
    gated = r.tensor(path + "/gated", CHANNELS, gate.dtype)
    states = r.tensor(path + "/states", ("b", "c", "g", "2·n"), FP32)
    inputs = (u, steps, decay, b, c, gate, *vectors)
    metas = [(t.shape, t.dtype, t.needs_grad) for t in inputs]
    copied = (
        how.several and "out_proj" not in how.adapter_targets
    )  # an adapter's gradient lies as its input does

    def backward(_: Grad) -> list[Grad | None]:
        arrived = r.grad(CHANNELS, metas[5][1]) if copied else None
        made = {
            5: r.grad(*metas[5][:2]),
            0: r.grad(*metas[0][:2]),
            1: r.grad(*metas[1][:2]),
            2: r.grad(MATRIX, FP32),
        }
        wide = [r.grad(metas[n][0], FP32) for n in (3, 4)]
        made |= {n: r.grad(*metas[n][:2]) for n in range(6, len(metas))}
        made |= {n: _grad_in_dtype(r, g, metas[n][1]) for n, g in zip((3, 4), wide, strict=True)}
        del arrived, wide
        return [made[n] if metas[n][2] else None for n in range(len(metas))]

    return r.apply(gated, inputs, (u, steps, decay, b, c, gate, *vectors, out, states), backward)


def _grad_in_dtype(r: Recorder, g: Grad, dtype: DType) -> Grad:
    return g if dtype is g.dtype else r.grad(g.shape, dtype)


def _by_channel(r: Recorder, x: Tensor, shape: Shape, path: str) -> Tensor:
    """A copy in the kernel's layout. It is made inside the kernel's function, and gradients pass as views."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path + "/rows", shape, dtype), (x,), (), lambda g: [Grad(g.storage, back, dtype)])
