"""The counts of plans that divide what they have to, as columns of arrays; those that do not are counted by
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from memsheet.frozen import dataclass, field
from memsheet.plan.model import Attention, LatentAttention, ModelSpec, Moe
from memsheet.search.train.space import AXES, Request, Space, counts_of

Array = Any
"""An int64 array with a place for each plan of a stratum, or a mask of them."""
Rows = Mapping[str, Array]
"""The counts of plans, column by column."""
COLUMNS = (*AXES, "microbatch", "global_batch")


@dataclass(slots=True)
class Tally:
    """How many plans were refused, by reason."""

    refused: Counter[str] = field(default_factory=Counter)

    def keep(self, rows: Rows, reason: str, holds: Array, each: int = 1) -> Rows:
        """The rows where a rule holds; the others are counted, ``each`` as so many plans as it would have
        become.
        """
        lost = int(np.size(holds) - np.count_nonzero(holds))
        if not lost:
            return rows
        self.refused[reason] += lost * each
        return select_rows(rows, np.flatnonzero(holds))


def refuse_rows(tallies: Mapping[int, Tally], rows: Rows, reason: str, each: int = 1) -> None:
    """Count rows as refused, those of each global batch by themselves."""
    for batch, tally in tallies.items():
        if lost := int(np.count_nonzero(rows["global_batch"] == batch)):
            tally.refused[reason] += lost * each


def select_rows(rows: Rows, which: Array) -> Rows:
    return {name: column[which] for name, column in rows.items()}


def legal_count_rows(space: Space, pipeline: Request, tally: Tally) -> Rows:
    """The counts that divide what they have to, whatever is chosen besides: one count after another, each row
    that fails at once with all that would have come of it.
    """
    pp = int(pipeline["mesh.pp"])
    ranks, batch, counts = space.cluster.count // pp, space.global_batch, counts_of(space, pp)
    rows: Rows = {name: np.ones(1, dtype=np.int64) for name in COLUMNS}
    rows = {**rows, "global_batch": rows["tp"] * batch}
    rest = prod(len(values) for values in counts.values())
    for name, values in counts.items():
        rest //= max(1, len(values))
        if name == "microbatch":
            return _rows_with_microbatches(
                rows, values, list(_divisibility_rules(space, pipeline, name, batch)), tally
            )
        rows = _rows_with_count(rows, name, values)
        if name in ("tp", "cp", "dp_shard"):
            taken_ = rows["tp"] * rows["cp"] * rows["dp_shard"]
            rows = tally.keep(
                rows, f"degrees do not divide {space.cluster.count} devices", ranks % taken_ == 0, rest
            )
        if name == "dp_shard":
            rows = {**rows, "dp_replicate": ranks // (rows["tp"] * rows["cp"] * rows["dp_shard"])}
        for reason, holds in _divisibility_rules(space, pipeline, name, batch):
            rows = tally.keep(rows, reason, holds(rows), rest)
    return rows


def _rows_with_count(rows: Rows, name: str, values: tuple[int, ...]) -> Rows:
    """Every row with every value of one more count."""
    number = len(rows["tp"])
    grown = {other: np.repeat(column, len(values)) for other, column in rows.items()}
    return {**grown, name: np.tile(np.array(values, dtype=np.int64), number)}


Rule = tuple[str, Callable[[Rows], Array]]


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows laid one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _rows_with_microbatches(rows: Rows, values: tuple[int, ...], rules: Sequence[Rule], tally: Tally) -> Rows:
    """Every row with the micro-batches that it may have, which its data-parallel ranks say: asked once for
    each number of them.
    """
    ranks, which = np.unique(rows["dp_replicate"] * rows["dp_shard"], return_inverse=True)
    alike, sizes = np.bincount(which, minlength=len(ranks)), np.array(values, dtype=np.int64)
    few = {
        "dp_replicate": ranks[:, None],
        "dp_shard": np.ones((1, 1), dtype=np.int64),
        "microbatch": sizes[None, :],
    }
    open_ = np.ones((len(ranks), len(sizes)), dtype=bool)
    for reason, holds in rules:
        held = holds(few)
        if lost := int(np.count_nonzero(open_ & ~held, axis=1) @ alike):
            tally.refused[reason] += lost
        open_ &= held
    row, place = np.nonzero(open_[which])
    return {**select_rows(rows, row), "microbatch": sizes[place]}


def _divisibility_rules(space: Space, pipeline: Request, name: str, batch: int) -> Iterator[Rule]:
    """Each rule of ``resolve`` that can be told once a count is known."""
    engine, request, pp = space.engine, space.request, int(pipeline["mesh.pp"])
    if name == "tp":
        yield from _of_heads(space.model)
        if "vocab_multiple" in request:
            yield (
                "tp does not divide vocab_multiple",
                lambda rows: int(request["vocab_multiple"]) % rows["tp"] == 0,
            )
    if name == "dp_shard":
        if "dp_replicate" not in engine.axes:
            yield f"dp_replicate is not modelled for {engine.name}", lambda rows: rows["dp_replicate"] == 1
        if "mesh.dp_replicate" in request:
            yield (
                "dp_replicate is another",
                lambda rows: rows["dp_replicate"] == int(request["mesh.dp_replicate"]),
            )
    if name == "ep":
        yield from _of_experts(space.model)
    if name == "etp" and space.experts:
        yield "ep · etp does not divide the ranks of a stage", _experts_divide
    if name == "microbatch":
        each = "microbatch · data-parallel ranks does not divide the global batch"
        yield each, lambda rows: batch % sequences_at_once(rows) == 0
        if int(pipeline["mesh.vpp"]) > 1:
            whole = f"micro-batches are no multiple of {pp} stages, whose chunks take turns"
            yield whole, lambda rows: batch // sequences_at_once(rows) % pp == 0


def sequences_at_once(rows: Rows) -> Array:
    """Sequences of one micro-batch on all data-parallel ranks."""
    return rows["microbatch"] * rows["dp_replicate"] * rows["dp_shard"]


def _of_heads(model: ModelSpec) -> Iterator[Rule]:
    mixers = model.mixers()
    for heads in sorted({m.heads for m in mixers if isinstance(m, Attention | LatentAttention)}):
        yield f"tp does not divide {heads} attention heads", partial(_tp_divides_heads, heads)
    for kv in sorted({m.kv_heads for m in mixers if isinstance(m, Attention)}):
        yield f"tp and {kv} key/value heads do not divide", partial(_tp_divides_heads, kv, either=True)


def _tp_divides_heads(heads: int, rows: Rows, *, either: bool = False) -> Array:
    return (heads % rows["tp"] == 0) | (rows["tp"] % heads == 0) if either else heads % rows["tp"] == 0


def _of_experts(model: ModelSpec) -> Iterator[Rule]:
    blocks = model.blocks()
    for experts in sorted({b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)}):
        yield f"ep does not divide {experts} experts", lambda rows, n=experts: n % rows["ep"] == 0  # type: ignore[misc]


def _experts_divide(rows: Rows) -> Array:
    ranks = rows["dp_replicate"] * rows["dp_shard"] * rows["cp"] * rows["tp"]
    return ranks % (rows["ep"] * rows["etp"]) == 0
