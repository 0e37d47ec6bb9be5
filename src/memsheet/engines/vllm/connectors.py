"""What carries vLLM's cache off a GPU (``--kv-transfer-config``), beside a pool as large as without it."""

from __future__ import annotations

from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.releases import Release
from memsheet.errors import nearest_words
from memsheet.frozen import dataclass
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.plan import Plan

JOINED = "+"
APART_SINCE = (0, 33)
"""Since when a connector that can leaves windows and states their own kinds of blocks (v0.33.0
config/vllm.py:2259; v0.18.0 :1165 and before keep every token in every layer beside any connector).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """``apart``: it knows several kinds of blocks (``SupportsHMA``). ``chunk_tokens``: of a buffer on the GPU
    through which it copies. ``host_gib``: what it keeps on the host where nobody says.
    """

    apart: bool = True
    chunk_tokens: int = 0
    host_gib: float = 0


CONNECTORS = {
    **dict.fromkeys(
        (
            "NixlConnector",
            "NixlPullConnector",
            "NixlPushConnector",
            "MooncakeConnector",
            "MooncakeStoreConnector",
        ),
        Connector(),
    ),
    **dict.fromkeys(("OffloadingConnector", "SimpleCPUOffloadConnector"), Connector()),
    "LMCacheConnectorV1": Connector(apart=False, chunk_tokens=256, host_gib=5),
}
"""Those that register the pool's own tensors and make none on the GPU (v0.33.0
distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py, mooncake/mooncake_connector.py,
v1/kv_offload/cpu/gpu_worker.py:846, v1/simple_kv_offload/worker.py:247). LMCache copies through one chunk
(lmcache 0.5.6 v1/gpu_connector/gpu_connectors.py:200, v1/config.py chunk_size, max_local_cpu_size).
"""


def connectors_of(plan: Plan) -> tuple[Connector, ...]:
    name = vllm_options(plan).kv_connector
    return tuple(CONNECTORS[part] for part in name.split(JOINED)) if name else ()


def checked_connector(gaps: RequestResolver) -> str | None:
    """The connectors that a plan names; one that was not read is a problem."""
    name = gaps.request.get("serving.kv_connector")
    if name is None:
        return None
    unread = [part for part in str(name).split(JOINED) if part not in CONNECTORS]
    if unread:
        hint = ", ".join(nearest_words(unread[0], CONNECTORS, cutoff=0) or CONNECTORS)
        gaps.wrong("serving.kv_connector", name, "is no connector that was read", hint)
        return None
    return str(name)


def keeps_kinds_apart(plan: Plan, release: Release) -> bool:
    """Whether layers with a window or a state have blocks of their own."""
    own = vllm_options(plan)
    if own.swa_full:
        return False
    return own.kv_connector is None or (
        release.since >= APART_SINCE and all(one.apart for one in connectors_of(plan))
    )
