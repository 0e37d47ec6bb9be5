"""Whose kernels run, and how many bytes their passes over memory take, in 16-bit tensors: of one kernel what
the operator itself reads and writes (``formulas/operators/``), of norms and activations that are written out
what the tape of their code does, of the rest counted from that code.

Of an element that is read or written once, 2 bytes in bf16 and 4 in fp32. Rotation written out (rotate_half,
two products, a sum): 20. A ring's next block of attention is added to the sums in fp32: fused a block read,
the sum read and written (TransformerEngine d0067d0, context_parallel.py, flash_attn_fwd_out_correction: 10;
queries' gradients: 6); written out a cast, a difference, a product, a difference (torch 2.13,
_context_parallel/_attention.py, _SDPAMerger: 38; gradients a cast and a sum: 18).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memsheet.formulas.operators.operator import TRAFFIC, Kind, Operator
from memsheet.formulas.operators.taped import taped_activation_passes, taped_norm_passes
from memsheet.frozen import dataclass
from memsheet.plan.engine import Engine, LayerKernels
from memsheet.plan.model import Dense, Moe, Norm
from memsheet.plan.plan import AttentionKind, Loss, Plan

Passes = tuple[float, float]

LOSSES: Mapping[Loss, Passes] = MappingProxyType(
    {
        Loss.PLAIN: (18, 18),  # raised to fp32 (6), log-softmax (12); its gradient (12), lowered again (6)
        Loss.CHUNKED: (18, 18),
        Loss.VOCAB_PARALLEL: (
            26,
            12,
        ),  # megatron core/tensor_parallel/cross_entropy.py: cast, maximum, difference, exponential, sum
        Loss.FUSED: (6, 4),  # read for the sum, read and replaced by the gradient; scaled
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """``own``: what the engine's own code decides. ``accumulated_bytes``: of a weight's gradient added to a
    buffer inside its product. ``fuses_inputs``: queries, keys and values are one matrix, so are a gate and
    what it gates. ``quantised_bytes``: of an element that a second, columnwise copy of it takes. ``casts``:
    autocast makes a low copy of a matrix in every forward and raises its gradient in every backward.
    ``calls``: CALLS of them an operator.
    """

    own: LayerKernels
    arithmetic: str
    plain: str
    low: bool
    element_bytes: int
    attention: str
    fused: bool
    layers: str | None
    scores: Passes
    merged: Passes
    losses: Mapping[Loss, Passes]
    accumulated_bytes: int
    fuses_inputs: bool
    quantised_bytes: float
    casts: bool
    calls: int


FUSED: Mapping[Kind, Passes] = MappingProxyType(
    {
        kind: (2.0 * (reads + writes), 2.0 * (reads + writes + saves))
        for kind, (reads, writes, saves) in TRAFFIC.items()
    }
)
"""One kernel each way: backward reads gradients of what was written and what forward had, and writes those of
what was read.
"""
WRITTEN_OUT: Mapping[Kind, Passes] = MappingProxyType(
    {**FUSED, Kind.ROTATION: (20, 20), Kind.DISPATCH: (16, 16)}
)


def operator_passes(op: Operator, *, fused: bool, layers: str | None, trains: bool = True) -> Passes:
    """Bytes an element of a pass over memory: of one kernel, or as the code is written out."""
    if not fused and isinstance(op.module, Norm):
        return taped_norm_passes(layers, op.module.kind, trains=trains)
    if not fused and isinstance(op.module, Dense | Moe) and op.kind in (Kind.GATE, Kind.ACTIVATION):
        return taped_activation_passes(op.module.activation, gated=op.module.gated)
    return (FUSED if fused else WRITTEN_OUT)[op.kind]


SCORES, SCORES_WRITTEN_OUT = (6, 8), (24, 24)
"""Written by the product, read and written by a fused masked softmax, read by the next product."""
MERGED, MERGED_WRITTEN_OUT = (10, 6), (38, 18)
QUANTISED = {"mxfp8": 1.0, "nvfp4": 0.5}
"""Microscaled formats are quantised by rows and by columns, as a block's scale does not survive a transpose
(TransformerEngine's guide to MXFP8); the tables have the first.
"""
CALLS = {"compiled": 1, "fused": 2, "written_out": 4}
"""Operations that the host starts for one operator of a layer, views and casts among them: a layer of the
transformers library is about 50 operations (its tape), here 13 operators. A captured graph is started as one.
"""
ROUTING_CALLS = 60
"""And those of a router, its sorting and the two permutations, written out or not."""
LOW = ("fp8", "mxfp8", "nvfp4")


def kernels_of(plan: Plan, engine: Engine) -> Kernels:
    own = engine.layer_kernels
    fused = plan.compile or own.fused
    compute = plan.precision.compute.name
    plain = "bf16" if compute in LOW else compute
    kind = (
        "fp8_block"
        if compute == "fp8" and plan.fp8 is not None and plan.fp8.recipe == "blockwise"
        else compute
    )
    return Kernels(
        own=own,
        calls=0
        if plan.cuda_graphs
        else CALLS["compiled" if plan.compile else "fused" if own.fused else "written_out"],
        casts=engine.autocast and plan.precision.casts and not engine.sharding.gathers,
        arithmetic=kind,
        plain=plain,
        low=compute in LOW,
        element_bytes=4 if plain in ("fp32", "tf32") else 2,
        attention="cudnn" if plan.attention is AttentionKind.CUDNN else own.attention,
        losses=LOSSES,
        accumulated_bytes=8 if own.adds_in_products else 0,
        fuses_inputs=own.fused,
        quantised_bytes=QUANTISED.get(kind, 0.0),
        fused=fused,
        layers=engine.layers,
        scores=SCORES if fused else SCORES_WRITTEN_OUT,
        merged=MERGED if fused else MERGED_WRITTEN_OUT,
    )
