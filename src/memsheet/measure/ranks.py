"""One of several processes that measure together: the same step on each, and the first one answers for
all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from memsheet.errors import input_error
from memsheet.measure import requests

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Beside nccl gloo, for what ranks tell one another that is not on the device."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """As ``measure.requests.answer``, of every rank where this is the first one, else of none."""
    join_process_group(request["device"], int(request["ranks"]), float(request["time_s"]))
    told = answer_together(request)
    if not told.get(
        "failed"
    ):  # after a failure it stays until the process ends: the others should hear why before they hear that
        dist.destroy_process_group()
    return told


def answer_together(request: Mapping[str, Any]) -> dict[str, Any]:
    """``answer``, of a process that has joined the others."""
    rank, world = dist.get_rank(), dist.get_world_size()
    (found,) = requests.answer(request)["timelines"]
    _scale_to_all_ranks(found["facts"]["measured"], request["plan"]["mesh"])
    found.update(rank=rank, stage=rank * int(request["stages"]) // world)
    if "died" in found["facts"]:  # the others wait for what this one does not do any more
        return {"timelines": [found], "failed": True}
    everyone = [None] * world if rank == 0 else None
    dist.gather_object(found, everyone)
    return {"timelines": everyone or []}


def _scale_to_all_ranks(measured: dict[str, Any], mesh: Mapping[str, int]) -> None:
    """Tokens a second of all ranks: those of a data-parallel group have their own."""
    if "tokens_per_s" in measured:
        measured["tokens_per_s"] = round(
            measured["tokens_per_s"] * mesh["dp_replicate"] * mesh["dp_shard"], 1
        )


def join_process_group(device: str, ranks: int, time_s: float) -> None:
    """Be the rank that the environment says among ``ranks``, as torchrun sets it; alone where it says nothing
    and one is asked for.

    A rank that waits longer than ``time_s`` for another gives up. Raises InputError where the device is not
    one for each.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        _check_cuda(int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))))
        torch.cuda.set_device(local)
    there = "RANK" in os.environ
    single: dict[str, Any] = {} if there else {"store": HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=time_s), **single)


def _check_cuda(here: int) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < here:
        raise input_error(
            "device", "cuda", f"has {count} GPUs here for {here} ranks", "fewer ranks, or --device cpu"
        )
