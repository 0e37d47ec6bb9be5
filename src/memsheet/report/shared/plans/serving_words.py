"""Words for ways to serve: cuts, latencies with their ranges, the command that shows one's sheet."""

from __future__ import annotations

import shlex

from memsheet.formulas.serving_time import Seconds
from memsheet.plan.document import model_reference
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.names import SHORT
from memsheet.plan.plan import Plan
from memsheet.report.shared.machines import machine_flags
from memsheet.report.shared.words import flags_for
from memsheet.search.serve.cuts import Deployment, users_of_replica
from memsheet.search.serve.load import Served, format_latency

DROPPED = ("task", "model", "gpus")
GROUPS = {1: ("GPU", "replicas"), 2: ("pair", "pairs")}


def parallel_group_words(plan: Plan) -> str:
    """How GPUs are grouped: 4 replicas, 2 pairs, 1 group of 4; with stages, over how many ranks experts are
    dealt (ep), and in how many groups of them attention has requests of its own.
    """
    mesh = plan.mesh
    replicas, tp, pp, ep = int(mesh.dp_replicate), int(mesh.tp), int(mesh.pp), int(mesh.ep)
    whole = (
        f"{replicas} × {pp} stages{f' of {tp}' if tp > 1 else ''}"
        if pp > 1
        else _group_count_words(replicas, tp)
    )
    whole = f"{whole}, DP attention {int(mesh.attn_dp)}" if mesh.attn_dp > 1 else whole
    return f"{whole}, ep {ep}" if ep > 1 else whole


def _group_count_words(count: int, size: int) -> str:
    one, several = GROUPS.get(size, (f"group of {size}", f"groups of {size}"))
    return f"{count} {one if count == 1 else several}"


def weight_cache_formats(one: Served) -> str:
    """What is not as released."""
    plan = one.plan
    said = []
    if "quantization.weights" in one.request and plan.quantization is not None:
        said.append(f"weights {plan.quantization.weights.name}")
    if "serving.kv_dtype" in one.request and plan.cache.kv_dtype is not None:
        said.append(f"cache {plan.cache.kv_dtype.name}")
    if "serving.max_batched_tokens" in one.request and plan.serving.max_batched_tokens is not None:
        said.append(f"batches of {int(plan.serving.max_batched_tokens):,}")
    return ", ".join(said)


def latency_with_range(time: Seconds) -> str:
    """A latency and its range."""
    return f"{format_latency(time.value)} ({format_latency(time.low)} to {format_latency(time.high)})"


def latency_or_dash(time: Seconds | None) -> str:
    return format_latency(time.value) if time else "-"


def serving_command(found: Deployment, one: Served) -> str:
    """The command that asks a plan the same: with the users of one replica, where users are asked for."""
    flags, users = set(SHORT.values()), found.load.users
    asked = {"serving.max_sequences": users_of_replica(one.plan, users)} if users is not None else {}
    values = asked | {
        key: value
        for key, value in one.request.items()
        if key in flags and key not in DROPPED and value not in (None, False)
    }
    apart = (
        engine_of(one.plan).serving.replicas_share_experts and values.get("mesh.dp_replicate", 1) > 1
    )  # servers, not ranks of one that share experts
    kept = {
        key: value
        for key, value in values.items()
        if not (key.startswith("mesh.") and value == 1) or (key == "mesh.attn_dp" and apart)
    }
    model = shlex.quote(model_reference(found.model))
    return f"memsheet infer {model} {machine_flags(found.cluster)} {flags_for(kept)}"
