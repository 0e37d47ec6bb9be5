"""A recorded layer taken apart as servers run it: its attention, its feed-forward layer, what is beside them,
each matrix cut as the family's tensor-parallel plan says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memsheet.frozen import dataclass, replace
from memsheet.handing import HandedAttention, Handing
from memsheet.plan.model import (
    Attention,
    Dense,
    LatentAttention,
    LinearAttention,
    Mixer,
    Moe,
    RecordedMixer,
    Role,
    Weight,
)
from memsheet.recording import RecordedCache, Recording

COLUMNS, ROWS = "colwise", "rowwise"
SHARED, DECAY = "shared", "A_log"
LATENT = frozenset({"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
_DELTA_NET = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
DELTA_NET = frozenset(_DELTA_NET)
"""Keys of configs that say what a latent and a delta net keep (``memsheet.handing.Sizes``)."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a block is made of."""

    mixers: tuple[Mixer, ...]
    feed_forward: Dense | Moe | None
    extras: tuple[Weight, ...]


def recorded_layer_parts(recording: Recording, kind: int, weights: tuple[Weight, ...]) -> LayerParts:
    """The parts of a kind of layer; where its cache is not that of keys and values in heads, a mixer of which
    the cache alone is known.
    """
    if not recording.caches:
        return LayerParts((), None, weights)
    name = f"layer{kind}" if len(recording.layers) > 1 else "layer"
    cache, handing = recording.caches[kind], recording.handing
    found = handing.attention[kind] if handing else None
    mixer = _mixer_of_cache(name, cache, handing, kind)
    if handing is None or isinstance(mixer, RecordedMixer):
        return LayerParts((mixer,), None, weights)
    cut = [_cut_weight(weight, handing, kind, found) for weight in weights]
    if isinstance(mixer, LinearAttention):
        cut = _cut_delta_net(cut)
    home = found.path if found else _delta_net_home(cut)
    attending = [weight for weight in cut if weight.path.startswith(f"{home}.")]
    rest = [weight for weight in cut if weight not in attending]
    feed_forward = _feed_forward(rest, recording.hidden, handing)
    own = {weight.path for weight in _feed_forward_weights(feed_forward)}
    mixer = replace(mixer, weights=tuple(attending))
    return LayerParts((mixer,), feed_forward, tuple(weight for weight in rest if weight.path not in own))


def _mixer_of_cache(name: str, cache: RecordedCache, handing: Handing | None, kind: int) -> Mixer:
    """The mixer whose cache is what a layer keeps, to the element; one of which the cache alone is known
    where there is none.
    """
    known = RecordedMixer(path=name, cache=cache)
    if handing is None:
        return known
    found, sizes = handing.attention[kind], dict(handing.sizes[kind]) if handing.sizes else {}
    if found is not None and not handing.latent and is_of_heads(cache, found):
        return Attention(
            path=name, heads=found.heads, kv_heads=found.kv_heads, head_dim=found.head_dim, window=cache.window,
            weights=(),
        )  # fmt: skip
    if found is not None and sizes.keys() >= LATENT:
        return _latent_of_cache(name, cache, found, sizes) or known
    return _delta_net_of_cache(name, cache, sizes) or known if sizes.keys() >= DELTA_NET else known


def _delta_net_home(weights: Iterable[Weight]) -> str:
    """The module of a layer that holds its decay a head."""
    return next((w.path.removesuffix(f".{DECAY}") for w in weights if w.path.endswith(f".{DECAY}")), "")


def _cut_delta_net(weights: list[Weight]) -> list[Weight]:
    """A delta net's tensors by its heads, which servers cut whatever the plan names (vLLM v0.33.0
    model_executor/layers/mamba/gdn/olmo_gdn_linear_attn.py:101, qwen_gdn_linear_attn.py).
    """
    home = _delta_net_home(weights)
    return [
        replace(weight, cut=0)
        if weight.path.startswith(f"{home}.") and weight.cut is None and weight.role is not Role.NORM
        else weight
        for weight in weights
    ]


def _latent_of_cache(
    name: str, cache: RecordedCache, found: HandedAttention, sizes: Mapping[str, int]
) -> LatentAttention | None:
    """Latent attention, where a layer keeps one latent a token, and perhaps an indexer's key."""
    latent = sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]
    index = cache.token_elements - latent
    if cache != RecordedCache(latent + index) or index not in (0, sizes.get("index_head_dim", 0)):
        return None
    return LatentAttention(
        path=name,
        heads=found.heads,
        q_lora_rank=sizes.get("q_lora_rank"),
        kv_lora_rank=sizes["kv_lora_rank"],
        qk_nope_head_dim=sizes["qk_nope_head_dim"],
        qk_rope_head_dim=sizes["qk_rope_head_dim"],
        v_head_dim=sizes["v_head_dim"],
        index_dim=index,
        weights=(),
    )


def _delta_net_of_cache(name: str, cache: RecordedCache, sizes: Mapping[str, int]) -> LinearAttention | None:
    """A gated delta net, where a layer keeps a matrix a value head and the inputs of one convolution."""
    key_heads, value_heads, key_dim, value_dim, kernel = (sizes[key] for key in _DELTA_NET)
    states = value_heads * key_dim * value_dim
    inputs = (2 * key_heads * key_dim + value_heads * value_dim) * kernel
    if cache != RecordedCache(0, state_elements=states, computed_elements=inputs):
        return None
    return LinearAttention(
        path=name,
        kind="gated_delta_net",
        key_heads=key_heads,
        value_heads=value_heads,
        key_head_dim=key_dim,
        value_head_dim=value_dim,
        state_elements=states,
        conv_elements=inputs,
        weights=(),
    )


def is_of_heads(cache: RecordedCache, found: HandedAttention) -> bool:
    """Whether what a layer keeps is a key and a value of each of its heads, and nothing else."""
    states = cache.state_elements or cache.computed_elements
    return not states and cache.token_elements == 2 * found.kv_heads * found.head_dim


def _feed_forward_weights(layer: Dense | Moe | None) -> tuple[Weight, ...]:
    if layer is None:
        return ()
    shared = layer.shared.weights if isinstance(layer, Moe) and layer.shared else ()
    return (*layer.weights, *shared)


def _cut_weight(weight: Weight, handing: Handing, kind: int, found: HandedAttention | None) -> Weight:
    """A matrix with the dimension along which its plan cuts it, in whole heads where they are heads."""
    if weight.role is Role.EXPERT:
        return weight
    module, _, tensor = weight.path.rpartition(".")
    style = dict(handing.styles[kind]).get(module, "")
    cut = 0 if COLUMNS in style else 1 if ROWS in style and tensor == "weight" else None
    if cut is None or cut >= len(weight.shape):
        return weight
    if found is None:
        return replace(weight, cut=cut)
    of_keys = module.rpartition(".")[2][:1] in ("k", "v")
    heads = found.kv_heads if of_keys else found.heads
    whole = weight.path.startswith(f"{found.path}.") and weight.shape[cut] == heads * found.head_dim
    return replace(weight, cut=cut, units=heads if whole else 0)


def _feed_forward(weights: list[Weight], hidden: int, handing: Handing) -> Dense | Moe | None:
    experts = [weight for weight in weights if weight.role is Role.EXPERT]
    if experts and handing.experts_per_token:
        return _experts(weights, experts, hidden, handing.experts_per_token)
    matrices = [weight for weight in weights if _is_matrix(weight)]
    if not matrices:
        return None
    holder = _holder_of(max(matrices, key=lambda weight: weight.elements))
    return _dense(holder, [weight for weight in weights if _holder_of(weight) == holder], hidden)


def _holder_of(weight: Weight) -> str:
    """The module that holds the one that a tensor is of; empty for the layer itself."""
    return weight.path.rpartition(".")[0].rpartition(".")[0]


def _is_matrix(weight: Weight) -> bool:
    return weight.role is Role.LINEAR and len(weight.shape) == 2


def _dense(path: str, weights: list[Weight], hidden: int) -> Dense:
    matrices = [weight for weight in weights if _is_matrix(weight)]
    into = [weight.shape[0] for weight in matrices if weight.shape[1] == hidden]
    out = [weight.shape[1] for weight in matrices if weight.shape[0] == hidden]
    inner = max(out or into or [max(weight.shape) for weight in matrices])
    return Dense(
        path=path,
        intermediate=inner,
        activation="silu",
        gated=sum(into) >= 2 * inner,
        fused=len(into) == 1 and into[0] == 2 * inner,
        weights=tuple(weights),
    )


def _experts(weights: list[Weight], experts: list[Weight], hidden: int, top: int) -> Moe:
    holder = experts[0].path.split("experts")[0].rstrip(".")
    count = experts[0].shape[0]
    cut = tuple(replace(weight, cut=_inner_dimension(weight, hidden)) for weight in experts)
    inner = min(weight.shape[weight.cut] for weight in cut if weight.cut is not None)
    router = tuple(
        replace(weight, role=Role.ROUTER)
        for weight in weights
        if weight.shape == (count, hidden) and weight.path.startswith(f"{holder}.")
    )
    shared = [weight for weight in weights if SHARED in weight.path and weight.role is not Role.EXPERT]
    matrices = [weight for weight in shared if _is_matrix(weight) and min(weight.shape) > 1]
    both = sum(weight.elements for weight in cut) >= 3 * count * inner * hidden
    return Moe(
        path=holder,
        experts=count,
        experts_per_token=min(top, count),
        intermediate=inner,
        activation="silu",
        gated=both,
        shared=_dense(holder, shared, hidden) if matrices else None,
        weights=(*router, *cut),
    )


def _inner_dimension(weight: Weight, hidden: int) -> int:
    """The dimension of (experts, …, …) that is not the model's width."""
    usual = 2 if "down" in weight.path else 1
    others = [place for place in (1, 2) if weight.shape[place] != hidden]
    return usual if len(others) != 1 else others[0]


def vocabulary(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """Tables of words and output matrices, which servers cut by words whatever a plan says."""
    return tuple(
        replace(weight, cut=0, padded=True) if weight.role in (Role.EMBEDDING, Role.HEAD) else weight
        for weight in weights
    )
