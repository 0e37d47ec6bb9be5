"""What a server without torch has on a card besides its own buffers: the driver's context and its
libraries.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.formulas.runtime import CONTEXT, cublas_workspace_bytes, driver_context
from memsheet.plan.device import Cluster
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

CUDA_LIKE = ("CUDA", "ROCm")
"""Backends of llama.cpp with a context and libraries as CUDA has them."""
CUBLAS = FromCode(
    "ggml-org/llama.cpp", "00395eb285c7c6821ff372e3ca41dae9da33c2c7", "ggml/src/ggml-cuda/common.cuh", 0
)


def driver_items(plan: Plan, cluster: Cluster | None, instants: Iterable[Instant]) -> list[Item]:
    """The context at every instant, and cuBLAS's workspace once something was multiplied; nothing where no
    card is named.
    """
    if cluster is None:
        return []
    instants = tuple(instants)
    context, held_by = driver_context(cluster.device)
    if cluster.device.backend not in CUDA_LIKE:
        return [Item(Component.CONTEXT, "driver", dict.fromkeys(instants, context), held_by)]
    most = cublas_workspace_bytes(plan, cluster).high
    late = [instant for instant in instants if instant is not Instant.LOAD]
    items = [Item(Component.CONTEXT, CONTEXT, dict.fromkeys(instants, context), held_by)]
    return (
        [*items, Item(Component.WORKSPACES, "cublas", dict.fromkeys(late, Bytes(0, 0, most)), CUBLAS)]
        if late
        else items
    )


def unused_driver_items(cluster: Cluster | None, instants: Iterable[Instant]) -> list[Item]:
    """The context at most on a card that the process sees and gives nothing: it is asked for its free memory
    before it is left out (ggml-org/llama.cpp 00395eb2 src/llama.cpp llama_model_load_from_file_impl).
    """
    context, held_by = driver_context(cluster.device) if cluster else (Bytes.exact(0), CUBLAS)
    return [
        Item(
            Component.CONTEXT,
            CONTEXT,
            dict.fromkeys(instants, Bytes(0, context.value, context.high)),
            held_by,
        )
    ]
