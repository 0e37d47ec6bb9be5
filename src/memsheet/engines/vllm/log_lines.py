"""The lines that vLLM's releases print when they start, with what is expected in them."""

from __future__ import annotations

from memsheet.engines.vllm.capacity import Pool
from memsheet.engines.vllm.options import vllm_options
from memsheet.frozen import dataclass
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes
from memsheet.units import GIB

SWAP_BYTES = 4 * GIB
"""Of host memory that V0 takes for blocks (v0.6.4.post1 engine/arg_utils.py:119)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The lines of a release, which stand for all after it until the next in the table. ``digits``: of a
    size in GiB, trailing zeros and all where ``whole``.
    """

    since: tuple[int, ...]
    loaded: str
    cache: str = ""
    pool: tuple[str, ...] = ("GPU KV cache size: {tokens:,} tokens", "{concurrency}")
    concurrency: str = "Maximum concurrency for {longest:,} tokens per request: {times:.2f}x"
    digits: int = 4
    whole: bool = True


SECONDS = "and … seconds"
BLOCKS = "# {blocks} blocks: {{pages}}, # CPU blocks: {{swapped}}"
OLD = "Maximum concurrency for {longest} tokens per request: {times:.2f}x"
V0_REST = "…; the rest of the memory reserved for KV Cache is {cache:.2f}GiB."
V0_LOADED = "Loading model weights took {loaded} GB"
MEMORY = f"Model loading took {{loaded}} GiB memory {SECONDS}"
PRINTED = (
    Printed(since=(0, 0), loaded=V0_LOADED, pool=(BLOCKS.format(blocks="GPU"), "{concurrency}"), concurrency=OLD),
    Printed(since=(0, 6, 5), loaded=V0_LOADED, cache=V0_REST, pool=(BLOCKS.format(blocks="GPU"), "{concurrency}"), concurrency=OLD),
    Printed(since=(0, 7), loaded=V0_LOADED, cache=V0_REST, pool=(BLOCKS.format(blocks="cuda"), "{concurrency}"), concurrency=OLD),
    Printed(since=(0, 8), loaded=f"Model loading took {{loaded}} GiB {SECONDS}"),
    Printed(since=(0, 9), loaded=f"Model loading took {{loaded}} GiB {SECONDS}", cache="Available KV cache memory: {cache:.2f} GiB"),
    Printed(since=(0, 12), loaded=MEMORY, cache="Available KV cache memory: {cache:.2f} GiB"),
    Printed(since=(0, 14), loaded=MEMORY, cache="Available KV cache memory: {rounded} GiB", digits=2, whole=False),
    Printed(
        since=(0, 30), loaded=MEMORY, cache="Available KV cache memory: {rounded} GiB", digits=2, whole=False,
        pool=("GPU KV cache size: {tokens:,} tokens, {concurrency}",),
    ),
)  # fmt: skip
"""v0.6.4.post1 worker/model_runner.py:1077, executor/gpu_executor.py:82; v0.6.6 worker/worker.py:225,
executor/gpu_executor.py:76; v0.7.3 executor/executor_base.py:111; v0.8.5 v1/worker/gpu_model_runner.py:1347,
v1/core/kv_cache_utils.py:634; v0.9.2 :1801, gpu_worker.py:232; v0.12.0 :3549; v0.14.0 :3905, with
utils/mem_utils.py format_gib; v0.30.0 v1/core/kv_cache_utils.py:2395, v0.33.0 :1147.
"""


def start_up(plan: Plan, pool: Pool, weights: Bytes, available: Bytes) -> list[str]:
    """The lines the release prints."""
    printed = [found for found in PRINTED if found.since <= pool.release.since][-1]
    longest = plan.serving.max_model_len or 1
    loaded, cache = weights.value / GIB, available.value / GIB
    values = {
        "loaded": f"{loaded:.{printed.digits}f}" if printed.whole else round(loaded, printed.digits),
        "cache": cache,
        "rounded": round(cache, printed.digits),
        "tokens": pool.tokens(longest).value,
        "pages": pool.blocks.value,
        "swapped": SWAP_BYTES // max(1, pool.layout.block_bytes),
        "concurrency": printed.concurrency.format(longest=longest, times=pool.concurrency(longest)),
    }
    measured = not vllm_options(plan).kv_cache_bytes  # v0.33.0 v1/worker/gpu_worker.py:656
    lines = (printed.loaded, printed.cache if measured else "", *printed.pool)
    return [line.format(**values) for line in lines if line]
