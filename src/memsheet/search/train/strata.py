"""Plans that share every choice as one plan whose counts are arrays, and the way back from a row to the plan
that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memsheet.arith import holds_for_all
from memsheet.errors import InputError
from memsheet.frozen import dataclass, replace
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request
from memsheet.search.train.lattice import (
    Array,
    Rows,
    Tally,
    joined_rows,
    legal_count_rows,
    refuse_rows,
    select_rows,
)
from memsheet.search.train.space import AXES, Request, Space

CHUNK = 1 << 13
"""Plans accounted at once: their arrays stay in a core's own cache."""


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
        return plan_request(
            self.space, self.request, {name: int(column[row]) for name, column in self.rows.items()}
        )

    def full(self) -> Stratum:
        """As many plans as are accounted at once, these over and over."""
        rows = select_rows(self.rows, np.arange(CHUNK) % len(self))
        return replace(self, rows=rows, plan=with_counts(self.space, self.plan, rows))

    def plan_of(self, row: int) -> Plan:
        """The plan of a row, resolved like any other."""
        return resolve_request(self.request_of(row), self.space.model, self.space.cluster).plan


def plan_request(space: Space, choice: Request, counts: Mapping[str, int]) -> Request:
    """A request with every choice and count of a plan."""
    split = space.engine.splits_experts_over_tp
    mesh = {f"mesh.{axis}": counts[axis] for axis in AXES if not (axis == "etp" and split)}
    batch = {name: counts[name] for name in ("microbatch", "global_batch")}
    return {**space.request, **choice, **mesh, **batch}


def legal_plan_strata(spaces: Sequence[Space], tallies: Mapping[int, Tally]) -> Iterator[Stratum]:
    """All legal plans of spaces that differ in their global batch alone, those that share their choices
    together; what is refused goes into the tally of its batch.
    """
    space = spaces[0]
    for pipeline in space.pipelines:
        rows = joined_rows([legal_count_rows(one, pipeline, tallies[one.global_batch]) for one in spaces])
        if reason := _cuts_no_layers(space, pipeline):
            refuse_rows(tallies, rows, reason, len(space.choices))
            continue
        groups = tuple(_rows_by_traits(rows))
        for choice in space.choices:
            for group in groups:
                kept = (
                    None
                    if _choice_is_redundant(space, pipeline, choice)
                    else _rows_with_choice(space, choice, group)
                )
                if kept is not None:
                    yield from _resolve_stratum(space, {**pipeline, **kept[0]}, kept[1], tallies)


def _cuts_no_layers(space: Space, pipeline: Request) -> str | None:
    """Why the layers cannot be dealt to the stages evenly, where the engine has no rule of its own and the
    request none.
    """
    layers, parts = (
        space.model.layers,
        int(pipeline["mesh.pp"]) * int(pipeline["mesh.vpp"]),
    )
    if (
        space.engine.stages is not None
        or "layers_per_stage" in {**space.request, **pipeline}
        or layers % parts == 0
    ):
        return None
    return f"stages · chunks do not divide {layers} layers"


def _choice_is_redundant(space: Space, pipeline: Request, choice: Request) -> bool:
    """Whether another stage does what a choice does with less: stage 1 for replicas of a pipeline, stage 0
    for one device that nobody shares with (states on the host are divided by stages above it alone).
    """
    if not space.plain_replicas:
        return False
    stage, alone = choice.get("zero"), space.cluster.count == 1
    return pipeline["mesh.pp"] > 1 if stage == 0 else alone and not choice.get("offload.optimizer")


def _rows_with_choice(space: Space, choice: Request, rows: Rows) -> tuple[Request, Rows] | None:
    """A choice and the rows that have it. An option of an axis goes with ranks on that axis alone, and is
    dropped once where there are none.
    """
    own = dict(choice)
    for key, axis in (("sequence_parallel", "tp"), ("context_parallel_comm", "cp")):
        if key in own and rows[axis][0] == 1:
            first = next(other[key] for other in space.choices)
            if own[key] != first:
                return None
            del own[key]
    if own.get("zero") == 0:
        shared = ("dp_shard", "tp", "cp", "ep", "etp") if space.plain_replicas else ("dp_shard",)
        rows = select_rows(
            rows, np.flatnonzero(np.all([rows[axis] == 1 for axis in shared], axis=0))
        )  # whole states: dp_replicate has them all
    return (own, rows) if len(rows["microbatch"]) else None


def _resolve_stratum(
    space: Space, request: Request, rows: Rows, tallies: Mapping[int, Tally]
) -> Iterator[Stratum]:
    """The stratum of some rows, its first plan resolved for what all of them share."""
    counts = {name: int(column[0]) for name, column in rows.items()}
    try:
        plan = resolve_request(plan_request(space, request, counts), space.model, space.cluster).plan
    except InputError as error:
        refuse_rows(tallies, rows, reason_of(error))
        return
    problems = list(unsupported_choices(plan, space.cluster))
    if problems:
        refuse_rows(tallies, rows, f"{problems[0].field} {problems[0].reason}")
        return
    yield Stratum(space=space, request=request, rows=rows, plan=with_counts(space, plan, rows))


def reason_of(error: InputError) -> str:
    """The first problem in words, without the value that differs from plan to plan."""
    first = error.problems[0]
    return f"{first.field} {first.reason}"


def with_counts(space: Space, plan: Plan, rows: Rows) -> Plan:
    """A plan with the counts of many; one that all of them share is a plain number."""
    told = {name: _common_count(column) for name, column in rows.items()}
    mesh = replace(plan.mesh, **{axis: told[axis] for axis in AXES})
    padded = space.engine.vocab_multiple
    own = padded * told["tp"] if padded > 1 and "vocab_multiple" not in space.request else plan.vocab_multiple
    batch = replace(plan.training, microbatch=told["microbatch"], global_batch=told["global_batch"])
    return replace(plan, mesh=mesh, workload=batch, vocab_multiple=own)


def _common_count(column: Any) -> Any:
    """The number that every plan has, or else the column."""
    return int(column[0]) if np.ndim(column) and holds_for_all(column == column[0]) else column


def _rows_by_traits(rows: Rows) -> Iterator[Rows]:
    """Rows by what choices follow from their counts, a bit for each: whether an axis is split at all."""
    if not len(rows["microbatch"]):
        return
    traits: Array = sum(
        np.asarray(column, dtype=np.int64) << bit for bit, column in enumerate(_row_traits(rows))
    )
    order = np.argsort(traits, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(traits[order])) + 1):
        yield select_rows(rows, part)


def _row_traits(rows: Rows) -> Iterator[Array]:
    for axis in ("tp", "cp", "ep", "etp"):
        yield rows[axis] > 1
