"""A graph that is recorded as it is built, and its backward as torch's engine plays it, over shape-only
tensors.

Every storage that is made and dropped is noted. As in torch, a storage lives while something refers to it, so
liveness is Python's own reference counting: a local variable, a saved tensor, a gradient on its way. The
engine (input_buffer.cpp) accumulates in place when it holds the only reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from memsheet.formulas.tapes.kernel_scratch import column_sum_bytes
from memsheet.formulas.tapes.tape import (
    Axis,
    Entry,
    Event,
    KernelScratch,
    Meta,
    Operands,
    Operation,
    Shape,
    Tape,
)
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import DType


class Pass(Enum):
    """Which forward and backward of a part are recorded."""

    PLAIN = "plain"
    LIGHT = "light"  # a forward that saves nothing, because it will be recomputed
    RECOMPUTED = "recomputed"  # a forward run again inside backward, and that backward


class Chosen(Enum):
    """Operations whose results a selective checkpoint may keep, so that they are not run again."""

    EVERY_SECOND_PRODUCT = "every second matrix product"  # the first, the third, ...
    ATTENTION = "attention"
    REDUCE_SCATTER = "reduce-scatter"
    ROUTING = "routing"  # which experts a token goes to


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
    """An operation that backward will undo. ``saved`` keeps storages alive until then; ``metas`` say what its
    inputs looked like.
    """

    __slots__ = ("backward", "edges", "metas", "module", "order", "saved")

    def __init__(
        self,
        order: int,
        module: str,
        edges: tuple[Edge | None, ...],
        metas: list[Meta],
        saved: list[Any],
        backward: Backward,
    ) -> None:
        self.order = order
        self.module = module
        self.edges = edges
        self.metas = metas
        self.saved = saved
        self.backward = backward


@dataclass(frozen=True, slots=True)
class Copied:
    """A saved tensor that is on the host: a node brings it back when it runs."""

    path: str
    shape: Shape
    dtype: DType


class GradientSum(Enum):
    """Whether a parameter's gradient is added to another of its gradients (a tied table)."""

    NO = "no"
    WAITS = "waits"  # it is the first, and a view: autograd holds it until the other is there
    IN_PLACE = "in place"  # to the first, which is no view
    ANEW = "anew"  # with the first, into a third tensor
    CUT = "cut"  # whole on every tensor-parallel rank, then its own part is copied out


class Leaf:
    """A parameter that trains: gradients end here."""

    __slots__ = ("dtype", "joined", "path", "shape")

    def __init__(
        self, path: str, shape: Shape, dtype: DType, *, joined: GradientSum = GradientSum.NO
    ) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype
        self.joined = joined

    @property
    def module(self) -> str:
        return self.path.removesuffix(".weight").removesuffix(".bias")


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage. ``node`` is what made it, if backward passes through it."""

    storage: Storage | None  # None: lives outside the recording (a parameter, a shared mask)
    shape: Shape
    dtype: DType
    node: Node | Leaf | None = None
    port: int = 0  # which output of the node this is
    stays: bool = False  # a parameter, which nobody copies to the host

    @property
    def needs_grad(self) -> bool:
        return self.node is not None


Edge = tuple[Node | Leaf, int]
Backward = Callable[..., "list[Grad | None]"]


@dataclass(slots=True, eq=False)
class Grad:
    """A gradient on its way back."""

    storage: Storage | None
    shape: Shape
    dtype: DType


class Graph:
    """Records one part of a model. ``compute``: the autocast dtype, or None.

    ``pass_``: a forward that will be recomputed saves nothing; one that is recomputed gives a saved tensor up
    when it is read, unless it is ``reentrant``, which makes a graph of its own. ``chosen``: operations whose
    results a selective checkpoint keeps from the one for the other.
    """

    def __init__(
        self,
        *,
        compute: DType | None = None,
        processor: bool = False,
        offloads: bool = False,
        pass_: Pass = Pass.PLAIN,
        chosen: frozenset[Chosen] = frozenset(),
        reentrant: bool = False,
    ) -> None:
        self.pass_, self.reentrant = pass_, reentrant
        self.chosen = chosen
        self._products = 0
        self._results: list[Storage] = []  # of chosen operations, in order
        self._held: list[Storage] = []  # by functions themselves, which no hook on saved tensors sees
        self._passing: list[
            Storage
        ] = []  # the same in a forward that runs again, whose graph goes when it has run
        self._before: frozenset[int] = frozenset()
        self.in_backward = False  # a part's forward runs again
        self._recomputed: frozenset[int] = frozenset()
        self._last_save: int | None = None
        self.offloads = offloads and pass_ is not Pass.RECOMPUTED
        self._hosted: list[int] = []
        self.entries: list[Entry] = []
        self.log: list[tuple[Event, int]] = []
        self.operations: list[Operation] = []
        self._scratch: list[tuple[int, KernelScratch]] = []
        self.compute, self.processor = compute, processor
        self._module = ""  # whose backward runs
        self._cache: dict[str, Tensor] = {}
        self._nodes = 0
        self._inputs: set[int] = set()
        self._waiting: frozenset[int] | None = None
        self._gradients: list[Storage] = []  # parameters' gradients stay when backward has passed
        self._side_stream = False
        self.handed_on: list[Tensor] = []

    @property
    def saves(self) -> bool:
        return self.pass_ is not Pass.LIGHT

    # ---- making tensors ------------------------------------------------------------------------------------

    def storage(self, path: str, shape: Shape, dtype: DType, *, weight_cast: bool = False) -> Storage:
        self.entries.append(Entry(path, shape, dtype, weight_cast, side_stream=self._side_stream))
        return Storage(self.log, len(self.entries) - 1)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """What is made meanwhile is made in a stream beside the model's."""
        self._side_stream = True
        yield
        self._side_stream = False

    def tensor(self, path: str, shape: Shape, dtype: DType) -> Tensor:
        return Tensor(self.storage(path, shape, dtype), shape, dtype)

    def result(self, path: str, shape: Shape, dtype: DType, op: Chosen) -> Tensor:
        """What an operation makes that a selective checkpoint may keep: in a forward that runs again it is
        there already.
        """
        if not self._keeps(op) or self.pass_ is Pass.PLAIN:
            return self.tensor(path, shape, dtype)
        if self.pass_ is Pass.RECOMPUTED:
            return Tensor(self._results.pop(0), shape, dtype)
        made = self.tensor(path, shape, dtype)
        assert made.storage is not None
        self._results.append(made.storage)
        return made

    def _keeps(self, op: Chosen) -> bool:
        """Of products every second one is kept, beginning with the first (its policy counts them)."""
        self._products += op is Chosen.EVERY_SECOND_PRODUCT
        return op in self.chosen and (op is not Chosen.EVERY_SECOND_PRODUCT or self._products % 2 == 1)

    @contextmanager
    def nothing_chosen(self) -> Iterator[None]:
        """Results meanwhile are not kept: those that no backward needs, where a compiler sees it."""
        chosen, self.chosen = self.chosen, frozenset()
        yield
        self.chosen = chosen

    def runs_again(self, first: Callable[[], object]) -> None:
        """Go from the forward that was run ``first`` to the one that runs again: what the first kept is
        there.
        """
        self.pass_ = Pass.LIGHT
        first()
        self._cache.clear()
        self.log.clear()
        self._inputs.clear()
        self._products = 0
        self._before = frozenset(storage.index for storage in (*self._results, *self._held))
        self.pass_ = Pass.RECOMPUTED

    def grad(self, shape: Shape, dtype: DType, path: str | None = None) -> Grad:
        return Grad(self.storage(path or f"{self._module}/backward", shape, dtype), shape, dtype)

    def kernel_scratch(self, size: Callable[..., int], axes: Operands, dtype: DType) -> None:
        """What a kernel that has just made its results allocated for itself; those of a GPU alone are written
        down.
        """
        if not self.processor:
            self._scratch.append((len(self.entries) - 1, KernelScratch(size, axes, dtype)))

    def summed_rows(self, rows: Shape, columns: Shape, dtype: DType) -> None:
        """The same of a gradient that was summed over its leading dimensions."""
        self.kernel_scratch(column_sum_bytes, (rows, columns), dtype)

    def arriving(
        self, shape: Shape, dtype: DType, path: str = "/input", *, needs_grad: bool = True
    ) -> Tensor:
        """What the part before hands over; its gradient is handed back at the end of backward."""
        x = self.tensor(path, shape, dtype)
        self._inputs.add(len(self.entries) - 1)
        if needs_grad:
            x.node = Node(0, "", (), [], [], lambda _: [])
        return x

    def name_until_return(self, x: Tensor) -> Tensor:
        """``x``, which the model's forward names until it returns."""
        assert x.storage is not None
        self._cache[str(x.storage.index)] = Tensor(x.storage, x.shape, x.dtype)
        return x

    def hand_on(self, x: Tensor) -> None:
        """Hand ``x`` over besides a part's output, to code that makes nothing of it: a reentrant checkpoint
        keeps it until its backward is over, and is handed zeros for its gradient (torch 2.13
        utils/checkpoint.py:278-337; csrc/autograd/python_function.cpp, PyNode::apply).
        """
        if self.reentrant:
            self.handed_on.append(x)

    def keep_gradient(self, g: Grad) -> None:
        """Keep a gradient until the whole backward is over."""
        if g.storage is not None:
            self._held.append(g.storage)

    def parameter(
        self,
        path: str,
        shape: Shape,
        dtype: DType,
        *,
        trains: bool = True,
        joined: GradientSum = GradientSum.NO,
    ) -> Tensor:
        return Tensor(
            None, shape, dtype, Leaf(path, shape, dtype, joined=joined) if trains else None, stays=True
        )

    def apply(
        self,
        out: Tensor,
        inputs: tuple[Tensor, ...],
        saved: Iterable[Tensor],
        backward: Backward,
        held: Iterable[Tensor] = (),
        terms: Axis | None = None,
    ) -> Tensor:
        """Give ``out`` its place in the graph. ``held``: what a function keeps in attributes of its own, past
        every hook, until the whole graph goes. ``terms``: of a product, of each sum.

        ``backward(g)`` returns a gradient for each input (None where not needed); the engine then sums and
        casts it to the input's shape and dtype where they differ (validate_outputs).
        """
        if out.storage is not None and all(t.storage is not out.storage for t in inputs):
            reads = tuple((t.shape, t.dtype) for t in inputs)
            self.operations.append(Operation(reads, ((out.shape, out.dtype),), terms))
        edges = tuple((t.node, t.port) if t.node else None for t in inputs)
        if any(edges) or not self.saves:
            self._hold(held)
        if any(edges) and self.saves:
            self._nodes += 1
            metas = [(t.shape, t.dtype) for t in inputs]
            module = self.entries[out.storage.index].path.partition("/")[0] if out.storage else ""
            saved = tuple(saved)
            if saved and not self.in_backward:
                self._last_save = self._save_event(out, of_output=any(t is out for t in saved))
            kept = [
                Copied(self._copied(t), t.shape, t.dtype) if self.offloads and not t.stays else t.storage
                for t in saved
            ]
            out.node = Node(self._nodes, module, edges, metas, kept, backward)
        return out

    def _save_event(self, out: Tensor, *, of_output: bool) -> int:
        """Events that have passed when an operation saves: what it is given before it makes its output, its
        output after (torch 2.13 tools/autograd/gen_variable_type.py, emit_save_inputs, emit_save_outputs).
        """
        made = (Event.ALLOC, out.storage.index) if out.storage else None
        if of_output or made not in self.log:
            return len(self.log)
        return len(self.log) - 1 - self.log[::-1].index(made)

    def _hold(self, held: Iterable[Tensor]) -> None:
        """Keep what a function holds; a checkpoint keeps what it was handed itself."""
        kept = [
            t.storage
            for t in held
            if t.storage is not None and (self.saves or t.storage.index not in self._inputs)
        ]
        (self._passing if self.pass_ is Pass.RECOMPUTED else self._held).extend(kept)

    def hosts(self, x: Tensor) -> bool:
        """Whether what is saved goes to the host; then it is noted, for a node that brings it back piece by
        piece.
        """
        if self.offloads:
            self._copied(x)
        return self.offloads

    def _copied(self, x: Tensor) -> str:
        """Note a copy on the host; the name of what is copied."""
        path = self.entries[x.storage.index].path if x.storage else "/shared"
        self.entries.append(Entry(path, x.shape, x.dtype))
        self._hosted.append(len(self.entries) - 1)
        return path

    # ---- a part that runs again in backward ----------------------------------------------------------------

    def again(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``run(x)`` under a checkpoint of its own: ``x`` is all it keeps, and its backward begins with its
        forward.
        """
        if self.pass_ is not Pass.PLAIN:
            return run(x)
        self.pass_ = Pass.LIGHT
        out = run(Tensor(x.storage, x.shape, x.dtype))
        self.pass_ = Pass.PLAIN
        meta, kept = (x.shape, x.dtype), list[Any]() if self.hosts(x) else [x.storage]
        module = self.entries[out.storage.index].path.partition("/")[0] if out.storage else ""
        self._nodes += 1
        edge = (x.node, x.port) if x.node else None
        out.node = Node(
            self._nodes, module, (edge,), [meta], kept, lambda g: [self._back_through(run, kept, meta, g)]
        )
        return out

    def _back_through(
        self, run: Callable[[Tensor], Tensor], kept: list[Any], meta: Meta, g: Grad
    ) -> Grad | None:
        """The gradient of what such a part was handed, which is there until the part is through."""
        arrived = [Grad(g.storage, g.shape, g.dtype)]
        g.storage = None  # the engine hands it on
        source = Node(0, "", (), [], [], lambda _: [])
        x = Tensor(kept[0] if kept else self.storage("/input", *meta), *meta, source)
        moves, self.offloads = self.offloads, False  # a checkpoint's own hooks come first
        self.pass_, self.in_backward = Pass.RECOMPUTED, True
        before = self._live_gradients()
        out = run(x)
        self._cache.clear()
        root = (out.node, out.port) if out.node else None
        del out, x
        self._recomputed |= self._live_gradients() - before
        pending = self._play([(root, arrived.pop())]) if root else {}
        self.pass_, self.in_backward, self.offloads = Pass.PLAIN, False, moves
        return next(iter(pending[source].values())) if source in pending else None

    # ---- finishing -----------------------------------------------------------------------------------------

    def finish(
        self,
        output: Tensor,
        *inputs: Tensor,
        gradient: str | None = "/gradient",
        lingering: tuple[Tensor, ...] = (),
    ) -> Tape:
        """Close the forward at ``output`` and play its backward.

        ``inputs`` were handed over by the part before, which holds on to them until forward ends.
        ``gradient``: the name of the one of the output's size that arrives from the part after; None where
        none does. ``lingering``: what the model's forward still names until it returns.
        """
        made = output.storage.index if output.storage else -1
        cache = [*self._cache.values(), *lingering]
        cached = frozenset(t.storage.index for t in cache if t.storage)
        self._cache.clear()
        root = (output.node, output.port) if output.node else None
        shape, dtype = output.shape, output.dtype
        handed_on = [
            (x.storage, x.shape, x.dtype, (x.node, x.port) if x.node else None) for x in self.handed_on
        ]
        for t in (*inputs, *cache, output, *self.handed_on):
            t.storage = t.node = None
        self._passing.clear()
        forward, forward_operations = tuple(self.log), tuple(self.operations)
        self.operations.clear()
        hosted = (
            self._hosted if self.pass_ is not Pass.LIGHT else sorted(self._inputs) if self.offloads else []
        )
        saved = (self._before | {i for event, i in forward if event is Event.ALLOC}) - {
            i for event, i in forward if event is Event.FREE
        }
        self.log.clear()
        if root is not None:
            first = Grad(self.storage(gradient, shape, dtype) if gradient else None, shape, dtype)
            roots: list[tuple[Edge | None, Grad]] = [(root, first)]
            for _, own_shape, own_dtype, edge in handed_on:
                roots.append((edge, self.grad(own_shape, own_dtype, f"{gradient}/zeros")))
            # a checkpoint's own backward names what it was handed
            named = [grad.storage for _, grad in roots] if self.reentrant else []
            del first
            self._play(roots)
            named.clear()
        backward = tuple(self.log)
        stays = frozenset(storage.index for storage in self._held)
        self._results.clear()
        self._held.clear()
        return Tape(
            tuple(self.entries),
            forward,
            backward,
            saved,
            cached,
            outputs=frozenset({made}) - {-1},
            handed=frozenset(self._inputs),
            waiting=self._waiting or frozenset(),
            hosted=tuple(hosted),
            recomputed_saved=self._recomputed,
            before=self._before,
            last_save=self._last_save,
            lingering=stays,
            forward_operations=forward_operations,
            backward_operations=tuple(self.operations),
            scratch=tuple(self._scratch),
        )

    def _play(self, roots: list[tuple[Edge | None, Grad]]) -> dict[Node, dict[int, Grad]]:
        """Torch's engine, which takes ``roots``: the youngest node first; a node's saved tensors go when it
        has run, or, recomputed, when it has read them.

        What is left is for who handed something in.
        """
        pending: dict[Node, dict[int, Grad]] = {}
        while roots:
            self._deliver(pending, *roots.pop(0))
        while any(node.order for node in pending):
            node = max(pending, key=lambda n: n.order)
            if self._waiting is None and node.saved:
                self._waiting = self._live_gradients()
            grads = self._run(node, pending.pop(node))
            for edge in node.edges:
                self._deliver(pending, edge, grads.pop(0))
        return pending

    def _live_gradients(self) -> frozenset[int]:
        """What backward has made so far and is still there."""
        made = {i for event, i in self.log if event is Event.ALLOC}
        return frozenset(made - {i for event, i in self.log if event is Event.FREE})

    def _run(self, node: Node, arrived: dict[int, Grad]) -> list[Grad | None]:
        self._module = node.module
        back = [self.grad(one.shape, one.dtype, one.path) for one in node.saved if isinstance(one, Copied)]
        made, saved = len(self.entries), [one.index for one in node.saved if isinstance(one, Storage)]
        grads = list(node.backward(*arrived.values()))
        del back
        self._note_backward(made, saved, arrived, grads)
        if self.pass_ is Pass.RECOMPUTED and not self.reentrant:
            node.saved.clear()
        for n, (meta, grad) in enumerate(zip(node.metas, grads, strict=True)):
            if grad is not None and meta != (grad.shape, grad.dtype):
                self.operations.append(Operation(((grad.shape, grad.dtype),), (meta,)))
                grads[n] = self.grad(*meta)
                leading = len(grad.shape) - len(meta[0])
                if leading > 0 and grad.shape[leading:] == meta[0]:
                    self.summed_rows(grad.shape[:leading], meta[0], grad.dtype)
        node.saved.clear()
        return grads

    def _note_backward(
        self, made: int, saved: list[int], arrived: dict[int, Grad], grads: list[Grad | None]
    ) -> None:
        """What a node's backward moves, if it made anything: gradients and what was saved are read, and what
        it makes besides its results is read again.
        """
        if len(self.entries) == made:
            return
        results = {grad.storage.index for grad in grads if grad is not None and grad.storage is not None}
        again = [n for n in range(made, len(self.entries)) if n not in results]
        reads = [(grad.shape, grad.dtype) for grad in arrived.values()]
        reads += [(self.entries[n].shape, self.entries[n].dtype) for n in (*saved, *again)]
        writes = [(entry.shape, entry.dtype) for entry in self.entries[made:]]
        self.operations.append(Operation(tuple(reads), tuple(writes)))

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
            return
        meta = (grad.shape, grad.dtype)
        self.operations.append(Operation((meta, meta), (meta,)))
        if (
            sys.getrefcount(ports[port].storage) > _SOLE_OWNER
        ):  # the engine may not add in place into shared memory
            ports[port] = self.grad(grad.shape, grad.dtype)

    def _arrive(self, leaf: Leaf, grad: Grad, storage: Storage) -> None:
        """A parameter's gradient is there. What stays of it until backward is over, or is added to one that
        is resident, is logged.
        """
        total = self.grad(grad.shape, grad.dtype) if leaf.joined is GradientSum.ANEW else None
        del total
        if leaf.joined not in (GradientSum.WAITS, GradientSum.IN_PLACE):
            self.entries[storage.index] = replace(
                self.entries[storage.index], path=leaf.module, gradient=True
            )
        if leaf.joined is GradientSum.CUT:
            storage = self.storage("embeddings/clone", leaf.shape, grad.dtype)  # by the group that reduces it
        self.log.append((Event.GRADIENT, storage.index))
        if leaf.joined in (GradientSum.NO, GradientSum.WAITS, GradientSum.CUT):
            self._gradients.append(storage)


_SOLE_OWNER = 2  # the Grad itself and getrefcount's argument
