"""A whole Mamba mixer as one operation, which is how mamba and falcon_mamba train: convolution, projections,
scan and gate.

mamba ops/selective_scan_interface.py:196-383 at e9594ce1, at its default checkpoint_lvl of 1: the
convolution's output and the time steps are made again in backward. Names stand for those of its functions.
Axes as in ``state_space.py``.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.state_space import (
    CHANNELS,
    MATRIX,
    TOKENS,
    decay_of,
    fp32_parameter,
    state_space_parameter,
    transpose_tokens_channels,
)
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import StateSpace

STATE: Shape = ("b", "n", "s")
ROWS: Shape = ("b", "s", "R+2n")
PROJECTIONS: dict[str, Shape] = {"x_proj": ("R+2n", "c"), "dt_proj": ("c", "R"), "out_proj": ("h", "c")}


def fused_mamba_mixer(r: Recorder, x: Tensor, mixer: StateSpace, how: RunConfig) -> Tensor:
    """The input projection, and everything else at once (modeling_mamba.py:376-398)."""
    weights, path = {w.path: w for w in mixer.weights}, mixer.path
    xz = transpose_tokens_channels(
        r, record_linear(r, x, weights, f"{path}.in_proj", "2·c", "h", how), ("b", "2·c", "s"), how
    )
    decay = decay_of(r, mixer, how)
    out_bias = (
        [fp32_parameter(r, f"{path}.out_proj.bias", ("h",), how)]
        if f"{path}.out_proj.bias" in weights
        else []
    )
    skip, bias = (
        fp32_parameter(r, f"{path}.D", ("c",), how),
        fp32_parameter(r, f"{path}.dt_proj.bias", ("c",), how),
    )
    conv = [state_space_parameter(r, f"{path}.conv1d", ("c", "w"), how)]
    conv += (
        [state_space_parameter(r, f"{path}.conv1d.bias", ("c",), how)]
        if f"{path}.conv1d.bias" in weights
        else []
    )
    projections = [
        state_space_parameter(r, f"{path}.{name}", shape, how) for name, shape in PROJECTIONS.items()
    ]
    normed = any(w.path.endswith("dt_layernorm.weight") for w in mixer.weights)
    return _Inner(r, path, how, normed=normed, biased=bool(out_bias)).run(
        (xz, *conv, *projections, *out_bias, decay, skip, bias)
    )


class _Inner:
    """The function's forward and backward. ``normed``: time steps, B and C are normalised in it
    (falcon_mamba); ``biased``: so is its output.
    """

    def __init__(self, r: Recorder, path: str, how: RunConfig, *, normed: bool, biased: bool) -> None:
        self.r, self.path, self.how, self.normed, self.biased = r, path, how, normed, biased
        self.low: DType = r.compute or how.parameters
        self.several = how.several

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """``inputs``: x and z, the convolution's weights, three matrices, the output's bias if any, A, D and
        the steps' bias.
        """
        r, path, low = self.r, self.path, self.low
        lowered = low is not self.how.parameters
        casts = (
            [r.tensor(f"{path}.{name}/cast", shape, low) for name, shape in PROJECTIONS.items()]
            if lowered
            else []
        )
        xz = r.tensor(path + "/rows", ("b", "2·c", "s"), low)
        convolved = r.tensor(path + "/convolved", CHANNELS, low)
        tokens = r.tensor(path + "/tokens", TOKENS, low) if self.several else None
        projected = r.tensor(f"{path}.x_proj/output", ROWS, low)
        del tokens
        delta = r.tensor(path + "/steps", CHANNELS, low)
        b, c = r.tensor(path + "/b", STATE, low), r.tensor(path + "/c", STATE, low)
        if self.normed:
            self._norms()
        out, states = (
            r.tensor(path + "/scanned", CHANNELS, low),
            r.tensor(path + "/states", ("b", "c", "g", "2·n"), FP32),
        )
        gated = r.tensor(path + "/gated", CHANNELS, low)
        del convolved, delta
        rows = (
            r.tensor(path + "/gated_rows", TOKENS, low)
            if self.several and self.how.trains and not lowered
            else None
        )
        result = r.tensor(path + "/output", ("b", "s", "h"), low)
        del gated, rows
        kept = (xz, projected, *casts, *inputs[-3:], b, c, states, out)
        metas = [(t.shape, t.dtype, t.needs_grad) for t in inputs]
        projections = len(inputs) - 6 - self.biased
        return r.apply(result, inputs, kept, lambda _: self._backward(metas, projections))

    def _norms(self) -> list[Grad]:
        """B, C and the steps to tokens, through their norms, and back (:98-115, :263-274); what was before
        them stays until all are there.
        """
        made = []
        for shape in (STATE, STATE, CHANNELS):
            rows, normed = (self.r.grad(shape, self.low, self.path + "/norm") for _ in range(2))
            made.append(self.r.grad(shape, self.low, self.path + "/normed"))
            del rows, normed
        return made[:2]

    def _backward(self, metas: list[tuple[Shape, DType, bool]], projections: int) -> list[Grad | None]:
        """``projections``: where their matrices begin among the inputs."""
        r, low, several = self.r, self.low, self.several
        convolved, delta = r.grad(CHANNELS, low), r.grad(CHANNELS, low)
        again = self._norms() if self.normed else []
        dxz, dy = r.grad(("b", "2·c", "s"), low), r.grad(CHANNELS, low)
        gated, du, ddelta = r.grad(CHANNELS, low), r.grad(CHANNELS, low), r.grad(CHANNELS, low)
        vectors = [r.grad(MATRIX, FP32)]
        wide = [r.grad(STATE, FP32), r.grad(STATE, FP32)]
        vectors += [r.grad(("c",), FP32), r.grad(("c",), FP32)]
        states = [r.grad(STATE, low), r.grad(STATE, low)]
        del wide
        rows = r.grad(TOKENS, low) if several and self.normed else None
        of_out = r.grad(PROJECTIONS["out_proj"], low)
        del rows
        dprojected = r.grad(ROWS, low)
        states.clear()
        steps = r.grad(TOKENS, low) if several and self.normed else None
        of_dt = r.grad(PROJECTIONS["dt_proj"], low)
        dconvolved = r.grad(TOKENS, low) if several else None
        tokens = r.grad(TOKENS, low) if several else None
        of_x = r.grad(PROJECTIONS["x_proj"], low)
        del tokens
        conv = [r.grad(shape, FP32) for shape, _, _ in metas[1:projections]]
        laid = r.grad(CHANNELS, low) if several else None
        conv = [r.grad(g.shape, self.how.parameters) if self.how.parameters is not FP32 else g for g in conv]
        bias = [r.grad(("h",), low)] if self.biased else []
        del laid, dconvolved, steps, dprojected, convolved, delta, dy, gated, du, ddelta, again
        grads = (dxz, *conv, of_x, of_dt, of_out, *bias, *vectors)
        return [grad if meta[2] else None for grad, meta in zip(grads, metas, strict=True)]
