"""How to serve a model, as JSON (``memsheet/serve-plans/1``): every plan can be asked again; keys as in
``memsheet/plans/1`` where they mean the same.
"""

from __future__ import annotations

from typing import Any

from memsheet.formulas.serving_time import Seconds
from memsheet.plan.document import asked_as, plan_document
from memsheet.report.shared.plans.serving_words import parallel_group_words, serving_command
from memsheet.search.serve.cuts import Deployment, best_plan_per_cut
from memsheet.search.serve.load import Holds, Served

SCHEMA = "memsheet/serve-plans/1"


def serving_document(found: Deployment, *, seconds: float | None = None) -> dict[str, Any]:
    """The search as plain values. ``seconds``: how long it took."""
    load = found.load
    return {
        "schema": SCHEMA, "model": found.model.name, "gpus": f"{found.cluster.count}x{found.cluster.device.name}",
        "load": {
            "context": load.context, "users": load.users, "ttft_s": load.ttft_s, "tpot_s": load.tpot_s,
            "prompt_tokens": load.prompt_tokens, "output_tokens": load.output_tokens,
        },
        "search": {"plans": len(found.plans) + len(found.refused), "legal": len(found.plans), "seconds": seconds, "engines": [found.engine]},
        "holds": _holds_word(found.plans[0].holds) if found.plans else "no",
        "plans": [_served_plan_document(found, one) for one in found.plans],
        "comparison": [found.plans.index(one) for one in best_plan_per_cut(found)],
        "rejected": [
            *({"family": parallel_group_words(one.plan), "reason": "; ".join(r.words for r in one.reasons if r.holds is Holds.NO)} for one in found.plans if one.holds is Holds.NO),
            *({"family": " ".join(f"{key.removeprefix('mesh.')} {size}" for key, size in out.mesh.items()), "reason": out.words} for out in found.refused),
        ],
        "ways": [{"change": way.words, "best": _served_plan_document(way.found, way.found.best)} for way in found.ways if way.found.best is not None],
        "notes": list(found.notes),
    }  # fmt: skip


def _served_plan_document(found: Deployment, one: Served) -> dict[str, Any]:
    device = one.verdict.device
    return {
        "plan": plan_document(one.plan, model=asked_as(found.model), cluster=found.cluster), "assumed": list(one.assumed), "cut": parallel_group_words(one.plan),
        "holds": _holds_word(one.holds), "reasons": [{"asks": r.asks, "holds": _holds_word(r.holds), "words": r.words} for r in one.reasons],
        "verdict": one.verdict.result.value, "device_bytes": int(device.value), "device_low_bytes": int(device.low),
        "device_high_bytes": int(device.high), "capacity_bytes": int(found.cluster.device.framework_bytes),
        "headroom_bytes": int(one.verdict.headroom_bytes), "rank": int(one.verdict.rank), "instant": one.verdict.instant.value,
        "weights_bytes": one.weights_bytes, "kv_cache_bytes": one.kv_bytes, "replicas": one.replicas, "gpus_per_replica": one.gpus_each,
        "sequences_per_replica": {"low": one.sequences[0], "value": one.sequences[1]}, "sequences": one.in_all,
        "users": one.users * one.replicas,
        "users_low": one.within[0] * one.replicas, "users_per_gpu": one.users_per_gpu, "decode_batch": one.batch,
        "tokens_per_s": one.tokens_per_s,
        "decode_s": _latency_range(one.decode), "decode_parts_s": dict(one.decode.parts) if one.decode else None, "prefill_s": _latency_range(one.prefill),
        "command": serving_command(found, one),
    }  # fmt: skip


def _holds_word(holds: Holds) -> str:
    return {Holds.YES: "yes", Holds.PERHAPS: "perhaps", Holds.NO: "no"}[holds]


def _latency_range(time: Seconds | None) -> dict[str, float] | None:
    return {"low": time.low, "value": time.value, "high": time.high} if time else None
