"""A model built without memory, so that it can be cut first, and the memory for what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def materialize_meta_tensors(
    model: nn.Module,
    device: str,
    at: Callable[[str], None] = lambda _: None,
    *,
    parameters: str | None = None,
) -> None:
    """Memory on ``device`` for everything that has none, in place: a tied tensor stays one tensor. Values are
    whatever was there.

    ``at`` is told the module whose tensors come next, and nothing at the end. ``parameters``: another device
    for those.
    """
    names = {
        id(tensor): name.rpartition(".")[0]
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    made: dict[
        int, tuple[torch.Tensor, torch.Tensor]
    ] = {}  # with what it was, whose address must not be another's

    def with_memory(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "meta":
            return tensor
        if id(tensor) not in made:
            at(names.get(id(tensor), ""))
            place = parameters if parameters and isinstance(tensor, nn.Parameter) else device
            made[id(tensor)] = (tensor, torch.empty_like(tensor, device=place))
        return made[id(tensor)][1]

    model._apply(with_memory)
    at("")
    made.clear()
    tie: Any = getattr(model, "tie_weights", None)
    if tie is not None:
        tie(recompute_mapping=False)  # what was tied when it was built, less what has been cut away since
