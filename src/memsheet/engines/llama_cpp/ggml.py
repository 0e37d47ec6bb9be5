"""How ggml sizes the compute buffers of a graph: tensors in the order of execution, each in the tightest gap
of its device's buffer.

A graph is reserved once, with the longest batch, and its buffers never grow after that. What decides their
size is which tensors are there together, and where the gaps between them lie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from memsheet.arith import round_up
from memsheet.frozen import dataclass, field
from memsheet.references import GGML, formula

ALIGNMENT = 128
"""Of the device's buffers (ggml-cuda.cu, buffer_type_get_alignment); the host's 32 only make its small inputs
smaller.
"""
LARGEST = 2**62

WRITES_OVER = frozenset(
    {"scale", "add", "sub", "mul", "div", "sqr", "sqrt", "unary", "rope", "rms_norm", "soft_max"}
)
"""Operations that may put their result where an operand of the same layout lies that nobody reads later
(ggml-alloc.c, op_can_inplace).
"""
VIEWS = frozenset({"", "view"})


@dataclass(eq=False, slots=True, kw_only=True)
class Tensor:
    """A node of a graph. ``base``: what it looks at without bytes of its own; ``held``: the device where a
    weight or a cache lies already.

    ``given``: an input, which is there from the start; ``kept``: an output, which nothing overwrites.
    ``layout`` tells tensors apart that have the same bytes but another shape. ``device``: where it is
    computed, -1 while nobody has said.
    """

    nbytes: int
    layout: tuple[int | str, ...] = ()
    op: str = ""
    sources: list[Tensor] = field(default_factory=list)
    base: Tensor | None = None
    held: int | None = None
    weight: bool = False
    stays: bool = False  # a weight that no other device computes with
    given: bool = False
    kept: bool = False
    rows: int = 0
    device: int = -1
    users: int = 0
    views: int = 0
    there: bool = False
    place: tuple[int, int] = (0, 0)  # device and offset


@dataclass(slots=True)
class Graph:
    """Nodes in the order of execution and leaves in the order they were met: a walk that visits what a node
    reads first.
    """

    nodes: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def expand(self, tensor: Tensor) -> None:
        """Add a tensor after everything it reads (ggml_build_forward_expand)."""
        waiting = [(tensor, 0)]
        if id(tensor) in self.seen:
            return
        self.seen.add(id(tensor))
        while waiting:
            node, at = waiting.pop()
            if at < len(node.sources):
                waiting.append((node, at + 1))
                source = node.sources[at]
                if id(source) not in self.seen:
                    self.seen.add(id(source))
                    waiting.append((source, 0))
            else:
                (self.nodes if node.op else self.leaves).append(node)


class Buffer:
    """One device's buffer: gaps by offset, the last of which never ends."""

    __slots__ = ("gaps", "size")

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = [(0, LARGEST)]
        self.size = 0

    def place(self, nbytes: int) -> int:
        """The offset of a tensor: in the smallest gap that holds it, the later of equal ones; behind
        everything where none does.
        """
        size = round_up(nbytes, ALIGNMENT)
        best, found = len(self.gaps) - 1, LARGEST + 1
        for number, (_, room) in enumerate(self.gaps[:-1]):
            if size <= room <= found:
                best, found = number, room
        offset, room = self.gaps[best]
        if room == size:
            del self.gaps[best]
        else:
            self.gaps[best] = (offset + size, room - size)
        self.size = max(self.size, offset + size)
        return offset

    def free(self, offset: int, nbytes: int) -> None:
        """Give a tensor's bytes back, joined with the gaps beside them."""
        size = round_up(nbytes, ALIGNMENT)
        at = bisect_left(self.gaps, (offset, 0))
        if at < len(self.gaps) and offset + size == self.gaps[at][0]:
            size += self.gaps.pop(at)[1]
        if at > 0 and sum(self.gaps[at - 1]) == offset:
            before, room = self.gaps[at - 1]
            self.gaps[at - 1] = (before, room + size)
        else:
            self.gaps.insert(at, (offset, size))


@formula(
    cites=GGML,
    at=(
        "ggml-alloc.c ggml_gallocr_alloc_graph_impl: leaves, then inputs, then every node; what nobody "
        "reads again is freed"
    ),
    counts="int",
)
def buffer_sizes(order: Sequence[Tensor], leaves: Iterable[Tensor], devices: int) -> list[int]:
    """Bytes of each device's compute buffer for nodes in the ``order`` of execution."""
    buffers = [Buffer() for _ in range(devices)]
    for leaf in leaves:
        _allocate_node(leaf, buffers)
    for node in order:
        if node.base is not None and node.op:
            node.base.views += 1
        if node.given:
            _allocate_node(node, buffers)
        for source in node.sources:
            source.users += 1
            if source.given:
                _allocate_node(source, buffers)
    for node in order:
        for source in node.sources:
            _allocate_node(source, buffers)
        _allocate_node(node, buffers)
        for source in node.sources:
            _release_source(source, buffers)
    return [buffer.size for buffer in buffers]


def _allocate_node(node: Tensor, buffers: list[Buffer]) -> None:
    if node.there or node.base is not None or node.held is not None:
        return
    node.there = True
    if node.op in WRITES_OVER and _takes_over(node):
        return
    node.place = (node.device, buffers[node.device].place(node.nbytes))


def _takes_over(node: Tensor) -> bool:
    """Whether an operand's place becomes the node's: same layout, no other reader, neither an output nor a
    look at something else.
    """
    for parent in node.sources:
        if (
            parent.there
            and not parent.kept
            and parent.layout == node.layout
            and parent.users == 1
            and not parent.views
        ):
            node.place, parent.there = parent.place, False
            return True
    return False


def _release_source(source: Tensor, buffers: list[Buffer]) -> None:
    """Count a reader off; the last one frees the tensor, or the one it looks at."""
    source.users -= 1
    if source.users or source.views:
        return
    owner = source
    if source.base is not None:
        owner = source.base
        owner.views -= 1
        if owner.views or owner.users:
            return
    if owner.there and not owner.kept:
        device, offset = owner.place
        buffers[device].free(offset, owner.nbytes)
        owner.there = False
