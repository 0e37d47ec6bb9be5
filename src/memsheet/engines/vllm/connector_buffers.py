"""What connectors of vLLM's cache hold beside its pool: a buffer on the GPU, blocks in the host's memory."""

from __future__ import annotations

from memsheet.engines.vllm.connectors import connectors_of
from memsheet.engines.vllm.options import vllm_options
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item
from memsheet.units import GIB

CONNECTOR = "kv_connector"
RUNNING = (Instant.PREFILL, Instant.DECODE)


def connector_items(part: ModelSpec, plan: Plan) -> list[Item]:
    """The buffers that connectors copy through, on a rank."""
    tokens = sum(one.chunk_tokens for one in connectors_of(plan))
    if not tokens or plan.cache.kv_dtype is None:
        return []
    size = tokens * served_bytes_per_token(part, plan.cache.kv_dtype, plan.mesh.tp)
    source = FromCode("LMCache/LMCache", "v0.5.6", "lmcache/v1/gpu_connector/gpu_connectors.py", 200)
    return [Item(Component.WORKSPACES, CONNECTOR, dict.fromkeys(RUNNING, Bytes(0, size, size)), source)]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 config/cache.py kv_offloading_size, over all ranks of an engine "
        "(v1/kv_offload/cpu/spec.py:123); lmcache 0.5.6 v1/config.py max_local_cpu_size, of each"
    ),
    counts="int",
)
def host_cache_bytes(plan: Plan) -> int:
    """Bytes of host memory that a rank's blocks spill into."""
    usual = max((one.host_gib for one in connectors_of(plan)), default=0)
    return int((vllm_options(plan).host_kv_gib or usual) * GIB)
