"""What changes of a question change of its whole plan: keys that a question leaves to their defaults stand in
the plan of its answer, and other choices have others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Change, LibraryUse
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.plan.check import flatten_document
from memsheet.plan.device import Cluster, cluster_of, parse_gpus
from memsheet.plan.document import plan_document
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.overriding import without_overridden
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request

Edits = Mapping[str, Any]
NO_PLAN_KEYS = ("gpus", "nodes", "schema", "model")
"""What a plan's document names besides the plan, and what only a question does."""


def with_implied_keys(
    spec: ModelSpec,
    request: Edits,
    cluster: Cluster,
    plan: Plan,
    changes: tuple[Change, ...],
    library: LibraryUse | None = None,
) -> tuple[Change, ...]:
    """The changes of a question, each with the keys of its whole ``plan`` that must change with it, so that
    the plan's document with all of them is the plan that was accounted.
    """
    return tuple(_with_implied(spec, request, cluster, plan, changes, library))


def _with_implied(
    spec: ModelSpec,
    request: Edits,
    cluster: Cluster,
    plan: Plan,
    changes: tuple[Change, ...],
    library: LibraryUse | None,
) -> Iterator[Change]:
    whole = _document(plan)
    for change in changes:
        edits = {change.key: change.after, **{key: after for key, _, after in change.also}}
        cluster, request = edited_cluster(cluster, edits), edited_request(request, edits)
        library = None if "engine" in edits else library
        request |= implied_library_keys(library.name, request) if library else {}
        wanted, before = _document(resolve_request(request, spec, cluster).plan), whole
        whole = {**whole, **{key: value for key, value in edits.items() if key not in NO_PLAN_KEYS}}
        reread = _reread(spec, whole, cluster)
        implied = {
            key: wanted.get(key)
            for key in {**reread, **wanted}
            if reread.get(key) != wanted.get(key) and key not in edits
        }
        whole |= implied
        rows = tuple((key, before.get(key), after) for key, after in implied.items())
        yield replace(change, implied=rows)


def _document(plan: Plan) -> dict[str, Any]:
    flat = flatten_document(plan_document(plan))
    return {key: value for key, value in flat.items() if key not in NO_PLAN_KEYS}


def _reread(spec: ModelSpec, whole: Edits, cluster: Cluster) -> Edits:
    """The document of the plan that a document is read back as; itself where it is no legal plan."""
    try:
        return _document(resolve_request(whole, spec, cluster).plan)
    except InputError:
        return whole


def edited_request(request: Edits, edits: Edits) -> dict[str, Any]:
    """The question with edits on top, as a person would add them."""
    return {
        key: value
        for key, value in {**without_overridden(request, edits), **edits}.items()
        if key not in ("gpus", "nodes")
    }


def edited_cluster(cluster: Cluster, edits: Edits) -> Cluster:
    """The cluster as those edits lay it out, in the cards' usual nodes unless they say how many."""
    count, _ = parse_gpus(edits["gpus"]) if "gpus" in edits else (None, "")
    if count is None:
        return cluster
    laid_out = cluster_of(cluster.device, count, nodes=edits.get("nodes"))
    return replace(cluster, per_node=laid_out.per_node, nodes=laid_out.nodes)
