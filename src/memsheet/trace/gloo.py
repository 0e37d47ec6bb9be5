"""What gloo takes beside the tensors that it is given: copies that last as long as a collective, which no
tensor of a step stands for.

Sources: PyTorch's ProcessGroupGloo.cpp (2.4: a reduce-scatter clones its input and all-reduces the clone,
:1968-1975; a gather's parts arrive in one flat tensor and are copied from there, AllgatherWork). In torch
2.13 its profiler shows the same on the processor: a ``clone`` inside ``c10d::_reduce_scatter_base_``, an
``empty`` inside ``gloo:all_gather``.
"""

from __future__ import annotations

from typing import Any

import torch

from memsheet.sheet import Component
from memsheet.trace.recorder import Recorder

COPIES = {
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1), "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "c10d::_allgather_base_": ("all_gather", 0), "_c10d_functional::all_gather_into_tensor": ("all_gather", None),
}  # fmt: skip
"""Collective → what it is called here, and which of its arguments is copied whole (None: its result)."""


def watch_gloo(recorder: Recorder) -> None:
    """Record those copies too: each is there when the collective's own tensors are, and gone before anything
    else is made.
    """

    def after(function: Any, args: tuple[Any, ...], _: dict[str, Any], out: Any) -> None:
        name, place = COPIES.get(function._overloadpacket._qualified_op_name, ("", None))
        copied = (out if place is None else args[place]) if name else None
        if isinstance(copied, torch.Tensor) and copied.device.type == recorder.device:
            where, number = recorder.where(), len(recorder.rows)
            release = recorder.hidden(f"gloo/{name}", copied.numel() * copied.element_size())
            recorder.rows[number].claim(Component.COMMUNICATION, f"{where}/gloo_{name}".lstrip("/"))
            release()

    recorder.after = after
