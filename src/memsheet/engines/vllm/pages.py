"""The cache of a server that hands out blocks of tokens: which layers share a block, what one takes, how many
a sequence needs.

Layers that keep the same (all tokens, a window, a recurrent state) form a kind. One pool of equal blocks
serves all kinds: layers of a kind are cut into groups of as many layers each, a block holds one layer-page of
every layer of one group, and each group has blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import reduce
from math import lcm

from memsheet.arith import Count, ceil_div, maximum, minimum, round_up, where
from memsheet.engines.vllm.connectors import keeps_kinds_apart
from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.releases import Release
from memsheet.errors import input_error
from memsheet.formulas.serving.kv_cache import caching_layers, recurrent_elements, state_elements
from memsheet.formulas.serving.sparse_index import index_token_bytes, served_token_bytes
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import DType
from memsheet.plan.model import (
    Attention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Recurrent,
    StateSpace,
)
from memsheet.plan.plan import Plan
from memsheet.references import PAGED, PAGED_SERVER_CODE, formula

with late_functions(__name__):
    from memsheet.formulas.serving.states import convolution_elements, served_state


STATE_ALIGNMENT, LATENT_ALIGNMENT, GATED_ALIGNMENT, NEAR = 16, 128, 64, 1.5
"""Tokens that attention's block is a multiple of beside recurrent states (v0.11.0
model_executor/models/config.py:367), that of latents (v0.33.0 platforms/interface.py:1090), that beside gated
delta nets (:1083), and how many more layers one kind may have for groups to take its size (v0.21.0
v1/core/kv_cache_utils.py:1139).
"""


CROSSING, CROSSES_SINCE = frozenset({"whisper"}), (0, 11)
"""Families whose decoder reads an encoder here, and since when that has a group of the pool (v0.11.0
v1/kv_cache_interface.py CrossAttentionSpec). The others that crossed went with V0 (v0.11.0
model_executor/models/registry.py, _PREVIOUSLY_SUPPORTED_MODELS).
"""

OWN_SCAN = frozenset({"olmo_hybrid"})
"""Families whose delta nets hand out no state, whatever the card (v0.33.0
layers/mamba/gdn/olmo_gdn_linear_attn.py:92).
"""

CHUNKS_SINCE = (0, 18)
"""Since when layers that attend within chunks have blocks of their own where nobody says (v0.18.0
envs.py:1440 VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE, v0.33.0 :1931).
"""


class CacheReach(Enum):
    """What a layer keeps of a sequence."""

    ALL = "all tokens"
    WINDOW = "a window"
    CHUNK = "a chunk"
    STATE = "a state"
    MEMORY = "what an encoder made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Layers that keep the same. ``reach``: tokens of the window, the chunk or the encoder; ``page_bytes``:
    of one block in one layer; ``alignment``: tokens that a block beside states is a multiple of;
    ``checkpoints``: states that a prompt leaves inside a pass.
    """

    kept: CacheReach
    reach: int = 0
    block_tokens: int
    page_bytes: Count
    layers: int
    alignment: int = STATE_ALIGNMENT
    checkpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The pool: one entry of ``groups`` for each group of layers, and the bytes of a block, which any group
    may take.
    """

    groups: tuple[Kind, ...]
    block_bytes: Count


@formula(cites=PAGED, at="section 4.3: a block holds the keys and values of a fixed number of tokens")
def page_bytes(mixer: Mixer, dtype: DType, tokens: int, tp: Count) -> Count:
    """Bytes of one layer's keys and values, or latents, of a block on one rank."""
    return served_token_bytes(mixer, dtype, tp) * tokens


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v1/kv_cache_interface.py MambaSpec: convolution and recurrent state in the dtype of the model, "
        "cut over tp; the second in the one that some families' configs name (v0.33.0 "
        "model_executor/models/config.py:813, 955; layers/mamba/mamba_utils.py:137 of KDA)"
    ),
)
def state_page_bytes(mixer: Mixer, dtype: DType, tp: Count) -> Count:
    """Bytes of one layer's states of a sequence on one rank."""
    return dtype.nbytes(convolution_elements(mixer, tp)) + served_state(mixer, dtype).nbytes(
        ceil_div(recurrent_elements(mixer), tp)
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/kv_cache_interface.py CrossAttentionSpec: the keys and values of what the encoder made, "
        "in blocks of as many tokens as any"
    ),
)
def memory_page_bytes(mixer: CrossAttention, dtype: DType, tokens: int, tp: Count) -> Count:
    """Bytes of one layer's keys and values of a block of the encoder's output on one rank."""
    return dtype.nbytes(state_elements(mixer, tp, tokens))


def kinds_of(part: ModelSpec, plan: Plan, release: Release) -> tuple[Kind, ...]:
    """The kinds of a stage's layers, before their pages are made equal. Raises InputError for what the engine
    keeps elsewhere. Of a block's tokens each rank that shares a sequence has a part (v0.33.0
    v1/core/single_type_kv_cache_manager.py:109).
    """
    found: dict[Kind, int] = {}
    shared = vllm_options(plan).dcp
    for kind in _cache_group_kinds(part, plan, release):
        alike = replace(kind, layers=1, block_tokens=kind.block_tokens * shared)
        found[alike] = found.get(alike, 0) + kind.layers
    return tuple(replace(kind, layers=layers) for kind, layers in found.items())


def _cache_group_kinds(part: ModelSpec, plan: Plan, release: Release) -> Iterator[Kind]:
    assert plan.cache.kv_dtype is not None
    assert plan.cache.page_tokens is not None
    apart = keeps_kinds_apart(plan, release)
    roles = {stack.role for stack in part.stacks}
    if {"encoder", "decoder"} <= roles:
        raise input_error(
            "model",
            part.name,
            f"has an encoder, whose cache is not modelled for {plan.engine} yet",
            "--engine transformers",
        )
    for _, mixer, layers in caching_layers(part):
        match mixer:
            case CrossAttention():
                if part.model_type not in CROSSING or release.since < CROSSES_SINCE:
                    raise input_error(
                        "model",
                        part.name,
                        f"reads another sequence, whose cache is not modelled for vllm {release.tag}",
                        "--engine transformers",
                    )
                yield Kind(
                    kept=CacheReach.MEMORY,
                    reach=sum(tower.tokens_per_image or 0 for tower in part.towers),
                    block_tokens=plan.cache.page_tokens,
                    layers=layers,
                    page_bytes=memory_page_bytes(
                        mixer, plan.cache.kv_dtype, plan.cache.page_tokens, plan.mesh.tp
                    ),
                )
            case Attention() | LatentAttention():
                if index := index_token_bytes(mixer):
                    yield Kind(
                        kept=CacheReach.ALL,
                        block_tokens=plan.cache.page_tokens,
                        layers=layers,
                        page_bytes=index * plan.cache.page_tokens,
                    )
                kept, reach = _kept_reach(mixer, release, apart=apart)
                yield Kind(
                    kept=kept,
                    reach=reach,
                    block_tokens=plan.cache.page_tokens,
                    layers=layers,
                    page_bytes=page_bytes(mixer, plan.cache.kv_dtype, plan.cache.page_tokens, plan.mesh.tp),
                    alignment=LATENT_ALIGNMENT if isinstance(mixer, LatentAttention) else STATE_ALIGNMENT,
                )
            case Recurrent():
                raise input_error(
                    "model",
                    part.name,
                    f"is of a family that {plan.engine} does not serve",
                    "--engine transformers",
                )
            case _:
                if not apart and len(set(map(type, part.mixers()))) > 1:
                    raise input_error(
                        "serving.kv_connector",
                        vllm_options(plan).kv_connector or "swa_full",
                        f"makes one kind of all layers in vllm {release.tag}, which states are not",
                        "no connector, or a newer --engine-version",
                    )
                size = state_page_bytes(mixer, plan.precision.compute, plan.mesh.tp)
                yield Kind(
                    kept=CacheReach.STATE,
                    block_tokens=0,
                    page_bytes=size,
                    layers=layers,
                    checkpoints=release.checkpoints if _exports_states(mixer, part) else 0,
                    alignment=GATED_ALIGNMENT if release.checkpoints and _is_exported_net(mixer, part) else 1,
                )


def _is_exported_net(mixer: Mixer, part: ModelSpec) -> bool:
    is_gated_delta = isinstance(mixer, LinearAttention) and mixer.kind == "gated_delta_net"
    return is_gated_delta and part.model_type not in OWN_SCAN


def _exports_states(mixer: Mixer, part: ModelSpec) -> bool:
    """Whether a layer's kernels hand out a state inside a prompt: Mamba 2's, and FlashInfer's of gated delta
    nets, which run on Hopper and later (v0.33.0 layers/mamba/gdn/qwen_gdn_linear_attn.py:248, 746).
    """
    return _is_exported_net(mixer, part) or (isinstance(mixer, StateSpace) and mixer.kind == "mamba2")


def _kept_reach(
    mixer: Attention | LatentAttention, release: Release, *, apart: bool
) -> tuple[CacheReach, int]:
    """What a layer of attention keeps, and tokens of its window or chunk: all where kinds are not kept
    ``apart`` (v0.33.0 v1/core/kv_cache_planning.py:853).
    """
    if isinstance(mixer, Attention) and release.window_pages and apart:
        if mixer.window:
            return CacheReach.WINDOW, mixer.window
        if mixer.chunk and release.since >= CHUNKS_SINCE:
            return CacheReach.CHUNK, mixer.chunk
    return CacheReach.ALL, 0


def layout_of(kinds: tuple[Kind, ...], release: Release) -> Layout:
    """The pool of a model's kinds of layers.

    One kind, or several that all keep every token: one group, whose block is the sum of its layers' pages.
    Else pages are made equal first.
    """
    if not kinds:
        return Layout(groups=(), block_bytes=0)
    if len({(kind.kept, kind.reach) for kind in kinds}) == 1:
        return Layout(
            groups=(_merge_page_kinds(kinds),),
            block_bytes=sum(kind.layers * kind.page_bytes for kind in kinds),
        )
    equal = _equal_pages(_beside_states(kinds))
    size = _group_size([kind.layers for kind in equal], release)
    groups = [kind for kind in equal for _ in range(-(-kind.layers // size))]
    return Layout(
        groups=tuple(replace(kind, layers=size) for kind in groups), block_bytes=size * equal[0].page_bytes
    )


def _merge_page_kinds(kinds: tuple[Kind, ...]) -> Kind:
    return replace(
        kinds[0], layers=sum(kind.layers for kind in kinds), page_bytes=max(kind.page_bytes for kind in kinds)
    )


def _beside_states(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Blocks of attention grow until a page holds the largest state; states are padded to it
    (``_equal_pages``).
    """
    states = [kind.page_bytes for kind in kinds if kind.kept is CacheReach.STATE]
    if not states:
        return kinds
    largest = max(states)
    grid = min(kind.alignment for kind in kinds if kind.kept is CacheReach.STATE)
    return tuple(
        kind
        if kind.kept is CacheReach.STATE
        else _enlarge_page_to_state(replace(kind, alignment=lcm(kind.alignment, grid)), largest)
        for kind in kinds
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 model_executor/models/config.py:367: the fewest multiples of 16 tokens whose page "
        "holds a state; v0.33.0 platforms/interface.py:1090: of 128 where they are latents, and of 64 "
        "where every state is one that FlashInfer hands out (:1083; v1/attention/backends/gdn_attn.py:34)"
    ),
)
def _enlarge_page_to_state(kind: Kind, state_bytes: Count) -> Kind:
    per_token = kind.page_bytes // kind.block_tokens
    tokens = maximum(kind.block_tokens, round_up(ceil_div(state_bytes, per_token), kind.alignment))
    return replace(kind, block_tokens=tokens, page_bytes=tokens * per_token)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 v1/core/kv_cache_planning.py:360: more tokens a block where the largest page is a "
        "multiple, else padding"
    ),
)
def _equal_pages(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """All pages as large as the largest one."""
    largest = reduce(maximum, (kind.page_bytes for kind in kinds))

    def enlarged(kind: Kind) -> Count:
        more = where(largest % kind.page_bytes == 0, largest // kind.page_bytes, 1)
        return kind.block_tokens * (1 if kind.kept is CacheReach.STATE else more)

    return tuple(replace(kind, page_bytes=largest, block_tokens=enlarged(kind)) for kind in kinds)


def _group_size(layers: list[int], release: Release) -> int:
    """Layers of a group: as many as the rarest kind has, or the most frequent one where they are nearly as
    many.
    """
    fewest, most = min(layers), max(layers)
    return most if release.near_group and most < fewest * NEAR else fewest


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v1/kv_cache_interface.py max_memory_usage_bytes: a window may begin inside a block, and holds "
        "what is in flight; a chunk of v0.33.0 (:874) both; v0.11.0 "
        "config/vllm.py: an encoder's output counts as long as it is"
    ),
)
def blocks_of(group: Kind, tokens: Count, release: Release, in_flight: Count = 1) -> Count:
    """Blocks that a sequence of ``tokens`` takes of a group while ``in_flight`` of them are being
    computed.
    """
    match group.kept:
        case CacheReach.ALL:
            return ceil_div(tokens, group.block_tokens)
        case CacheReach.WINDOW:
            return ceil_div(minimum(group.reach - 1 + in_flight, tokens), group.block_tokens) + 1
        case CacheReach.CHUNK:
            return ceil_div(minimum(group.reach + in_flight, tokens), group.block_tokens)
        case CacheReach.STATE:
            return release.state_pages + group.checkpoints
        case CacheReach.MEMORY:
            return ceil_div(group.reach, group.block_tokens)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v1/core/kv_cache_utils.py:783 get_max_concurrency_for_kv_cache_config: the blocks of a sequence "
        "are those of all groups"
    ),
)
def sequence_blocks(layout: Layout, tokens: Count, release: Release, in_flight: Count = 1) -> Count:
    """Blocks of the pool that one sequence takes, over all groups."""
    total: Count = 0
    for group in layout.groups:
        total = total + blocks_of(group, tokens, release, in_flight)
    return maximum(1, total)
