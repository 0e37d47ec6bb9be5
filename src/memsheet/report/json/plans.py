"""What was searched for, as JSON (``memsheet/plans/1``): every plan can be asked again, and exported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memsheet.budget import Result
from memsheet.plan.document import asked_as, plan_document
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.families import family_sort_key, uneven_lines
from memsheet.report.shared.plans.family_reason import family_rejection_reason
from memsheet.report.shared.plans.words import choice_words, plan_command
from memsheet.resolve import resolve_request
from memsheet.search.advice import Advice, Replicas
from memsheet.search.fixes.story import Step
from memsheet.search.train.families import Family
from memsheet.search.train.rank import Point, Ranking
from memsheet.search.train.timed import Planned

SCHEMA = "memsheet/plans/1"


def plans_document(advice: Advice, *, seconds: float, tokens: int | None = None) -> dict[str, Any]:
    """The search as plain values. ``seconds``: how long it took; ``tokens``: a budget of training, told in
    GPU-hours.
    """
    ranking = advice.ranking
    refused = sum(ranking.refused.values())
    return {
        "schema": SCHEMA, "model": ranking.model.name, "gpus": f"{ranking.cluster.count}x{ranking.cluster.device.name}",
        "cluster": {"per_node": ranking.cluster.per_node, "nodes": ranking.cluster.nodes, "host_bytes": ranking.cluster.host_bytes},
        "search": {
            "plans": ranking.legal + refused, "legal": ranking.legal, "seconds": seconds, "engines": list(ranking.engines),
            "results": {result.value: ranking.looked_at.get(result, 0) for result in Result},
        },
        "plans": [_planned_document(ranking, planned, tokens) for planned in ranking.plans],
        "by_engine": {planned.plan.engine: _planned_document(ranking, planned, tokens) for planned in ranking.by_engine},
        "least": _planned_document(ranking, ranking.least, tokens) if ranking.least else None,
        "result": ranking.result.value if ranking.result else None,
        "unsure": [_planned_document(ranking, planned, tokens) for planned in ranking.unsure],
        "pareto": [_front_point_document(ranking, point) for point in ranking.front],
        "rejected": list(_rejection_documents(ranking)),
        "story": [_step_document(step) for step in advice.story],
        "replicas": _replicas_document(ranking, advice.replicas, tokens) if advice.replicas else None,
        "undone": [
            {"saving": one.saving, "missing_bytes": int(one.missing_bytes), "step_time_s": _step_time_range(one.planned), "gains_s": one.gains_s}
            for one in advice.undone
        ],
        "alternatives": list(_alternative_documents(advice, tokens)),
        "notes": [*uneven_lines(ranking), *ranking.notes],
        **({"batches": [_global_batch_document(ranking, swept, tokens) for swept in advice.batches]} if advice.batches else {}),
    }  # fmt: skip


def _global_batch_document(
    ranking: Ranking, swept: tuple[int, Planned | None, Result | None], tokens: int | None
) -> dict[str, Any]:
    size, best, result = swept
    return {
        "global_batch": size,
        "best": _planned_document(ranking, best, tokens) if best else None,
        "result": result.value if result else None,
    }


def _planned_document(ranking: Ranking, planned: Planned, tokens: int | None) -> dict[str, Any]:
    verdict, time = planned.verdict, planned.time
    device = verdict.device
    worst = max(planned.tried.sheets, key=lambda sheet: sheet.device.high)
    return {
        "plan": plan_document(planned.plan, model=asked_as(ranking.model), cluster=ranking.cluster), "assumed": list(planned.tried.assumed),
        "verdict": verdict.result.value, "allocated_bytes": int(worst.allocated.value), "device_bytes": int(device.value),
        "device_low_bytes": int(device.low), "device_high_bytes": int(device.high),
        "capacity_bytes": int(ranking.cluster.device.framework_bytes), "headroom_bytes": int(verdict.headroom_bytes),
        "host_bytes": int(planned.host_bytes), "rank": int(verdict.rank), "instant": verdict.instant.value,
        "step_time_s": _step_time_range(planned), "tokens_per_s": float(time.tokens_per_s) if time else None,
        "parts_s": {name: float(value) for name, value in time.parts.items()} if time else None,
        "mfu": float(time.mfu) if time else None, "calibrated": time.calibrated if time else None,
        "gpu_hours": dict(zip(("low", "value", "high"), map(float, time.gpu_hours(tokens)), strict=True)) if time and tokens else None,
        "command": plan_command(ranking, planned),
    }  # fmt: skip


def _step_time_range(planned: Planned) -> dict[str, float] | None:
    time = planned.time
    return {"low": float(time.low), "value": float(time.value), "high": float(time.high)} if time else None


def _front_point_document(ranking: Ranking, point: Point) -> dict[str, Any]:
    plan = resolve_request(point.request, ranking.model, ranking.cluster).plan
    document = plan_document(plan, model=asked_as(ranking.model), cluster=ranking.cluster)
    return {
        "plan": document,
        "device_bytes": int(point.device_bytes),
        "step_time_s": {"value": point.seconds},
    }


def _rejection_documents(ranking: Ranking) -> Iterator[dict[str, Any]]:
    """Families that were weighed and are not the best, then what was ruled out before, by rule."""
    best = ranking.plans[0] if ranking.plans else None
    for family in sorted(ranking.families, key=family_sort_key):
        if best is None or family.fit == 0 or family.slower:
            yield _family_document(family)
    for rule, count in sorted(ranking.refused.items(), key=lambda pair: -pair[1]):
        yield {"family": None, "reason": rule, "plans": int(count)}


def _family_document(family: Family) -> dict[str, Any]:
    return {
        "family": " · ".join((family.engine, *choice_words(family.choice))), "reason": family_rejection_reason(family, Look()), "engine": family.engine,
        "choice": dict(family.choice), "plans": family.plans, "fit": family.fit, "step_time_s": family.seconds,
        "missing_bytes": int(family.missing_bytes), "host_missing_bytes": int(family.host_missing_bytes), "rank": int(family.rank), "stage": int(family.stage),
        "instant": family.instant.value if family.instant else None, "slower": family.slower or None, "slower_s": float(family.slower_s),
    }  # fmt: skip


def _step_document(step: Step) -> dict[str, Any]:
    return {
        "question": step.asks, "change": step.change, "flag": step.flag, "why": step.why, "engine": step.engine,
        "device_bytes": int(step.device.value), "saves_bytes": int(step.saves_bytes), "step_time_s": step.seconds, "costs_time": step.costs_s,
        "host_bytes": int(step.host_bytes), "fits": step.fits, "taken": step.taken, "shares_batch": step.shares,
        "without_states_bytes": int(step.part_bytes) or None,
    }  # fmt: skip


def _replicas_document(ranking: Ranking, replicas: Replicas, tokens: int | None) -> dict[str, Any]:
    sides = {"plain": replicas.plain_exchange, "sharded": replicas.sharded_exchange}
    return {
        "fastest": _planned_document(ranking, replicas.fastest, tokens),
        "plain": _planned_document(ranking, replicas.plain, tokens) if replicas.plain else None,
        "sharded": _planned_document(ranking, replicas.sharded, tokens) if replicas.sharded else None,
        "exchanged": {
            side: {
                "gathered_bytes": told.gathered_bytes, "gathers": told.gathers, "gathered_s": float(told.gathered_s),
                "reduced_bytes": told.reduced_bytes, "reductions": told.reductions, "reduced_s": float(told.reduced_s),
            }
            for side, told in sides.items() if told is not None
        },
    }  # fmt: skip


def _alternative_documents(advice: Advice, tokens: int | None) -> Iterator[dict[str, Any]]:
    ranking = advice.ranking
    for method, planned, why in advice.methods:
        best = _planned_document(ranking, planned, tokens) if planned else None
        yield {"kind": method, "gpus": ranking.cluster.count, "best": best, "reason": why or None}
    if advice.more is not None:
        cluster, planned = advice.more
        yield {
            "kind": "gpus",
            "gpus": cluster.count,
            "best": _planned_document(replace(ranking, cluster=cluster), planned, tokens),
            "reason": None,
        }
