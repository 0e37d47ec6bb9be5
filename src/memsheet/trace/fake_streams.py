"""The streams of a CUDA device that is not there: who works on which, and nothing ever waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.trace.patches import Patch


class Stream:
    """As ``torch.cuda.Stream``: nothing ever waits, and ``stream_id`` is what an allocation is filed under, 0
    for the default one.
    """

    numbers = count()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream_id: int = next(self.numbers)
        self.cuda_stream = self.stream_id

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_stream(self, _: Stream) -> None: ...

    def wait_event(self, _: Event) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


class Event:
    """As ``torch.cuda.Event``: it has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 0.0


class Streams:
    """The streams of one device, numbered in the order in which they are made."""

    def __init__(self) -> None:
        self.kind: type[Stream] = type(
            "Stream", (Stream,), {"numbers": count()}
        )  # a class, for annotations and isinstance
        self.default = self._current = self.kind()

    def current(self, *_: Any) -> Stream:
        return self._current

    def number(self) -> int:
        """The current stream's number: what a recorder asks for."""
        return self._current.stream_id

    def switch(self, stream: Stream) -> None:
        self._current = stream

    @contextmanager
    def use(self, stream: Stream | None) -> Iterator[None]:
        """As ``torch.cuda.stream``: None changes nothing."""
        before = self._current
        self._current = stream or before
        try:
            yield
        finally:
            self._current = before


def ignore_call(*_: Any, **__: Any) -> None: ...


def _device_zero(*_: Any, **__: Any) -> int:
    return 0


def _report_false(*_: Any, **__: Any) -> bool:
    return False


def no_state(*_: Any, **__: Any) -> torch.Tensor:
    with _disable_current_modes():
        return torch.empty(0, dtype=torch.uint8, device="cpu")


def cuda_runtime_patches(streams: Streams) -> tuple[Patch, ...]:
    """What ``torch.cuda`` answers without a driver."""
    why = "the CUDA runtime would be asked"
    answers: dict[str, Any] = {
        "Stream": streams.kind, "Event": Event, "stream": streams.use, "current_stream": streams.current,
        "default_stream": lambda *_: streams.default, "set_stream": streams.switch, "current_device": _device_zero, "set_device": ignore_call,
        "synchronize": ignore_call, "_lazy_init": ignore_call, "get_rng_state": no_state, "set_rng_state": ignore_call,
    }  # fmt: skip
    return (
        *(Patch("torch.cuda", name, answer, why) for name, answer in answers.items()),
        Patch("torch.accelerator", "current_device_index", _device_zero, why),
        Patch("torch.accelerator", "current_stream", streams.current, why),
        Patch("torch.Tensor", "record_stream", ignore_call, "it would be the CUDA allocator's"),
        Patch("torch.Tensor", "pin_memory", torch.Tensor.clone, "the CUDA runtime pins the host's memory"),
        Patch("torch.Tensor", "is_pinned", _report_false, why),
    )
