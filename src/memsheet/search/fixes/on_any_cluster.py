"""What would make a job fit on clusters of some size where no such cluster holds it as it is: each change
with the fewest GPUs that it fits on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.budget import WayToFit
from memsheet.errors import InputError
from memsheet.plan.device import ONE_NODE
from memsheet.plan.engine_registry import searched_engines
from memsheet.plan.plan import Plan
from memsheet.search.fitting_edges import first_edge
from memsheet.search.fixes.ways_to_fit import Edits, adapter_edits, recomputed_edits
from memsheet.search.trials import Trials

Clusters = Callable[[int, Edits], Trials]
"""The question with some changes on clusters of up to so many GPUs, the largest first."""


def fewer_ways(
    request: Mapping[str, Any], plan: Plan, clusters: Clusters, limits: Sequence[int], *, per_node: int | None
) -> Iterator[WayToFit]:
    """The mildest change of each kind that fits within the first of ``limits`` that any fits in.
    ``per_node``: GPUs of a node, as the question says.
    """
    kinds = (
        (("", {}), *recomputed_edits(request)),
        tuple(_engine_edits(request, plan)),
        adapter_edits(request, plan),
    )
    for kind in kinds:
        within = (
            _way_on_fewest_gpus(words, edits, clusters, limit, per_node)
            for limit in dict.fromkeys(limits)
            for words, edits in kind
        )
        found = next((way for way in within if way is not None), None)
        if found is not None:
            yield found


def _engine_edits(request: Mapping[str, Any], plan: Plan) -> Iterator[tuple[str, Edits]]:
    """The other engines that plans are searched of, where the question names one: they divide otherwise."""
    if request.get("engine") != plan.engine:
        return
    for name in searched_engines():
        if name != plan.engine:
            yield f"engine {name}", {"engine": name}


def _way_on_fewest_gpus(
    words: str, edits: Edits, clusters: Clusters, limit: int, per_node: int | None
) -> WayToFit | None:
    """A change on the fewest GPUs that it surely fits on, as the same question with that change says; None
    where it fits on no such cluster.
    """
    trials = clusters(limit, edits)
    try:
        index = first_edge(trials)
    except InputError:
        return None
    if index is None:
        return None
    found = trials.at(index, replays=True)
    count, named = found.cluster.count, f", {words}" if words else ""
    if count < limit:  # which may be one edge of several: a question typed with this many looks below it
        fewer = _way_on_fewest_gpus(words, edits, clusters, count, per_node)
        if fewer is not None:
            return fewer
    gpus: dict[str, Any] = {"gpus": f"{count}x{found.cluster.device.name}"}
    known = per_node or min(count, found.cluster.device.per_node or ONE_NODE)
    unsaid = per_node is None and found.cluster.device.per_node is None and count > ONE_NODE
    gpus |= {"per_node": found.cluster.per_node} if unsaid or found.cluster.per_node != known else {}
    return WayToFit(
        words=f"{count} GPU{'s' if count > 1 else ''}{named}",
        changes={**edits, **gpus},
        device=found.verdict.device,
        host_bytes=max(sheet.host_bytes for sheet in found.sheets),
    )
