"""Norms as the transformers library runs them, written over shape-only tensors."""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.numerics import RunConfig, record_parameter, run_checkpointed
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.kernel_scratch import layer_norm_backward_bytes
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Norm, NormKind


def rms_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """Root-mean-square norm in fp32; where the weight is applied and the result cast back depends on the
    family.
    """
    weight, dtype = record_parameter(r, norm.weights[0], how, path), x.dtype
    x = r.cast(x, FP32, path + "/fp32")
    mean = row_mean(r, r.unary(x, path + "/pow", saves="input", temporaries=2), path)
    x = r.mul(x, reciprocal_root(r, mean, path), path + "/normalized")
    if norm.kind is NormKind.RMS:
        return r.mul(r.cast(x, dtype, path + "/normalized"), weight, path + "/output")
    if norm.kind is NormKind.RMS_OFFSET:
        weight = r.unary(r.cast(weight, FP32, path + "/weight"), path + "/weight", saves="nothing")
    return r.cast(r.mul(x, weight, path + "/scaled"), dtype, path + "/output")


def row_mean(r: Recorder, x: Tensor, path: str) -> Tensor:
    """The mean over the last dimension; its gradient is spread over a full-size tensor."""
    back, dtype = x.shape, x.dtype
    line: Shape = (*back[:-1], 1)
    return r.apply(r.tensor(path + "/mean", line, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def reciprocal_root(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(r.unary(x, path + "/eps", saves="nothing"), path + "/rsqrt", saves="output", temporaries=2)


def l2_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """A root-mean-square norm without weights in fp32 (llama4)."""
    dtype = x.dtype
    x = r.cast(x, FP32, path + "/fp32")
    mean = row_mean(r, r.unary(x, path + "/pow", saves="input", temporaries=2), path)
    return r.cast(r.mul(x, reciprocal_root(r, mean, path), path + "/normalized"), dtype, path + "/output")


def layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """Torch's fused layer norm: saves its input, its weights and two fp32 statistics a position. Autocast
    runs it in fp32, but on a CPU as it is (ATen/autocast_mode.h, the lists of fp32 operations).
    """
    if r.widens:
        x = r.cast(x, FP32, path + "/input")
    return fused_layer_norm(r, x, tuple(record_parameter(r, w, how, path) for w in norm.weights), path)


def fused_layer_norm(r: Recorder, x: Tensor, weights: tuple[Tensor, ...], path: str) -> Tensor:
    line: Shape = (*x.shape[:-1], 1)
    output = r.tensor(path + "/output", x.shape, x.dtype)
    mean, rstd = r.tensor(path + "/mean", line, FP32), r.tensor(path + "/rstd", line, FP32)
    inside = (layer_norm_backward_bytes, (x.shape[:-1], x.shape[-1], len(weights))) if weights else None
    return r.custom(path, (x, *weights), output, (x, *weights, mean, rstd), inside=inside)


def wide_layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """Layer norm of the input raised to fp32, the result lowered again (olmo)."""
    weights = tuple(record_parameter(r, w, how, path) for w in norm.weights)
    return r.cast(
        fused_layer_norm(r, r.cast(x, FP32, path + "/fp32"), weights, path), x.dtype, path + "/output"
    )


def offset_layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """Layer norm with ``1 + weight``; under autocast everything is cast by hand and the norm runs in the low
    dtype (nemotron).
    """
    weight, *bias = (record_parameter(r, w, how, path) for w in norm.weights)
    weight = r.unary(weight, path + "/weight", saves="nothing")
    x, weight, *bias = (r.cast(t, r.compute or t.dtype, path + "/input") for t in (x, weight, *bias))
    return fused_layer_norm(r, x, (weight, *bias), path)


def unfused_layer_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """Layer norm written out in fp32 elementwise operations (cohere)."""
    weight, dtype = record_parameter(r, norm.weights[0], how, path), x.dtype
    x = r.cast(x, FP32, path + "/fp32")
    mean = row_mean(r, x, path)
    variance = row_mean(
        r, r.unary(r.add(x, mean, path + "/centred"), path + "/pow", saves="input", temporaries=2), path
    )
    x = r.mul(r.add(x, mean, path + "/numerator"), reciprocal_root(r, variance, path), path + "/normalized")
    x = r.mul(x, r.cast(weight, FP32, path + "/weight"), path + "/scaled")
    return r.cast(x, dtype, path + "/output")


def uncast_rms_norm(r: Recorder, x: Tensor, norm: Norm, path: str, how: RunConfig) -> Tensor:
    """The input as it is times the reciprocal root of its squares' mean, which is fp32; lowered where the
    weight is low (T5LayerNorm).
    """
    weight = record_parameter(r, norm.weights[0], how, path)
    wide = r.cast(x, FP32, path + "/fp32")
    root = reciprocal_root(
        r, row_mean(r, r.unary(wide, path + "/pow", saves="input", temporaries=2), path), path
    )
    del wide
    x = r.cast(r.mul(x, root, path + "/normalized"), how.parameters, path + "/normalized")
    return r.mul(x, weight, path + "/output")


NORMS: dict[NormKind, Callable[[Recorder, Tensor, Norm, str, RunConfig], Tensor]] = {
    NormKind.RMS: rms_norm,
    NormKind.RMS_OFFSET: rms_norm,
    NormKind.RMS_FP32_SCALE: rms_norm,
    NormKind.RMS_UNCAST: uncast_rms_norm,
    NormKind.L2: l2_norm,
    NormKind.LAYER: layer_norm,
    NormKind.LAYER_NO_AFFINE: layer_norm,
    NormKind.LAYER_UNFUSED: unfused_layer_norm,
    NormKind.LAYER_WIDE: wide_layer_norm,
    NormKind.LAYER_OFFSET: offset_layer_norm,
}


def apply_norm(r: Recorder, x: Tensor, norm: Norm, how: RunConfig, path: str | None = None) -> Tensor:
    own = path or norm.path
    return run_checkpointed(r, lambda y: NORMS[norm.kind](r, y, norm, own, how), x, own, how)
