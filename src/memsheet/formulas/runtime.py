"""What is on the card besides tensors: library workspaces, the driver's context, communicators, the
allocator's slack.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from memsheet.arith import Count, at_least, minimum, round_up, where
from memsheet.catalog import process_overheads
from memsheet.plan.device import Cluster, Device
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.plan import Plan, Schedule
from memsheet.plan.workload import Serving, Training
from memsheet.references import TORCH_ALLOCATOR, formula
from memsheet.sheet import Bytes, Component, Derived, Evidence, Fitted, FromCode, Instant, Item
from memsheet.units import MIB


@lru_cache(maxsize=1)
def _overhead_table() -> dict[str, Any]:
    return process_overheads()


def _overhead_evidence(entry: dict[str, Any]) -> Evidence:
    if "project" in entry:
        return FromCode(entry["project"], entry["commit"], entry["file"], entry["line"])
    return Fitted(entry["runs"], entry["hardware"], entry["date"], entry["spread"])


def _overhead_range(entry: dict[str, Any]) -> Bytes:
    return Bytes(entry["low_bytes"], entry["value_bytes"], entry["high_bytes"])


LARGE_SINCE = 9
"""Compute capability from which libraries take larger workspaces."""


LARGE_ISA = ("gfx94", "gfx95")
"""Of AMD's cards, those."""


def cublas_workspace_bytes(plan: Plan, cluster: Cluster | None) -> Bytes:
    """Workspaces of cuBLAS or hipBLAS: one a thread that runs matrix products, so two in training (forward's
    and backward's).
    """
    handles = 2 if isinstance(plan.workload, Training) else 1
    one = _overhead_range(_blas_workspace_entry(cluster))
    return Bytes(one.low, handles * one.value, handles * one.high)


def _blas_workspace_entry(cluster: Cluster | None) -> dict[str, Any]:
    device = cluster.device if cluster else None
    if device and device.vendor == AMD:
        large = (device.compute_capability or "").startswith(LARGE_ISA)
        name = "hipblas_workspace_large" if large else "hipblas_workspace"
    else:
        large = cluster is not None and _major_compute_capability(cluster) >= LARGE_SINCE
        name = "cublas_workspace_large" if large else "cublas_workspace_small"
    entry: dict[str, Any] = _overhead_table()[name]
    return entry


AMD, NVIDIA = "AMD", "NVIDIA"
CONTEXT = "cuda"
"""The path of what a driver holds, whoever's it is."""


UNKNOWN_DRIVER = Derived(
    "what other drivers than CUDA's hold beside tensors is not known: from nothing to what CUDA's context "
    "takes"
)


def driver_context(device: Device) -> tuple[Bytes, Evidence]:
    """What a driver, its libraries and loaded kernels hold of a card. Measured of NVIDIA's alone; a card
    that is said by its size alone is taken for one of theirs.
    """
    entry = _overhead_table()["context"]
    cuda = _overhead_range(entry)
    if device.vendor in (NVIDIA, ""):
        return cuda, _overhead_evidence(entry)
    return Bytes(0, cuda.low, cuda.high), UNKNOWN_DRIVER


def _major_compute_capability(cluster: Cluster) -> int:
    """The major compute capability of an NVIDIA card; 9 elsewhere, where the libraries' workspaces are at
    least as large.
    """
    major = (cluster.device.compute_capability or "").split(".")[0]
    return int(major) if major.isdigit() else 9


def outside_tensors(
    plan: Plan, cluster: Cluster | None, allocated: dict[Instant, Count], *, loaded: Count = 0
) -> list[Item]:
    """Workspaces, context, communicators and slack as items with ranges, at the instants of ``allocated``
    (tensor bytes).

    ``loaded``: bytes that were placed once and never move (the weights of a server), which leave no gaps.
    """
    if cluster is None:
        return []
    table = _overhead_table()
    context, held_by = driver_context(cluster.device)
    entries = [
        (
            Component.WORKSPACES,
            "cublas",
            cublas_workspace_bytes(plan, cluster),
            _overhead_evidence(_blas_workspace_entry(cluster)),
        ),
        (Component.CONTEXT, CONTEXT, context, held_by),
    ]
    engine = find_engine(plan.engine)
    for name in engine.workspaces if engine and cluster else ():
        entry = table[f"{name}_{'large' if _major_compute_capability(cluster) >= LARGE_SINCE else 'small'}"]
        entries.append((Component.WORKSPACES, name, _overhead_range(entry), _overhead_evidence(entry)))
    several = False if plan.schedule is Schedule.NAIVE else at_least(plan.mesh.gpus, 2)
    if several is not False:
        entries.append(
            (
                Component.CONTEXT,
                "nccl",
                _nccl_communicator_bytes(plan, table["nccl_communicator"]),
                _overhead_evidence(table["nccl_communicator"]),
            )
        )
    items = [
        Item(c, path, dict.fromkeys(_instants_present(c, plan, allocated), size), evidence)
        for c, path, size, evidence in entries
    ]
    return [
        *items,
        _allocator_slack_share(plan, table, {instant: size - loaded for instant, size in allocated.items()}),
    ]


def _instants_present(component: Component, plan: Plan, instants: Iterable[Instant]) -> list[Instant]:
    """A server has made no matrix product yet, and so no workspace, when its weights have just arrived."""
    late = component is Component.WORKSPACES and isinstance(plan.workload, Serving)
    return [instant for instant in instants if not (late and instant is Instant.LOAD)]


SMALL_BYTES, LARGE_BYTES = MIB, 10 * MIB
SMALL_SEGMENT, MIDDLE_SEGMENT, ROUNDING = 2 * MIB, 20 * MIB, 2 * MIB
"""kSmallSize, kMinLargeAlloc, kSmallBuffer, large_segment_size and kRoundLarge of torch 2.13
c10/core/AllocatorConfig.h:17-25, 174.
"""
ALLOCATOR = FromCode(
    "pytorch/pytorch", "cf30153c4c131c8164ee7798e5022d810682e2cb", "c10/core/AllocatorConfig.h", 17
)


@formula(
    cites=TORCH_ALLOCATOR,
    at=(
        "get_allocation_size: up to 1 MiB from 2 MiB segments, up to 10 MiB from 20 MiB ones, above "
        "rounded to 2 MiB"
    ),
)
def loading_slack(tensors: Iterable[tuple[Count, int]]) -> Count:
    """What segments hold beyond tensors that are placed one after another and stay, given as (bytes, how
    many).
    """
    small = middle = rounded = 0
    for size, times in tensors:
        is_large, is_small = at_least(size, LARGE_BYTES), at_least(SMALL_BYTES, size)
        rounded = rounded + times * where(is_large, round_up(size, ROUNDING) - size, 0)
        small = small + times * where(is_small, size, 0)
        middle = middle + times * where(is_large, 0, where(is_small, 0, size))
    return rounded + round_up(small, SMALL_SEGMENT) - small + round_up(middle, MIDDLE_SEGMENT) - middle


@formula(
    cites=TORCH_ALLOCATOR,
    at="should_split: a large block keeps a rest of up to 1 MiB, which counts as allocated",
)
def kept_rest_bytes(tensors: Iterable[tuple[Count, int]]) -> Count:
    """What blocks of their own segments are larger than their tensors, given as (bytes, how many)."""
    total: Count = 0
    for size, times in tensors:
        rest = round_up(size, ROUNDING) - size
        kept = where(at_least(SMALL_BYTES, rest), rest, 0)
        total = total + times * where(at_least(size, LARGE_BYTES), kept, 0)
    return total


def _nccl_communicator_bytes(plan: Plan, entry: dict[str, Any]) -> Bytes:
    one = _overhead_range(entry)
    mesh = plan.mesh
    groups: Count = 0
    for degree in (mesh.dp_replicate, mesh.dp_shard, mesh.tp, mesh.pp, mesh.cp):
        groups = groups + where(at_least(degree, 2), 1, 0)
    return Bytes(minimum(groups, 1) * one.low, groups * one.value, groups * one.high)


def _allocator_slack_share(plan: Plan, table: dict[str, Any], allocated: dict[Instant, Count]) -> Item:
    """Reserved but not allocated: a share of the peak, from replays of allocation sequences."""
    entry = table["allocator_slack_expandable" if plan.expandable_segments else "allocator_slack"]
    low, value, high = (entry[f"{end}_per_mille"] for end in ("low", "value", "high"))
    at = {
        instant: Bytes(size * low // 1000, size * value // 1000, size * high // 1000)
        for instant, size in allocated.items()
    }
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, _overhead_evidence(entry))
