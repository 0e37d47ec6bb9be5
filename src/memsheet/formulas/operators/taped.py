"""Bytes that model code moves where it writes an operator out operation by operation: read from its tape.

What is recorded notes what each operation reads and writes (``tapes/tape.py``, Operation), so the code that
says what a norm or an activation saves says also how long it takes, whoever wrote it. An element of the
operator's own width counts; weights and one number a row do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from memsheet.formulas.model_code import model_code
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS
from memsheet.formulas.model_code.transformers.norms import NORMS, apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Operation, Shape
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import Norm, NormKind, Role, Weight

ROWS: Shape = ("b", "s", "h")
MANY = 2**20
"""Elements, so that formats with scales count by the bit."""
Passes = tuple[float, float]


def moved_bytes(operations: Iterable[Operation], shape: Shape) -> float:
    """Bytes an element of ``shape`` that goes through memory."""
    moves = (move for one in operations for move in (*one.reads, *one.writes))
    return sum(dtype.nbytes(MANY) / MANY for own, dtype in moves if own == shape)


@lru_cache(maxsize=256)
def taped_norm_passes(layers: str | None, kind: NormKind, *, trains: bool = True) -> Passes:
    """Forward and backward of a norm over 16-bit tensors, as an engine's own code (``layers``) writes it."""
    code = model_code(layers)
    how = RunConfig(
        layers=layers,
        parameters=BF16,
        stream=BF16,
        autocast=None,
        attention=AttentionKernel.FUSED,
        trains=trains,
    )
    known = kind if kind in NORMS else NormKind.RMS  # a state-space model's own stands in its mixer
    weight = Weight(path="norm.weight", shape=(1,), role=Role.NORM)
    norm = Norm(path="norm", kind=known, size=1, weights=(weight,))
    r = Recorder()
    x = r.arriving(ROWS, BF16)
    tape = r.finish((code.normalise or apply_norm)(r, x, norm, how), x)
    return moved_bytes(tape.forward_operations, ROWS), moved_bytes(tape.backward_operations, ROWS)


@lru_cache(maxsize=64)
def taped_activation_passes(activation: str, *, gated: bool) -> Passes:
    """Forward and backward of an activation over 16-bit tensors, and of its product with what it gates."""
    act = ACTIVATIONS.get(activation, ACTIVATIONS["silu"])
    r = Recorder()
    x, up = r.arriving(ROWS, BF16), r.arriving(ROWS, BF16)
    out = act(r, x, "act")
    out = r.mul(out, up, "gated") if gated else out
    tape = r.finish(out, x, up)
    return moved_bytes(tape.forward_operations, ROWS), moved_bytes(tape.backward_operations, ROWS)
