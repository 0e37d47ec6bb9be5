"""Seconds of a collective over ranks that share a node, or stride several."""

from __future__ import annotations

from memsheet.arith import given_or
from memsheet.formulas.step_time.numbers import Real, larger, smaller
from memsheet.formulas.step_time.rates import Rates
from memsheet.references import NCCL_TESTS, NCCL_TUNING, formula

LINK_SHARE = 0.8
"""Of a link's bytes a second that collectives reach: 230/300, 369/450 and 745/900 inside the measured nodes;
taken for the network too.
"""
HOP_S = 14e-6
"""One step of a ring between nodes."""
TRAFFIC = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@formula(
    cites=NCCL_TESTS,
    at=(
        "doc/PERFORMANCE.md: bytes through one device over the payload: 2 (n-1)/n for all-reduce, else "
        "(n-1)/n"
    ),
)
def inside_s(kind: str, payload: Real, ranks: Real, rates: Rates) -> Real:
    """``payload``: bytes of the whole tensor (of one rank's buffer for all-to-all). No time among one
    rank.
    """
    fit = rates.collectives[kind]
    moved = payload * TRAFFIC[kind] * (ranks - 1) / ranks
    several = smaller(ranks - 1, 1)
    return several * (fit.alpha_s + moved / fit.bytes_per_s + fit.gamma * moved**0.5)


@formula(
    cites=NCCL_TUNING, at="src/graph/tuning.cc, hwLat: a ring step over the network takes 14 us (Simple)"
)
def across_s(kind: str, payload: Real, ranks: Real, near: Real, rates: Rates) -> Real:
    """The network's part: ``near`` ranks a node bring a link each. In an all-to-all what goes to a rank of
    another node crosses once.
    """
    nodes = larger(ranks / near, 1.0)
    several = smaller(nodes - 1, 1.0)
    share = (ranks - near) / ranks if kind == "all_to_all" else TRAFFIC[kind] * (nodes - 1) / nodes / near
    rate = given_or(rates.network, SLOW_NETWORK) * LINK_SHARE
    steps = smaller(nodes - 1, 8.0) if kind == "all_to_all" else TRAFFIC[kind] * (nodes - 1)
    return larger(several, 0.0) * (payload * larger(share, 0.0) / rate + HOP_S * larger(steps, 0.0))


SLOW_NETWORK = 12.5e9
"""100 Gbit/s Ethernet, where neither device nor cluster says."""


def collective_s(kind: str, payload: Real, ranks: Real, stride: Real, rates: Rates) -> Real:
    """``stride``: how far apart neighbours of the group are; ranks within a node are numbered one after
    another.

    Inside and across run at once where the payload is cut into chunks, as rings do: the slower one counts.
    """
    near = smaller(ranks, larger(rates.near // stride, 1))
    inside, across = inside_s(kind, payload, near, rates), across_s(kind, payload, ranks, near, rates)
    return larger(inside, across) / rates.efficiency.communication


@formula(
    cites=NCCL_TUNING,
    at="src/graph/tuning.cc: a broadcast is a chain through all ranks, a step of it over the network 14 us",
)
def broadcasts_s(payload: Real, ranks: Real, stride: Real, rates: Rates) -> Real:
    """A payload of which every rank has a part and broadcasts it, one after another: as many bytes as a
    gather, as many starts as ranks.
    """
    near = smaller(ranks, larger(rates.near // stride, 1))
    steps = larger(ranks / near - 1, 0.0) * HOP_S + rates.collectives["all_gather"].alpha_s
    once = collective_s("all_gather", payload, ranks, stride, rates)
    return once + smaller(ranks - 1, 1) * ranks * steps / rates.efficiency.communication


def send_s(payload: Real, stride: Real, rates: Rates) -> Real:
    """One rank to the next at ``stride``: inside the node where it reaches so far."""
    fit = rates.collectives["all_to_all"]
    near = fit.alpha_s + payload / fit.bytes_per_s
    far = HOP_S + payload / (given_or(rates.network, SLOW_NETWORK) * LINK_SHARE)
    inside = smaller(larger(rates.near - stride, 0), 1)  # 1 where the neighbour is in the node
    return (inside * near + (1 - inside) * far) / rates.efficiency.communication
