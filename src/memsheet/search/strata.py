"""Plans that share every choice as one plan whose counts are arrays, and the way back from a row to the plan that it stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from memsheet.arith import ceil_div
from memsheet.errors import InputError
from memsheet.resolve import resolve
from memsheet.search.space import AXES, Request, Space, counts_of
from memsheet.spec.engine import Engine
from memsheet.spec.hardware import unsupported
from memsheet.spec.model import Attention, LatentAttention, ModelSpec, Moe
from memsheet.spec.plan import Plan

Array = Any
"""An int64 array with a place for each plan of a stratum, or a mask of them."""
Rows = Mapping[str, Array]
"""The counts of plans, column by column."""
COLUMNS = (*AXES, "microbatch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stratum:
    """Plans that share ``request``'s choices. ``plan`` has their counts as arrays."""

    space: Space
    request: Request
    rows: Rows
    plan: Plan

    def __len__(self) -> int:
        return len(self.rows["microbatch"])

    def request_of(self, row: int) -> Request:
        """What a person would ask to get the plan of a row."""
        return whole(self.space, self.request, {name: int(column[row]) for name, column in self.rows.items()})

    def plan_of(self, row: int) -> Plan:
        """The plan of a row, resolved like any other."""
        return resolve(self.request_of(row), self.space.model, self.space.cluster).plan


@dataclass(slots=True)
class Tally:
    """How many plans were refused, by reason."""

    refused: Counter[str] = field(default_factory=Counter)

    def keep(self, rows: Rows, reason: str, holds: Array, each: int = 1) -> Rows:
        """The rows where a rule holds; the others are counted, ``each`` as so many plans as it would have become."""
        lost = int(np.size(holds) - np.count_nonzero(holds))
        if not lost:
            return rows
        self.refused[reason] += lost * each
        return taken(rows, np.flatnonzero(holds))


def taken(rows: Rows, which: Array) -> Rows:
    return {name: column[which] for name, column in rows.items()}


def whole(space: Space, choice: Request, counts: Mapping[str, int]) -> Request:
    """A request with every choice and count of a plan."""
    split = space.engine.splits_experts_over_tp
    mesh = {f"mesh.{axis}": counts[axis] for axis in AXES if not (axis == "etp" and split)}
    return {**space.request, **choice, **mesh, "microbatch": counts["microbatch"]}


# ---- what divides ------------------------------------------------------------------------------------------------------------


def lattice(space: Space, pipeline: Request, tally: Tally) -> Rows:
    """The counts that divide what they have to, whatever is chosen besides: one count after another, each row that fails at once with all that
    would have come of it.
    """
    pp = int(pipeline["mesh.pp"])
    ranks, batch, counts = space.cluster.count // pp, int(space.request["global_batch"]), counts_of(space, pp)
    rows: Rows = {name: np.ones(1, dtype=np.int64) for name in COLUMNS}
    rest = prod(len(values) for values in counts.values())
    for name, values in counts.items():
        rest //= max(1, len(values))
        rows = _grown(rows, name, values)
        if name in ("tp", "cp", "dp_shard"):
            taken_ = rows["tp"] * rows["cp"] * rows["dp_shard"]
            rows = tally.keep(rows, f"degrees do not divide {space.cluster.count} devices", ranks % taken_ == 0, rest)
        if name == "dp_shard":
            rows = {**rows, "dp_replicate": ranks // (rows["tp"] * rows["cp"] * rows["dp_shard"])}
            rows = {**rows, "etp": rows["tp"]} if space.engine.splits_experts_over_tp else rows
        for reason, holds in _rules(space, pipeline, name, batch):
            rows = tally.keep(rows, reason, holds(rows), rest)
    return rows


def _grown(rows: Rows, name: str, values: tuple[int, ...]) -> Rows:
    """Every row with every value of one more count."""
    number = len(rows["tp"])
    grown = {other: np.repeat(column, len(values)) for other, column in rows.items()}
    return {**grown, name: np.tile(np.array(values, dtype=np.int64), number)}


Rule = tuple[str, Callable[[Rows], Array]]


def _rules(space: Space, pipeline: Request, name: str, batch: int) -> Iterator[Rule]:
    """Each rule of ``resolve`` that can be told once a count is known."""
    engine, request, pp = space.engine, space.request, int(pipeline["mesh.pp"])
    if name == "tp":
        yield from _of_heads(space.model)
        if "vocab_multiple" in request:
            yield "tp does not divide vocab_multiple", lambda rows: int(request["vocab_multiple"]) % rows["tp"] == 0
    if name == "dp_shard":
        if "dp_replicate" not in engine.axes:
            yield f"dp_replicate is not modelled for {engine.name}", lambda rows: rows["dp_replicate"] == 1
        if "mesh.dp_replicate" in request:
            yield "dp_replicate is another", lambda rows: rows["dp_replicate"] == int(request["mesh.dp_replicate"])
    if name == "etp":
        yield from _of_experts(space.model)
    if name == "microbatch":
        each = "microbatch · data-parallel ranks does not divide the global batch"
        yield each, lambda rows: batch % _at_once(rows) == 0
        if int(pipeline["mesh.vpp"]) > 1 and engine.name == "megatron":
            whole = f"micro-batches are no multiple of {pp} stages, whose chunks take turns"
            yield whole, lambda rows: batch // _at_once(rows) % pp == 0


def _at_once(rows: Rows) -> Array:
    """Sequences of one micro-batch on all data-parallel ranks."""
    return rows["microbatch"] * rows["dp_replicate"] * rows["dp_shard"]


def _of_heads(model: ModelSpec) -> Iterator[Rule]:
    mixers = [m for stack in model.stacks for run in stack.runs for block in run.pattern for m in block.mixers]
    for heads in sorted({m.heads for m in mixers if isinstance(m, Attention | LatentAttention)}):
        yield f"tp does not divide {heads} attention heads", partial(_divides, heads)
    for kv in sorted({m.kv_heads for m in mixers if isinstance(m, Attention)}):
        yield f"tp and {kv} key/value heads do not divide", partial(_divides, kv, either=True)


def _divides(heads: int, rows: Rows, *, either: bool = False) -> Array:
    return (heads % rows["tp"] == 0) | (rows["tp"] % heads == 0) if either else heads % rows["tp"] == 0


def _of_experts(model: ModelSpec) -> Iterator[Rule]:
    blocks = [block for stack in model.stacks for run in stack.runs for block in run.pattern]
    for experts in sorted({b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)}):
        yield f"ep does not divide {experts} experts", lambda rows, n=experts: n % rows["ep"] == 0  # type: ignore[misc]
    yield "ep · etp does not divide the ranks of a stage", _experts_divide


def _experts_divide(rows: Rows) -> Array:
    ep, etp, tp = rows["ep"], rows["etp"], rows["tp"]
    ranks = rows["dp_replicate"] * rows["dp_shard"] * rows["cp"] * tp
    return ((ep == 1) & (etp == 1)) | (etp == tp) | (ranks % (ep * etp) == 0)


# ---- strata ------------------------------------------------------------------------------------------------------------------


def strata(space: Space, tally: Tally) -> Iterator[Stratum]:
    """All legal plans, those that share their choices together; what is refused goes into ``tally``."""
    for pipeline in space.pipelines:
        rows = lattice(space, pipeline, tally)
        groups = list(_alike(space, rows))
        for choice in space.choices:
            for group in groups:
                kept = _chosen(space, choice, group, tally)
                if kept is not None:
                    yield from _resolved(space, {**pipeline, **kept[0]}, kept[1], tally)


def _chosen(space: Space, choice: Request, rows: Rows, tally: Tally) -> tuple[Request, Rows] | None:
    """A choice and the rows that have it. An option of an axis goes with ranks on that axis alone, and is dropped once where there are none."""
    own = dict(choice)
    for key, axis in (("sequence_parallel", "tp"), ("context_parallel_comm", "cp")):
        if key in own and rows[axis][0] == 1:
            first = next(other[key] for other in space.choices)
            if own[key] != first:
                return None
            del own[key]
    if own.get("zero") == 0:
        rows = taken(rows, np.flatnonzero(rows["dp_shard"] == 1))  # replicas of whole states; dp_replicate has them all
    return (own, rows) if len(rows["microbatch"]) else None


def _resolved(space: Space, request: Request, rows: Rows, tally: Tally) -> Iterator[Stratum]:
    """The stratum of some rows, its first plan resolved for what all of them share."""
    counts = {name: int(column[0]) for name, column in rows.items()}
    try:
        plan = resolve(whole(space, request, counts), space.model, space.cluster).plan
    except InputError as error:
        tally.refused[reason_of(error)] += len(rows["microbatch"])
        return
    problems = list(unsupported(plan, space.cluster))
    if problems:
        tally.refused[f"{problems[0].field} {problems[0].reason}"] += len(rows["microbatch"])
        return
    yield Stratum(space=space, request=request, rows=rows, plan=with_counts(space, plan, rows))


def reason_of(error: InputError) -> str:
    """The first problem in words, without the value that differs from plan to plan."""
    first = error.problems[0]
    return f"{first.field} {first.reason}"


def with_counts(space: Space, plan: Plan, rows: Rows) -> Plan:
    """A plan with the counts of many."""
    mesh = replace(plan.mesh, **{axis: rows[axis] for axis in AXES})
    padded = space.engine.vocab_multiple
    own = padded * rows["tp"] if padded > 1 and "vocab_multiple" not in space.request else plan.vocab_multiple
    return replace(plan, mesh=mesh, microbatch=rows["microbatch"], vocab_multiple=own)


def _alike(space: Space, rows: Rows) -> Iterator[Rows]:
    """Rows by what follows from their counts and is no number: whether an axis is split at all, whether gradients accumulate.
    """
    if not len(rows["microbatch"]):
        return
    signature = np.stack([np.asarray(column, dtype=np.int64) for column in _traits(space, rows)])
    _, group = np.unique(signature, axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(group.ravel()[order])) + 1):
        yield taken(rows, part)


def _traits(space: Space, rows: Rows) -> Iterator[Array]:
    for axis in ("tp", "cp", "ep", "etp"):
        yield rows[axis] > 1
    yield from _of_engine(space.engine, rows)
    for kv in _groups_of_keys(space.model):
        yield np.minimum(1, ceil_div(kv, rows["tp"]) - 1)
    if space.engine.name != "megatron":  # which adds to a buffer that is there anyway
        yield rows["dp_replicate"] * rows["dp_shard"] * rows["microbatch"] < int(space.request["global_batch"])


def _of_engine(engine: Engine, rows: Rows) -> Iterator[Array]:
    """Whether a micro-batch has several sequences, and whether there are replicas of shards, where an engine's code asks."""
    if engine.name in ("megatron", "litgpt", "torchtune"):
        yield rows["microbatch"] > 1
    if engine.name == "deepspeed":
        yield rows["dp_replicate"] > 1


def _groups_of_keys(model: ModelSpec) -> tuple[int, ...]:
    mixers = (m for stack in model.stacks for run in stack.runs for block in run.pattern for m in block.mixers)
    return tuple(sorted({m.kv_heads for m in mixers if isinstance(m, Attention)}))
