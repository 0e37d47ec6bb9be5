"""The allocator's growing segments, as a job's environment says them (torch 2.13.0
c10/core/AllocatorConfig.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

ALLOCATOR, OLDER, ON = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""The variable, its older name, and what switches them on."""
OFF = "expandable_segments:False"
ALLOCATOR_CONF = "allocator_conf"
"""What a script itself sets the variable to."""
SOURCE = "torch 2.13.0 torch/cuda/memory.py:1202"


def read_allocator_conf(value: Any, _: Values) -> Mapping[str, Any]:
    """What a variable's text says."""
    return {"allocator.expandable_segments": ON.lower() in str(value).replace(" ", "").lower()}


def switched_conf_text(asked: Values) -> str:
    """The variable's text for a program that switches them on by itself where nobody says otherwise."""
    return ON if asked.get("allocator.expandable_segments") else OFF


def allocator_conf_text(asked: Values) -> str | None:
    """The variable's text where a plan asks for them."""
    return ON if asked.get("allocator.expandable_segments") else None


def allocator_conf_rows(group: str = "") -> tuple[Key, Key]:
    """The rows of a format that keeps variables in ``group``: the name that is written, and the older one,
    which is read.
    """
    return (
        Key(at=f"{group}{ALLOCATOR}", out=allocator_conf_text, back=read_allocator_conf, source=SOURCE),
        Key(at=f"{group}{OLDER}", out=lambda _: None, back=read_allocator_conf, source=SOURCE),
    )
