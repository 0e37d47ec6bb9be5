"""Plans of a stratum told by fewer: what does not know how data-parallel ranks divide the states is worked
out once for all divisions.

Where nothing is gathered for a layer (Megatron-Core), only the states and the optimizer's scratch know it,
and these know nothing of micro-batches. So a step's bytes are those of the plan that divides the states over
all its data-parallel ranks, and the difference that its own division makes of a plan with one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memsheet.account import Sums, divided_states
from memsheet.arith import row_codes
from memsheet.frozen import dataclass, replace
from memsheet.plan.plan import Schedule
from memsheet.search.train.lattice import Array, Rows, sequences_at_once
from memsheet.search.train.pipelines import PipelineRank, merge_strata, sums_of_strata
from memsheet.search.train.strata import Stratum, with_counts
from memsheet.sheet import Instant


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReducedStratum:
    """A stratum, a smaller one that stands for it, and which of its plans stands for each."""

    few: Stratum
    which: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fewer:
    """``steps``: one plan for each of which all data-parallel ranks divide the states; ``states``: one for
    each division of the states; ``undivided``: those again, divided over all data-parallel ranks.
    """

    stratum: Stratum
    steps: ReducedStratum
    states: ReducedStratum
    undivided: ReducedStratum

    def __len__(self) -> int:
        return len(self.steps.few)


def reduce_stratum(stratum: Stratum) -> Fewer:
    rows = stratum.rows
    together, alone = rows["dp_replicate"] * rows["dp_shard"], np.ones_like(rows["tp"])
    whole = {
        **rows,
        "dp_replicate": alone,
        "dp_shard": together,
        "global_batch": kept_microbatches(stratum) * sequences_at_once(rows),
    }
    each = {**rows, "microbatch": alone, "global_batch": together * FULL_PIPELINE * stratum.plan.mesh.pp}
    states = _distinct_rows(stratum, each)
    own = states.few.rows
    undivided = {
        **own,
        "dp_replicate": np.ones_like(own["tp"]),
        "dp_shard": own["dp_replicate"] * own["dp_shard"],
    }
    return Fewer(
        stratum=stratum,
        steps=_distinct_rows(stratum, whole),
        states=states,
        undivided=ReducedStratum(
            few=replace(stratum, rows=undivided, plan=with_counts(stratum.space, stratum.plan, undivided)),
            which=states.which,
        ),
    )


FULL_PIPELINE = 4
"""Micro-batches a stage with which a pipeline holds as many as it ever does: one whose chunks take turns has
at most pp · (vpp + 1) of pp · vpp parts under way, a step of 4 pp micro-batches has 4 pp · vpp.
"""


def kept_microbatches(stratum: Stratum) -> Array:
    """Micro-batches of a step of each plan with which a pipeline holds as much as with all of them."""
    rows, plan = stratum.rows, stratum.plan
    count = rows["global_batch"] // sequences_at_once(rows)
    return count if plan.schedule is Schedule.GPIPE else np.minimum(count, FULL_PIPELINE * plan.mesh.pp)


def _distinct_rows(stratum: Stratum, rows: Rows) -> ReducedStratum:
    """The distinct rows."""
    differ = [column for column in rows.values() if (column != column[0]).any()] or [rows["tp"]]
    _, first, which = np.unique(row_codes(differ), return_index=True, return_inverse=True)
    few = {name: column[first] for name, column in rows.items()}
    return ReducedStratum(
        few=replace(stratum, rows=few, plan=with_counts(stratum.space, stratum.plan, few)), which=which
    )


def sums_by_fewer(members: Sequence[Fewer], ranks: Sequence[PipelineRank]) -> Sums:
    """What ``sums_of`` says of all plans, stratum by stratum."""
    steps, which = (
        sums_of_strata([one.steps.few for one in members], ranks),
        _concatenated_row_places(one.steps for one in members),
    )
    states, undivided = (
        divided_states(*merge_strata([getattr(one, name).few for one in members], ranks), steps.tensors)
        for name in ("states", "undivided")
    )
    own = _concatenated_row_places(one.states for one in members)
    return Sums(
        tensors={
            i: _expand_sizes(size, which) + _expand_sizes(states[i] - undivided[i], own)
            for i, size in steps.tensors.items()
        },
        below=_expand_instant_sizes(steps.below, which),
        above=_expand_instant_sizes(steps.above, which),
        paged=_expand_sizes(steps.paged, which),
        host_bytes=_expand_sizes(steps.host_bytes, which),
    )


def _concatenated_row_places(told: Iterator[ReducedStratum]) -> Array:
    """Places in strata that are laid one after another."""
    start, found = 0, []
    for one in told:
        found.append(one.which + start)
        start += len(one.few)
    return np.concatenate(found)


def _expand_instant_sizes(sizes: Mapping[Instant, Any], which: Array) -> Mapping[Instant, Any]:
    return {instant: _expand_sizes(size, which) for instant, size in sizes.items()}


def _expand_sizes(size: Any, which: Array) -> Any:
    return size if isinstance(size, int) else size[which]
