"""How large a model of a family can be trained on how many GPUs: for replicas (DDP) and for each stage of
ZeRO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import ONE_NODE, Cluster, resize_cluster
from memsheet.plan.engine_registry import STAGE_ENGINES, find_engine
from memsheet.plan.model import ModelSpec
from memsheet.resolve import resolve_request
from memsheet.search.fitting_edges import first_edge
from memsheet.search.solve.targets import model_size_trials
from memsheet.search.trials import Tried

NAMES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
FREE = ("reshard_after_forward", "mesh.dp_shard", "mesh.dp_replicate")
"""Keys that follow from the stage and the number of GPUs."""
SEEN = 64
"""GPUs up to which a chart goes at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The largest model on ``gpus`` devices that fits with its whole range; no parameters where none does or
    the plan is not legal.
    """

    gpus: int
    parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One stage over cluster sizes. ``reason``: why it has no points."""

    name: str
    zero: int
    engine: str
    points: tuple[Size, ...]
    reason: str = ""


Build = Callable[[int], ModelSpec]


def trainable_sizes(
    build: Build, request: Mapping[str, Any], cluster: Cluster, found: Tried | None
) -> tuple[Curve, ...]:
    """A curve a stage, over doubling clusters up to the one that is there, each point found as the answer
    itself, ``found``, was.
    """
    plan = resolve_request(request, build(1), cluster).plan
    own = find_engine(plan.engine)
    free = {key: value for key, value in request.items() if key not in FREE}
    curves = []
    for zero, (name, usual) in enumerate(zip(NAMES, STAGE_ENGINES, strict=True)):
        engine = own.name if own is not None and zero in own.zero else usual
        points = {cluster.count: _trainable_size(cluster, found)} if zero == plan.zero else {}
        curves.append(
            _trainable_size_curve(
                name, zero, engine, build, {**free, "zero": zero, "engine": engine}, cluster, points
            )
        )
    return tuple(curves)


def _trainable_size(cluster: Cluster, found: Tried | None) -> Size:
    return Size(gpus=cluster.count, parameters=0 if found is None else int(parameter_count(found.model)))


def _trainable_size_curve(
    name: str,
    zero: int,
    engine: str,
    build: Build,
    request: Mapping[str, Any],
    cluster: Cluster,
    answered: Mapping[int, Size],
) -> Curve:
    """``answered``: points that are known."""
    points, reasons = [], dict[str, None]()
    for machines in machines_up_to(cluster):
        if machines.count in answered:
            points.append(answered[machines.count])
            continue
        try:
            points.append(_trainable_size(machines, _largest_fitting_model(build, request, machines)))
        except InputError as error:
            points.append(Size(gpus=machines.count))
            reasons.update(dict.fromkeys(f"{problem.field} {problem.reason}" for problem in error.problems))
    none = not any(point.parameters for point in points)
    return Curve(
        name=name, zero=zero, engine=engine, points=tuple(points), reason="; ".join(reasons) if none else ""
    )


def machines_up_to(cluster: Cluster) -> tuple[Cluster, ...]:
    """1, 2, 4 … GPUs of a node, then 1, 2, 4 … nodes, and the cluster itself."""
    per_node = (
        cluster.per_node if cluster.nodes > 1 else max(cluster.per_node, cluster.device.per_node or ONE_NODE)
    )
    top, node = max(cluster.count, SEEN), replace(cluster, per_node=per_node, nodes=1)
    within = {1 << power for power in range(per_node.bit_length()) if 1 << power < per_node}
    nodes = {per_node << power for power in range(top.bit_length()) if per_node << power <= top}
    return tuple(
        cluster if count == cluster.count else resize_cluster(node, count)
        for count in sorted(within | nodes | {cluster.count})
    )


def _largest_fitting_model(build: Build, request: Mapping[str, Any], cluster: Cluster) -> Tried | None:
    trials = model_size_trials(build, request, cluster)
    found = first_edge(trials)
    return None if found is None else trials.at(found, replays=True)
