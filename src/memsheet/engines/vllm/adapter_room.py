"""The room for adapters that vLLM keeps: which ranks, models and layers its releases take."""

from __future__ import annotations

from memsheet.engines.shared.adapter_room import ENDS, adapter_dtype, adapter_slots, check_target_names
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.lora_releases import ADAPTERS, JOINED, RANK, Facts, facts_of
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.dtypes import BF16, FP16
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts, linear_names, router_names
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Precision, ServedAdapters

EXPERTS = "experts"


def vllm_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    release = release_of(gaps.request.get("engine_version"))
    facts = facts_of(release.since)
    rank: int = gaps.get("adapter.rank", RANK)
    sharded = bool(gaps.request.get("serving.fully_sharded_loras"))
    dtype = adapter_dtype(gaps, precision.compute, (BF16, FP16), "vllm")
    if facts is None:
        gaps.wrong(
            "engine_version",
            gaps.request.get("engine_version"),
            "is older than what was read of vllm's adapters",
            "0.8 or newer",
        )
        return adapter_slots(gaps, ADAPTERS, rank, dtype, None)
    if rank not in facts.ranks:
        larger = next((one for one in facts.ranks if one >= rank), facts.ranks[-1])
        gaps.wrong(
            "adapter.rank",
            rank,
            f"is no --max-lora-rank of vllm: {', '.join(map(str, facts.ranks))}",
            f"--lora-rank {larger} has room for it",
        )
    if sharded and rank % int(mesh.tp):
        gaps.wrong(
            "adapter.rank",
            rank,
            f"is not divided by the {mesh.tp} ranks that fully_sharded_loras cuts it over",
        )
    if model is not None:
        _check_model(gaps, facts, model, mesh, sharded=sharded)
    return adapter_slots(gaps, ADAPTERS, rank, dtype, _room_targets(gaps, facts, model), sharded=sharded)


def _check_model(gaps: RequestResolver, facts: Facts, model: ModelSpec, mesh: Mesh, *, sharded: bool) -> None:
    rank = gaps.request.get("adapter.rank")
    if model.model_type in facts.without:
        gaps.wrong(
            "adapter.rank",
            rank,
            (
                f"does not go with {model.name}: vllm's code of {model.model_type} takes no adapters "
                "(as read "
                f"at {facts.tag})"
            ),
        )
    if mesh.ep > 1 and has_experts(model) and facts.experts and (sharded or not facts.expert_parallel):
        beside = "fully_sharded_loras" if sharded else f"served adapters (as read at {facts.tag})"
        gaps.wrong("mesh.ep", mesh.ep, f"does not go with {beside} in vllm", "ep 1")
    ends = model.model_type in facts.both and gaps.request.get("adapter.targets") is None
    if ends and model.head.width > facts.largest_vocabulary:
        gaps.wrong(
            "adapter.rank",
            rank,
            (
                f"does not go with a vocabulary of {model.head.width}: vllm has adapters of a head up to "
                f"{facts.largest_vocabulary}"
            ),
        )


def _room_targets(gaps: RequestResolver, facts: Facts, model: ModelSpec | None) -> tuple[str, ...] | None:
    """Layers with room: all, or those of ``--lora-target-modules`` with the layers that are joined with
    them.
    """
    given = gaps.request.get("adapter.targets")
    if not facts.chosen and given:
        gaps.assumed.append(f"vllm {facts.tag} has room on every linear layer, whatever adapter.targets are")
    elif given is None or list(given) == [ALL_LINEAR]:
        gaps.assumed.append(
            "adapter.targets = every linear layer (vllm has room on all of them, whatever an adapter has)"
        )
    else:
        gaps.assumed.append(
            f"--lora-target-modules {' '.join(given)} is given to vllm: without it every linear "
            "layer has room"
        )
    if model is not None and given and list(given) != [ALL_LINEAR]:
        check_target_names(
            gaps,
            given,
            {
                *linear_names(model),
                *router_names(model),
                EXPERTS,
                *ENDS,
                *(joined for joined, _ in JOINED),
            },
            model,
        )
    return None if not facts.chosen or given is None or list(given) == [ALL_LINEAR] else tuple(given)
