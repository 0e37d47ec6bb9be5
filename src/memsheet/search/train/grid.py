"""Bytes of every plan of a space: strata accounted as int64 arrays by the same formulas that account one
plan, and which of them fit.

A plan fits as ``budget.judge`` says of its sheets. Of the stages of a pipeline only those that can hold most
are accounted: a stage that has the same layers as an earlier one, and no head, keeps fewer micro-batches and
nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from memsheet.account import Totals, check_accounted, rank_of, step_totals, totals_of
from memsheet.arith import NotAlikeError
from memsheet.budget import Budget, Result, budget_of
from memsheet.errors import InputError
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.plan import Offload, OptimizerName, Plan, Recompute, depends_on_routing
from memsheet.processes import share_out
from memsheet.search.train.lattice import Array, Tally, refuse_rows, select_rows
from memsheet.search.train.pipelines import (
    PipelineRank,
    group_ranks_by_form,
    merge_strata,
    placed_in,
    stratum_choice_key,
    sums_of_strata,
)
from memsheet.search.train.reduced_strata import Fewer, kept_microbatches, reduce_stratum, sums_by_fewer
from memsheet.search.train.space import AXES, Space
from memsheet.search.train.strata import CHUNK, Stratum, legal_plan_strata, reason_of, with_counts
from memsheet.sheet import Bytes

SAFE_BYTES = 2**62 // 2**8
"""What no plan may hold: on the way sizes are counted in bits, and slack is a share of up to 200 per mille,
and 2**62 has to hold those.
"""
BATCHES_A_TASK = 12
"""Batches that one process accounts before it takes further ones."""
MANY = 1 << 10
"""Plans of a stratum from which it saves time to find fewer that stand for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graded:
    """A stratum with the device bytes of each plan's worst stage (``Bytes`` of arrays), that stage, its peak,
    and its host bytes.
    """

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
            for result, mask in result_masks(one, self.space, reserve_bytes).items():
                found[result] += int(np.count_nonzero(mask))
        return found


def account_plan_grid(space: Space) -> Grid:
    """All plans of a space with their bytes.

    Raises OverflowError where a plan could hold more than int64 counts.
    """
    return account_plan_grids([space])[0]


def account_plan_grids(spaces: Sequence[Space]) -> list[Grid]:
    """All plans of each of some spaces that differ in their global batch alone: most of what is accounted
    for one batch is the same for another, or an array's further places.

    Raises OverflowError as ``account_plan_grid`` does.
    """
    return account_legal_plans(legal_plans(spaces))


def account_legal_plans(legal: LegalPlans) -> list[Grid]:
    """Legal plans with their bytes, by space."""
    return grids_of_pieces(legal, graded_pieces(legal, range(len(legal.pieces))))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LegalPlans:
    """The legal plans of spaces that differ in their global batch alone, in pieces that are accounted at
    once, and by batch what is refused.
    """

    spaces: Sequence[Space]
    pieces: Sequence[Piece]
    places: _Places
    tallies: Mapping[int, Tally]


def legal_plans(spaces: Sequence[Space]) -> LegalPlans:
    """The plans of some spaces before they are accounted.

    Raises OverflowError as ``account_plan_grid`` does.
    """
    tallies, places = {space.global_batch: Tally() for space in spaces}, _Places()
    alone, pieces = None, list[Piece]()
    for stratum in legal_plan_strata(spaces, tallies) if spaces else ():
        alone = alone_bytes(spaces[0], one_plan(stratum, 0)) if alone is None else alone
        check_largest(stratum, alone)
        for part in _accounted_parts(stratum, places, tallies):
            for alike in _parts_by_accumulation(part):
                pieces += _stratum_pieces(alike)
    return LegalPlans(spaces=spaces, pieces=pieces, places=places, tallies=tallies)


GradedPieces = Mapping[int, Sequence[Graded]]
"""The plans of pieces with their bytes, by the piece's number."""


def graded_pieces(legal: LegalPlans, numbers: Iterable[int]) -> GradedPieces:
    """Some pieces with their bytes, shared out over processes. What cannot be accounted after all is
    refused.
    """
    chosen = {number: legal.pieces[number] for number in numbers}
    tasks = [partial(_grade_batches, legal, batches) for batches in _batches_a_task(chosen)]
    known = (*legal.spaces, *map(stratum_of_piece, chosen.values()))
    graded: dict[int, Sequence[Graded]] = {}
    refused: dict[int, Mapping[int, Counter[str]]] = {}
    for own, reasons in share_out(tasks, known):
        graded |= own
        refused |= reasons
    for number in sorted(refused):
        for batch, reasons_of_batch in refused[number].items():
            legal.tallies[batch].refused.update(reasons_of_batch)
    return graded


def _batches_a_task(pieces: Mapping[int, Piece]) -> Iterator[list[list[int]]]:
    """Batches that are accounted one after another by one process, those of the same shape together, and of
    these those that have the same layers, which are made once then.
    """
    for batches in _batches_by_shape(pieces):
        kin: dict[str, list[list[int]]] = {}
        for batch in batches:
            kin.setdefault(_choices_of_layers(stratum_of_piece(pieces[batch[0]])), []).append(batch)
        task = list[list[int]]()
        for alike in kin.values():
            if task and len(task) + len(alike) > BATCHES_A_TASK:
                yield task
                task = []
            task = [*task, *alike]
        yield task


CHOICES_OF_STATES = frozenset({"zero", "optimizer.name", "offload.optimizer", "offload.parameters"})
"""Choices of which layers know nothing (``layers_of_plan``): they say how states are kept and divided."""


def _choices_of_layers(stratum: Stratum) -> str:
    return str(sorted(item for item in stratum.request.items() if item[0] not in CHOICES_OF_STATES))


Refusals = Mapping[int, Mapping[int, Counter[str]]]
"""By the number of a batch's first piece, and by global batch, what is refused and why."""


def _grade_batches(
    legal: LegalPlans, batches: Sequence[Sequence[int]]
) -> tuple[dict[int, Sequence[Graded]], Refusals]:
    """Some batches with their bytes, and what is refused of them."""
    graded: dict[int, Sequence[Graded]] = {}
    refused: dict[int, Mapping[int, Counter[str]]] = {}
    for batch in batches:
        tallies = {each: Tally() for each in legal.tallies}
        own = [legal.pieces[number] for number in batch]
        graded.update(zip(batch, _grade_pieces(own, legal.places, tallies), strict=True))
        refused[batch[0]] = {each: tally.refused for each, tally in tallies.items() if tally.refused}
    return graded, refused


def grids_of_pieces(legal: LegalPlans, graded: GradedPieces) -> list[Grid]:
    """The grid of each space, of the pieces that were accounted."""
    every = [one for number in sorted(graded) for one in graded[number]]
    return [
        Grid(
            space=space,
            graded=tuple(every if len(legal.spaces) == 1 else _graded_at_batch(every, space)),
            refused=legal.tallies[space.global_batch].refused,
        )
        for space in legal.spaces
    ]


def _accounted_parts(stratum: Stratum, places: _Places, tallies: Mapping[int, Tally]) -> Iterator[Stratum]:
    """The plans of a stratum that are modelled; the others are refused. Those that a rule tells apart are
    parts of it.
    """
    try:
        check_accounted(places.of(stratum)[0].rank, stratum.plan)
    except InputError as error:
        refuse_rows(tallies, stratum.rows, reason_of(error))
    except NotAlikeError as differ:
        for which in (~differ.condition, differ.condition):
            part = _stratum_of_rows(stratum, np.flatnonzero(which))
            yield from _accounted_parts(part, places, tallies)
    except ValueError:  # they do not agree in a choice: told when they are accounted, and taken apart
        yield stratum
    else:
        yield stratum


def _parts_by_accumulation(stratum: Stratum) -> Iterator[Stratum]:
    """The plans of a stratum that accumulate gradients, and those that do not, where that is another step."""
    several = np.broadcast_to(stratum.plan.accumulation > 1, (len(stratum),))
    if stratum.space.engine.arrays.adds_to_buffer or several.all() or not several.any():
        yield stratum
        return
    for which in (~several, several):
        yield _stratum_of_rows(stratum, np.flatnonzero(which))


def _graded_at_batch(graded: Sequence[Graded], space: Space) -> Iterator[Graded]:
    """The plans of one global batch."""
    for one in graded:
        which = np.flatnonzero(one.stratum.rows["global_batch"] == space.global_batch)
        if len(which):
            yield Graded(
                stratum=replace(_stratum_of_rows(one.stratum, which), space=space),
                device=_byte_range_slice(one.device, which),
                stage=one.stage[which],
                host_bytes=one.host_bytes[which],
                stages={stage: _byte_range_slice(size, which) for stage, size in one.stages.items()},
            )


Piece = Stratum | Fewer
"""Plans that are accounted at once, as they are or by fewer that stand for them."""


def stratum_of_piece(piece: Piece) -> Stratum:
    """All plans of a piece."""
    return piece.stratum if isinstance(piece, Fewer) else piece


def _deals_whole_matrices(stratum: Stratum) -> bool:
    """Whether matrices are dealt whole to ranks: which one has most depends on every one of their counts."""
    plan = stratum.plan
    return plan.optimizer is not None and plan.optimizer.name is OptimizerName.MUON


def _spans_pipelines(stratum: Stratum) -> bool:
    """Whether plans of several pipelines are accounted as one."""
    return stratum.space.engine.arrays.pipelines and not _deals_whole_matrices(stratum)


def _accounting_key(stratum: Stratum, number: int) -> Hashable:
    """What is the same of strata that are accounted together."""
    if stratum.space.engine.arrays.one_by_one or _deals_whole_matrices(stratum):
        return number
    mesh = stratum.plan.mesh
    pipeline = None if _spans_pipelines(stratum) else (mesh.pp, mesh.vpp, stratum.plan.layers_per_stage)
    added = not stratum.space.engine.arrays.adds_to_buffer and bool(np.all(stratum.plan.accumulation > 1))
    return stratum_choice_key(stratum), pipeline, added, depends_on_routing(stratum.plan)


def _batches_by_shape(pieces: Mapping[int, Piece]) -> Iterable[list[list[int]]]:
    """The numbers of pieces that are accounted together: those that are alike but for their pipeline. Batches
    of the same pipelines and as many plans, which differ in other choices, come one after another: much of
    what is made for one is known of the next.
    """
    kin: dict[Hashable, list[int]] = {}
    for number, piece in pieces.items():
        stratum = stratum_of_piece(piece)
        kin.setdefault((type(piece), _accounting_key(stratum, number)), []).append(number)
    found: dict[Hashable, list[list[int]]] = {}
    for numbers in kin.values():
        for batch in _batches_of_kin(numbers, pieces):
            meshes = [stratum_of_piece(pieces[number]).plan.mesh for number in batch]
            shape = tuple((mesh.pp, mesh.vpp, len(pieces[n])) for mesh, n in zip(meshes, batch, strict=True))
            found.setdefault(shape, []).append(batch)
    return found.values()


def _batches_of_kin(numbers: Sequence[int], pieces: Mapping[int, Piece]) -> Iterator[list[int]]:
    batch, rows = list[int](), 0
    for number in numbers:
        if batch and rows + len(pieces[number]) > CHUNK:
            yield batch
            batch, rows = [], 0
        batch, rows = [*batch, number], rows + len(pieces[number])
    yield batch


def result_masks(one: Graded, space: Space, reserve_bytes: int = 0) -> Mapping[Result, Array]:
    """A mask for each verdict, as ``judge`` gives it: on the card by the ranges' ends, on the host by what a
    node has.
    """
    budget = budget_of(space.cluster, reserve_bytes)
    short = _host_short(one, space)
    too_large = (one.device.low > budget.high_bytes) | short
    fits = (one.device.high <= budget.low_bytes) & ~too_large
    return {Result.FITS: fits, Result.DOES_NOT_FIT: too_large, Result.UNCERTAIN: ~fits & ~too_large}


def _host_short(one: Graded, space: Space) -> Array:
    has, shared = space.cluster.host_bytes, space.cluster.device.shared_bytes
    short = (
        one.host_bytes * space.cluster.per_node > has if has is not None else np.zeros(len(one), dtype=bool)
    )
    if shared is None:
        return short
    return short | ((one.host_bytes > 0) & (one.host_bytes + one.device.low > shared))


class _Places(dict[Hashable, tuple[PipelineRank, ...]]):
    """The ranks that are asked about, by pipeline."""

    def of(self, stratum: Stratum) -> tuple[PipelineRank, ...]:
        key = (stratum.plan.mesh.pp, stratum.plan.mesh.vpp, stratum.plan.layers_per_stage)
        found = self.get(key)
        if found is None:
            found = self[key] = placed_in(stratum.space.model, stratum.plan)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process finds them again, which takes less than to read them."""
        return _Places, ()


def _grade_pieces(
    batch: Sequence[Piece], places: _Places, tallies: Mapping[int, Tally]
) -> list[list[Graded]]:
    """The plans of some pieces. Those that do not agree in a choice after all are taken apart; what cannot be
    accounted is refused.
    """
    own = [stratum_of_piece(piece) for piece in batch]
    try:
        return [[one] for one in _account_pieces(batch, [places.of(stratum) for stratum in own])]
    except InputError as error:
        if len(batch) == 1:
            refuse_rows(tallies, own[0].rows, reason_of(error))
            return [[]]
    except ValueError:
        if len(batch) == 1 and len(own[0]) == 1:
            raise
    if len(batch) > 1:
        return [_grade_pieces([piece], places, tallies)[0] for piece in batch]
    return [[one for part in _split_stratum(own[0]) for one in _grade_pieces([part], places, tallies)[0]]]


def _stratum_pieces(stratum: Stratum) -> Iterator[Piece]:
    """A stratum in parts that are no larger than what is accounted at once."""
    if _spans_pipelines(stratum) and len(stratum) > MANY:
        few = reduce_stratum(stratum)
        if len(few) <= CHUNK:
            yield few
            return
        for first in range(0, len(few), CHUNK):
            yield reduce_stratum(
                _stratum_of_rows(
                    stratum, np.flatnonzero((few.steps.which >= first) & (few.steps.which < first + CHUNK))
                )
            )
        return
    alone = stratum.space.engine.arrays.one_by_one or _deals_whole_matrices(stratum)
    size = 1 if alone else CHUNK
    for first in range(0, len(stratum), size):
        yield (
            stratum
            if len(stratum) <= size
            else _stratum_of_rows(stratum, np.arange(first, min(first + size, len(stratum))))
        )


def _stratum_of_rows(stratum: Stratum, which: Array) -> Stratum:
    rows = select_rows(stratum.rows, which)
    return replace(stratum, rows=rows, plan=with_counts(stratum.space, stratum.plan, rows))


def _split_stratum(stratum: Stratum) -> Iterator[Stratum]:
    """Parts of a stratum that differ in the first count that differs."""
    for column in stratum.rows.values():
        values = np.unique(column)
        if len(values) > 1:
            for value in values:
                yield _stratum_of_rows(stratum, np.flatnonzero(column == value))
            return


def account_stratum(stratum: Stratum) -> Graded:
    """The plans of a stratum with their bytes, all at once.

    Raises InputError where they cannot be accounted, ValueError where they do not share every choice.
    """
    return _account_pieces([stratum], [_Places().of(stratum)])[0]


def _account_pieces(batch: Sequence[Piece], ranks: Sequence[tuple[PipelineRank, ...]]) -> list[Graded]:
    own = [stratum_of_piece(piece) for piece in batch]
    found: list[dict[int, tuple[Bytes, Array]]] = [{} for _ in batch]
    for members in group_ranks_by_form(ranks):
        sums = _piece_totals([batch[number] for number, _ in members], [placed for _, placed in members])
        rows, start = sum(len(own[number]) for number, _ in members), 0
        peak, host = _peak_device_bytes(sums, rows), _broadcast_to_rows(sums.host_bytes, rows)
        for number, placed in members:
            part = slice(start, start := start + len(own[number]))
            found[number][placed.rank.stage] = _byte_range_slice(peak, part), host[part]
    return [_graded_by_worst_stage(stratum, stages) for stratum, stages in zip(own, found, strict=True)]


def _piece_totals(batch: Sequence[Piece], ranks: Sequence[PipelineRank]) -> Totals:
    few, own = (
        [piece for piece in batch if isinstance(piece, Fewer)],
        [stratum_of_piece(piece) for piece in batch],
    )
    rank, plan = merge_strata(own, ranks)
    cluster = own[0].space.cluster
    if sum(map(len, own)) == 1:
        return step_totals(rank, one_plan(own[0], 0), cluster)
    return totals_of(sums_by_fewer(few, ranks) if few else sums_of_strata(own, ranks), plan, cluster)


def _graded_by_worst_stage(stratum: Stratum, found: Mapping[int, tuple[Bytes, Array]]) -> Graded:
    """A stratum by the stage that holds most, plan by plan."""
    peaks = {stage: found[stage][0] for stage in sorted(found)}
    device = Bytes(
        *(
            reduce(np.maximum, [getattr(peak, end) for peak in peaks.values()])
            for end in ("low", "value", "high")
        )
    )
    highest = np.argmax(np.stack([peak.high for peak in peaks.values()]), axis=0)
    hosts = reduce(np.maximum, [host for _, host in found.values()])
    return Graded(
        stratum=stratum, device=device, stage=np.array(list(peaks))[highest], host_bytes=hosts, stages=peaks
    )


def _peak_device_bytes(found: Totals, rows: int) -> Bytes:
    """Each end is the largest over instants, as a sheet's is."""
    sizes: Any = found.device.values()
    return Bytes(
        *(
            _broadcast_to_rows(reduce(np.maximum, [getattr(size, end) for size in sizes]), rows)
            for end in ("low", "value", "high")
        )
    )


def _byte_range_slice(size: Any, part: slice | Array) -> Bytes:
    return Bytes(size.low[part], size.value[part], size.high[part])


def _broadcast_to_rows(value: Any, rows: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (rows,))


def one_plan(stratum: Stratum, row: int) -> Plan:
    """The plan of a row with plain numbers, as ``resolve`` makes it."""
    return with_counts(
        stratum.space, stratum.plan, {name: int(column[row]) for name, column in stratum.rows.items()}
    )


def alone_bytes(space: Space, plan: Plan) -> tuple[int, int]:
    """Bytes of the whole model on one device with one sequence, and of each further one, in Python's own
    numbers: no plan exceeds them.
    """
    mesh = replace(plan.mesh, **dict.fromkeys((*AXES, "pp", "vpp"), 1))
    whole = replace(
        plan,
        mesh=mesh,
        workload=replace(plan.training, global_batch=None),
        recompute=Recompute(),
        schedule=None,
        layers_per_stage=None,
        sequence_parallel=False,
        context_parallel=None,
        vocab_multiple=space.engine.vocab_multiple,
        offload=Offload(),
    )
    rank = rank_of(space.model, whole)
    one, two, three = (
        max(
            int(size.high)
            for size in step_totals(
                rank, replace(whole, workload=replace(whole.training, microbatch=number)), space.cluster
            ).device.values()
        )
        for number in (1, 2, 3)
    )
    return one, max(two - one, three - two)


def check_largest(stratum: Stratum, alone: tuple[int, int]) -> None:
    """Raises OverflowError where int64 might not hold what a plan of a stratum holds with all sequences that
    a pipeline keeps.
    """
    if (
        alone[0] + alone[1] * int((stratum.rows["microbatch"] * kept_microbatches(stratum)).max())
        > SAFE_BYTES
    ):
        raise OverflowError(
            f"a plan of {stratum.space.model.name} could hold more than {SAFE_BYTES} bytes, and arrays "
            "count no further"
        )


def fitting_plan_rows(found: Grid, budget: Budget | None = None) -> Iterator[tuple[Stratum, int]]:
    """Every plan that fits, as (stratum, row)."""
    for one in found.graded:
        mask = result_masks(one, found.space, budget.reserve_bytes if budget else 0)[Result.FITS]
        for row in np.flatnonzero(mask).tolist():
            yield one.stratum, row
