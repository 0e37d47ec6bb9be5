"""What ranks of a layer tell one another in every pass: tensor, context and expert parallelism."""

from __future__ import annotations

from memsheet.formulas.operators.blocks import branch_count
from memsheet.formulas.step_time.collectives import across_s, collective_s, send_s
from memsheet.formulas.step_time.numbers import Real, exposed_seconds, larger
from memsheet.formulas.step_time.operators import BF16_BYTES, OperatorTime, TrainTiming
from memsheet.formulas.step_time.rates import SLOWED, Rates
from memsheet.frozen import dataclass
from memsheet.plan.model import Attention, Block, LatentAttention, Moe
from memsheet.plan.plan import ContextParallel
from memsheet.references import DEEPEP, MEGATRON_SP, MEGATRON_TP, TORCH_SYMMETRIC, formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Seconds that nothing hides, forward and backward, by axis."""

    tp: tuple[Real, Real]
    cp: tuple[Real, Real]
    ep: tuple[Real, Real]

    @property
    def forward_s(self) -> Real:
        return self.tp[0] + self.cp[0] + self.ep[0]

    @property
    def backward_s(self) -> Real:
        return self.tp[1] + self.cp[1] + self.ep[1]


def layer_communication_s(shop: TrainTiming, block: Block, operators: tuple[OperatorTime, ...]) -> Exchange:
    return Exchange(
        tp=_tensor_parallel_s(shop, block, operators),
        cp=_context_parallel_s(shop, block, operators),
        ep=_exposed_expert_parallel_s(shop, block, operators),
    )


def _tensor_parallel_regions(block: Block) -> int:
    """Pairs of a product cut by columns and one cut by rows. Sums of routed experts are theirs."""
    ff = block.feed_forward
    return branch_count(block) - (isinstance(ff, Moe) and ff.shared is None)


# Megatron starts backward's collectives beside a product, but on the same multiprocessors: only the low end
# counts them as hidden, as
# SimuMax (4dcaae5) counts none. What is asked for by name (async_tp) is hidden.


@formula(
    cites=MEGATRON_TP,
    at="section 3: an all-reduce a region each way; its backward one runs beside the weights' gradient",
)
def _tensor_parallel_s(
    shop: TrainTiming, block: Block, operators: tuple[OperatorTime, ...]
) -> tuple[Real, Real]:
    payload, ranks = shop.tokens * BF16_BYTES * 1.0 * block.hidden, shop.tp
    count = _tensor_parallel_regions(block)
    if shop.plan.sequence_parallel:
        return _sequence_parallel_s(shop, payload, count, operators)
    one = count * collective_s("all_reduce", payload, ranks, 1, shop.rates)
    cover = sum((op.backward_s for op in operators if not op.attention), 0.0) / 2
    return one, exposed_seconds(one, cover) if shop.hides and shop.kernels.own.hides_tensor_exchanges else one


@formula(
    cites=MEGATRON_SP,
    at=(
        "section 4.2.2: all-gather before, reduce-scatter after a region; backward the reverse, and the "
        "input gathered again"
    ),
)
def _sequence_parallel_s(
    shop: TrainTiming, payload: Real, count: int, operators: tuple[OperatorTime, ...]
) -> tuple[Real, Real]:
    gather = count * collective_s("all_gather", payload, shop.tp, 1, shop.rates)
    scatter = count * collective_s("reduce_scatter", payload, shop.tp, 1, shop.rates)
    forward = gather + scatter
    if (
        shop.kernels.own.hides_tensor_exchanges
    ):  # tensor_parallel/layers.py: gathered again beside one product, scattered beside the other
        cover = sum((op.backward_s for op in operators if not op.attention), 0.0) / 2
        backward = gather + exposed_seconds(gather + scatter, cover if shop.hides else 0.0)
    else:
        backward = gather + scatter
    if shop.plan.async_tp:
        return tuple(_beside_products(shop, payload, operators, name) for name in ("forward_s", "backward_s"))
    return forward, backward


@formula(
    cites=TORCH_SYMMETRIC,
    at=(
        "_fused_all_gather_matmul, _fused_matmul_reduce_scatter: a chunk a rank; each travels beside the "
        "product of another"
    ),
)
def _beside_products(
    shop: TrainTiming, payload: Real, operators: tuple[OperatorTime, ...], which: str
) -> Real:
    """Every gather beside the products that read it, every scatter beside the one that makes it: what sticks
    out of the chunks but one, that one, and what the products lose. Backward's gradient of the input is half
    of it.
    """
    told: Real = 0.0
    for part in sorted({op.part for op in operators if op.gathers}):
        for kind, flag in (("all_gather", "gathers"), ("reduce_scatter", "scatters")):
            one = collective_s(kind, payload, shop.tp, 1, shop.rates)
            cover = sum(
                (getattr(op, which) for op in operators if op.part == part and getattr(op, flag)), 0.0
            )
            cover = cover / (2 if which == "backward_s" else 1)
            out = exposed_seconds(one, cover) * (shop.tp - 1) / shop.tp + one / shop.tp
            told = told + out + (0.0 if shop.hides else SLOWED * exposed_seconds(one, out))
    return told


def _context_parallel_s(
    shop: TrainTiming, block: Block, operators: tuple[OperatorTime, ...]
) -> tuple[Real, Real]:
    mixer = next((m for m in block.mixers if isinstance(m, Attention | LatentAttention)), None)
    if mixer is None:
        return 0.0, 0.0
    cp, rates, stride = shop.plan.mesh.cp, shop.rates, shop.tp
    if isinstance(mixer, LatentAttention):
        keys = mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
        queries = mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    else:
        keys, queries = 2 * mixer.kv_heads * mixer.head_dim, mixer.heads * mixer.head_dim
    mine = shop.tokens * BF16_BYTES / shop.tp
    if shop.plan.context_parallel is ContextParallel.ALL_TO_ALL:
        one = collective_s("all_to_all", mine * (keys + 2 * queries), cp, stride, rates)
        return one, one
    if shop.plan.context_parallel is ContextParallel.ALL_GATHER:
        gather = collective_s("all_gather", mine * cp * keys, cp, stride, rates)
        return gather, gather + collective_s("reduce_scatter", mine * cp * keys, cp, stride, rates)
    beside = [(op.forward_s / cp, op.backward_s / cp) for op in operators if op.attention]
    one = send_s(mine * keys, stride, rates)
    forward, backward = sum(f for f, _ in beside), sum(b for _, b in beside)
    return (cp - 1) * exposed_seconds(one, forward), (cp - 1) * exposed_seconds(2 * one, backward)


def _exposed_expert_parallel_s(
    shop: TrainTiming, block: Block, operators: tuple[OperatorTime, ...]
) -> tuple[Real, Real]:
    """Nothing runs beside it, unless the passes of two micro-batches are interleaved (DualPipe;
    Megatron-Core's ``--overlap-moe-expert-parallel-comm``): the low end.
    """
    forward, backward = _expert_dispatch_s(shop, block)
    if not shop.hides:
        return forward, backward
    return exposed_seconds(forward, sum((op.forward_s for op in operators), 0.0)), exposed_seconds(
        backward, sum((op.backward_s for op in operators), 0.0)
    )


def _expert_dispatch_s(shop: TrainTiming, block: Block) -> tuple[Real, Real]:
    """Tokens to their experts and back, each way."""
    moe, mesh = block.feed_forward, shop.plan.mesh
    if not isinstance(moe, Moe):
        return 0.0, 0.0
    tokens = shop.tokens / shop.between * block.hidden * BF16_BYTES
    stride = mesh.etp
    if shop.plan.routing is not None and shop.plan.routing.dispatch == "allgather":
        one = collective_s("all_gather", tokens * mesh.ep, mesh.ep, stride, shop.rates)
        one = one + collective_s("reduce_scatter", tokens * mesh.ep, mesh.ep, stride, shop.rates)
        return one, one
    sent = tokens * moe.experts_per_token
    if shop.plan.routing is not None and shop.plan.routing.dispatch in ONCE_A_NODE:
        there = hierarchical_all_to_all_s(tokens, moe, mesh.ep, stride, shop.rates)
    else:
        there = collective_s("all_to_all", sent, mesh.ep, stride, shop.rates)
    spread = collective_s("all_gather", sent * mesh.etp, mesh.etp, 1, shop.rates)
    gathered = collective_s("reduce_scatter", sent * mesh.etp, mesh.etp, 1, shop.rates)
    return 2 * there + spread + gathered, 2 * there + spread + gathered


ONCE_A_NODE = ("deepep", "hybridep", "flex")


@formula(
    cites=DEEPEP,
    at=(
        "README: a token crosses to each node that has experts of it once, and spreads there over "
        "the fast link"
    ),
)
def hierarchical_all_to_all_s(tokens: Real, moe: Moe, ranks: Real, stride: Real, rates: Rates) -> Real:
    """Of ``nodes`` equally likely ones, experts of a token lie on nodes (1 - (1 - 1/nodes)^k)."""
    nodes = larger(ranks / larger(rates.near // stride, 1), 1.0)
    reached = nodes * (1 - (1 - 1 / nodes) ** moe.experts_per_token)
    near = ranks / nodes
    inside = collective_s("all_to_all", tokens * moe.experts_per_token, near, stride, rates)
    across = across_s("all_to_all", tokens * reached, ranks, near, rates) / rates.efficiency.communication
    return larger(inside, across)
