"""What SGLang records as CUDA graphs: which steps, of how many sequences, and what those take."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.sglang.chunk_graphs import largest_chunk, records_chunks
from memsheet.engines.sglang.facts import captured_chunks
from memsheet.engines.sglang.options import sglang_options
from memsheet.engines.sglang.releases import Release
from memsheet.formulas.runtime import NVIDIA
from memsheet.formulas.serving.drafts import verified_tokens
from memsheet.formulas.serving.graphs import graph_pool_bytes, recorded_kernels, with_driver_bytes
from memsheet.plan.device import Device
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.speculative import version_of
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Cited, Component, FromCode, Instant, Item

RUNNING = (Instant.PREFILL, Instant.DECODE)
AT_CAPTURE = Cited(
    SGLANG,
    "v0.4.9.post6 model_executor/cuda_graph_runner.py:436, v0.5.23 runner_backend/full_cuda_graph_backend.py",
)
SHARED_SINCE = (0, 5, 0)
"""From when on all graphs write their logits into one buffer (v0.5.0rc2 layers/logits_processor.py;
v0.4.9.post6 :511 does not).
"""
SIZES = (1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16))
"""Sequences that are recorded, up to the largest (v0.4.6.post5 model_executor/cuda_graph_runner.py:136,
v0.4.9.post6 :147).
"""
NEWER_SIZES, DRAFTED_SIZES = (
    (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4097, 32)),
    (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 4097, 16)),
)
"""The same in newer releases, and those of them with drafts (v0.5.4.post3 server_args.py:829, v0.5.23
arg_groups/cuda_graph_hook.py:502); older ones record no more of either.
"""
KEPT = FromCode(
    "sgl-project/sglang", "v0.4.9.post6", "python/sglang/srt/model_executor/cuda_graph_runner.py", 462
)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.4.post3 server_args.py:829, v0.5.23 arg_groups/cuda_graph_hook.py:502: those up to the "
        "largest, and that"
    ),
    counts="int",
)
def recorded_sizes(largest: int, *, drafts: bool = False) -> int:
    """How many sizes of a decoding step are recorded up to the largest, which is one of them."""
    sizes = DRAFTED_SIZES if drafts else NEWER_SIZES
    return len({*(size for size in sizes if size <= largest), largest})


def graph_items(
    part: ModelSpec, plan: Plan, release: Release, largest: Count, device: Device | None, groups: int = 1
) -> list[Item]:
    """The pool that all graphs share, and what the driver keeps of each; the buffer of their logits."""
    if not plan.options.captures:
        return []
    size = recorded_bytes(part, plan, release, int(largest), device, groups)
    found = [Item(Component.CUDA_GRAPHS, "captured", dict.fromkeys(RUNNING, size), AT_CAPTURE)]
    if version_of(plan.engine_version) >= SHARED_SINCE and part.head.kind != "none":
        rows = Bytes.exact(shared_logits_bytes(largest * verified_tokens(plan), part.head.width))
        found.append(Item(Component.CUDA_GRAPHS, "captured_logits", dict.fromkeys(RUNNING, rows), AT_CAPTURE))
    return found


@formula(
    cites=SGLANG,
    at=(
        "v0.5.4.post3 model_executor/cuda_graph_runner.py:372, v0.5.23 "
        "model_executor/graph_shared_output.py:71: fp32 logits of the largest size"
    ),
)
def shared_logits_bytes(rows: Count, width: Count) -> Count:
    """Bytes of the buffer into which every graph writes its logits."""
    return FP32.nbytes(rows * width)


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 model_executor/cuda_graph_runner.py:118 and v0.5.23 arg_groups/cuda_graph_hook.py:502: "
        "a whole step of each size; v0.5.23 runner_utils/pool.py: one pool for them and for chunks of prompts"
    ),
    counts="int",
)
def recorded_bytes(
    part: ModelSpec, plan: Plan, release: Release, largest: int, device: Device | None, groups: int = 1
) -> Bytes:
    """Bytes of all graphs of a stage. Chunks of prompts are recorded in pieces where a release does so by
    itself. ``groups``: that attend by themselves, of one of which the plan is.
    """
    rows, drafts = largest * verified_tokens(plan), plan.speculative is not None
    pool = graph_pool_bytes(part, plan, rows)
    pieces, known = 0, device is None or device.vendor in (NVIDIA, "")
    if _records_chunks(part, plan, release, groups, nvidia=known):
        pool_tokens = sglang_options(plan).pool_tokens
        chunk = largest_chunk(
            part, plan.engine_version, int(plan.serving.max_batched_tokens or 1), pool_tokens
        )
        pieces, wider = captured_chunks(chunk), pool.max(graph_pool_bytes(part, plan, chunk))
        pool = Bytes(pool.low, wider.value, wider.high)
    sizes = recorded_sizes(largest, drafts=drafts)
    return with_driver_bytes(pool, recorded_kernels(part, plan), pieces, sizes, largest, old=not known)


def _records_chunks(part: ModelSpec, plan: Plan, release: Release, groups: int, *, nvidia: bool) -> bool:
    return records_chunks(
        part, release, plan.engine_version,
        stages=int(plan.mesh.pp), groups=groups, sends=plan.options.dispatch == "deepep",
        adapters=plan.served_adapters is not None, captures=plan.options.captures, nvidia=nvidia,
    )  # fmt: skip


def kept_logits_items(part: ModelSpec, plan: Plan, largest: Count) -> list[Item]:
    """The logits of every graph; nothing where all share a buffer. Drafts record fewer sizes."""
    shared = version_of(plan.engine_version) >= SHARED_SINCE
    if shared or not plan.options.captures or part.head.kind == "none":
        return []
    size = kept_logits_bytes(int(largest), part.head.width)
    least = 0 if plan.speculative else size
    ends = dict.fromkeys((Instant.PREFILL, Instant.DECODE), Bytes(least, size, size))
    return [Item(Component.CUDA_GRAPHS, "captured_logits", ends, KEPT)]


@formula(
    cites=SGLANG,
    at=(
        "v0.4.9.post6 model_executor/cuda_graph_runner.py:462, layers/logits_processor.py:511: what a graph "
        "hands back stays, fp32 logits of all its sequences"
    ),
)
def kept_logits_bytes(largest: int, width: Count) -> Count:
    """Bytes of the logits of all sizes up to the largest, which is one of them."""
    rows = sum(size for size in SIZES if size < largest) + largest
    return FP32.nbytes(rows * width)
