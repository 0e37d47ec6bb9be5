"""Dense feed-forward layers as the transformers library runs them, written over shape-only tensors."""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.model_code.transformers.families import XIELU
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.late import late_functions
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Dense

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.bloom import bloom_gelu
    from memsheet.formulas.model_code.transformers.xielu import xielu


Activation = Callable[[Recorder, Tensor, str], Tensor]


def _gelu_new(r: Recorder, x: Tensor, path: str) -> Tensor:
    """0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), operation by operation."""
    half = r.scale(x, path)
    cube = _elementwise_power(r, x, path)
    cube = r.scale(cube, path)
    inner = r.add(x, cube, path)
    del cube
    inner = r.scale(inner, path)
    inner = r.unary(inner, path + "/tanh", saves="output")
    inner = r.shift(inner, path + "/one_plus")
    return r.mul(half, inner, path)


def _gelu_fast(r: Recorder, x: Tensor, path: str) -> Tensor:
    """0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x))), operation by operation (activations.py,
    FastGELUActivation).
    """
    half = r.scale(x, path)
    scaled = r.scale(x, path)
    square = r.mul(r.scale(x, path), x, path)
    factor = r.shift(square, path + "/one_plus")
    del square
    inner = r.mul(scaled, factor, path)
    del scaled, factor
    inner = r.unary(inner, path + "/tanh", saves="output")
    inner = r.shift(inner, path + "/one_plus")
    return r.mul(half, inner, path)


def _linear(_: Recorder, x: Tensor, __: str) -> Tensor:
    return x


def _fused_activation(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(x, path, saves="input")


def _quick_gelu(r: Recorder, x: Tensor, path: str) -> Tensor:
    """The input times sigmoid(1.702 * input), operation by operation (activations.py,
    QuickGELUActivation).
    """
    return r.mul(x, r.unary(r.scale(x, path), path + "/sigmoid", saves="output"), path)


def _relu(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.unary(x, path, saves="output")


def _relu_squared(r: Recorder, x: Tensor, path: str) -> Tensor:
    x = _relu(r, x, path)
    return _elementwise_power(r, x, path)


def _elementwise_power(r: Recorder, x: Tensor, path: str) -> Tensor:
    """A square or cube; autocast runs it in fp32."""
    x = r.cast(x, FP32, path + "/pow") if r.widens else x
    return r.unary(x, path + "/pow", saves="input", temporaries=2)


ACTIVATIONS: dict[str, Activation] = {
    "silu": _fused_activation, "swish": _fused_activation, "gelu": _fused_activation, "gelu_pytorch_tanh": _fused_activation, "gelu_python_tanh": _gelu_new,
    "gelu_new": _gelu_new, "relu": _relu, "relu2": _relu_squared, "bloom_gelu": bloom_gelu,
    "quick_gelu": _quick_gelu, "gelu_fast": _gelu_fast, "gelu_accurate": _gelu_new,
    "hardswish": _fused_activation, "leaky_relu": _fused_activation, "mish": _fused_activation, "relu6": _fused_activation, "sigmoid": _relu,
    "tanh": _relu, "linear": _linear,
}  # fmt: skip


def dense_feed_forward(
    r: Recorder, x: Tensor, ff: Dense, how: RunConfig, named: list[Tensor | None] | None = None
) -> Tensor:
    """A feed-forward layer: gated (gate, up, product, down) or plain (up, activation, down). ``named``: takes
    what the caller still names of a plain one.
    """
    weights = {w.path: w for w in ff.weights}
    names = [w.path.removesuffix(".weight") for w in ff.weights if w.path.endswith(".weight")]
    learned = ff.activation == XIELU
    act = _fused_activation if learned else ACTIVATIONS[ff.activation]
    if not ff.gated:
        x = record_linear(r, x, weights, names[0], "f", "h", how)
        x = xielu(r, x, ff, how) if learned else act(r, x, ff.path + "/activation")
        if named is not None:
            named.append(x)
        return record_linear(r, x, weights, names[-1], "h", "f", how)
    if ff.fused:
        gate, up = r.split(
            record_linear(r, x, weights, names[0], "2·f", "h", how), (("b", "s", "f"), ("b", "s", "f"))
        )
        up = r.mul(up, act(r, gate, ff.path + "/activation"), ff.path + "/product")
        return record_linear(r, up, weights, names[-1], "h", "f", how)
    gate = act(r, record_linear(r, x, weights, names[0], "f", "h", how), ff.path + "/activation")
    inner = r.mul(gate, record_linear(r, x, weights, names[1], "f", "h", how), ff.path + "/product")
    del gate
    return record_linear(r, inner, weights, names[-1], "h", "f", how)
