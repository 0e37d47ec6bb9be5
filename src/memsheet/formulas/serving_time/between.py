"""What ranks send one another during a server's pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from memsheet.formulas.serving.dp_attention import SENT, groups_sharing_experts
from memsheet.formulas.serving_time.layers import Layer
from memsheet.formulas.serving_time.operators import ServeTiming
from memsheet.formulas.serving_time.speeds import End
from memsheet.formulas.step_time.collectives import collective_s, send_s
from memsheet.formulas.step_time.numbers import Real, larger
from memsheet.plan.model import ModelSpec, Moe
from memsheet.references import AICONFIGURATOR, MEGATRON_TP, PAGED_SERVER_CODE, formula

FASTEST = 0.56
"""Of the slower's time: of two servers' kernels one takes 2.4 us among two H100, the other 4.3
(custom_allreduce_perf of serving_rates.toml; ``READ_IN``).
"""


@formula(
    cites=AICONFIGURATOR,
    at="custom_allreduce_perf, by bytes and ranks; beyond one node as NCCL's over the network",
    counts="int",
)
def all_reduce_s(shop: ServeTiming, nbytes: float, ranks: int) -> float:
    """Seconds of an all-reduce of a tensor over neighbouring ranks: by the engine's own kernel where it has
    one, for which a captured graph is enough; else by NCCL, as all do at the slow end.
    """
    if ranks == 1:
        return 0.0
    speeds, rates = shop.speeds, shop.speeds.rates
    least_s = 0.0 if replays_cuda_graph(shop) else speeds.started_s
    if ranks > rates.near or not shop.engine.serving.own_all_reduce:
        return max(float(collective_s("all_reduce", nbytes, ranks, 1, rates)), least_s)
    own = max(
        _interpolate_seconds(
            speeds.points[min(size for size in speeds.points if size >= min(ranks, 8))], nbytes
        ),
        least_s,
    )
    if speeds.end is End.SLOW:
        return max(own, float(collective_s("all_reduce", nbytes, ranks, 1, rates)))
    return FASTEST * own if speeds.end is End.FAST else own


def replays_cuda_graph(shop: ServeTiming) -> bool:
    """Whether decoding replays a graph, so that the host starts no kernel by itself."""
    plan = shop.plan
    compiled = shop.engine.serving.captures_compiled and plan.compile
    graphs = plan.options.captures or bool(plan.cuda_graphs) or compiled
    return graphs and shop.work.fresh == 1


def _interpolate_seconds(points: Sequence[tuple[float, float]], nbytes: float) -> float:
    """Seconds between the two nearest points; level below the first, and as the last two go beyond."""
    if nbytes <= points[0][0]:
        return points[0][1]
    pairs = list(pairwise(points))
    (x0, y0), (x1, y1) = next(((a, b) for a, b in pairs if nbytes <= b[0]), pairs[-1])
    return y0 + (y1 - y0) * (nbytes - x0) / (x1 - x0)


@formula(
    cites=MEGATRON_TP,
    at="section 3: one all-reduce of every product that is cut by rows, and one of the embedding",
    counts="int",
)
def exchanged_s(spec: ModelSpec, layers: Sequence[Layer], shop: ServeTiming) -> float:
    """Seconds of all exchanges of a pass: tensor-parallel sums, tokens to experts of other replicas, stages
    in turn, logits.
    """
    mesh, work = shop.plan.mesh, shop.work
    tp, pp, groups = int(mesh.tp), int(mesh.pp), int(groups_sharing_experts(shop.plan))
    size = float(shop.plan.precision.compute.nbytes(1))
    payload = work.rows * size * spec.hidden
    total = 0.0
    if tp > 1:
        sums = Counter({spec.hidden: 1})
        for layer in layers:
            for width in layer.sums:
                sums[width] += layer.count
        total += sum(n * all_reduce_s(shop, work.rows * size * width, tp) for width, n in sums.items())
        total += float(
            collective_s("all_gather", work.sequences * size * spec.head.width, tp, 1, shop.speeds.rates)
        )
    if groups > 1:
        sends = shop.plan.options.dispatch == SENT
        total += (
            _sent_s(spec, shop, payload)
            if sends
            else _gathering_layer_count(spec, shop) * gathered_s(shop, payload, groups)
        )
    if pp > 1:
        near = tp * groups
        total += pp * float(send_s(payload, near, shop.speeds.rates))
    return total


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 distributed/device_communicators/all2all.py:116, 151: all-gather of the tokens, "
        "reduce-scatter of the sums"
    ),
)
def gathered_s(shop: ServeTiming, payload: Real, groups: Real) -> Real:
    """Seconds in which every group is given the tokens of all, ``payload`` bytes each, and takes its own sums
    back.
    """
    rates, tp = shop.speeds.rates, shop.plan.mesh.tp
    found = (
        collective_s(name, payload * groups, groups, tp, rates) for name in ("all_gather", "reduce_scatter")
    )
    return sum(
        seconds if replays_cuda_graph(shop) else larger(seconds, shop.speeds.started_s) for seconds in found
    )


def _sent_s(spec: ModelSpec, shop: ServeTiming, payload: float) -> float:
    """Seconds in which tokens go to the ranks of their experts and back."""
    ep, tp, total = int(shop.plan.mesh.ep), int(shop.plan.mesh.tp), 0.0
    for block, count in (
        (block, run.count) for stack in spec.stacks for run in stack.runs for block in run.pattern
    ):
        if isinstance(block.feed_forward, Moe):
            copies = min(block.feed_forward.experts_per_token, ep)
            total += (
                2 * count * float(collective_s("all_to_all", payload * copies / tp, ep, 1, shop.speeds.rates))
            )
    return total


def _gathering_layer_count(spec: ModelSpec, shop: ServeTiming) -> int:
    """Layers before which tokens are gathered: those with experts; all of a model whose feed-forward layers
    are cut over all ranks.
    """
    every = shop.engine.serving.cuts_dense_over_groups
    return sum(
        run.count
        for stack in spec.stacks
        if stack.role != "encoder"
        for run in stack.runs
        for block in run.pattern
        if isinstance(block.feed_forward, Moe) or (every and block.feed_forward is not None)
    )
