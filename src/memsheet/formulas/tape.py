"""Which tensors a training step keeps: an autograd tape of shapes, without numbers in them.

A block's forward is written once as ordinary Python over shape-only tensors (``blocks.py``). The recorder notes every
storage that is made and dropped, what each operation keeps for its backward, and then plays the backward. As in torch, a
storage lives while something refers to it, so liveness is Python's own reference counting: a local variable, a saved tensor,
a gradient on its way. What operations save and allocate follows torch's derivative formulas (DERIVATIVES) and engine
(input_buffer.cpp accumulates in place when it holds the only reference).

The result is a list of allocations whose sizes are products of named axes, so one recording serves every batch and length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from memsheet.spec.dtypes import BOOL, FP32, DType

Axis = str | int
Shape = tuple[Axis, ...]


class Event(Enum):
    """What happens to a storage, in order."""

    ALLOC = "alloc"
    FREE = "free"
    GRADIENT = "gradient"  # from here on it is a parameter's gradient


@dataclass(frozen=True, slots=True)
class Entry:
    """A storage: the module and role it has, its shape in named axes, its dtype."""

    path: str
    shape: Shape
    dtype: DType
    weight_cast: bool = False  # an autocast copy of a parameter


Log = tuple[tuple[Event, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """One part of a model (a block, an end), recorded. Indices point into ``entries``."""

    entries: tuple[Entry, ...]
    forward: Log
    backward: Log
    saved: frozenset[int]  # alive after forward because backward needs them
    cached: frozenset[int]  # held until the model's forward ends, by the autocast cache or a local variable
    outputs: frozenset[int]  # handed to the part after
    inputs: frozenset[int]  # made by the part before and saved by this one

    @property
    def gradients(self) -> tuple[int, ...]:
        """Parameters' gradients, in the order they are made."""
        return tuple(i for event, i in self.backward if event is Event.GRADIENT)

    @property
    def recomputed(self) -> Log:
        """The forward as far as recompute runs it: it stops as soon as the last tensor to save is there."""
        last = max((n for n, (event, i) in enumerate(self.forward) if event is Event.ALLOC and i in self.saved), default=-1)
        return self.forward[: last + 1]


def high_points(log: Log, alive: frozenset[int] = frozenset(), *, release_gradients: bool = False) -> tuple[tuple[int, ...], ...]:
    """The storages alive at each local maximum of a log: right before a free that follows an allocation, and at its end.

    ``alive``: storages that exist before. ``release_gradients``: a parameter's gradient goes as soon as it is made, because it
    is added to one that is already there.
    """
    live, points, rising = dict.fromkeys(sorted(alive)), [], True
    for event, index in log:
        if event is Event.ALLOC:
            live[index], rising = None, True
        elif event is Event.FREE or release_gradients:
            if rising:
                points.append(tuple(live))
            live.pop(index, None)
            rising = False
    return tuple(dict.fromkeys((*points, tuple(live)))) if rising or not points else tuple(dict.fromkeys(points))


class Pass(Enum):
    """Which forward and backward of a part are recorded."""

    PLAIN = "plain"
    LIGHT = "light"  # a forward that saves nothing, because it will be recomputed
    RECOMPUTED = "recomputed"  # a forward run again inside backward, and that backward


class Storage:
    """Memory that is freed when nothing refers to it any more."""

    __slots__ = ("_log", "index")

    def __init__(self, log: list[tuple[Event, int]], index: int) -> None:
        self._log = log
        self.index = index
        log.append((Event.ALLOC, index))

    def __del__(self) -> None:
        self._log.append((Event.FREE, self.index))


class Node:
    """An operation that backward will undo. ``saved`` keeps storages alive until then; ``metas`` say what its inputs looked like."""

    __slots__ = ("backward", "edges", "metas", "order", "saved")

    def __init__(self, order: int, edges: tuple[Edge | None, ...], metas: list[Meta], saved: list[Any], backward: Backward) -> None:
        self.order = order
        self.edges = edges
        self.metas = metas
        self.saved = saved
        self.backward = backward


class Joined(Enum):
    """Whether a parameter's gradient is added to another of its gradients that waits already (a tied table)."""

    NO = "no"
    IN_PLACE = "in place"
    ANEW = "anew"  # into a third tensor, because the one that waits is a view


class Leaf:
    """A parameter that trains: gradients end here."""

    __slots__ = ("dtype", "joined", "path")

    def __init__(self, path: str, dtype: DType, *, joined: Joined = Joined.NO) -> None:
        self.path = path
        self.dtype = dtype
        self.joined = joined


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage. ``node`` is what made it, if backward passes through it."""

    storage: Storage | None  # None: lives outside the recording (a parameter, a shared mask)
    shape: Shape
    dtype: DType
    node: Node | Leaf | None = None
    port: int = 0  # which output of the node this is

    @property
    def needs_grad(self) -> bool:
        return self.node is not None


Edge = tuple[Node | Leaf, int]
Meta = tuple[Shape, DType]
Backward = Callable[..., "list[Grad | None]"]


@dataclass(slots=True, eq=False)
class Grad:
    """A gradient on its way back."""

    storage: Storage | None
    shape: Shape
    dtype: DType


class Recorder:
    """Records one part of a model. ``compute``: the autocast dtype, or None.

    ``pass_``: a forward that will be recomputed saves nothing; one that is recomputed gives a saved tensor up when it is read.
    """

    def __init__(self, *, compute: DType | None = None, pass_: Pass = Pass.PLAIN) -> None:
        self.pass_ = pass_
        self.entries: list[Entry] = []
        self.log: list[tuple[Event, int]] = []
        self.compute = compute
        self._cache: dict[str, Tensor] = {}
        self._nodes = 0
        self._inputs: set[int] = set()
        self._gradients: list[Storage] = []  # parameters' gradients stay when backward has passed

    @property
    def saves(self) -> bool:
        return self.pass_ is not Pass.LIGHT

    # ---- making tensors -------------------------------------------------------------------------------------------

    def storage(self, path: str, shape: Shape, dtype: DType, *, weight_cast: bool = False) -> Storage:
        self.entries.append(Entry(path, shape, dtype, weight_cast))
        return Storage(self.log, len(self.entries) - 1)

    def tensor(self, path: str, shape: Shape, dtype: DType) -> Tensor:
        return Tensor(self.storage(path, shape, dtype), shape, dtype)

    def grad(self, shape: Shape, dtype: DType, path: str = "backward") -> Grad:
        return Grad(self.storage(path, shape, dtype), shape, dtype)

    def arriving(self, shape: Shape, dtype: DType, *, needs_grad: bool = True) -> Tensor:
        """What the part before hands over; its gradient is handed back at the end of backward."""
        x = self.tensor("input", shape, dtype)
        self._inputs.add(len(self.entries) - 1)
        if needs_grad:
            x.node = Node(0, (), [], [], lambda _: [])
        return x

    def parameter(self, path: str, shape: Shape, dtype: DType, *, trains: bool = True, joined: Joined = Joined.NO) -> Tensor:
        return Tensor(None, shape, dtype, Leaf(path, dtype, joined=joined) if trains else None)

    def apply(
        self, out: Tensor, inputs: tuple[Tensor, ...], saved: Iterable[Tensor], backward: Backward
    ) -> Tensor:
        """Give ``out`` its place in the graph.

        ``backward(g)`` returns a gradient for each input (None where not needed); the engine then sums and casts it to the input's
        shape and dtype where they differ (validate_outputs).
        """
        edges = tuple((t.node, t.port) if t.node else None for t in inputs)
        if any(edges) and self.saves:
            self._nodes += 1
            metas = [(t.shape, t.dtype) for t in inputs]
            out.node = Node(self._nodes, edges, metas, [t.storage for t in saved], backward)
        return out

    # ---- operations: what each saves (DERIVATIVES) and what its backward allocates -----------------------------------

    def cast(self, x: Tensor, dtype: DType, path: str) -> Tensor:
        """``x.to(dtype)``: nothing is saved; the same tensor when the dtype is already right."""
        if x.dtype is dtype:
            return x
        shape, back = x.shape, x.dtype
        return self.apply(self.tensor(path, shape, dtype), (x,), (), lambda g: [self.grad(shape, back)])

    def autocast(self, x: Tensor, path: str) -> Tensor:
        """The lower-precision copy that an autocast operation works on; copies of parameters are cached."""
        if self.compute is None or x.dtype is self.compute or x.dtype is not FP32:
            return x
        if not isinstance(x.node, Leaf):
            return self.cast(x, self.compute, path)
        if x.node.path not in self._cache:
            shape, low = x.shape, self.compute
            copy = Tensor(self.storage(x.node.path, shape, low, weight_cast=True), shape, low)
            self._cache[x.node.path] = self.apply(copy, (x,), (), lambda g: [self.grad(shape, FP32)])
        return self._cache[x.node.path]

    def linear(self, x: Tensor, weight: Tensor, out: Axis, path: str, *, bias: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``: saves the input for the weight's gradient, the weight for the input's."""
        # autocast casts its arguments from the last to the first
        operands = [self.autocast(bias, path + ".bias")] if bias is not None else []
        weight = self.autocast(weight, path)
        x = self.autocast(x, f"{path}/input")
        operands = [x, weight, *operands]
        shape, dtype = (*x.shape[:-1], out), x.dtype
        saved = [x] if weight.needs_grad else []
        if x.needs_grad:
            saved.append(weight)
        metas = [(t.shape, t.dtype, t.needs_grad) for t in operands]

        def backward(g: Grad) -> list[Grad | None]:
            # the weight's gradient is made before the input's (observed order of MmBackward0)
            grads = [self.grad(s, d) if need else None for s, d, need in reversed(metas)]
            return grads[::-1]

        return self.apply(self.tensor(f"{path}/output", shape, dtype), operands, saved, backward)

    def dequantized_linear(self, x: Tensor, weight_shape: Shape, out: Axis, path: str, *, bias: Tensor | None = None) -> Tensor:
        """A linear layer over a quantized frozen weight: dequantized for the product and again for the input's gradient."""
        x = self.autocast(x, f"{path}/input")
        shape, dtype = (*x.shape[:-1], out), x.dtype
        weight = self.tensor(f"{path}/dequantized", weight_shape, dtype)
        result = self.tensor(f"{path}/output", shape, dtype)
        del weight
        back_shape = x.shape

        def backward(g: Grad) -> list[Grad | None]:
            weight = self.grad(weight_shape, dtype, f"{path}/dequantized")
            grad = self.grad(back_shape, dtype)
            del weight
            return [grad, None][: 2 if bias else 1]

        return self.apply(result, (x, bias) if bias else (x,), (), backward)

    def add(self, a: Tensor, b: Tensor, path: str) -> Tensor:
        """Saves nothing; the gradient passes through, cast where the operands' dtypes differ."""
        needs = (a.needs_grad, b.needs_grad)

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, g.shape, g.dtype) if need else None for need in needs]

        return self.apply(self.tensor(path, a.shape, _promote(a.dtype, b.dtype)), (a, b), (), backward)

    def mul(self, a: Tensor, b: Tensor, path: str) -> Tensor:
        """Saves each operand that the other's gradient needs. Where b is broadcast, the engine sums its gradient."""
        shape, needs = a.shape, (a.needs_grad, b.needs_grad)
        saved = ([b] if a.needs_grad else []) + ([a] if b.needs_grad else [])

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(shape, g.dtype) if need else None for need in needs]

        return self.apply(self.tensor(path, shape, _promote(a.dtype, b.dtype)), (a, b), saved, backward)

    def scale(self, x: Tensor, path: str) -> Tensor:
        """``x * constant``: saves nothing, its gradient is a new tensor."""
        shape, dtype = x.shape, x.dtype
        return self.apply(self.tensor(path, shape, dtype), (x,), (), lambda g: [self.grad(shape, dtype)])

    def unary(self, x: Tensor, path: str, *, saves: str, temporaries: int = 0, dtype: DType | None = None) -> Tensor:
        """An elementwise operation; ``saves`` its "input", its "output" or "nothing". ``temporaries``: full-size ones in backward."""
        shape, kind, back = x.shape, dtype or x.dtype, x.dtype
        out = self.tensor(path, shape, kind)
        kept = {"input": (x,), "output": (out,), "nothing": ()}[saves]

        def backward(g: Grad) -> list[Grad | None]:
            scratch = [self.grad(shape, kind) for _ in range(temporaries)]
            grad = self.grad(shape, back)
            del scratch
            return [grad]

        return self.apply(out, (x,), kept, backward)

    def view(self, x: Tensor, shape: Shape) -> Tensor:
        """The same storage under another shape."""
        back = x.shape

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, back, g.dtype)]

        return self.apply(Tensor(x.storage, shape, x.dtype), (x,), (), backward)

    def copy(self, x: Tensor, shape: Shape, path: str) -> Tensor:
        """A contiguous copy; its gradient passes through as a view."""
        back = x.shape

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, back, g.dtype)]

        return self.apply(self.tensor(path, shape, x.dtype), (x,), (), backward)

    def transposed_view(self, x: Tensor, shape: Shape) -> Tensor:
        """Heads moved in front of the sequence: a view forward, but its gradient must be made contiguous again."""
        back, dtype = x.shape, x.dtype

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(back, dtype)]

        return self.apply(Tensor(x.storage, shape, dtype), (x,), (), backward)

    def slice(self, x: Tensor, shape: Shape) -> Tensor:
        """Part of ``x``, a view; its gradient is a full-size tensor of zeros around it."""
        back, dtype = x.shape, x.dtype
        return self.apply(Tensor(x.storage, shape, dtype), (x,), (), lambda g: [self.grad(back, dtype)])

    def split(self, x: Tensor, shapes: tuple[Shape, ...]) -> list[Tensor]:
        """All parts of ``x`` as views; their gradients are concatenated into one tensor."""
        back, dtype = x.shape, x.dtype

        def backward(*g: Grad) -> list[Grad | None]:
            return [self.grad(back, dtype)]

        first = self.apply(Tensor(x.storage, shapes[0], dtype), (x,), (), backward)
        rest = (Tensor(x.storage, shape, dtype, first.node, port) for port, shape in enumerate(shapes[1:], 1))
        return [first, *rest]

    def cat(self, parts: tuple[Tensor, ...], shape: Shape, path: str) -> Tensor:
        """A new tensor of all parts; gradients are views."""
        metas = [(p.shape, p.needs_grad) for p in parts]

        def backward(g: Grad) -> list[Grad | None]:
            return [Grad(g.storage, s, g.dtype) if need else None for s, need in metas]

        return self.apply(self.tensor(path, shape, parts[0].dtype), parts, (), backward)

    def dropout(self, x: Tensor, path: str, *, active: bool) -> Tensor:
        """Saves a mask of one byte an element; nothing happens at probability zero."""
        if not active:
            return x
        shape, dtype = x.shape, x.dtype
        mask = self.tensor(f"{path}/mask", shape, BOOL)
        return self.apply(self.tensor(path, shape, dtype), (x,), (mask,), lambda g: [self.grad(shape, dtype)])

    def custom(self, path: str, inputs: tuple[Tensor, ...], out: Tensor, saved: tuple[Tensor, ...], *, scratch: tuple[tuple[Shape, DType], ...] = ()) -> Tensor:
        """One kernel with a backward of its own: a gradient for each input, and ``scratch`` while it runs."""
        metas = [(t.shape, t.dtype, t.needs_grad) for t in inputs]

        def backward(g: Grad) -> list[Grad | None]:
            held = [self.grad(s, d, f"{path}/scratch") for s, d in scratch]
            grads = [self.grad(s, d) if need else None for s, d, need in metas]
            del held
            return grads

        return self.apply(out, inputs, saved, backward)

    def product(self, a: Tensor, b: Tensor, shape: Shape, path: str, *, copies: tuple[bool, bool] = (False, False)) -> Tensor:
        """A batched matrix product: saves each operand for the other's gradient; the second's is made first.

        ``copies``: the operands whose batch is no view of one dimension, and is copied.
        """
        b = self.autocast(b, path + "/b")
        a = self.autocast(a, path + "/a")
        a, b = (self.copy(x, x.shape, path + "/copy") if strided else x for x, strided in zip((a, b), copies, strict=True))
        saved = [x for x, other in ((a, b), (b, a)) if other.needs_grad]
        metas = [(t.shape, t.dtype, t.needs_grad) for t in (b, a)]

        def backward(g: Grad) -> list[Grad | None]:
            return [self.grad(s, d) if need else None for s, d, need in metas][::-1]

        return self.apply(self.tensor(path, shape, a.dtype), (a, b), saved, backward)

    # ---- finishing ----------------------------------------------------------------------------------------------------

    def finish(self, output: Tensor, *inputs: Tensor, gradient: bool = True, lingering: tuple[Tensor, ...] = ()) -> Tape:
        """Close the forward at ``output`` and play its backward.

        ``inputs`` were handed over by the part before, which holds on to them until forward ends. ``gradient``: one of the
        output's size arrives from the part after. ``lingering``: what the model's forward still names until it returns.
        """
        made = output.storage.index if output.storage else -1
        cache = [*self._cache.values(), *lingering]
        cached = frozenset(t.storage.index for t in cache if t.storage)
        self._cache.clear()
        root = (output.node, output.port) if output.node else None
        shape, dtype = output.shape, output.dtype
        for t in (*inputs, *cache, output):
            t.storage = t.node = None
        forward = tuple(self.log)
        saved = frozenset(range(len(self.entries))) - {i for event, i in forward if event is Event.FREE}
        self.log.clear()
        if root is not None:
            self._play(root, Grad(self.storage("gradient", shape, dtype) if gradient else None, shape, dtype))
        backward = tuple(self.log)
        return Tape(tuple(self.entries), forward, backward, saved, cached, frozenset({made}) - {-1}, frozenset(self._inputs & saved))

    def _play(self, root: Edge, grad: Grad) -> None:
        """Torch's engine: the youngest node first; a node's saved tensors go when it has run, or, recomputed, when it has read them."""
        pending: dict[Node, dict[int, Grad]] = {}
        self._deliver(pending, root, grad)
        del grad
        while any(node.order for node in pending):
            node = max(pending, key=lambda n: n.order)
            grads = self._run(node, pending.pop(node))
            for edge in node.edges:
                self._deliver(pending, edge, grads.pop(0))

    def _run(self, node: Node, arrived: dict[int, Grad]) -> list[Grad | None]:
        grads = list(node.backward(*arrived.values()))
        if self.pass_ is Pass.RECOMPUTED:
            node.saved.clear()
        for n, (meta, grad) in enumerate(zip(node.metas, grads, strict=True)):
            if grad is not None and meta != (grad.shape, grad.dtype):
                grads[n] = self.grad(*meta)
        node.saved.clear()
        return grads

    def _deliver(self, pending: dict[Node, dict[int, Grad]], edge: Edge | None, grad: Grad | None) -> None:
        if edge is None or grad is None:
            return
        node, port = edge
        if isinstance(node, Leaf):
            if grad.storage is not None:
                self._arrive(node, grad, grad.storage)
            return
        ports = pending.setdefault(node, {})
        if port not in ports:
            ports[port] = grad
        elif sys.getrefcount(ports[port].storage) > _SOLE_OWNER:  # the engine may not add in place into shared memory
            ports[port] = self.grad(grad.shape, grad.dtype)


    def _arrive(self, leaf: Leaf, grad: Grad, storage: Storage) -> None:
        total = self.grad(grad.shape, grad.dtype) if leaf.joined is Joined.ANEW else None
        del total
        self.log.append((Event.GRADIENT, storage.index))
        if leaf.joined is Joined.NO:
            self._gradients.append(storage)


_SOLE_OWNER = 2  # the Grad itself and getrefcount's argument


def _promote(a: DType, b: DType) -> DType:
    return FP32 if FP32 in (a, b) else a

