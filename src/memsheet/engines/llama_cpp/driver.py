"""What a server without torch has on a card besides its own buffers: the driver's context and its
libraries.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.catalog import process_overheads
from memsheet.formulas.runtime import cublas_workspace_bytes
from memsheet.plan.device import Cluster
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Component, Derived, Fitted, FromCode, Instant, Item

CUDA_LIKE = ("CUDA", "ROCm")
"""Backends of llama.cpp with a context and libraries as CUDA has them."""
UNKNOWN_DRIVER = Derived(
    "what other drivers than CUDA's hold beside buffers is not known: from nothing to what CUDA's "
    "context takes"
)
CUBLAS = FromCode(
    "ggml-org/llama.cpp", "00395eb285c7c6821ff372e3ca41dae9da33c2c7", "ggml/src/ggml-cuda/common.cuh", 0
)


def driver_items(plan: Plan, cluster: Cluster | None, instants: Iterable[Instant]) -> list[Item]:
    """The context at every instant, and cuBLAS's workspace once something was multiplied; nothing where no
    card is named.
    """
    if cluster is None:
        return []
    instants, entry = tuple(instants), process_overheads()["context"]
    measured = Fitted(entry["runs"], entry["hardware"], entry["date"], entry["spread"])
    context = Bytes(entry["low_bytes"], entry["value_bytes"], entry["high_bytes"])
    if cluster.device.backend not in CUDA_LIKE:
        return [
            Item(
                Component.CONTEXT,
                "driver",
                dict.fromkeys(instants, Bytes(0, context.low, context.high)),
                UNKNOWN_DRIVER,
            )
        ]
    most = cublas_workspace_bytes(plan, cluster).high
    late = [instant for instant in instants if instant is not Instant.LOAD]
    items = [Item(Component.CONTEXT, "cuda", dict.fromkeys(instants, context), measured)]
    return (
        [*items, Item(Component.WORKSPACES, "cublas", dict.fromkeys(late, Bytes(0, 0, most)), CUBLAS)]
        if late
        else items
    )
