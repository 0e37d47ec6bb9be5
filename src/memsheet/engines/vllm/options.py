"""Options that only vLLM has."""

from __future__ import annotations

from memsheet.frozen import dataclass
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(EngineOptions):
    """``host_weights_gib``: GiB of a GPU's layers that lie in host memory (``--cpu-offload-gb``).
    ``dcp``: ranks of tensor parallelism that share out the tokens of a cache
    (``--decode-context-parallel-size``). ``host_kv_gib``: GiB of host memory that a GPU's blocks spill into
    (``--kv-offloading-size`` over the ranks). ``kv_connector``: what carries the cache elsewhere
    (``--kv-transfer-config``), several with + between. ``swa_full``: layers with a window keep every token
    (``--disable-hybrid-kv-cache-manager``).
    ``kv_cache_bytes``, ``kv_blocks``: the pool of a GPU in bytes (``--kv-cache-memory-bytes``) or in blocks
    (``--num-gpu-blocks-override``), in place of what the fraction leaves; 0 where nobody says.
    ``graph_sequences``: tokens of the largest CUDA graph (``max_cudagraph_capture_size``), where they are
    said.
    """

    host_weights_gib: float = 0
    dcp: int = 1
    host_kv_gib: float = 0
    kv_connector: str | None = None
    swa_full: bool = False
    kv_cache_bytes: int = 0
    kv_blocks: int = 0
    graph_sequences: int | None = None
    attention_kernels: str | None = None


def vllm_options(plan: Plan) -> VllmOptions:
    assert isinstance(plan.options, VllmOptions)
    return plan.options
