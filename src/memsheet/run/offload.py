"""Activations that wait for backward in host memory: each tensor that autograd saves is copied there, and
back when it is read.

As torch.autograd.graph.save_on_cpu does (torch 2.13), but parameters, buffers and what views them stay where
they are, as in torchtune (torchtune/training/_activation_offloading.py): they are on the device anyway. What
several operations save is copied for each of them. Copies are pinned where the device is a GPU. On a
processor host and device are one memory, so nothing is saved there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memsheet.plan.engine_registry import runs_on_ranks
from memsheet.plan.plan import Plan

Packed = tuple[torch.device, Tensor]


def activation_offload_context(model: nn.Module, plan: Plan) -> AbstractContextManager[Any]:
    """Around a forward. Nothing where the plan keeps activations on the device."""
    if not plan.offload.activations:
        return nullcontext()
    stay = {_storage_address(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: Tensor) -> Tensor | Packed:
        own = (
            stay
            if not runs_on_ranks(plan)
            else {_storage_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
        )  # gathered just now
        return tensor if _storage_address(tensor) in own else (tensor.device, _to_host(tensor))

    return torch.autograd.graph.saved_tensors_hooks(pack, _restore_to_device)


def _storage_address(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _to_host(tensor: Tensor) -> Tensor:
    pinned = tensor.device.type == "cuda" and torch.cuda.is_available()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
    return host.copy_(tensor, non_blocking=pinned)


def _restore_to_device(packed: Tensor | Packed) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    device, host = packed
    return host.to(device, non_blocking=True, copy=True)
