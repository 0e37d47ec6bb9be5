"""Every allocation and release of a device, seen from the dispatcher: storages appear with operations and go
with Python's references.

It works the same on fake and on real tensors, so the two can be compared event by event.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from memsheet.frozen import dataclass
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark
from memsheet.trace.dispatch_cache import UNSEEN

_ADD = torch.ops.aten.add.Tensor
_FILL = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
}
"""Backward formulas that fill zeros they have just made, in place but while a dispatch mode is on:
index_backward (torch/csrc/autograd/FunctionsManual.cpp), gather_backward, index_select_backward
(ATen/native/TensorAdvancedIndexing.cpp), value_selecting_reduction_backward (ATen/native/ReduceOps.cpp),
which ask ATen/TensorSubclassLikeUtils.h.
"""
_DEVICE = torch.ops.prim.device.default  # asks, and makes nothing
_ENGINE = "_engine_run_backward"  # torch/autograd/graph.py: the Python frame from which the C++ engine runs
_WRAPPERS = frozenset({"_fn", "inner"})
_SOLE_OWNER = 2  # references to a storage that only the argument and its gradient slot hold
_SOLE_HOLDERS = 4
"""References to a gradient that the engine alone holds, while an operation on it is dispatched to a mode: a
reentrant checkpoint's backward, whose arguments it is among, holds one more (torch 2.13
utils/checkpoint.py:278-337).
"""
STEPPED = "?"  # before a context: no module runs, but something is done for this one
_RANK = {component: place for place, component in enumerate(Component)}


class Row:
    """A storage while it is recorded: what will become ``timeline.Storage``."""

    __slots__ = ("bytes", "component", "line", "op", "owner", "part", "path", "stream")

    def __init__(self, size: int, op: str, path: str, stream: int, line: str, owner: str) -> None:
        self.bytes = size
        self.op = op
        self.path = path
        self.part = ""  # what the module calls it: its output, one of its parameters
        self.stream = stream
        self.line = line
        self.component = Component.TEMPORARIES
        self.owner = (
            owner  # the module it is made for, where none is running: that of the parameter being stepped
        )

    def claim(self, component: Component, path: str | None = None) -> None:
        """Say what this is. A storage counts under the first component in DESIGN's order that owns it."""
        if self.component is Component.TEMPORARIES or _RANK[component] < _RANK[self.component]:
            self.component = component
            if path is not None:
                self.path, self.part, self.owner = path, "", path


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an operation failed: it, its module, and by number the rows that were there, of them those that
    wait for backward.
    """

    recorder: Recorder
    op: str
    path: str
    held: frozenset[int]
    kept: frozenset[int]


class Recorder(TorchDispatchMode):
    """Record what happens to storages of ``device`` ("cuda" or "cpu") while this is entered.

    ``where`` names the module that is running; ``stream`` the current stream's number; ``line`` the user's
    own line.
    """

    def __init__(
        self,
        device: str,
        *,
        card: int | None = None,
        where: Callable[[], str] = str,
        stream: Callable[[], int] = int,
        line: Callable[[FrameType], str] | None = None,
    ) -> None:
        super().__init__()
        self.device, self.card = device, card
        self.where, self.stream, self.line = where, stream, line
        self.rows: list[Row] = []
        self.events: list[int] = []
        self.contexts: list[str] = []  # which module was running at each event
        self.marks: list[Mark] = []
        self.operations = 0
        self.end: int | None = None  # the event at which the last step was over
        self.after: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = (
            None  # what kernels hide
        )
        self.look_up: Callable[[Any, Any, Any], Any] | None = None  # what the mode below this one knows
        self._at: dict[int, int] = {}  # address of a storage → its row
        self._references: dict[int, Any] = {}
        self._emptied: dict[
            int, Any
        ] = {}  # address of a storage of the device that has been resized to nothing
        self._waiting: set[int] = set()  # made in forward and still there when backward begins
        self._forward_from = 0
        self._for = ""

    # ---- instants ------------------------------------------------------------------------------------------

    @property
    def instant(self) -> Instant | None:
        return self.marks[-1].instant if self.marks else None

    def leave_out_released(self) -> None:
        """What has come and gone so far takes no room: a model is made on the host, or one weight at a time,
        where people load it, and here on the device.
        """
        for event in self.events:
            if event < 0:
                self.rows[~event].bytes = 0

    def mark(self, instant: Instant) -> None:
        """The step enters ``instant``."""
        if instant is Instant.FORWARD:
            self._forward_from = len(self.rows)
        if instant is Instant.BACKWARD:
            self.keep_from(self._forward_from)
        else:
            self._waiting.clear()
        self.marks.append(Mark(len(self.events), instant))

    def stop(self) -> None:
        """The last step is over: what goes now is the teardown."""
        self.end = len(self.events)

    def keep_from(self, first: int) -> None:
        """What was made since row ``first`` and is still there waits for backward: saved, if backward lets it
        go.
        """
        self._waiting.update(number for number in self._references if number >= first)

    # ---- storages ------------------------------------------------------------------------------------------

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the row of a tensor's storage, if it is one of the device's."""
        return self._at.get(_backing_tensor(tensor).untyped_storage()._cdata)

    def row_of(self, tensor: torch.Tensor) -> Row | None:
        """The row of a tensor's storage, if it is one of the device's."""
        number = self.number_of(tensor)
        return None if number is None else self.rows[number]

    def claim(self, tensor: Any, component: Component, path: str) -> None:
        row = self.row_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if row is not None:
            row.claim(component, path)

    def claim_rest(self, component: Component) -> None:
        """What is there and nobody has claimed: between steps, what the caller holds on to."""
        for number in self._references:
            row = self.rows[number]
            if row.component is Component.TEMPORARIES:
                row.claim(component, row.line or row.op.removeprefix("aten."))

    def hidden(
        self, name: str, size: int, component: Component = Component.TEMPORARIES
    ) -> Callable[[], None]:
        """An allocation that no tensor stands for; call what is returned to release it."""
        number = self._open(size, name)
        if component is not Component.TEMPORARIES:
            self.rows[number].claim(component, name)
        return lambda: self._close(number)

    def _open(self, size: int, op: str) -> int:
        number = len(self.rows)
        path = self.where()
        line = self.line(sys._getframe(3)) if self.line else ""
        self.rows.append(Row(size, op, path, self.stream(), line, path or self._for))
        self.events.append(number)
        self.contexts.append(path or STEPPED + self._for)
        return number

    def _close(self, number: int) -> None:
        self.events.append(~number)
        self.contexts.append(self.where() or STEPPED + self._for)
        if number in self._waiting:
            self._waiting.discard(number)
            if self.rows[number].component is Component.TEMPORARIES:  # gathered parameters stay what they are
                self.rows[number].claim(Component.SAVED_ACTIVATIONS)

    def _notice(self, tensor: Any, op: str) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        local = _backing_tensor(tensor)
        if self._is_watched(local.device):
            storage = local.untyped_storage()
            if storage._cdata not in self._at and storage.nbytes():
                self._begin(storage, op)

    def is_on_card(self, held: Any) -> bool:
        """Whether the first tensor of what an operation made or was handed lies on the card that is watched,
        where one of several is.
        """
        if self.card is None:
            return True
        first = next((one for one in tree_iter(held) if isinstance(one, torch.Tensor)), None)
        return first is None or self._is_watched(_backing_tensor(first).device)

    def _is_watched(self, device: torch.device) -> bool:
        return device.type == self.device and (self.card is None or (device.index or 0) == self.card)

    def _begin(self, storage: torch.UntypedStorage, op: str) -> None:
        address, number = storage._cdata, self._open(storage.nbytes(), op)
        self._at[address] = number
        self._references[number] = weakref.ref(storage, lambda _: self._end(address, number))

    def _end(self, address: int, number: int) -> None:
        if self._references.pop(number, None) is None:
            return
        if self._at.get(address) == number:
            del self._at[address]
        self._close(number)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """FSDP2 frees and allocates a storage by resizing it."""
        address = storage._cdata
        before = self._at.get(address)
        if before is not None:
            if self.rows[before].bytes == storage.nbytes():
                return
            self._end(address, before)
        if storage.nbytes() and (
            before is not None or address in self._emptied or storage.device.type == self.device
        ):
            self._begin(storage, "resize_")
        elif before is not None:  # a fake storage does not know its device
            self._emptied[address] = weakref.ref(storage, lambda _: self._emptied.pop(address, None))

    def _stopped(self, op: str) -> Stop:
        held = frozenset(self._references)
        forward = self.instant in (Instant.FORWARD, Instant.LOSS)
        kept = (
            {number for number in held if number >= self._forward_from} if forward else self._waiting & held
        )
        return Stop(self, op, self.where() or self._for, held, frozenset(kept))

    # ---- the mode ------------------------------------------------------------------------------------------

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and the wrapper is called with every operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(
            args[0], FakeTensor
        ):  # two of three questions, which a fake tensor answers alone
            return args[0].fake_device
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it runs the local operations, and those are seen
        if func is _ADD and self._engine_may_add_in_place(args):
            return args[0]
        if func in _FILL and self._in_backward() and _calling_function_name(sys._getframe(1)) == _ENGINE:
            func = _FILL[func]
        name = operation_name(func)
        try:
            out = UNSEEN if self.look_up is None else self.look_up(func, args, kwargs)
            out = func(*args, **(kwargs or {})) if out is UNSEEN else out
        except (MemoryError, RuntimeError) as error:  # whoever catches it may ask what was there
            error.stop = self._stopped(name)  # type: ignore[union-attr]
            raise
        if func is _DEVICE:
            return out
        self.operations += 1
        for place, tensor in enumerate((out,) if type(out) is FakeTensor else tree_iter(out)):
            if not self.where():
                self._for = self._owner(args, place)
            self._notice(tensor, name)
        if self.after is not None:
            self.after(func, args, kwargs or {}, out)
        return out

    def _owner(self, args: tuple[Any, ...], place: int) -> str:
        """Outside all modules: the owner of the tensor that an output is made of, of the same place where
        both are lists.
        """
        first = args[0] if args else None
        if isinstance(first, list | tuple):
            first = first[place] if place < len(first) else None
        row = self.row_of(first) if isinstance(first, torch.Tensor) else None
        return row.owner if row is not None else ""

    def _in_backward(self) -> bool:
        """Whether gradients are made, and none of gradients."""
        return self.instant is Instant.BACKWARD and not torch.is_grad_enabled()

    def _engine_may_add_in_place(self, args: tuple[Any, ...]) -> bool:
        """Whether this is the engine summing two gradients, which it does in place when it holds the only
        reference to the first (torch/csrc/autograd/input_buffer.cpp, accumulate; functions/accumulate_grad.h)
        but never while a dispatch mode is on.
        """
        if not self._in_backward() or len(args) != 2:
            return False
        into, other = args
        alike = isinstance(other, torch.Tensor) and into.shape == other.shape and into.dtype == other.dtype
        if not alike or _calling_function_name(sys._getframe(2)) != _ENGINE:
            return False
        alone = torch._C._storage_Use_Count(into.untyped_storage()._cdata) <= _SOLE_OWNER
        return alone and into._use_count() <= _SOLE_HOLDERS

    def __enter__(self) -> Self:
        self._resize = torch.UntypedStorage.resize_
        original = self._resize

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, error, trace)


@cache
def operation_name(func: Any) -> str:
    """What an operation is called, all its overloads alike: ``aten.add``."""
    name: str = func._overloadpacket._qualified_op_name.replace("::", ".")
    return name


def _calling_function_name(frame: FrameType | None) -> str:
    """The function that called an operation, past torch's own wrappers of a mode's handler
    (torch/_compile.py).
    """
    while frame is not None and frame.f_code.co_name in _WRAPPERS:
        frame = frame.f_back
    return frame.f_code.co_name if frame is not None else ""


def _backing_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has memory: a DTensor's own shard, an asynchronous collective's result."""
    if type(tensor) is FakeTensor:
        return tensor
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None)
        if isinstance(inner, torch.Tensor):
            return inner
    return tensor
