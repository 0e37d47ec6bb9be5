"""How DeepSpeed moves gradients and parameters through one backward: buckets that fill and are flushed,
parameters gathered ahead.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memsheet.arith import Count, ceil_div, holds_for_any, maximum, minimum, where
from memsheet.formulas.alike_rows import count_code
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.partitioned_buckets import Buckets
from memsheet.formulas.states.held import HeldTensor
from memsheet.frozen import dataclass
from memsheet.references import DEEPSPEED, formula

Place = tuple[int, int]
"""(run, repetition) of a layer; the embeddings are at (-1, 0), the head at (number of runs, 0)."""


@dataclass(frozen=True, slots=True)
class Flush:
    """A bucket reduced at a place of the backward: its elements, how many of them are copied into a second
    buffer, and those of its widest gradient.
    """

    place: Place
    elements: int
    copied: Count
    widest: int


Arrivals = tuple[tuple[tuple[int, ...], int, int], ...]
"""Elements of the tensors that train at some places in the order of a backward, last first; the run that the
places are of, and how many they are.
"""


def _gradient_arrivals(walk: StageLayers) -> Arrivals:
    """The gradients of a walk, in the order in which they are made."""
    ends = [(-1, 1, (walk.embeddings,) if walk.embeddings else ())]
    runs = [(run, layers.count, layers.pattern) for run, layers in enumerate(walk.layers)]
    head = [(len(walk.layers), 1, (walk.head,) if walk.head else ())]
    return tuple(
        (
            tuple(
                int(h.elements) for group in reversed(groups) for h in reversed(group.parameters) if h.trains
            ),
            run,
            count,
        )
        for run, count, groups in reversed([*ends, *runs, *head])
    )


@lru_cache(maxsize=256)
def _filled_buckets(arrivals: Arrivals, bucket: int) -> tuple[tuple[Place, int, int, int], ...]:
    """Where each bucket is flushed, its elements, where in the flat order they begin, and its widest."""
    at = sum(count * sum(sizes) for sizes, _, count in arrivals)
    found, filled, widest = list[tuple[Place, int, int, int]](), 0, 0
    for sizes, run, count in arrivals:
        for repetition in reversed(range(count)):
            for size in sizes:
                if filled and filled + size > bucket:
                    found.append(((run, repetition), filled, at, widest))
                    filled = widest = 0
                filled, widest = filled + size, max(widest, size)
                at -= size
    if filled:
        found.append(((-1, 0), filled, at, widest))
    return tuple(found)


Flushes = tuple[Flush, ...]
_recent: tuple[tuple[object, Any, bool, Flushes], ...] = ()
"""Those of the last plans: one divides its states in many ways that layers know nothing of."""
MOST_RECENT = 8


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:1201-1203: a gradient that would overflow the bucket flushes it first; the rest "
        "goes at the end"
    ),
)
def bucket_flushes(walk: StageLayers, bucket: int, shard: Count, *, cuts: bool) -> Flushes:
    """Every flush of a backward, gradients arriving in the reverse order of the parameters.

    ``shard``: elements of one rank's partition. ``cuts`` (stages 1 and 2): a bucket that lies inside one
    partition is one slice and is reduced in place (1833-1867); otherwise its slices are copied together. At
    stage 3 several gradients are joined, and one alone is not (stage3.py:1591-1608).
    """
    global _recent  # noqa: PLW0603 - one value, replaced as a whole
    filled = _filled_buckets(_gradient_arrivals(walk), bucket)
    code = count_code(shard)
    for known, told, cut, made in _recent:
        if known is filled and cut is cuts and told == code:
            return made
    found = tuple(_flush_moment(*one, shard, cuts=cuts) for one in filled)
    _recent = ((filled, code, cuts, found), *_recent[: MOST_RECENT - 1])
    return found


def _flush_moment(place: Place, filled: int, at: int, widest: int, shard: Count, *, cuts: bool) -> Flush:
    joined = where(at // shard == (at + filled - 1) // shard, 0, filled) if cuts else filled
    return Flush(place, filled, 0 if not cuts and filled == widest else joined, widest)


def comes_later_in_backward(place: Place, other: Place) -> bool:
    """Whether a backward comes to ``place`` after ``other``."""
    return place < other


def peak_flush_places(made: Flushes) -> frozenset[Place]:
    """Flushes that may set the peak of any plan: the first two, and each that copies more than those before
    it, or has a wider gradient. Activations shrink on the way, so no other one can.
    """
    global _recent_places  # noqa: PLW0603 - one value, replaced as a whole
    known = next((places for of, places in _recent_places if of is made), None)
    if known is None:
        known = _places_that_may_peak(made)
        _recent_places = ((made, known), *_recent_places[: MOST_RECENT - 1])
    return known


_recent_places: tuple[tuple[Flushes, frozenset[Place]], ...] = ()


def _places_that_may_peak(made: Flushes) -> frozenset[Place]:
    found, most, widest = (
        {flush.place for flush in made[:2]},
        0,
        max((one.widest for one in made[:1]), default=0),
    )
    for flush in made[1:]:
        more = flush.copied > most
        if (more if isinstance(more, bool) else holds_for_any(more)) or flush.widest > widest:
            found.add(flush.place)
        most, widest = maximum(most, flush.copied), max(widest, flush.widest)
    return frozenset(found)


# ---- parameters gathered ahead of their use (zero 3) -------------------------------------------------------


@formula(cites=DEEPSPEED, at="partition_parameters.py:1662-1671: each tensor on its own, padded to the ranks")
def tensor_shard(tensor: HeldTensor, ranks: Count) -> Count:
    """Elements of a tensor that one rank keeps."""
    return ceil_div(tensor.elements, ranks)


@formula(
    cites=DEEPSPEED,
    at="parameter_offload.py:311-329: tensors of at most param_persistence_threshold elements stay gathered",
)
def stays_gathered(tensor: HeldTensor, buckets: Buckets) -> bool:
    return tensor.elements <= buckets.persistence


def gathered_elements(groups: tuple[Group, ...], buckets: Buckets, ranks: Count) -> Count:
    """Elements that are gathered and released as the step goes through some groups."""
    return sum(
        ranks * tensor_shard(h, ranks)
        for group in groups
        for h in group.parameters
        if not stays_gathered(h, buckets)
    )


@dataclass(frozen=True, slots=True)
class Gathered:
    """Elements of gathered parameters: what one module needs, what runs ahead, what may."""

    low: Count
    value: Count
    high: Count


@formula(
    cites=DEEPSPEED,
    at="partitioned_param_coordinator.py:420-485: every module's call fetches prefetch_bucket elements "
    "ahead until max_live are there; "
    "partition_parameters.py:1301-1343: a bundle's flat buffer stays beside the parameters copied out of it",
)
def prefetched_elements(remaining: Count, largest: Count, buckets: Buckets) -> Gathered:
    """Gathered elements while ``remaining`` elements of the model are still to be used, whose largest tensor
    has ``largest``.

    Prefetching overshoots by at most one tensor. Parameters that the backward will use again within max_reuse
    elements stay gathered at the turn, and they count as live, so the sum is the same there.
    """
    bundle = minimum(remaining, buckets.prefetch)
    return Gathered(
        low=minimum(remaining, largest + buckets.prefetch),
        value=minimum(remaining, maximum(buckets.max_live, largest)) + bundle,
        high=minimum(remaining, buckets.max_live + largest) + minimum(remaining, buckets.prefetch + largest),
    )
