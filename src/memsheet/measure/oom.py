"""What the CUDA allocator held at the moment a request failed, as plain values: no history, and names of
files in short.

``torch._C._cuda_attach_out_of_memory_observer`` calls with the device, the bytes that were asked for, what
the process may have at the most, and what the device has free (torch 2.13, torch/csrc/cuda/Module.cpp and
c10/cuda/CUDACachingAllocator.cpp, where observers are called before the error is thrown).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

OOM_SCHEMA = "memsheet/oom/1"
MOST_STACKS, MOST_FRAMES, FILE_PARTS = 200, 24, 2
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
Told = Callable[[dict[str, Any]], None]


def watch_for_failures(told: Told, plan: Mapping[str, Any] | None, *, stacks: bool) -> str:
    """``told`` gets the document of every request that fails from now on. ``stacks``: whether the allocator
    notes the lines that made what is live (about 2 µs an allocation, torch/cuda/memory.py). What is said
    where nothing is watched; empty where it is.
    """
    if not torch.cuda.is_available():
        return "this torch sees no CUDA device"
    if stacks:
        torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")

    def failed(device: int, asked: int, most: int, free: int) -> None:
        told(failure_document(torch.cuda.memory._snapshot(device), device, asked, most, free, plan))

    torch._C._cuda_attach_out_of_memory_observer(failed)  # type: ignore[attr-defined]
    return ""


def failure_document(
    snapshot: Mapping[str, Any], device: int, asked: int, most: int, free: int, plan: Mapping[str, Any] | None
) -> dict[str, Any]:
    """``memsheet/oom/1`` of a snapshot of the allocator: sizes in bytes, what is live by stack."""
    segments = [each for each in snapshot.get("segments", ()) if each.get("device", device) == device]
    blocks = [block for segment in segments for block in segment.get("blocks", ())]
    return {
        "schema": OOM_SCHEMA, "torch": str(torch.__version__), "device": device, "asked_bytes": asked, "free_bytes": free, "most_bytes": most,
        "allocated_bytes": sum(block["size"] for block in blocks if str(block.get("state")).startswith("active")),
        "reserved_bytes": sum(segment["total_size"] for segment in segments),
        "largest_free_bytes": max((block["size"] for block in blocks if block.get("state") == "inactive"), default=0),
        "settings": next((os.environ[name] for name in SETTINGS if os.environ.get(name)), ""),
        "ranks": {name.lower(): int(text) for name in RANKS if (text := os.environ.get(name, "")).isdecimal()},
        "plan": dict(plan) if plan is not None else None, "live": list(_live_stacks(blocks)),
    }  # fmt: skip


def _live_stacks(blocks: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is live, one row a stack, the largest first."""
    found: dict[tuple[tuple[str, int, str], ...], list[int]] = {}
    for block in blocks:
        if str(block.get("state")).startswith("active"):
            row = found.setdefault(tuple(_short_frames(block.get("frames") or ())), [0, 0])
            row[0] += int(block.get("requested_size") or block["size"])
            row[1] += 1
    for frames, (size, count) in sorted(found.items(), key=lambda pair: -pair[1][0])[:MOST_STACKS]:
        yield {"bytes": size, "blocks": count, "frames": [list(frame) for frame in frames]}


def _short_frames(frames: Any) -> Iterator[tuple[str, int, str]]:
    """Frames without the folders that say who runs it and where; PyTorch's own keep theirs."""
    for frame in frames[:MOST_FRAMES]:
        file = str(frame.get("filename", "")).replace("\\", "/")
        inside = file.rfind("/torch/")
        short = file[inside + 1 :] if inside >= 0 else "/".join(file.split("/")[-FILE_PARTS:])
        yield short, int(frame.get("line", 0)), str(frame.get("name", ""))
