"""The two axes of a heat map: what a question leaves open (a degree, a choice), or a quantity of the question
itself (a length, the GPUs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import InputError, Problem, input_error, nearest_words, raise_if_problems
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import MAX_DEVICES, ONE_NODE, Cluster, resize_cluster
from memsheet.plan.names import SHORT
from memsheet.search.train.space import OFFLOAD

Value = int | str
COUNTS = ("tp", "cp", "dp_shard", "dp_replicate", "ep", "etp", "microbatch")
"""Columns of a stratum's rows."""
CHOICES = ("pp", "vpp", "zero", "recompute", "optimizer", "loss", "offload", "schedule", "engine")
"""What a stratum's plans share."""
ASKED = ("seq_len", "global_batch", "gpus")
"""What the question says: every value of them is searched anew."""
MOST = 12
"""Values of an axis: more cells than that nobody reads."""
MOST_TOKENS = 2**31
AROUND = (-2, -1, 0, 1, 2, 3)
"""How often a quantity of the question is doubled where no values are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """``values``: those asked for, in order; empty: all that come up."""

    name: str
    values: tuple[Value, ...] = ()

    @property
    def is_question_key(self) -> bool:
        return self.name in ASKED


def axes_of(text: str) -> tuple[Axis, Axis]:
    """``seq_len,microbatch``, or with values ``seq_len=4096:8192,tp``. Raises InputError with every
    problem.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise input_error("axes", text, "does not name two axes", "for example --axes seq_len,microbatch")
    problems = list[Problem]()
    found = [_parse_axis(part, problems) for part in parts]
    if found[0].name == found[1].name and not problems:
        problems.append(Problem(field="axes", value=text, reason="names one axis twice", hint="name two"))
    raise_if_problems(problems)
    return found[0], found[1]


def _parse_axis(text: str, problems: list[Problem]) -> Axis:
    name, _, listed = text.partition("=")
    name, known = name.strip().lower().replace("-", "_"), (*ASKED, *COUNTS, *CHOICES)
    if name not in known:
        near = nearest_words(name, known)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        problems.append(Problem(field="axes", value=name, reason="is no axis", hint=hint))
    values = tuple(_parse_axis_value(word.strip()) for word in listed.split(":") if word.strip())
    if len(values) > MOST:
        problems.append(
            Problem(field="axes", value=text, reason=f"has more than {MOST} values", hint="name fewer")
        )
    if name in ASKED:
        problems += (
            _axis_range_problem(name, value)
            for value in values
            if not (isinstance(value, int) and 0 < value <= _axis_maximum(name))
        )
    return Axis(name=name, values=tuple(dict.fromkeys(values)))


def _axis_range_problem(name: str, value: Value) -> Problem:
    return Problem(
        field="axes",
        value=f"{name}={value}",
        reason=f"is outside 1 to {_axis_maximum(name):,}",
        hint="for example seq_len=4096:8192",
    )


def _axis_maximum(name: str) -> int:
    return MAX_DEVICES if name == "gpus" else MOST_TOKENS


def _parse_axis_value(word: str) -> Value:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 12 else word


def check_open(axes: Iterable[Axis], request: Mapping[str, Any]) -> None:
    """Raises InputError where a flag has settled what an axis would vary."""
    raise_if_problems(
        Problem(
            field="axes",
            value=axis.name,
            reason="is settled by the question",
            hint=f"leave --{axis.name.replace('_', '-')} out",
        )
        for axis in axes
        if any(request.get(key) is not None for key in _axis_request_keys(axis.name))
    )


def _axis_request_keys(name: str) -> tuple[str, ...]:
    if name in (*ASKED, "engine"):
        return ()
    return OFFLOAD if name == "offload" else (SHORT[name],)


def stratum_axis_value(name: str, request: Mapping[str, Any], engine: str) -> Value:
    """The value that all plans of a stratum share on an axis."""
    if name == "engine":
        return engine
    if name == "offload":
        moved = [key for key in ("optimizer", "parameters", "activations") if request.get(f"offload.{key}")]
        return " + ".join(moved) or "none"
    value = request.get(SHORT[name])
    return "none" if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisQuestion:
    """One question of a map, and where on the axes of the question it stands."""

    at: Mapping[str, Value]
    request: Mapping[str, Any]
    cluster: Cluster


def axis_questions(
    axes: tuple[Axis, Axis], request: Mapping[str, Any], cluster: Cluster
) -> Iterator[AxisQuestion]:
    """Every combination of the quantities of the question; one question where both axes are searched."""
    asked = [AxisQuestion(at={}, request=request, cluster=cluster)]
    for axis in axes:
        if axis.is_question_key:
            asked = [_question_at_value(one, axis.name, value) for one in asked for value in axis.values]
    yield from asked


def _question_at_value(one: AxisQuestion, name: str, value: Value) -> AxisQuestion:
    at = {**one.at, name: value}
    if name != "gpus":
        return replace(one, at=at, request={**one.request, name: value})
    return replace(one, at=at, cluster=resize_cluster(_whole_node_cluster(one.cluster), int(value)))


def axis_with_values(axis: Axis, request: Mapping[str, Any], cluster: Cluster) -> Axis:
    """An axis of the question with values around what was asked, where none were given. Raises InputError for
    GPUs that fill no nodes.
    """
    if not axis.is_question_key:
        return axis
    if axis.values:
        for value in axis.values if axis.name == "gpus" else ():
            resize_cluster(_whole_node_cluster(cluster), int(value))
        return axis
    start = cluster.count if axis.name == "gpus" else int(request[axis.name])
    around = [start << power if power >= 0 else start >> -power for power in AROUND]
    return replace(
        axis,
        values=tuple(
            value
            for value in dict.fromkeys(around)
            if 0 < value <= _axis_maximum(axis.name) and _fills_nodes(axis, value, cluster)
        ),
    )


def _whole_node_cluster(cluster: Cluster) -> Cluster:
    """What a larger cluster has several of: where only a part of a node was asked about, a whole one of the
    usual server.
    """
    whole = (
        cluster.per_node if cluster.nodes > 1 else max(cluster.per_node, cluster.device.per_node or ONE_NODE)
    )
    return replace(cluster, per_node=whole, nodes=1)


def _fills_nodes(axis: Axis, value: int, cluster: Cluster) -> bool:
    """Whether a number of GPUs fills nodes."""
    try:
        return axis.name != "gpus" or resize_cluster(_whole_node_cluster(cluster), value).count == value
    except InputError:
        return False


ORDER: Mapping[str, tuple[str, ...]] = {
    "recompute": ("none", "selective", "full"),
    "offload": ("none", "activations", "optimizer", "optimizer + parameters"),
}


def shown_axis_values(axis: Axis, found: Iterable[Value]) -> tuple[Value, ...]:
    """The values of an axis as they are shown: those asked for, or all that came up, numbers by size, thinned
    where they are many.
    """
    if axis.values:
        return axis.values
    known = ORDER.get(axis.name, ())
    values = sorted(
        found,
        key=lambda v: (
            isinstance(v, str),
            known.index(v) if v in known else len(known),
            v if isinstance(v, int) else 0,
            str(v),
        ),
    )
    powers: list[Value] = [
        value for value in values if isinstance(value, int) and value > 0 and value & (value - 1) == 0
    ]
    if len(values) > MOST and len(powers) > 1:
        values = powers
    if len(values) > MOST:
        values = [values[round(place * (len(values) - 1) / (MOST - 1))] for place in range(MOST)]
    return tuple(values)
