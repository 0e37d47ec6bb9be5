"""CUDA graphs of a server: the pool that all of them work in, and what the driver keeps of each."""

from __future__ import annotations

from memsheet.arith import Count, at_least, maximum, minimum, round_up, where
from memsheet.formulas.operators.blocks import block_operators, summed_widths
from memsheet.formulas.runtime import MIDDLE_SEGMENT, ROUNDING, SMALL_SEGMENT
from memsheet.formulas.serving.widest_layer import layer_bytes
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import CUDA_GRAPH_NODES, PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, FromCode
from memsheet.units import KIB, MIB

A_SEQUENCE = 2 * MIB
"""Of the driver's for all graphs of a size, a sequence of them: what SGLang keeps free (KEPT_FREE)."""
KEPT_FREE = FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/arg_groups/memory_hook.py", 66)


KERNEL_BYTES, PARAMETER_BYTES = 64 * KIB, 4 * KIB
"""Of device memory that a kernel of a graph takes with drivers before 550; and the most that its parameters
are, which later ones need at least (CUDA C++ programming guide, function parameters; newer code may have
more, which no kernel of a server does).
"""
PIECES = 8 * MIB
"""Of the driver's for all pieces of a size: what SGLang keeps free, beside what torch holds (v0.5.10
server_args.py:1308, v0.5.23 arg_groups/memory_hook.py).
"""
A_SIZE = MIB
"""Of the driver's for all graphs of a size: what vLLM counts at least (v0.20.2
v1/worker/gpu_model_runner.py:6015, v0.33.0 :6351 and v1/worker/gpu/cudagraph_utils.py:918).
"""


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 compilation/cuda_graph.py:280-380: every size and piece records into one pool, the largest "
        "first, and lets go of what it made, so that the widest layer of the largest is all"
    ),
)
def graph_pool_bytes(part: ModelSpec, plan: Plan, largest: Count) -> Bytes:
    """Bytes of the pool that graphs of up to ``largest`` tokens share, in segments of its own; towers are in
    no graph.
    """
    widest = layer_bytes(replace(part, towers=()), plan, largest)
    return Bytes(
        widest.low,
        round_up(widest.value, ROUNDING),
        round_up(widest.high, ROUNDING) + MIDDLE_SEGMENT + SMALL_SEGMENT,
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 config/__init__.py:593: 1, 2, 4 and every eighth; v0.12.0 config/vllm.py:1063: from 256 on "
        "every sixteenth"
    ),
)
def graph_sizes(largest: Count, *, coarse: bool) -> Count:
    """How many sizes are recorded up to the largest. ``coarse``: fewer of the larger ones."""
    small = 1 + where(at_least(largest, 2), 1, 0) + where(at_least(largest, 4), 1, 0)
    if not coarse:
        return small + largest // 8
    above = where(at_least(largest, 256), 1 + (maximum(largest, 256) - 256) // 16, 0)
    return small + minimum(largest, 255) // 8 + above


@formula(
    cites=CUDA_GRAPH_NODES,
    at="one launch an operator, and for each sum over ranks one before it and one after",
)
def recorded_kernels(part: ModelSpec, plan: Plan) -> Count:
    """Kernels of a step that a graph holds, those of attention too. Products may be split in two."""
    summing = where(at_least(plan.mesh.tp, 2), 2, 0)
    return sum(
        run.count * (len(block_operators(block)) + summing * len(summed_widths(block)))
        for stack in part.stacks
        for run in stack.runs
        for block in run.pattern
    )


@formula(
    cites=CUDA_GRAPH_NODES,
    at=(
        "'Dynamic Shape Support': 64 KB a launch until driver 550; SGLang v0.5.23 "
        "arg_groups/memory_hook.py:66 keeps 2 MiB a sequence free for graphs of whole steps"
    ),
)
def with_driver_bytes(
    pool: Bytes, kernels: Count, pieces: Count, whole: Count, sequences: Count, *, old: bool
) -> Bytes:
    """What graphs work in (``pool``), with what the driver keeps of each: nothing, or what an engine counts
    at least, or what another keeps free and the parameters of every launch. ``pieces`` and ``whole``: how
    many sizes of steps in pieces and of whole ones, these of up to ``sequences``. ``old``: the driver may be
    one that takes more.
    """
    launched = (pieces + whole) * kernels
    kept = pieces * PIECES + maximum(sequences * A_SEQUENCE, whole * A_SIZE) + launched * PARAMETER_BYTES
    most = maximum(kept, launched * KERNEL_BYTES) if old else kept
    return Bytes(pool.low, pool.value + (pieces + whole) * A_SIZE, pool.high + most)
