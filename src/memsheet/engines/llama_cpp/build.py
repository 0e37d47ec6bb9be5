"""What a graph of llama.cpp is made of: tensors with their device, products, norms, views, and the store into
the cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.engines.llama_cpp.ggml import Graph, Tensor
from memsheet.frozen import dataclass, field

JOINED_OR_APART = {"up_proj": ("gate_up_proj",), "gate_proj": ("gate_up_proj",), "gate_up_proj": ("up_proj",)}
"""What an input matrix of experts is called where it lies in another one, or holds others."""
WORDS = {"f32": 4, "i32": 4, "i64": 8, "f16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What the graph depends on besides the model. ``cells``: cache cells of a full-attention layer, of a
    windowed one ``window_cells``.
    """

    ubatch: int
    cells: int
    window_cells: int
    flash: bool
    layer_devices: tuple[int, ...]
    output_device: int
    host: int
    fused: bool  # as ik_llama.cpp writes it
    half_mask: bool  # the mask is an f16 input, not cast from an f32 one
    kv_bytes: tuple[tuple[int, int], ...] = ()  # of each layer's keys and values, which may have to be copied
    outputs: int | None = None  # positions that give logits; None is all
    expert_devices: Mapping[tuple[int, str], int] = field(default_factory=dict)
    # of routed experts that lie elsewhere than their layer, by layer and matrix
    host_cache: bool = False  # keys and values lie on the host (-nkvo)
    experts_stay: bool = False  # and are computed with there, however long the batch
    mla_mode: int = 0  # the fork's way of latent attention
    attn_max_batch: int = 0  # MiB of what it may unpack at once; 0 is no limit
    quantized_cache: bool = False
    sequences: int = 1  # that share the batch
    kept_states: int = 1  # sequences whose states a recurrent layer keeps
    mixed_inputs: bool = True  # tokens and embeddings may be mixed in a batch


@dataclass(slots=True)
class GraphBuilder:
    """A graph on its way. Weights are made where they are used: only their device matters here, and their
    bytes where they are copied.
    """

    how: Reserved
    graph: Graph = field(default_factory=Graph)
    device: int = 0
    outputs: int = 0
    layer: int = 0

    def weight(self, nbytes: int = 0) -> Tensor:
        return Tensor(nbytes=nbytes, held=self.device, weight=True)

    def expert(self, nbytes: int, module: str) -> Tensor:
        """A matrix of routed experts."""
        moved = self.how.expert_devices
        named = (moved.get((self.layer, name)) for name in (module, *JOINED_OR_APART.get(module, ())))
        device = next((at for at in named if at is not None), self.device)
        stays = self.how.experts_stay and device == self.how.host
        return Tensor(nbytes=nbytes, held=device, weight=True, stays=stays)

    def cache_tensor(self, nbytes: int = 0) -> Tensor:
        """A cache, which no one takes for a weight."""
        return Tensor(nbytes=nbytes, held=self.how.host if self.how.host_cache else self.device)

    def input_tensor(self, *shape: int, of: str = "f32") -> Tensor:
        return Tensor(nbytes=_ggml_tensor_bytes(shape, of), layout=(of, *shape), given=True)

    def make(self, op: str, sources: list[Tensor], *shape: int, of: str = "f32") -> Tensor:
        return Tensor(
            nbytes=_ggml_tensor_bytes(shape, of),
            layout=(of, *shape),
            op=op,
            sources=sources,
            rows=_ggml_row_count(shape),
        )

    def view(self, source: Tensor, *layout: int | str) -> Tensor:
        """Another look at a tensor's bytes; of a part of them where the layout is a shape."""
        numbers = [n for n in layout if isinstance(n, int)]
        nbytes = _ggml_tensor_bytes(tuple(numbers), "f32") if numbers else source.nbytes
        return Tensor(nbytes=nbytes, layout=layout, op="view", sources=[source], base=source.base or source)

    def store(
        self, tensor: Tensor, cache: Tensor, inputs: Inputs, at: int, *, windowed: bool = False
    ) -> None:
        """Write keys (0) or values (1) into the cache, at once."""
        stored = (
            [tensor, inputs.places[windowed][at], cache]
            if inputs.places
            else [tensor, self.view(cache, "cells")]
        )
        self.graph.expand(Tensor(nbytes=0, op="store", sources=stored, base=cache, layout=("store",)))

    def times(self, matrix: int, x: Tensor, *shape: int) -> Tensor:
        """A product with a weight of ``matrix`` bytes."""
        return self.make("mul_mat", [self.weight(matrix), x], *shape)

    def unscaled_norm(self, x: Tensor) -> Tensor:
        """A norm without a weight."""
        return Tensor(nbytes=x.nbytes, layout=x.layout, op="rms_norm", sources=[x])

    def norm(self, x: Tensor, *, pinned: bool = True) -> Tensor:
        if self.how.fused:
            return Tensor(
                nbytes=x.nbytes,
                layout=x.layout,
                op="fused_rms_norm",
                sources=[x, self.weight()],
                rows=x.rows or 1,
            )
        found = Tensor(
            nbytes=x.nbytes,
            layout=x.layout,
            op="rms_norm",
            sources=[x],
            device=self._own(x) if pinned else -1,
        )
        return Tensor(
            nbytes=x.nbytes, layout=x.layout, op="mul", sources=[found, self.weight()], rows=x.rows or 1
        )

    def _own(self, _: Tensor) -> int:
        """A norm is pinned to its layer's device where the whole model is on devices (llama-context.cpp,
        graph_get_cb).
        """
        return self.device if self.how.host not in (*self.how.layer_devices, self.how.output_device) else -1


def _ggml_tensor_bytes(shape: tuple[int, ...], of: str) -> int:
    size = WORDS[of]
    for n in shape:
        size *= n
    return size


def _ggml_row_count(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else shape[2] if len(shape) > 2 else 1


@dataclass(slots=True)
class Inputs:
    """Positions, and the mask of each kind of layer as attention reads it. ``states``: which of the kept
    states are the batch's.
    """

    positions: Tensor
    masks: dict[bool, Tensor]
    places: dict[bool, tuple[Tensor, Tensor]]
    states: Tensor | None = None
