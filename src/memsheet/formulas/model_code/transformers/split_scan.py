"""A whole Mamba 2 mixer as one operation, which is how mamba2 and bamba train: convolution, scan by chunks,
gated norm, output projection.

mamba ops/triton/ssd_combined.py:820-980 at e9594ce1: the joint projection and the scan's output are kept,
everything between is made again in backward. Names stand for those of its functions; work that is split over
processors to fill a GPU is taken as one part, as it is where sequences are long. Axes besides those of
``state_space.py``: ``P`` the joint projection's width, ``K`` the convolution's channels, ``H`` heads of ``p``
channels, ``G`` groups, ``Q`` positions of a chunk, ``m`` chunks, ``T`` tiles of a chunk.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div
from memsheet.formulas.model_code.transformers.state_space import (
    TOKENS,
    fp32_parameter,
    state_space_parameter,
)
from memsheet.formulas.numerics import RunConfig, record_linear
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import StateSpace
from memsheet.references import MAMBA, formula

TILE = 32
"""Rows of a chunk whose sums of decays are written apart (ssd_chunk_scan.py:1709)."""
ALIGNED = 8
"""A joint projection of another multiple is copied for the convolution (ssd_combined.py:59-75)."""
JOINT: Shape = ("b", "s", "P")
MIXED: Shape = ("b", "s", "K")
STEPS: Shape = ("b", "H", "m", "Q")
STATES: Shape = ("b", "m", "H", "p", "n")
SCORES: Shape = ("b", "m", "G", "Q", "Q")
GROUPED: Shape = ("b", "s", "G", "n")
OUT: Shape = ("h", "c")


@formula(
    cites=MAMBA, at="ops/triton/ssd_combined.py:823-852: how the joint projection is cut; chunks are whole"
)
def split_axes(mixer: StateSpace, seq_len: Count) -> dict[str, Count]:
    """Values of the axes that a mixer's tensors are named by."""
    mixed = mixer.inner + 2 * mixer.groups * mixer.state
    return {
        "c": mixer.inner, "n": mixer.state, "w": mixer.conv_kernel, "H": mixer.heads, "p": mixer.inner // mixer.heads, "G": mixer.groups,
        "K": mixed, "P": mixer.inner + mixed + mixer.heads, "Q": mixer.chunk, "m": ceil_div(seq_len, mixer.chunk), "T": ceil_div(mixer.chunk, TILE),
    }  # fmt: skip


def split_scan(r: Recorder, x: Tensor, mixer: StateSpace, how: RunConfig) -> Tensor:
    """The input projection, and everything else at once (modeling_mamba2.py:477-504)."""
    weights, path = {w.path: w for w in mixer.weights}, mixer.path
    joint = record_linear(r, x, weights, f"{path}.in_proj", "P", "h", how)
    decay = r.scale(
        r.unary(fp32_parameter(r, f"{path}.A_log", ("H",), how), path + "/exp", saves="output"), path + "/neg"
    )
    shapes: dict[str, Shape] = {
        "conv1d.weight": ("K", "w"),
        "conv1d.bias": ("K",),
        "D": ("H",),
        "dt_bias": ("H",),
        "norm.weight": ("c",),
    }
    shapes |= {"out_proj.weight": OUT, "out_proj.bias": ("h",)}
    leaves = [
        state_space_parameter(r, f"{path}.{name.removesuffix('.weight')}", shape, how)
        for name, shape in shapes.items()
        if f"{path}.{name}" in weights
    ]
    narrow = mixer.inner % ALIGNED or mixer.heads % ALIGNED  # the states' columns come by twos
    return _split_scan_forward(r, (joint, decay, *leaves), path, how, copied=bool(narrow))


def _split_scan_forward(
    r: Recorder, inputs: tuple[Tensor, ...], path: str, how: RunConfig, *, copied: bool
) -> Tensor:
    low = r.compute or how.parameters
    joint, decay = inputs[:2]
    convolved = _conv1d_output(r, path, low, copied=copied)
    steps, sums = r.tensor(path + "/steps", STEPS, FP32), r.tensor(path + "/decays", STEPS, FP32)
    states = r.tensor(path + "/states", STATES, FP32)
    passed, final = (
        r.tensor(path + "/passed", STATES, low),
        r.tensor(path + "/final", ("b", "H", "p", "n"), FP32),
    )
    del states
    scores = r.tensor(path + "/scores", SCORES, FP32)
    out = r.tensor(path + "/scanned", TOKENS, low)
    del scores
    normed, deviation = (
        r.tensor(path + "/normed", TOKENS, low),
        r.tensor(path + "/deviation", ("b", "s", "G"), FP32),
    )
    cast = [r.tensor(f"{path}.out_proj/cast", OUT, low)] if low is not how.parameters else []
    result = r.tensor(path + "/output", ("b", "s", "h"), low)
    del convolved, steps, sums, passed, final, normed
    metas = [(t.shape, t.dtype, t.needs_grad) for t in inputs]
    return r.apply(
        result,
        inputs,
        (joint, decay, out, deviation, *cast),
        lambda _: _split_scan_backward(r, metas, low, copied=copied),
    )


def _conv1d_output(r: Recorder, path: str, low: DType, *, copied: bool) -> Tensor:
    rows = r.tensor(path + "/rows", MIXED, low) if copied else None
    made = r.tensor(path + "/convolved", MIXED, low)
    del rows
    return made


def _split_scan_backward(
    r: Recorder, metas: list[tuple[Shape, DType, bool]], low: DType, *, copied: bool
) -> list[Grad | None]:
    """What comes between is made again; the gradients of parameters in the dtypes that the kernel writes."""
    again = r.grad(TOKENS, low)
    rows = r.grad(MIXED, low) if copied else None
    convolved = r.grad(MIXED, low)
    del rows
    of_joint, of_mixed = r.grad(JOINT, low), r.grad(MIXED, low)
    out, normed = r.grad(TOKENS, low), r.grad(TOKENS, low)
    of_decay = _scanned_back(r, low)
    of_out = r.grad(OUT, low)
    grads: list[Grad | None] = [of_joint, of_decay]
    for shape, dtype, _ in metas[2:]:
        if shape == OUT:
            grads.append(of_out)
            continue
        wide = (
            r.grad(shape, FP32) if shape[0] == "K" else None
        )  # the convolution's are summed in fp32 and cast
        grads.append(
            wide if wide is not None and dtype is FP32 else r.grad(shape, low if shape == ("h",) else dtype)
        )
        del wide
    del again, convolved, of_mixed, out, normed
    return [grad if needs else None for grad, (_, _, needs) in zip(grads, metas, strict=True)]


def _scanned_back(r: Recorder, low: DType) -> Grad:
    """ssd_combined.py:397-516; gives the decays' gradient."""
    given = r.grad(("b", "s", "H"), low)
    steps, sums = r.grad(STEPS, FP32), r.grad(STEPS, FP32)
    scores = r.grad(SCORES, FP32)
    states = r.grad(STATES, FP32)
    passed, final = r.grad(STATES, FP32), r.grad(("b", "H", "p", "n"), FP32)
    del states
    of_passed = r.grad(STATES, FP32)
    of_states = r.grad(STATES, low)
    lowered = r.grad(STATES, low) if low is not FP32 else passed
    del passed, of_passed
    kept = [r.grad(STEPS, FP32)]
    for shape in (GROUPED, GROUPED, SCORES):
        parts = r.grad(shape, FP32)
        kept += [r.grad(shape, FP32)]
        del parts
        kept += [r.grad(STEPS, FP32)]
    tiles = r.grad(("b", "H", "m", "T", "Q"), FP32)
    kept += [r.grad(STEPS, FP32)]
    del tiles, given, steps, sums, scores, final, of_states, lowered, kept
    return r.grad(("H",), FP32)
