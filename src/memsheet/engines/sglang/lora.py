"""SGLang's pool of LoRA adapters: as many slots as a batch may have adapters (one of them for requests
without), each as large as the rank allows.

It is made after the weights and before the cache is sized (v0.5.23 model_executor/model_runner.py:733), so
that the cache has that much less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.arith import Count, ceil_div, maximum, round_up
from memsheet.engines.sglang.lora_layers import JOINED, PARTS
from memsheet.formulas.runtime import ALLOCATOR, loading_slack
from memsheet.formulas.states.held import module_of
from memsheet.formulas.states.held_shapes import held_shape
from memsheet.formulas.states.params import distinct_blocks, parameter_tensors, stack_prefix, tower_tensors
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import INT32
from memsheet.plan.model import ModelSpec, Moe, Role, Weight
from memsheet.plan.plan import Mesh, Plan, ServedAdapters
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item, sum_byte_ranges

POOL = FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/lora/mem_pool.py", 600)
BRANCH = FromCode(
    "sgl-project/sglang", "v0.5.23", "python/sglang/kernels/ops/lora/moe/fused_moe_lora_kernel.py", 477
)
GRAPHS = FromCode("sgl-project/sglang", "v0.5.23", "python/sglang/srt/lora/backend/base_backend.py", 285)
BLOCK = 64
"""Tokens of a block of routed ones (v0.5.23 lora/backend/base_backend.py:312)."""
ENDS = ("embed_tokens", "lm_head")
GATES, DOWN = "gate_up_proj", "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """The A and B buffer of one joined layer in elements of a slot, and how many layers have them."""

    path: str
    first: Count
    second: Count
    times: int

    @property
    def elements(self) -> Count:
        return self.times * (self.first + self.second)


def lora_pool_items(part: ModelSpec, plan: Plan, captured: Count, instants: Sequence[Instant]) -> list[Item]:
    """The pool on a rank, and what graphs of routed layers keep of who goes where; nothing without
    adapters.
    """
    served = plan.served_adapters
    if served is None:
        return []
    found = list(buffers_of(part, plan.mesh, served))
    rows = [
        (f"{one.path}.lora_buffer", served.dtype.nbytes(served.slots * one.elements), POOL) for one in found
    ]
    if plan.options.captures and (places := routed_places_bytes(part, served, captured)):
        rows.append(("moe_lora_places", places, GRAPHS))
    gaps = loading_slack(
        (served.dtype.nbytes(served.slots * size), one.times)
        for one in found
        for size in (one.first, one.second)
    )
    slack = Item(Component.ALLOCATOR_SLACK, "lora", dict.fromkeys(instants, Bytes(0, gaps, gaps)), ALLOCATOR)
    return [
        *(
            Item(Component.BUFFERS, path, dict.fromkeys(instants, Bytes.exact(size)), source)
            for path, size, source in rows
        ),
        slack,
    ]


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/mem_pool.py:424, 527: slots x pieces · rank x in, and slots x out x rank, on every "
        "layer whose name is a target"
    ),
)
def buffers_of(part: ModelSpec, mesh: Mesh, served: ServedAdapters) -> Iterator[Buffers]:
    """Buffers of a rank. An adapter on one piece has the buffers of the whole joined layer; experts have
    their own in every layer.
    """
    wanted, towers = targets_of(served), {path for path, _, _ in tower_tensors(part)}
    experts = any(
        isinstance(block.feed_forward, Moe) for stack in part.stacks for block, _ in distinct_blocks(stack)
    )
    joined: dict[str, list[tuple[Weight, int]]] = {}
    for path, weight, times in parameter_tensors(part):
        name = path.split(".")[-2] if path.endswith(".weight") else ""
        layer = JOINED.get(name, "")
        alone = experts and layer in (GATES, DOWN) and not _has_shared(part)
        if (
            weight.role is Role.LINEAR
            and layer in wanted
            and layer not in ENDS
            and path not in towers
            and not alone
        ):
            joined.setdefault(f"{module_of(path).rsplit('.', 1)[0]}.{layer}", []).append((weight, times))
    for path, pieces in joined.items():
        yield from _joined_layer_lora_buffers(path, pieces, mesh, served)
    if experts:
        yield from _expert_lora_buffers(part, mesh, served, wanted)
    yield from _embedding_lora_buffers(part, mesh, served, wanted)


def targets_of(served: ServedAdapters) -> frozenset[str]:
    """Joined layers that are targets, all that are known where nobody says (``--lora-target-modules
    all``).
    """
    names = JOINED if served.targets is None else served.targets
    return frozenset(JOINED[name] for name in names if name in JOINED)


def _has_shared(part: ModelSpec) -> bool:
    """Whether layers with experts have a shared one, without which no dense layer beside them has buffers
    (mem_pool.py:614).
    """
    feeds = (block.feed_forward for stack in part.stacks for block, _ in distinct_blocks(stack))
    return any(isinstance(feed, Moe) and feed.shared is not None for feed in feeds)


def _joined_layer_lora_buffers(
    path: str, pieces: list[tuple[Weight, int]], mesh: Mesh, served: ServedAdapters
) -> Iterator[Buffers]:
    """One joined layer, for each width that layers of that name have."""
    by_width: dict[tuple[Count, Count], int] = {}
    names = len({weight.path for weight, _ in pieces})
    for number in range(0, len(pieces), names):
        group = pieces[number : number + names]
        shapes = [held_shape(weight, mesh) for weight, _ in group]
        key = shapes[0][1], sum(shape[0] for shape in shapes)
        by_width[key] = by_width.get(key, 0) + group[0][1]
    parts = PARTS.get(path.rsplit(".", 1)[-1], 1)
    for (width, out), times in by_width.items():
        yield Buffers(path=path, first=parts * served.rank * width, second=out * served.rank, times=times)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/mem_pool.py:424, 640: slots x experts x ..., in as many layers as the model has, "
        "dense ones too"
    ),
)
def _expert_lora_buffers(
    part: ModelSpec, mesh: Mesh, served: ServedAdapters, wanted: frozenset[str]
) -> Iterator[Buffers]:
    layers, rank = part.layers, served.rank
    stack, block, moe = next(
        (stack, block, block.feed_forward)
        for stack in part.stacks
        for block, _ in distinct_blocks(stack)
        if isinstance(block.feed_forward, Moe)
    )
    own, inner = ceil_div(moe.experts, mesh.ep), ceil_div(moe.intermediate, mesh.etp)
    path = f"{stack_prefix(stack)}.{moe.path}"
    if GATES in wanted:
        yield Buffers(
            path=f"{path}.{GATES}_moe",
            first=own * 2 * rank * block.hidden,
            second=own * 2 * inner * rank,
            times=layers,
        )
    if DOWN in wanted:
        yield Buffers(
            path=f"{path}.{DOWN}_moe",
            first=own * rank * inner,
            second=own * block.hidden * rank,
            times=layers,
        )


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/mem_pool.py:474, 575, 713-737: of all words, the head's second matrix cut; where "
        "both are targets each is made twice"
    ),
)
def _embedding_lora_buffers(
    part: ModelSpec, mesh: Mesh, served: ServedAdapters, wanted: frozenset[str]
) -> Iterator[Buffers]:
    rank, hidden, words = served.rank, part.hidden, part.head.width
    twice = 2 if wanted.issuperset(ENDS) else 1
    if ENDS[0] in wanted:
        yield Buffers(path=ENDS[0], first=rank * words, second=hidden * rank, times=twice)
    if ENDS[1] in wanted:
        yield Buffers(path=ENDS[1], first=rank * hidden, second=ceil_div(words, mesh.tp) * rank, times=twice)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/backend/base_backend.py:312-347: int32 places of routed tokens for each slot, once "
        "for all layers"
    ),
)
def routed_places_bytes(part: ModelSpec, served: ServedAdapters, captured: Count) -> Count:
    """Bytes of the buffers that CUDA graphs of up to ``captured`` sequences read their routing from."""
    moe = next(
        (
            b.feed_forward
            for stack in part.stacks
            for b, _ in distinct_blocks(stack)
            if isinstance(b.feed_forward, Moe)
        ),
        None,
    )
    wanted = targets_of(served)
    if moe is None or not wanted.issuperset((GATES, DOWN)):
        return 0
    routed = captured * moe.experts_per_token
    padded = round_up(routed + moe.experts * (BLOCK - 1), BLOCK)
    return INT32.nbytes(served.slots * (padded + padded // BLOCK + 3 + moe.experts + 1 + routed) + captured)


def lora_branch_items(part: ModelSpec, plan: Plan, tokens: Mapping[Instant, Count]) -> list[Item]:
    """What adapters' products take beside a layer while so many tokens pass: those of routed experts beside
    its widest moment, others at most.
    """
    served = plan.served_adapters
    if served is None:
        return []
    parts = max((PARTS[name] for name in targets_of(served) if name in PARTS), default=1)
    at = {}
    for when, count in tokens.items():
        routed, dense = (
            routed_bytes(part, plan, served, count),
            plan.precision.compute.nbytes(parts * count * served.rank),
        )
        at[when] = Bytes(0, routed, maximum(routed, dense))
    return [Item(Component.TEMPORARIES, "lora_buffer", at, BRANCH)]


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 kernels/ops/lora/moe/fused_moe_lora_kernel.py:477: (pieces, tokens, experts a token, "
        "rank), and the result by its side"
    ),
)
def routed_bytes(part: ModelSpec, plan: Plan, served: ServedAdapters, tokens: Count) -> Count:
    """Bytes beside the widest layer of routed experts; none where they are no targets."""
    moe = next(
        (
            b.feed_forward
            for stack in part.stacks
            for b, _ in distinct_blocks(stack)
            if isinstance(b.feed_forward, Moe)
        ),
        None,
    )
    if moe is None or not targets_of(served).issuperset((GATES, DOWN)):
        return 0
    widest = maximum(2 * ceil_div(moe.intermediate, plan.mesh.etp), part.hidden)
    return plan.precision.compute.nbytes(tokens * moe.experts_per_token * (2 * served.rank + widest))


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 lora/lora_manager.py:919 load_lora_weights: every adapter that is loaded stays in host "
        "memory"
    ),
)
def lora_pool_host_bytes(spec: ModelSpec, plan: Plan) -> Count:
    """Host memory of a rank: every adapter it has loaded, whole (v0.5.23 lora/lora.py initialize_weights);
    those it pins are copied once more.
    """
    served = plan.served_adapters
    if served is None:
        return 0
    return served.host * served.dtype.nbytes(
        sum(one.elements for one in _unsharded_lora_buffers(spec, served))
    )


def _unsharded_lora_buffers(spec: ModelSpec, served: ServedAdapters) -> Iterator[Buffers]:
    """One adapter on all targets: what is made twice on a device is there once."""
    ends = set(ENDS)
    for one in buffers_of(spec, Mesh(), served):
        yield replace(one, times=1) if one.path in ends else one


def lora_pool_facts(spec: ModelSpec, plan: Plan, items: Sequence[Item]) -> dict[str, Any]:
    """What a person asks of the pool."""
    served = plan.served_adapters
    assert served is not None
    room = sum_byte_ranges(item.largest for item in items if item.component is Component.BUFFERS)
    return {
        "slots": served.slots,
        "rank": served.rank,
        "room_bytes": room,
        "host_bytes": lora_pool_host_bytes(spec, plan),
    }
