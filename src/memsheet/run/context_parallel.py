"""Sequences shared out among ranks by torch's context parallelism, as accelerate and transformers' Trainer
call it.

Keys and values are gathered by accelerate's default (1.15, utils/dataclasses.py:2230-2249), each rank takes a
piece from both ends of the sequence (torch's own load balancing), and no mask is made (accelerate
big_modeling.py:787-850).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from memsheet.errors import input_error
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.run.mesh import submesh_along

PIECES = 2  # of each rank's share: one from the front of the sequence, one from its end
_IGNORED = -100  # transformers' label of a token without a target


class Spread(nn.Module):
    """A model that is called with whole sequences and takes this rank's share of them.

    The share lasts until the next call or ``close``: backward needs attention's replacement too. ``placed``
    is told of each input.
    """

    def __init__(self, module: nn.Module, plan: Plan, mesh: DeviceMesh, device: str) -> None:
        """``module`` is what is called. Raises InputError for what torch's ring attention does not do."""
        super().__init__()
        _check_ring_attention(plan, device)
        self.module = module
        self.placed: Callable[[Tensor, str], None] = lambda *_: None
        self._mesh, self._device = submesh_along(mesh, "cp"), device
        self._context = ExitStack()
        self._held = list[Tensor]()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """As transformers' Trainer prepares a batch (trainer.py, ``_prepare_context_parallel_inputs``)."""
        from torch.distributed.tensor.experimental import context_parallel

        self.close()
        given = {"input_ids": input_ids.to(self._device), "labels": labels.to(self._device)}
        shifted = nn.functional.pad(given["labels"], (0, 1), value=_IGNORED)
        given["shift_labels"] = shifted[:, 1:].contiguous()
        given["position_ids"] = torch.arange(input_ids.size(1), device=self._device).expand(
            input_ids.size(0), -1
        )
        del shifted
        for name, tensor in given.items():
            self.placed(tensor, name)
        self._held = whole = list(given.values())
        context = context_parallel(
            self._mesh, buffers=whole, buffer_seq_dims=[1] * len(whole), no_restore_buffers=set(whole)
        )
        self._context.enter_context(context)
        return self.module(**given)

    def close(self) -> None:
        """Attention is its own again, and the batch goes, in its own order."""
        self._context.close()
        self._held.clear()


def apply_context_parallel(
    called: nn.Module, model: Any, plan: Plan, mesh: DeviceMesh, device: str
) -> Spread:
    """``called``, which calls ``model``, with its sequences shared out along the mesh's ``cp`` axis."""
    from accelerate.big_modeling import _attach_context_parallel_hooks  # type: ignore[import-untyped]

    spread = Spread(called, plan, mesh, device)
    try:
        _attach_context_parallel_hooks(model)
    except ValueError as error:  # layers that see less than the whole sequence
        raise input_error("mesh.cp", plan.mesh.cp, f"is refused by accelerate: {error}") from None
    return spread


def _check_ring_attention(plan: Plan, device: str) -> None:
    degree = int(plan.mesh.cp)
    if device == "cpu":
        raise input_error("mesh.cp", degree, "has no ring of the CPU's attention in torch", "--device cuda")
    if plan.attention is not AttentionKind.SDPA:
        raise input_error("attention", plan.attention.value, "has no ring in torch", "sdpa")
    if plan.training.seq_len % (PIECES * degree):
        raise input_error(
            "seq_len",
            plan.training.seq_len,
            f"does not divide into {PIECES} pieces for each of {degree} ranks",
            "a multiple of 2·cp",
        )
    if plan.precision.compute.name not in ("bf16", "fp16"):
        raise input_error(
            "precision.compute",
            plan.precision.compute.name,
            "is computed by no kernel that torch runs in a ring",
            "bf16",
        )
