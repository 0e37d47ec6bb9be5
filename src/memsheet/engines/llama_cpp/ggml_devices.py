"""Which device computes each node of a ggml graph, and what is copied to it: ggml's scheduler, for devices
that compute every operation.

The last device is the host. Where the host holds a weight and a batch is long, the first device computes and
gets a copy of the weight.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.engines.llama_cpp.ggml import VIEWS, Graph, Tensor, buffer_sizes
from memsheet.frozen import dataclass, field
from memsheet.references import GGML, formula

COPIES = 4
"""Of inputs where several devices work in a pipeline (GGML_SCHED_MAX_COPIES)."""
LONG_BATCH = 32
"""Rows from which a device computes with weights that lie on the host (ggml-cuda.cu, offload_op)."""


@dataclass(slots=True)
class Split:
    """Nodes one after another on one device, and what comes to it from others."""

    device: int
    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Copies:
    """Copies by the tensor and the device they are for; ``count`` of each, of which the first is in use."""

    count: int
    made: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)

    def of(self, source: Tensor, device: int) -> list[Tensor] | None:
        return self.made.get((id(source), device))

    def make(self, source: Tensor, device: int, *, original: bool) -> Tensor:
        several = self.count > 1
        made = [
            source
            if original and number == 0
            else Tensor(
                nbytes=source.nbytes, layout=source.layout, device=device, given=several, kept=several
            )
            for number in range(self.count)
        ]
        if original and several:
            source.kept = True
        self.made[id(source), device] = made
        return made[0]


@formula(
    cites=GGML,
    at=(
        "ggml-backend.cpp ggml_backend_sched_split_graph, then ggml-alloc.c over the nodes and the copies "
        "between devices"
    ),
    counts="int",
)
def compute_buffers(graph: Graph, devices: int, *, parallel: bool = False) -> list[int]:
    """Bytes of every device's compute buffer, the host's last."""
    host = devices - 1
    _assign_node_devices(graph, host)
    copies = _Copies(COPIES if parallel else 1)
    splits = _split_graph_by_device(graph, copies, host)
    order: list[Tensor] = []
    for split in splits:
        for source in split.inputs:
            order.append(
                Tensor(
                    nbytes=source.nbytes, base=source.base or source, sources=[source], device=source.device
                )
            )
            order.append((copies.of(source, split.device) or [source])[0])
        order += split.nodes
    leaves = [*_copied_inputs(splits, copies), *graph.leaves] if parallel else graph.leaves
    return buffer_sizes(order, leaves, devices)


def _copied_inputs(splits: list[Split], copies: _Copies) -> Iterable[Tensor]:
    """Several copies of an input lie there from the start, those on its own device first."""
    for source in copies.inputs:
        yield from copies.of(source, source.device) or ()
    for split in splits:
        for source in split.inputs:
            yield from copies.of(source, split.device) or ()


# ---- devices -----------------------------------------------------------------------------------------------


def _assign_node_devices(graph: Graph, host: int) -> None:
    for node in (*graph.leaves, *graph.nodes):
        if node.device < 0:
            node.device = _given_device(node, host)
    computed = [node for node in graph.nodes if node.op not in VIEWS]
    for nodes, all_devices in (
        (computed, False),
        (computed[::-1], False),
        (computed, True),
        (computed[::-1], True),
    ):
        _spread_device_to_neighbours(nodes, host, all_devices=all_devices)
    for node in graph.nodes:
        if node.device < 0 and node.base is not None:
            node.device = node.base.device
        for source in node.sources:
            if source.device < 0:
                source.device = source.base.device if source.base is not None else node.device


def _given_device(node: Tensor, host: int) -> int:
    """Where memory lies already decides; else an input is the host's, and an operation goes to its weight."""
    owner = node.base or node
    if owner.held is not None:
        return owner.held
    if node.given:
        return host
    for source in node.sources:
        if source.weight and source.held is not None:
            return (
                0
                if source.held == host
                and node.rows >= LONG_BATCH
                and node.op != "get_rows"
                and not source.stays
                else source.held
            )
    return -1


def _spread_device_to_neighbours(nodes: list[Tensor], host: int, *, all_devices: bool) -> None:
    """Give nodes that nobody has claimed to the device of their neighbour; at first the host claims
    nothing.
    """
    current = -1
    for node in nodes:
        if node.device >= 0:
            current = -1 if node.device == host and not all_devices else node.device
        elif current >= 0:
            node.device = current


# ---- splits ------------------------------------------------------------------------------------------------


def _split_graph_by_device(graph: Graph, copies: _Copies, host: int) -> list[Split]:
    """Runs of nodes on one device. A weight from elsewhere starts a new one, so that the memory of the last
    one is free again.
    """
    first = next(node.device for node in graph.nodes if node.op not in VIEWS)
    splits = [Split(first)]
    for node in graph.nodes:
        split = splits[-1]
        if node.op in VIEWS:
            split.nodes.append(node)
            continue
        foreign = split.inputs and any(
            s.weight and s.held is not None and s.held != split.device for s in node.sources
        )
        if node.device != split.device or foreign:
            split = Split(node.device)
            splits.append(split)
        for number, source in enumerate(node.sources):
            if source.given and copies.count > 1 and copies.of(source, source.device) is None:
                copies.make(source, source.device, original=True)
                copies.inputs.append(source)
            if source.device != split.device and not (split.device == host and source.device == host):
                made = copies.of(source, split.device)
                if made is None:
                    copies.make(source, split.device, original=False)
                    split.inputs.append(source)
                node.sources[number] = (copies.of(source, split.device) or [source])[0]
        split.nodes.append(node)
    return splits
