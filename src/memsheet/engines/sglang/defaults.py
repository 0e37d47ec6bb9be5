"""What SGLang alone refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.engines.sglang.adapter_room import sglang_adapters
from memsheet.engines.sglang.facts import ATTENTION_GROUPS, GROUPS_SINCE, UNEQUAL_SINCE, release_of
from memsheet.engines.sglang.options import SglangOptions
from memsheet.engines.sglang.releases import version_of
from memsheet.engines.sglang.vision_share import WITHOUT_CONFIG, has_vision_config, leaves_share, vision_share
from memsheet.plan.engine import EngineRules
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Mesh

SHARE = "serving.memory_fraction"


def _check_mesh(gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None) -> None:
    version = version_of(gaps.request.get("engine_version"))
    sends = gaps.request.get("serving.dispatch") == "deepep" and not gaps.is_wrong("serving.dispatch")
    if sends and version < UNEQUAL_SINCE:
        gaps.wrong("serving.dispatch", "deepep", "was read at sglang 0.5.23 alone", "that release")
    if mesh.attn_dp > 1 and int(mesh.tp) % int(mesh.attn_dp) == 0:
        _check_groups(gaps, mesh, model, version)


def _check_groups(
    gaps: RequestResolver, mesh: Mesh, model: ModelSpec | None, version: tuple[int, ...]
) -> None:
    groups = int(mesh.attn_dp)
    kinds = {block.kind for block in model.blocks()} if model else set()
    if other := sorted(kinds - ATTENTION_GROUPS):
        gaps.wrong(
            "mesh.attn_dp",
            groups,
            f"is not what sglang's code of {other[0]} cuts attention over",
            "--dp-replicate, or --tp alone",
        )
    if version < GROUPS_SINCE:
        gaps.wrong("mesh.attn_dp", groups, "was read from sglang 0.4.6 on", "a newer --engine-version")
    elif version < UNEQUAL_SINCE and groups != int(mesh.tp):
        gaps.wrong(
            "mesh.attn_dp",
            groups,
            "with several ranks a group was read at sglang 0.5.23 alone",
            f"--attn-dp {mesh.tp}, or that release",
        )


def _own_options(gaps: RequestResolver) -> SglangOptions:
    """The options that only SGLang has."""
    return SglangOptions(
        dp_lm_head=bool(gaps.request.get("serving.dp_lm_head")),
        graph_sequences=gaps.request.get("serving.graph_sequences"),
        state_slots=gaps.request.get("serving.state_slots"),
        state_ratio=gaps.request.get("serving.state_ratio"),
        pool_tokens=gaps.get("serving.pool_tokens", 0, silent=True),
        host_kv_gib=gaps.get("serving.host_kv_gib", 0, silent=True),
        host_kv_ratio=gaps.get("serving.host_kv_ratio", 0, silent=True),
        attention_kernels=gaps.request.get("serving.attention_kernels"),
    )


def _has_unread_tower(model: ModelSpec) -> bool:
    """Of a recorded model: matrices beside its layers, which may be an encoder of pictures."""
    return (
        model.recording is not None
        and model.model_type not in WITHOUT_CONFIG
        and any(weight.role is Role.LINEAR for weight in model.extras)
    )


def _usual_options(
    gaps: RequestResolver, model: ModelSpec | None, usual: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A share of memory that nobody says is lowered for models with an encoder of pictures."""
    if model is None or gaps.request.get(SHARE) is not None:
        return usual
    release = release_of(gaps.request.get("engine_version"))
    if _has_unread_tower(model) or (has_vision_config(model) and not leaves_share(release)):
        where = "an encoder whose size is not read here" if leaves_share(release) else "pictures"
        reason = f"is lowered for {where} by a rule that is not modelled for {release.tag}"
        gaps.wrong(SHARE, None, reason, "give it, for example --memory-fraction 0.8")
        return usual
    return {**usual, SHARE: usual[SHARE] * vision_share(model)}


RULES = EngineRules(
    own_options=_own_options,
    usual_options=_usual_options,
    check_mesh=_check_mesh,
    served_adapters=sglang_adapters,
)
