"""Ranks of several pipelines as one: where their layers are alike and only the numbers of layers, stages and
chunks differ, those numbers become arrays, and plans that differ in their pipeline are accounted together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np

from memsheet.account import Sums, deciding_stages, rank_of, sums_of
from memsheet.arith import Count
from memsheet.formulas.groups import FEW
from memsheet.formulas.model_code import engine_for
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.step import Rank, account_training_step
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.frozen import dataclass, replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import ENDS_OF_ROUTING, Mesh, Plan, depends_on_routing
from memsheet.search.train.lattice import Array
from memsheet.search.train.strata import Stratum, with_counts


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineRank:
    """A rank of a pipeline. ``kinds``: the chunks that are not alike, and which of these each chunk is."""

    rank: Rank
    stages: int

    @cached_property
    def kinds(self) -> tuple[tuple[ModelSpec, ...], tuple[int, ...]]:
        own: list[ModelSpec] = []
        places: list[int] = []
        for chunk in self.rank.chunks:
            if chunk not in own:
                own.append(chunk)
            places.append(own.index(chunk))
        return tuple(own), tuple(places)

    @cached_property
    def form(self) -> int:
        """What it has besides numbers, which stands for all that has the same. A few layers are numbers that
        formulas tell apart.
        """
        parts = (self.rank.model, *self.kinds[0])
        return _form_number((len(self.rank.chunks) > 1, *map(_model_structure_key, parts)))


FORMS = count()


@lru_cache(maxsize=4096)
def _form_number(form: Hashable) -> int:
    """Another for each form: it is compared with others in every batch."""
    del form
    return next(FORMS)


def _model_structure_key(model: ModelSpec) -> Hashable:
    stacks = tuple(
        (
            stack.path,
            stack.role,
            stack.final_norms,
            tuple((run.pattern, run.shared, min(run.count, FEW)) for run in stack.runs),
        )
        for stack in model.stacks
    )
    return stacks, model.embeddings, model.head, model.extras, model.towers


def placed_in(model: ModelSpec, plan: Plan) -> tuple[PipelineRank, ...]:
    """The ranks of a pipeline's stages that can hold most."""
    stages = deciding_stages(model, plan)
    return tuple(PipelineRank(rank=rank_of(model, plan, stage), stages=plan.mesh.pp) for stage in stages)


def stratum_choice_key(stratum: Stratum) -> Hashable:
    """What plans share that can be accounted together: every choice."""
    return replace(
        stratum.plan,
        mesh=Mesh(),
        workload=replace(stratum.plan.training, microbatch=1, global_batch=None),
        vocab_multiple=1,
        layers_per_stage=None,
    )


Members = Sequence[tuple[int, PipelineRank]]
"""Strata by number, and the rank of each that is asked about."""


def group_ranks_by_form(ranks: Sequence[tuple[PipelineRank, ...]]) -> Iterator[Members]:
    """The ranks of several strata, those of one form together; each stratum has one of them."""
    found: dict[Hashable, list[tuple[int, PipelineRank]]] = {}
    for number, placed in enumerate(ranks):
        met: dict[Hashable, int] = {}
        for one in placed:
            again = met[one.form] = met.get(one.form, -1) + 1
            found.setdefault((one.form, again), []).append((number, one))
    yield from found.values()


def merge_strata(strata: Sequence[Stratum], ranks: Sequence[PipelineRank]) -> tuple[Rank, Plan]:
    """One rank and plan for all plans of some strata, one stratum after another."""
    if len(strata) == 1:
        return ranks[0].rank, strata[0].plan
    return _merge_ranks(tuple(ranks), tuple(map(len, strata))), _merge_plans(tuple(strata))


@lru_cache(maxsize=4)
def _merge_plans(strata: tuple[Stratum, ...]) -> Plan:
    """One plan for all plans of some strata: the same object for each rank of theirs that is asked about, so
    that these share what is made for a plan.
    """
    lengths = np.array([len(stratum) for stratum in strata])
    rows = {name: np.concatenate([stratum.rows[name] for stratum in strata]) for name in strata[0].rows}
    plan = with_counts(strata[0].space, strata[0].plan, rows)
    counts: Mapping[str, Any] = {
        axis: _per_plan_column([getattr(stratum.plan.mesh, axis) for stratum in strata], lengths)
        for axis in ("pp", "vpp")
    }
    return replace(plan, mesh=replace(plan.mesh, **counts))


def sums_of_strata(strata: Sequence[Stratum], ranks: Sequence[PipelineRank]) -> Sums:
    """What the tensors of all plans of some strata add up to, one stratum after another. Where a routing is
    open its ends are accounted with it: what depends on it has a row for each of them, and a column for each
    plan; most of a step is the same.
    """
    rank, plan = merge_strata(strata, ranks)
    if not depends_on_routing(plan):
        return sums_of(rank, plan)
    step = account_training_step(rank, _with_ends(tuple(strata)), engine_for(rank.model, plan))
    rows = sum(map(len, strata))
    apart = {instant: _range_widths(bag, step.kept, rows) for instant, bag in step.bags.items()}
    return Sums(
        tensors={instant: _expected_sizes(bag.total, rows) for instant, bag in step.bags.items()},
        below={instant: below for instant, (below, _) in apart.items()},
        above={instant: above for instant, (_, above) in apart.items()},
        paged=step.kept.paged,
        host_bytes=step.kept.host.bytes,
    )


@lru_cache(maxsize=4)
def _with_ends(strata: tuple[Stratum, ...]) -> Plan:
    """One plan for all plans of some strata whose routing is that of each end, one below the other."""
    plan = _merge_plans(strata)
    assert plan.routing is not None
    return replace(plan, routing=replace(plan.routing, spread=np.arange(len(ENDS_OF_ROUTING))[:, None]))


def _range_widths(bag: BytesByPath, kept: ResidentState, rows: int) -> tuple[Any, Any]:
    """How far the ends of a bag's parts lie below and above what is expected."""
    below, above = (np.zeros(rows, dtype=np.int64) for _ in ENDS_OF_ROUTING[1:])
    routed = [size for key, size in bag.held.items() if key not in kept.ranges and np.ndim(size) > 1]
    known = [(bag.held[key], *kept.ranges[key]) for key in kept.ranges.keys() & bag.held.keys()]
    ends: Any = [*routed, *([_expected_sizes(one, rows) for one in own] for own in known)]
    for value, low, high in ends:
        below += value - np.minimum(low, value)
        above += np.maximum(high, value) - value
    return below, above


def _expected_sizes(size: Count, rows: int) -> Any:
    """Of sizes that depend on the routing those that are expected."""
    return np.broadcast_to(size, (len(ENDS_OF_ROUTING), rows))[0] if np.ndim(size) > 1 else size


def _per_plan_column(numbers: Sequence[int], lengths: Array) -> Any:
    """A number for every plan; itself where all have the same."""
    return numbers[0] if len(set(numbers)) == 1 else np.repeat(np.array(numbers, dtype=np.int64), lengths)


@lru_cache(maxsize=32)
def _merge_ranks(ranks: tuple[PipelineRank, ...], plans: tuple[int, ...]) -> Rank:
    """One rank of so many plans each: the same object for all strata that differ in other choices."""
    lengths = np.array(plans)
    model, stage = (
        _merge_models([one.rank.model for one in ranks], lengths),
        _per_plan_column([one.rank.stage for one in ranks], lengths),
    )
    if len(ranks[0].rank.chunks) == 1:
        return Rank(model=model, chunks=(model,), whole=ranks[0].rank.whole, stage=stage)
    asked = [(one.stages, len(one.rank.chunks), one.rank.stage, one.kinds[1]) for one in ranks]
    orders = tuple(dict.fromkeys(asked))
    chunks = tuple(
        _merge_models(list(of), lengths) for of in zip(*(one.kinds[0] for one in ranks), strict=True)
    )
    return Rank(
        model=model,
        chunks=chunks,
        whole=ranks[0].rank.whole,
        stage=stage,
        orders=orders,
        which=_per_plan_column([orders.index(one) for one in asked], lengths),
    )


def _merge_models(models: Sequence[ModelSpec], lengths: Array) -> ModelSpec:
    """Models that differ in how many layers there are, as one."""
    stacks = tuple(
        replace(
            own[0],
            runs=tuple(
                replace(run[0], count=_per_plan_column([r.count for r in run], lengths))
                for run in zip(*(s.runs for s in own), strict=True)
            ),
        )
        for own in zip(*(model.stacks for model in models), strict=True)
    )
    return replace(models[0], stacks=stacks)
