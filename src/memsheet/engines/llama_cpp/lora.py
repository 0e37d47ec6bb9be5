"""LoRA adapters of llama.cpp (``--lora``, as often as there are files): each is loaded whole beside the
matrices it belongs to, on their devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from memsheet.arith import Count, maximum, minimum, round_up
from memsheet.engines.llama_cpp.buffers import Facts, blocks_of, layer_placement, ubatch_of
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import ModelSpec, Role, Weight
from memsheet.plan.plan import Plan, ServedAdapters
from memsheet.references import LLAMA_CPP, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

LOADED = FromCode("ggml-org/llama.cpp", "0650ea8c", "src/llama-adapter.cpp", 338)
BESIDE = FromCode("ggml-org/llama.cpp", "0650ea8c", "src/llama-graph.cpp", 900)
ALIGNMENT = 128
"""Bytes that a tensor on a device is padded to (ggml-cuda.cu ggml_backend_cuda_buffer_type_get_alignment)."""


def lora_file_items(
    spec: ModelSpec, plan: Plan, device: int, instants: tuple[Instant, ...], computed: int
) -> list[Item]:
    """The adapters on one device, and what their products take beside the largest of ``computed`` bytes of
    the graph; nothing without any.
    """
    if plan.served_adapters is None:
        return []
    held: dict[str, int] = {}
    for layer, module, size in pairs_of(spec, plan.served_adapters):
        if _device_of(spec, plan, layer) == device:
            held[module] = held.get(module, 0) + size
    found = [
        Item(
            Component.BUFFERS, f"blk.*.{module}.lora_pair", dict.fromkeys(instants, Bytes.exact(size)), LOADED
        )
        for module, size in held.items()
    ]
    running = tuple(when for when in instants if when is not Instant.LOAD)
    if held and running:
        found.append(
            Item(
                Component.TEMPORARIES,
                "lora_graph",
                dict.fromkeys(running, product_bytes(spec, plan, computed)),
                BESIDE,
            )
        )
    return found


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-adapter.cpp llama_adapter_lora_init_impl: in the base tensor's kind of buffer, which may be "
        "the host's"
    ),
)
def lora_file_host_bytes(spec: ModelSpec, plan: Plan) -> Count:
    """Adapters of layers that the host keeps."""
    if plan.served_adapters is None:
        return 0
    host = plan.mesh.pp
    return sum(
        size
        for layer, _, size in pairs_of(spec, plan.served_adapters)
        if _device_of(spec, plan, layer) == host
    )


def _device_of(spec: ModelSpec, plan: Plan, layer: int) -> int:
    return layer_placement(len(blocks_of(spec)), plan, Facts.of(plan)).layers[layer]


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-adapter.cpp llama_adapter_lora_init_impl: a and b as the file stores them, in the base "
        "tensor's kind of buffer"
    ),
)
def pairs_of(spec: ModelSpec, served: ServedAdapters) -> Iterator[tuple[int, str, Count]]:
    """(layer, module, bytes of all adapters' pairs) for every target."""
    for number, block in enumerate(blocks_of(spec)):
        for weight in block.weights:
            if _is_lora_target(weight, served):
                out, width = weight.shape[-2], weight.shape[-1]
                pair = (served.dtype.nbytes(served.rank * side) for side in (width, out))
                yield (
                    number,
                    weight.path.split(".")[-2],
                    served.slots * sum(round_up(size, ALIGNMENT) for size in pair),
                )


def _is_lora_target(weight: Weight, served: ServedAdapters) -> bool:
    linear = weight.role is Role.LINEAR and weight.path.endswith(".weight") and len(weight.shape) > 1
    return linear and (served.targets is None or weight.path.split(".")[-2] in served.targets)


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-graph.cpp build_lora_mm: a product's result, and the adapter's of the same size in fp32 "
        "before both are added"
    ),
)
def product_bytes(spec: ModelSpec, plan: Plan, computed: Count) -> Bytes:
    """What the graph's buffer grows by: by nothing where its peak is elsewhere, at most by the widest result
    and what is between both matrices.
    """
    served = plan.served_adapters
    assert served is not None
    blocks = {id(block): block for block in blocks_of(spec)}.values()
    widest = reduce(
        maximum, (w.shape[-2] for block in blocks for w in block.weights if _is_lora_target(w, served)), 0
    )
    most = FP32.nbytes(ubatch_of(plan) * (widest + served.rank))
    there = FP32.nbytes(ubatch_of(plan) * (3 * widest + 2 * spec.hidden + served.rank))
    return Bytes(0, minimum(most, maximum(0, there - computed)), most)
