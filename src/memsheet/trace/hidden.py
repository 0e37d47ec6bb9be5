"""What kernels hide, added to what is recorded: scratch as an allocation and a release around its operation,
workspaces for good.
"""

from __future__ import annotations

from typing import Any

from memsheet.sheet import Component, Instant
from memsheet.trace.recorder import Recorder, operation_name
from memsheet.trace.scratch import cublas_workspace, operation_scratch


def watch_kernels(recorder: Recorder, capability: tuple[int, int]) -> None:
    """From now on, every operation's hidden memory is an event of its own. ``capability``: the card's compute
    capability, by which workspaces are large or small.
    """
    kept: set[Any] = set()

    def after(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        if not recorder.is_on_card((outputs, args)):
            return
        found = cublas_workspace(func, args, capability)
        # forward and backward run on threads of their own, each with a handle of its own (CUDAContextLight,
        # CublasHandlePool.cpp)
        key = None if found is None else (found.key, recorder.stream(), recorder.instant is Instant.BACKWARD)
        if found is not None and key not in kept:
            kept.add(key)
            recorder.hidden(found.name, found.bytes, Component.WORKSPACES)
        release = [
            recorder.hidden(f"{operation_name(func)}/{s.name}", s.bytes)
            for s in operation_scratch(func, args, kwargs, outputs)
            if s.bytes
        ]
        for each in release:
            each()

    recorder.after = after
