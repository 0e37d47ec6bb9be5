"""Room for LoRA adapters as every server asks for it: how many, in which dtype, on which layers."""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.plan.dtypes import DType, dtype_named
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import ServedAdapters

ENDS = ("embed_tokens", "lm_head")


def adapter_slots(
    gaps: RequestResolver,
    slots: int,
    rank: int | None,
    dtype: DType,
    targets: tuple[str, ...] | None,
    *,
    sharded: bool = False,
) -> ServedAdapters:
    """``slots``: as many as the engine takes where nobody says."""
    count = gaps.get("serving.max_loras", slots)
    host = gaps.get("serving.max_cpu_loras", count, silent=True)
    if host < count:
        gaps.wrong(
            "serving.max_cpu_loras",
            host,
            f"is below max_loras {count}, all of which the host keeps too",
            f"{count} or more",
        )
    return ServedAdapters(
        slots=count, rank=rank or 0, targets=targets, dtype=dtype, host=host, sharded=sharded
    )


def adapter_dtype(gaps: RequestResolver, usual: DType, allowed: Iterable[DType], engine: str) -> DType:
    given = gaps.request.get("adapter.dtype")
    found = dtype_named(given) if given is not None else None
    names = {dtype.name for dtype in (usual, *allowed)}
    if found is not None and found.name not in names:
        gaps.wrong(
            "adapter.dtype", given, f"is not what {engine} keeps adapters in", ", ".join(sorted(names))
        )
    return found or usual


def loaded_adapters(gaps: RequestResolver, dtype: DType, targets: tuple[str, ...] | None) -> ServedAdapters:
    """As many as are loaded, none of which stays on the host."""
    rank = gaps.request.get("adapter.rank")
    if rank is None:
        gaps.wrong(
            "adapter.rank",
            None,
            "is missing: an adapter has the rank it was trained with",
            "for example --lora-rank 16",
        )
    gaps.assumed.append(f"adapter.dtype = {dtype.name}") if gaps.request.get(
        "adapter.dtype"
    ) is None else None
    return ServedAdapters(
        slots=gaps.get("serving.max_loras", 1), rank=rank or 0, targets=targets, dtype=dtype, host=0
    )


def check_target_names(
    gaps: RequestResolver, given: Iterable[str], known: set[str], model: ModelSpec
) -> None:
    for name in given:
        if name not in known:
            gaps.wrong(
                "adapter.targets",
                name,
                f"names no layer of {model.name} that may have one",
                f"it has {', '.join(sorted(known))}",
            )
