"""Attention over ranks that share sequences, as accelerate has torch run it (torch 2.13.0
distributed/tensor/experimental/_context_parallel/_attention.py; accelerate 1.15.0 big_modeling.py:787).

Every rank has two pieces of each sequence, of which the k-th from the front and from the back are one rank's.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div
from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.families import EXCHANGED, RING
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, FP16, FP32, INT64, DType
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import AttentionKind, ContextParallel, Loss, Plan
from memsheet.references import TRANSFORMERS, formula

LONG = "long ring"
"""And by more than two ranks, where gradients of keys and values are on their way twice."""
PIECES = 2
"""Pieces of a sequence that a rank has."""
MERGED: Shape = ("b", "s", "a", "d")


def part_of_rank(plan: Plan) -> Plan:
    """The plan of what a rank has of every sequence."""
    if plan.context_parallel is None:
        return plan
    length = ceil_div(plan.training.seq_len, plan.mesh.cp)
    return replace(plan, workload=replace(plan.training, seq_len=length))


def ring_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What sequences over ranks were not compared with the real code for, and what accelerate or torch
    refuses. A fused loss takes labels that were shifted before they were cut, and a rank's tokens alone
    (liger-kernel 0.8.5 transformers/model/llama.py:103, 124; transformers 5.23.0 trainer.py:2418-2446).
    """
    degree, low = plan.mesh.cp, plan.precision.compute
    if plan.context_parallel is None or plan.context_parallel is ContextParallel.ALL_TO_ALL:
        return []
    mixers = spec.mixers()
    plain = all(isinstance(at, Attention) and at.causal and not (at.window or at.chunk) for at in mixers)
    dims = {at.head_dim for at in mixers if isinstance(at, Attention)}
    kinds = sorted({block.kind for block in spec.blocks()} - SHARED)
    dims = {at.head_dim for at in mixers if isinstance(at, Attention)}
    reasons = [
        ("of layers that do not attend to all before them, which accelerate refuses", not plain),
        (f"of {', '.join(kinds)}: it was not compared with its real code", bool(kinds) and plain),
        (f"with {plan.attention.value} attention: torch's ring is that of sdpa", plan.attention is not AttentionKind.SDPA),
        (f"in {low.name}, which no kernel of torch's ring computes in", low not in (BF16, FP16)),
        (f"where {plan.training.seq_len} tokens are not {PIECES} pieces for each rank", agreed(plan.training.seq_len % (PIECES * degree) != 0)),
        ("of heads that are padded", any(dim % 8 for dim in dims)),
        ("beside tensor-parallel ranks", agreed(plan.mesh.tp > 1)),
        (f"with a {plan.loss.value} loss", plan.loss not in (Loss.PLAIN, Loss.FUSED)),
        ("with adapters", plan.adapter is not None),
        ("with dropout", plan.dropout > 0),
        ("with saved activations on the host", plan.offload.activations),
        ("with states on the host", bool(plan.offload.parameters or plan.offload.optimizer)),
    ]  # fmt: skip
    return [
        Problem(
            field="mesh.cp",
            value=degree,
            reason=f"is not modelled {why}",
            hint="`memsheet trace` runs it, or without cp",
        )
        for why, holds in reasons
        if holds
    ]


SHARED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Families whose steps were compared with their traces over such ranks."""


def ring_options(plan: Plan) -> frozenset[str]:
    """What of ``RunConfig.options`` a plan's ranks make."""
    if plan.context_parallel is None:
        return frozenset()
    if plan.context_parallel is ContextParallel.ALL_TO_ALL:
        return frozenset({EXCHANGED})
    return frozenset({RING, LONG} if agreed(plan.mesh.cp > PIECES) else {RING})


@formula(
    cites=TRANSFORMERS,
    at="trainer.py _prepare_context_parallel_inputs: ids, labels, labels shifted and positions, cut by torch",
)
def shared_inputs(plan: Plan, tokens: Count, sequences: Count) -> dict[str, Count]:
    """Bytes of a batch of which a rank has ``tokens`` bytes of ids: whole, for it is cut in place, positions
    of one sequence, the parts, and which pieces they are (torch's _context_parallel_buffers).
    """
    # a part of each comes from the host (DeepSpeed edaa722 ulysses_sp.py:668-706)
    if plan.context_parallel is ContextParallel.ALL_TO_ALL:
        return dict.fromkeys(("input_ids", "shift_labels", "position_ids"), tokens)
    whole = tokens * plan.mesh.cp
    places = whole * INT64.nbytes(1) // sequences
    return {
        **dict.fromkeys(("input_ids", "labels", "shift_labels"), whole),
        "position_ids": places,
        "parts": 5 * tokens,
    }


def ring_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig
) -> tuple[Tensor, None]:
    """Keys and values made contiguous, joined and gathered from all ranks; a result for each rank's, merged
    in fp32 with those before.
    """
    path = at.path
    q, k, v = (r.autocast(x, f"{path}/{name}") for x, name in ((q, "q"), (k, "k"), (v, "v")))
    whole, heads, dtype = q.shape, k.shape, q.dtype
    line: Shape = ("b", "a", "s", 1)
    both: Shape = (2, *heads)
    own = [_contiguous_copy(r, x, f"{path}/{name}_contiguous") for x, name in ((k, "k"), (v, "v"))]
    joined = r.tensor(f"{path}/kv", both, dtype)
    gathered = r.tensor(f"{path}/kv_gathered", ("cp", *both), dtype)
    del joined
    part = r.tensor(f"{path}/part", whole, dtype)
    logs = r.tensor(f"{path}/part_logsumexp", line, FP32)
    merged = r.tensor(f"{path}/merged", whole, FP32)
    own.clear()
    other = r.tensor(f"{path}/part", whole, dtype)
    more = r.tensor(f"{path}/part_logsumexp", line, FP32)
    del part
    merged, logs = _merge_part(r, [merged], [logs], whole, line, path)
    out = r.tensor(f"{path}/context", whole, dtype)
    del merged, other, more, gathered
    seed = r.tensor(f"{path}/rng", (2,), INT64)
    metas = [(x.shape, x.dtype) for x in (q, k, v)]
    out = r.apply(
        out,
        (q, k, v),
        (q, k, v, out, logs, seed),
        lambda _: _ring_gradients(r, metas, path, twice=LONG in how.options),
    )
    return r.copy(out, MERGED, f"{path}/context"), None


def _contiguous_copy(r: Recorder, x: Tensor, path: str) -> Tensor:
    return r.tensor(path, x.shape, x.dtype)


def _merge_part(
    r: Recorder, sofar: list[Tensor], logs: list[Tensor], whole: Shape, line: Shape, path: str
) -> tuple[Tensor, Tensor]:
    """``out - sigmoid(part_log - log) * (out - part)`` with the part raised to fp32, and the logarithms'."""
    wide = r.tensor(f"{path}/part_fp32", whole, FP32)
    difference = r.tensor(f"{path}/difference", whole, FP32)
    scaled = r.tensor(f"{path}/scaled", whole, FP32)
    del difference
    result = r.tensor(f"{path}/merged", whole, FP32)
    del scaled, wide
    log = r.tensor(f"{path}/logsumexp", line, FP32)
    sofar.clear()
    logs.clear()
    return result, log


def _ring_gradients(
    r: Recorder, metas: list[tuple[Shape, DType]], path: str, *, twice: bool
) -> list[Grad | None]:
    """Gradients of all parts are added in fp32; those of keys and values travel on with them, the next rank's
    arrive.
    """
    (whole, dtype), (heads, _), _ = metas
    both: Shape = (2, *heads)
    sums = [r.grad(shape, FP32) for shape, _ in metas]
    own = [r.grad(heads, dtype, f"{path}/{name}_contiguous") for name in "kv"]
    joined = r.grad(both, dtype, f"{path}/kv")
    gathered = r.grad(("cp", *both), dtype, f"{path}/kv_gathered")
    part = [r.grad(*meta) for meta in metas]
    flat = [r.grad(heads, FP32, f"{path}/flat") for _ in range(2)]
    sent = r.grad(both, FP32, f"{path}/kv_gradients")
    flat.clear()
    got = r.grad(both, FP32, f"{path}/kv_gradients")
    own.clear()
    other = [r.grad(*meta) for meta in metas]
    part.clear()
    del sent, sums[1:]
    last = [r.grad(both, FP32, f"{path}/kv_gradients") for _ in range(2)]
    if twice:
        on_its_way = r.grad(both, FP32, f"{path}/kv_gradients")
        del on_its_way
    made: list[Grad | None] = [r.grad(whole, dtype)]
    sums.clear()
    made += [r.grad(*meta) for meta in metas[1:]]
    last.clear()
    other.clear()
    del joined, gathered, got
    return made
