"""The question of `memsheet plan infer`, checked; its answer with what would hold where nothing does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.frozen import replace
from memsheet.plan.check import check_request
from memsheet.plan.device import MAX_DEVICES, Cluster
from memsheet.plan.engine_registry import ONE_GPU, PAGED_SERVER, modelled_engines
from memsheet.plan.model import ModelSpec
from memsheet.resolve.length import too_long
from memsheet.resolve.serving import serves_in_pages
from memsheet.search.serve.cuts import Deployment, Way, rank_serving_plans
from memsheet.search.serve.load import Load, parse_latency_s
from memsheet.search.serve.space import eight_bit_formats

USUAL_CONTEXT = 8192
"""Tokens where nobody says, if the model goes so far."""
MAX_TOKENS = 100_000_000
MAX_USERS = 1_000_000_000
DOUBLINGS = 4
NUMBERS = {"context": "8192, or 8k", "users": "50"}
NEAR = 0.7
"""Of the users asked for, from what on twice the GPUs are looked at: larger groups hold somewhat more than
twice as many.
"""
NAMES = {"quantization.weights": "weights", "serving.kv_dtype": "a cache"}


def read_serving_question(
    spec: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    any_precision: bool = False,
) -> Deployment:
    """Every cut for what is wanted: ``context``, ``users``, ``ttft``, ``tpot``. Raises InputError with every
    problem.
    """
    engine = str(request.get("engine") or (PAGED_SERVER if serves_in_pages(spec) else ONE_GPU))
    planned = planned_engines()
    if engine not in planned:
        raise input_error(
            "engine",
            engine,
            "is not planned for",
            f"one of {', '.join(planned)}; `memsheet infer` accounts it",
        )
    raise_if_problems(check_request(request))
    load, notes = _requested_load(spec, request, wanted)
    key, length = (
        "context" if wanted["context"] else "serving.max_model_len",
        max(load.context, request.get("serving.max_model_len") or 0),
    )
    raise_if_problems(too_long(engine, request.get("engine_version"), spec, key, length))
    pinned = {**request, "engine": engine}
    found = rank_serving_plans(spec, cluster, pinned, load, any_precision=any_precision)
    ways = (
        tuple(_ways_to_hold_users(found, pinned, any_precision=any_precision)) if found.best is None else ()
    )
    return replace(found, notes=(*notes, *found.notes), ways=ways)


def planned_engines() -> list[str]:
    """Names of engines whose cuts are weighed, servers with a pool first."""
    planned = [engine for engine in modelled_engines() if engine.serving.planned]
    return [engine.name for engine in sorted(planned, key=lambda one: not one.serving.pools_cache)]


def _requested_load(
    spec: ModelSpec, request: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[Load, tuple[str, ...]]:
    prompt, output, pinned = (
        request.get(f"serving.{key}") for key in ("prompt_tokens", "output_tokens", "max_model_len")
    )
    raise_if_problems(_load_problems(wanted, prompt, output, pinned))
    asked = (prompt or 0) + (output or 0) if prompt or output else None
    context = wanted["context"] or pinned or asked or min(spec.max_positions or USUAL_CONTEXT, USUAL_CONTEXT)
    told = wanted["context"] or pinned or asked
    note = () if told else (f"a context of {context:,} tokens, as --context says none",)
    load = Load(
        context=int(context),
        users=wanted["users"],
        ttft_s=parse_latency_s(wanted["ttft"], "ttft"),
        tpot_s=parse_latency_s(wanted["tpot"], "tpot"),
        prompt_tokens=prompt,
        output_tokens=output,
    )
    return load, note


def _load_problems(wanted: Mapping[str, Any], prompt: Any, output: Any, pinned: Any) -> Iterator[Problem]:
    for field, most in (("context", MAX_TOKENS), ("users", MAX_USERS)):
        value = wanted[field]
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most
        ):
            yield Problem(
                field=field,
                value=value,
                reason=f"is not a whole number from 1 to {most:,}",
                hint=f"for example {NUMBERS[field]}",
            )
    context = wanted["context"]
    if not isinstance(context, int):
        return
    if isinstance(pinned, int) and context > pinned:
        yield Problem(
            field="context",
            value=context,
            reason=f"exceeds max_model_len {pinned}",
            hint="leave --max-model-len out",
        )
    if isinstance(prompt, int) and prompt + (output if isinstance(output, int) else 0) > context:
        yield Problem(
            field="prompt_tokens",
            value=prompt,
            reason=f"and the answer exceed a context of {context:,} tokens",
        )


def _users_beyond_any_cut(found: Deployment) -> bool:
    """Whether more users are asked for than any cut would hold that had the room of its weights too, and
    caches half as large.
    """
    most = max(
        (2 * one.in_all * (1 + one.weights_bytes / max(1, one.kv_bytes)) for one in found.plans), default=0.0
    )
    return 0 < most < (found.load.users or 0)


def _users_expected_to_fit(found: Deployment) -> bool:
    """Whether the best plan is expected to hold the users that are asked for, and does not only hold them
    where all goes well.
    """
    return found.best is not None and found.best.in_all >= (found.load.users or 0)


def _ways_to_hold_users(
    found: Deployment, request: Mapping[str, Any], *, any_precision: bool
) -> Iterator[Way]:
    """What would hold: eight bits on the same GPUs, then as many nodes or GPUs more as it takes, in
    doublings.
    """
    for form in (
        eight_bit_formats(found.model, request)
        if not any_precision and not _users_beyond_any_cut(found)
        else ()
    ):
        try:
            eight = rank_serving_plans(found.model, found.cluster, {**request, **form}, found.load)
        except InputError:  # the card, the engine or the model has no such format
            continue
        if _users_expected_to_fit(eight):
            yield Way(
                words=" and ".join(f"{NAMES[key]} in {value}" for key, value in form.items()), found=eight
            )
    cluster, most = found.cluster, max((one.in_all for one in found.plans), default=0)
    for doubled in range(1, DOUBLINGS + 1):
        if cluster.count * 2 > MAX_DEVICES or any(key.startswith("mesh.") for key in request):
            return
        cluster = (
            replace(cluster, nodes=cluster.nodes * 2)
            if cluster.nodes > 1 or cluster.per_node >= (cluster.device.per_node or 8)
            else (replace(cluster, per_node=cluster.per_node * 2))
        )
        if most and found.load.users and most * 2**doubled < NEAR * found.load.users:
            continue  # as many replicas more do not hold them
        more = rank_serving_plans(found.model, cluster, request, found.load)
        if _users_expected_to_fit(more):
            yield Way(words=f"{cluster.count} GPUs", found=more)
            return
