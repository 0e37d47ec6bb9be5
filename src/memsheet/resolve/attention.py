"""Data-parallel attention: groups of a server's tensor-parallel ranks that attend to requests of their own,
and share the rest of a layer.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh

MESH = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp", "attn_dp")
PEERS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Ranks that DeepEP has sizes for (deepseek-ai/DeepEP dd758ca deep_ep/buffers/legacy.py:245)."""


def attention_groups(
    gaps: RequestResolver, degrees: dict[str, int], engine: Engine, model: ModelSpec | None
) -> None:
    """``degrees`` as the engine runs them: replicas that share experts are groups of one server, and groups
    that share nothing are replicas. Where data-parallel ranks share experts, a model without is a server on
    each; elsewhere replicas share nothing, and groups all but attention.
    """
    replicas, tp, groups = degrees["dp_replicate"], degrees["tp"], degrees["attn_dp"]
    told = gaps.request.get("mesh.attn_dp") is not None
    whole = tp % groups == 0  # else ``check_groups`` refuses them: nobody has that many GPUs
    apart = engine.serving.replicas_share_experts and model is not None and not has_experts(model)
    if groups > 1 and whole and apart and model is not None:
        degrees.update(dp_replicate=replicas * groups, tp=tp // groups, attn_dp=1)
        gaps.assumed.append(
            f"mesh.dp_replicate = {replicas * groups} ({engine.name}'s data-parallel ranks share experts, of "
            f"which {model.name} has none)"
        )
    elif replicas > 1 and groups == 1 and not told and _replicas_share_experts(degrees, engine, model):
        degrees.update(dp_replicate=1, tp=tp * replicas, attn_dp=replicas)
        gaps.assumed.append(
            f"mesh.attn_dp = {replicas} of mesh.tp = {tp * replicas} (replicas that share experts are one "
            "server)"
        )


def _replicas_share_experts(degrees: dict[str, int], engine: Engine, model: ModelSpec | None) -> bool:
    """Whether replicas share their experts: where they are dealt over more than one's ranks, and always in an
    engine whose ranks do.
    """
    if model is None or not has_experts(model):
        return False
    over = degrees["tp"] * degrees["dp_replicate"]
    return degrees["ep"] == over or (
        engine.serving.replicas_share_experts and degrees["ep"] == 1 and degrees["etp"] in (1, over)
    )


def check_groups(gaps: RequestResolver, mesh: Mesh, engine: Engine, model: ModelSpec | None) -> None:
    """Problems of groups that are no cut, or that the engine does not have for the model or the release."""
    groups = int(mesh.attn_dp)
    _check_dispatch(gaps, mesh, engine)
    rules_of(engine.name).check_mesh(gaps, mesh, model)
    if groups == 1:
        for key in ("serving.dp_lm_head", "serving.dp_dense"):
            if gaps.request.get(key) and key in engine.models:
                gaps.wrong(
                    key, gaps.request[key], "is of data-parallel attention, which is off", "--attn-dp with it"
                )
        return
    if int(mesh.tp) % groups:
        gaps.wrong(
            "mesh.attn_dp",
            groups,
            f"does not divide the {mesh.tp} tensor-parallel ranks that are its groups",
            _ranks_for(groups, int(mesh.tp)),
        )


def _ranks_for(groups: int, ranks: int) -> str:
    """What to ask for where the ranks are no multiple of the groups."""
    more = f"a multiple of {groups} GPUs (--gpus {groups}x…)"
    return f"{more}, or a divisor of {ranks}" if ranks > 1 else more


def _check_dispatch(gaps: RequestResolver, mesh: Mesh, engine: Engine) -> None:
    """Tokens are sent where experts are dealt to ranks (``READ_IN``; SGLang v0.5.23
    arg_groups/overrides.py:1611).
    """
    if gaps.request.get("serving.dispatch") != "deepep" or not engine.experts_whole:
        return
    ranks = int(mesh.tp)
    if int(mesh.ep) != ranks or ranks == 1:
        gaps.wrong(
            "serving.dispatch",
            "deepep",
            "sends tokens to experts that are dealt to all ranks",
            f"--ep {max(2, ranks)}",
        )
    elif ranks not in PEERS:
        gaps.wrong(
            "serving.dispatch",
            "deepep",
            f"has no sizes for {ranks} ranks",
            f"one of {', '.join(map(str, PEERS))}",
        )
