"""The activation of apertus, whose two slopes are learned (transformers 5.23, activations.py:281-288),
written over shape-only tensors: in plain operations, as without the xielu package's kernel.
"""

from __future__ import annotations

from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.plan.dtypes import BOOL, FP32
from memsheet.plan.model import Dense


def xielu(r: Recorder, x: Tensor, ff: Dense, how: RunConfig) -> Tensor:
    """Where x is positive α·x·x + β·x, else (expm1(min(x, ε)) - x)·α' + β·x; autocast takes expm1 to fp32, as
    the slopes are, which are vectors of one number and widen what they meet.
    """
    path = f"{ff.path}.act_fn"
    positive, negative = (
        r.parameter(f"{ff.path}.act_fn.{name}", (1,), how.parameters, trains=how.trains)
        for name in ("alpha_p", "alpha_n")
    )
    above = r.tensor(f"{path}/above", x.shape, BOOL)
    squared = r.mul(r.mul(x, positive, f"{path}/sloped"), x, f"{path}/squared")
    upper = r.add(squared, r.scale(x, f"{path}/beta"), f"{path}/upper")
    del squared
    least = _elementwise_minimum(r, x, f"{path}/least")
    least = r.cast(least, FP32, f"{path}/expm1") if r.widens else least
    grown = r.unary(least, f"{path}/expm1", saves="output", temporaries=1)
    del least
    lower = r.mul(_tensor_difference(r, grown, x, f"{path}/difference"), negative, f"{path}/sloped")
    del grown
    lower = r.add(lower, r.scale(x, f"{path}/beta"), f"{path}/lower")
    return _chosen_branch(r, above, upper, lower, f"{path}/output")


def _elementwise_minimum(r: Recorder, x: Tensor, path: str) -> Tensor:
    """The smaller of each element and a constant (torch derivatives.yaml, minimum)."""
    shape, dtype = x.shape, x.dtype

    def backward(_: Grad) -> list[Grad | None]:
        even, half = r.grad(shape, BOOL), r.grad(shape, dtype)
        grad = r.grad(shape, dtype)
        del even, half
        _larger = r.grad(shape, BOOL)
        return [grad]

    return r.apply(r.tensor(path, shape, dtype), (x,), (x,), backward)


def _tensor_difference(r: Recorder, a: Tensor, b: Tensor, path: str) -> Tensor:
    """``a - b``: what is taken away has a gradient of its own, negated."""
    shape, kinds, needs = a.shape, (a.dtype, b.dtype), (a.needs_grad, b.needs_grad)

    def backward(g: Grad) -> list[Grad | None]:
        first = Grad(g.storage, g.shape, g.dtype) if needs[0] else None
        if not needs[1]:
            return [first, None]
        negated = r.grad(shape, g.dtype)
        return [first, negated if kinds[1] is g.dtype else r.grad(shape, kinds[1])]

    return r.apply(r.tensor(path, shape, a.dtype), (a, b), (), backward)


def _chosen_branch(r: Recorder, above: Tensor, upper: Tensor, lower: Tensor, path: str) -> Tensor:
    """``where``: backward makes both gradients, zeros where the other was taken."""
    shape, dtype = upper.shape, upper.dtype
    return r.apply(
        r.tensor(path, shape, dtype),
        (upper, lower),
        (above,),
        lambda _: [r.grad(shape, dtype), r.grad(shape, dtype)],
    )
