"""What is on the card besides tensors: library workspaces, the driver's context, communicators, the allocator's slack."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from memsheet.arith import Count, at_least, minimum, where
from memsheet.catalog import overheads
from memsheet.sheet import Bytes, Component, Derived, Evidence, Fitted, FromCode, Instant, Item
from memsheet.spec.device import Cluster
from memsheet.spec.plan import Plan


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return overheads()


def _evidence(entry: dict[str, Any]) -> Evidence:
    if "project" in entry:
        return FromCode(entry["project"], entry["commit"], entry["file"], entry["line"])
    return Fitted(entry["runs"], entry["hardware"], entry["date"], entry["spread"])


def _range(entry: dict[str, Any]) -> Bytes:
    return Bytes(entry["low_bytes"], entry["value_bytes"], entry["high_bytes"])


def workspaces(plan: Plan, cluster: Cluster | None) -> Bytes:
    """CuBLAS workspaces: one a thread that runs matrix products, so two in training (forward's and backward's)."""
    entry = _table()["cublas_workspace_large" if cluster and _generation(cluster) >= 9 else "cublas_workspace_small"]
    handles = 2 if plan.task == "train" else 1
    one = _range(entry)
    return Bytes(one.low, handles * one.value, handles * one.high)


def _generation(cluster: Cluster) -> int:
    """The major compute capability of an NVIDIA card; 9 elsewhere, where the libraries' workspaces are at least as large."""
    major = (cluster.device.compute_capability or "").split(".")[0]
    return int(major) if major.isdigit() else 9


def outside_tensors(plan: Plan, cluster: Cluster | None, allocated: dict[Instant, Count], *, loaded: Count = 0) -> list[Item]:
    """Workspaces, context, communicators and slack as items with ranges, at the instants of ``allocated`` (tensor bytes).

    ``loaded``: bytes that were placed once and never move (the weights of a server), which leave no gaps.
    """
    if cluster is None:
        return []
    table = _table()
    entries = [
        (Component.WORKSPACES, "cublas", workspaces(plan, cluster), table["cublas_workspace_large"]),
        (Component.CONTEXT, "cuda", _range(table["context"]), table["context"]),
    ]
    several = at_least(plan.mesh.gpus, 2)
    if several is not False:
        entries.append((Component.CONTEXT, "nccl", _communicators(plan, table["nccl_communicator"]), table["nccl_communicator"]))
    items = [Item(c, path, dict.fromkeys(_when(c, plan, allocated), size), _evidence(entry)) for c, path, size, entry in entries]
    return [*items, _slack(plan, table, {instant: size - loaded for instant, size in allocated.items()})]


def _when(component: Component, plan: Plan, instants: Iterable[Instant]) -> list[Instant]:
    """A server has made no matrix product yet, and so no workspace, when its weights have just arrived."""
    late = component is Component.WORKSPACES and plan.task == "infer"
    return [instant for instant in instants if not (late and instant is Instant.LOAD)]


def _communicators(plan: Plan, entry: dict[str, Any]) -> Bytes:
    one = _range(entry)
    mesh = plan.mesh
    groups = sum(where(at_least(degree, 2), 1, 0) for degree in (mesh.dp_replicate, mesh.dp_shard, mesh.tp, mesh.pp, mesh.cp))
    return Bytes(minimum(groups, 1) * one.low, groups * one.value, groups * one.high)


def _slack(plan: Plan, table: dict[str, Any], allocated: dict[Instant, Count]) -> Item:
    """Reserved but not allocated: a share of the peak, from replays of allocation sequences."""
    entry = table["allocator_slack_expandable" if plan.expandable_segments else "allocator_slack"]
    low, value, high = (entry[f"{end}_per_mille"] for end in ("low", "value", "high"))
    at = {instant: Bytes(size * low // 1000, size * value // 1000, size * high // 1000) for instant, size in allocated.items()}
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, _evidence(entry))


NO_CARD = Derived("no device was named, so nothing outside tensors is counted")
