"""How DeepSpeed moves gradients and parameters through one backward: buckets that fill and are flushed,
parameters gathered ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import Count, ceil_div, maximum, minimum, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.partitioned_buckets import Buckets
from memsheet.formulas.states.held import Held
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


def forward_places(walk: StageLayers) -> Iterator[tuple[Place, tuple[Group, ...]]]:
    """Every place in order of the forward, with its groups."""
    if walk.embeddings:
        yield (-1, 0), (walk.embeddings,)
    for run, layers in enumerate(walk.layers):
        for repetition in range(layers.count):
            yield (run, repetition), layers.pattern
    if walk.head:
        yield (len(walk.layers), 0), (walk.head,)


def _trainable_tensor_sizes(groups: tuple[Group, ...], cache: dict[int, list[int]]) -> list[int]:
    """Elements of the tensors that train, last first."""
    key = id(groups)
    if key not in cache:
        cache[key] = [
            int(h.elements) for group in reversed(groups) for h in reversed(group.parameters) if h.trains
        ]
    return cache[key]


@formula(
    cites=DEEPSPEED,
    at=(
        "stage_1_and_2.py:1201-1203: a gradient that would overflow the bucket flushes it first; the rest "
        "goes at the end"
    ),
)
def bucket_flushes(walk: StageLayers, bucket: int, shard: Count, *, cuts: bool) -> list[Flush]:
    """Every flush of a backward, gradients arriving in the reverse order of the parameters.

    ``shard``: elements of one rank's partition. ``cuts`` (stages 1 and 2): a bucket that lies inside one
    partition is one slice and is reduced in place (1833-1867); otherwise its slices are copied together. At
    stage 3 several gradients are joined, and one alone is not (stage3.py:1591-1608).
    """
    cache: dict[int, list[int]] = {}
    steps = list(forward_places(walk))
    at = sum(sum(_trainable_tensor_sizes(groups, cache)) for _, groups in steps)
    found: list[Flush] = []
    filled = widest = 0

    def flush(place: Place) -> None:
        joined = where(at // shard == (at + filled - 1) // shard, 0, filled) if cuts else filled
        found.append(Flush(place, filled, 0 if not cuts and filled == widest else joined, widest))

    for place, groups in reversed(steps):
        for size in _trainable_tensor_sizes(groups, cache):
            if filled and filled + size > bucket:
                flush(place)
                filled = widest = 0
            filled, widest = filled + size, max(widest, size)
            at -= size
    if filled:
        flush((-1, 0))
    return found


def comes_later_in_backward(place: Place, other: Place) -> bool:
    """Whether a backward comes to ``place`` after ``other``."""
    return place < other


def peak_flush_places(made: list[Flush]) -> frozenset[Place]:
    """Flushes that may set the peak of any plan: the first two, and each that copies more than those before
    it, or has a wider gradient. Activations shrink on the way, so no other one can.
    """
    found, most, widest = (
        {flush.place for flush in made[:2]},
        0,
        max((one.widest for one in made[:1]), default=0),
    )
    for flush in made[1:]:
        more = flush.copied > most
        if (more if isinstance(more, bool) else more.any()) or flush.widest > widest:
            found.add(flush.place)
        most, widest = maximum(most, flush.copied), max(widest, flush.widest)
    return frozenset(found)


# ---- parameters gathered ahead of their use (zero 3) -------------------------------------------------------


@formula(cites=DEEPSPEED, at="partition_parameters.py:1662-1671: each tensor on its own, padded to the ranks")
def tensor_shard(tensor: Held, ranks: Count) -> Count:
    """Elements of a tensor that one rank keeps."""
    return ceil_div(tensor.elements, ranks)


@formula(
    cites=DEEPSPEED,
    at="parameter_offload.py:311-329: tensors of at most param_persistence_threshold elements stay gathered",
)
def stays_gathered(tensor: Held, buckets: Buckets) -> bool:
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
