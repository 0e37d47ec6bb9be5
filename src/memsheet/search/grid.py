"""Bytes of every plan of a space: strata accounted as int64 arrays by the same formulas that account one plan, and which of them fit.

A plan fits as ``budget.judge`` says of its sheets. Of the stages of a pipeline only those that can hold most are accounted: a stage that has
the same layers as an earlier one, and no head, keeps fewer micro-batches and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from memsheet.account import Totals, rank_of, totals
from memsheet.budget import Budget, Result, budget_of
from memsheet.errors import InputError
from memsheet.formulas.step import Rank
from memsheet.search.lattice import Array, Tally, taken
from memsheet.search.space import AXES, Space
from memsheet.search.strata import CHUNK, Stratum, reason_of, strata, with_counts
from memsheet.sheet import Bytes
from memsheet.spec.plan import Offload, Plan, Recompute, Schedule

SAFE_BYTES = 2**62 // 2**8
"""What no plan may hold: on the way sizes are counted in bits, and slack is a share of up to 200 per mille, and 2**62 has to hold those."""
BY_ROW = frozenset({"internevo"})
"""Engines whose formulas deal whole parameters to ranks one by one, which arrays do not do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graded:
    """A stratum with the device bytes of each plan's worst stage (``Bytes`` of arrays), that stage, its peak, and its host bytes."""

    stratum: Stratum
    device: Bytes
    stage: Array
    host_bytes: Array
    stages: Mapping[int, Bytes]

    def __len__(self) -> int:
        return len(self.stratum)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Every legal plan of a space, and how many others there are by the reason that rules them out."""

    space: Space
    graded: tuple[Graded, ...]
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def plans(self) -> int:
        return sum(len(one) for one in self.graded)

    def counts(self, reserve_bytes: int = 0) -> Counter[Result]:
        """How many plans fit, do not, or may."""
        found: Counter[Result] = Counter()
        for one in self.graded:
            for result, mask in results(one, self.space, reserve_bytes).items():
                found[result] += int(np.count_nonzero(mask))
        return found


def grid(space: Space) -> Grid:
    """All plans of a space with their bytes.

    Raises OverflowError where a plan could hold more than int64 counts.
    """
    tally, found, stages = Tally(), list[Graded](), dict[tuple[int, int], tuple[Rank, ...]]()
    alone = None
    for stratum in strata(space, tally):
        alone = alone_bytes(space, one_plan(stratum, 0)) if alone is None else alone
        check_largest(stratum, alone)
        found += _graded(stratum, tally, stages)
    return Grid(space=space, graded=tuple(found), refused=tally.refused)


def results(one: Graded, space: Space, reserve_bytes: int = 0) -> Mapping[Result, Array]:
    """A mask for each verdict, as ``judge`` gives it: on the card by the ranges' ends, on the host by what a node has."""
    budget = budget_of(space.cluster, reserve_bytes)
    short = _host_short(one, space)
    too_large = (one.device.low > budget.high_bytes) | short
    fits = (one.device.high <= budget.low_bytes) & ~too_large
    return {Result.FITS: fits, Result.DOES_NOT_FIT: too_large, Result.UNCERTAIN: ~fits & ~too_large}


def _host_short(one: Graded, space: Space) -> Array:
    has = space.cluster.host_bytes
    return one.host_bytes * space.cluster.per_node > has if has is not None else np.zeros(len(one), dtype=bool)


def worst_ranks(space: Space, plan: Plan) -> tuple[Rank, ...]:
    """Ranks of the stages that can hold most."""
    kept, seen = list[Rank](), list[Any]()
    for stage in range(plan.mesh.pp):
        rank = rank_of(space.model, plan, stage)
        layers = [chunk.stacks for chunk in rank.chunks]
        if stage == plan.mesh.pp - 1 or layers not in seen:
            kept.append(rank)
            seen.append(layers)
    return tuple(kept)


def _graded(stratum: Stratum, tally: Tally, stages: dict[tuple[int, int], tuple[Rank, ...]]) -> Iterator[Graded]:
    """A stratum in pieces. Plans that do not agree in a choice after all are taken apart; what cannot be accounted is refused."""
    mesh = stratum.plan.mesh
    kept = stages.get((mesh.pp, mesh.vpp)) or stages.setdefault((mesh.pp, mesh.vpp), worst_ranks(stratum.space, stratum.plan))
    pieces = _pieces(stratum, 1 if stratum.space.engine.name in BY_ROW else CHUNK)
    for piece in pieces:
        try:
            yield _accounted(piece, kept)
        except InputError as error:
            tally.refused[reason_of(error)] += len(piece)
        except ValueError:
            if len(piece) == 1:
                raise
            for part in _halves(piece):
                yield from _graded(part, tally, stages)


def _pieces(stratum: Stratum, size: int) -> Iterator[Stratum]:
    if len(stratum) <= size:
        yield stratum
        return
    for first in range(0, len(stratum), size):
        yield _of(stratum, np.arange(first, min(first + size, len(stratum))))


def _of(stratum: Stratum, which: Array) -> Stratum:
    rows = taken(stratum.rows, which)
    return replace(stratum, rows=rows, plan=with_counts(stratum.space, stratum.plan, rows))


def _halves(stratum: Stratum) -> Iterator[Stratum]:
    """Parts of a stratum that differ in the first count that differs."""
    for column in stratum.rows.values():
        values = np.unique(column)
        if len(values) > 1:
            for value in values:
                yield _of(stratum, np.flatnonzero(column == value))
            return


def account_stratum(stratum: Stratum) -> Graded:
    """The plans of a stratum with their bytes, all at once.

    Raises InputError where they cannot be accounted, ValueError where they do not share every choice.
    """
    return _accounted(stratum, worst_ranks(stratum.space, stratum.plan))


def _accounted(stratum: Stratum, ranks: tuple[Rank, ...]) -> Graded:
    space, rows = stratum.space, len(stratum)
    plan = one_plan(stratum, 0) if rows == 1 else stratum.plan
    found = {rank.stage: totals(rank, plan, space.cluster) for rank in ranks}
    peaks = {stage: _peak(each, rows) for stage, each in found.items()}
    device = Bytes(*(reduce(np.maximum, [getattr(peak, end) for peak in peaks.values()]) for end in ("low", "value", "high")))
    highest = np.argmax(np.stack([peak.high for peak in peaks.values()]), axis=0)
    hosts = reduce(np.maximum, [_filled(each.host_bytes, rows) for each in found.values()])
    return Graded(stratum=stratum, device=device, stage=np.array(list(found))[highest], host_bytes=hosts, stages=peaks)


def _peak(found: Totals, rows: int) -> Bytes:
    """Each end is the largest over instants, as a sheet's is."""
    sizes = found.device.values()
    return Bytes(*(_filled(reduce(np.maximum, [getattr(size, end) for size in sizes]), rows) for end in ("low", "value", "high")))


def _filled(value: Any, rows: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (rows,))


def one_plan(stratum: Stratum, row: int) -> Plan:
    """The plan of a row with plain numbers, as ``resolve`` makes it."""
    return with_counts(stratum.space, stratum.plan, {name: int(column[row]) for name, column in stratum.rows.items()})


def alone_bytes(space: Space, plan: Plan) -> tuple[int, int]:
    """Bytes of the whole model on one device with one sequence, and of each further one, in Python's own numbers: no plan exceeds them."""
    mesh = replace(plan.mesh, **dict.fromkeys((*AXES, "pp", "vpp"), 1))
    whole = replace(
        plan, mesh=mesh, global_batch=None, recompute=Recompute(), schedule=None, layers_per_stage=None, sequence_parallel=False,
        context_parallel=None, vocab_multiple=space.engine.vocab_multiple, offload=Offload(),
    )  # fmt: skip
    rank = rank_of(space.model, whole)
    one, two, three = (
        max(int(size.high) for size in totals(rank, replace(whole, microbatch=number), space.cluster).device.values())
        for number in (1, 2, 3)
    )
    return one, max(two - one, three - two)


def check_largest(stratum: Stratum, alone: tuple[int, int]) -> None:
    """Raises OverflowError where int64 might not hold what a plan of a stratum holds with all sequences that a pipeline keeps."""
    plan, rows = stratum.plan, stratum.rows
    batches = int(stratum.space.request["global_batch"]) // (rows["microbatch"] * plan.mesh.data_parallel)
    kept = batches if plan.schedule is Schedule.GPIPE else np.minimum(batches, 4 * plan.mesh.pp)
    if alone[0] + alone[1] * int((rows["microbatch"] * kept).max()) > SAFE_BYTES:
        raise OverflowError(f"a plan of {stratum.space.model.name} could hold more than {SAFE_BYTES} bytes, and arrays count no further")


def fits(found: Grid, budget: Budget | None = None) -> Iterator[tuple[Stratum, int]]:
    """Every plan that fits, as (stratum, row)."""
    for one in found.graded:
        mask = results(one, found.space, budget.reserve_bytes if budget else 0)[Result.FITS]
        for row in np.flatnonzero(mask).tolist():
            yield one.stratum, row
