"""LoRA adapters that a server keeps room for: how many, of which rank, on which layers, by what each engine
takes where nobody says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memsheet.engines.sglang.facts import version_of
from memsheet.engines.shared.served_lora import (
    ADAPTERS,
    RANK,
    SGLANG_ADAPTERS,
    SGLANG_JOINED,
    SGLANG_SINCE,
    SGLANG_TAG,
    VLLM_JOINED,
    Facts,
    facts_of,
)
from memsheet.engines.vllm.facts import release_of
from memsheet.plan.dtypes import BF16, FP16, FP32, DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts, linear_names, router_names
from memsheet.plan.model import LatentAttention, LinearAttention, ModelSpec, Recurrent, StateSpace
from memsheet.plan.plan import Mesh, Precision, ServedAdapters
from memsheet.resolve.adapters import targets_of

ALL_LINEAR, ENDS, EXPERTS = "all-linear", ("embed_tokens", "lm_head"), "experts"
ROOM = ("serving.max_loras", "serving.max_cpu_loras", "serving.fully_sharded_loras")
WANTED = ("adapter.rank", "serving.max_loras")


def served_adapters_of(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters | None:
    """The room that is asked for; None where no adapter is, which costs nothing."""
    asked = [gaps.request.get(key) for key in WANTED]
    if gaps.request.get("task") != "infer":
        for key in (key for key in ROOM if gaps.request.get(key) and key in engine.models):
            gaps.wrong(key, gaps.request[key], "has no meaning in train", "leave it out")
        return None
    if engine.name not in BY_ENGINE or asked == [None, None] or asked[1] == 0:
        for key in (
            key
            for key in ROOM[1:]
            if gaps.request.get(key) and key in engine.models and engine.name in BY_ENGINE
        ):
            gaps.wrong(
                key, gaps.request[key], "is of adapters, and there is room for none", "add --lora-rank 16"
            )
        return None
    kind = gaps.request.get("adapter.kind")
    if kind not in (None, "lora"):
        gaps.wrong("adapter.kind", kind, f"is not modelled for adapters that {engine.name} serves", "lora")
    if model is not None:
        _of_family(gaps, engine, model)
    if mesh.attn_dp != 1:
        gaps.wrong(
            "mesh.attn_dp",
            mesh.attn_dp,
            "is not modelled beside served adapters",
            "leave it out, or leave the adapters out",
        )
    return BY_ENGINE[engine.name](gaps, model, mesh, precision)


def _of_family(gaps: RequestResolver, engine: Engine, model: ModelSpec) -> None:
    mixers = model.mixers()
    if any(isinstance(mixer, StateSpace | LinearAttention | Recurrent) for mixer in mixers):
        what = "has recurrent layers, whose joined projections have adapters of another shape"
        gaps.wrong(
            "adapter.rank",
            gaps.request.get("adapter.rank"),
            f"is not modelled: {model.name} {what}",
            "leave the adapters out",
        )
    if engine.name == "sglang" and any(
        isinstance(m, LatentAttention) and m.q_lora_rank is None for m in mixers
    ):
        why = f"is not modelled: {model.name} has latent attention with queries of full rank"
        gaps.wrong("adapter.rank", gaps.request.get("adapter.rank"), why, "leave the adapters out")


def _adapter_slots(
    gaps: RequestResolver,
    slots: int,
    rank: int | None,
    dtype: DType,
    targets: tuple[str, ...] | None,
    *,
    sharded: bool = False,
) -> ServedAdapters:
    """``slots``: as many as the engine takes where nobody says."""
    count = gaps.get("serving.max_loras", slots)
    host = gaps.get("serving.max_cpu_loras", count, silent=True)
    if host < count:
        gaps.wrong(
            "serving.max_cpu_loras",
            host,
            f"is below max_loras {count}, all of which the host keeps too",
            f"{count} or more",
        )
    return ServedAdapters(
        slots=count, rank=rank or 0, targets=targets, dtype=dtype, host=host, sharded=sharded
    )


def _adapter_dtype(gaps: RequestResolver, usual: DType, allowed: Iterable[DType], engine: str) -> DType:
    given = gaps.request.get("adapter.dtype")
    found = dtype_named(given) if given is not None else None
    names = {dtype.name for dtype in (usual, *allowed)}
    if found is not None and found.name not in names:
        gaps.wrong(
            "adapter.dtype", given, f"is not what {engine} keeps adapters in", ", ".join(sorted(names))
        )
    return found or usual


# ---- vLLM --------------------------------------------------------------------------------------------------


def _vllm_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    release = release_of(gaps.request.get("engine_version"))
    facts = facts_of(release.since)
    rank: int = gaps.get("adapter.rank", RANK)
    sharded = bool(gaps.request.get("serving.fully_sharded_loras"))
    dtype = _adapter_dtype(gaps, precision.compute, (BF16, FP16), "vllm")
    if facts is None:
        gaps.wrong(
            "engine_version",
            gaps.request.get("engine_version"),
            "is older than what was read of vllm's adapters",
            "0.8 or newer",
        )
        return _adapter_slots(gaps, ADAPTERS, rank, dtype, None)
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
        _vllm_model(gaps, facts, model, mesh, sharded=sharded)
    return _adapter_slots(gaps, ADAPTERS, rank, dtype, _vllm_targets(gaps, facts, model), sharded=sharded)


def _vllm_model(gaps: RequestResolver, facts: Facts, model: ModelSpec, mesh: Mesh, *, sharded: bool) -> None:
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


def _vllm_targets(gaps: RequestResolver, facts: Facts, model: ModelSpec | None) -> tuple[str, ...] | None:
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
        _check_target_names(
            gaps,
            given,
            {
                *linear_names(model),
                *router_names(model),
                EXPERTS,
                *ENDS,
                *(joined for joined, _ in VLLM_JOINED),
            },
            model,
        )
    return None if not facts.chosen or given is None or list(given) == [ALL_LINEAR] else tuple(given)


def _check_target_names(
    gaps: RequestResolver, given: Iterable[str], known: set[str], model: ModelSpec
) -> None:
    for name in given:
        if name not in known:
            gaps.wrong(
                "adapter.targets",
                name,
                f"names no layer of {model.name} that may have one",
                f"it has {', '.join(sorted(known))}",
            )


# ---- SGLang ------------------------------------------------------------------------------------------------


def _sglang_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    if version_of(gaps.request.get("engine_version")) < SGLANG_SINCE:
        what = f"is older than what was read of sglang's adapters ({SGLANG_TAG})"
        gaps.wrong("engine_version", gaps.request.get("engine_version"), what, "leave it out")
    rank = gaps.request.get("adapter.rank")
    if rank is None:
        gaps.wrong(
            "adapter.rank",
            None,
            "is missing: sglang has room for no rank by itself",
            "for example --lora-rank 16",
        )
    if mesh.pp > 1:
        gaps.wrong(
            "mesh.pp",
            mesh.pp,
            "is not modelled beside served adapters in sglang, where each stage has room for all layers",
            "--tp",
        )
    if gaps.request.get("speculative.method") == "draft":  # v0.5.23 arg_groups/lora_hook.py:252
        gaps.wrong(
            "speculative.method", "draft", "does not go with served adapters in sglang", "eagle, or ngram"
        )
    dtype = _adapter_dtype(gaps, precision.compute, (), "sglang")
    given = gaps.request.get("adapter.targets")
    if given is None or list(given) == [ALL_LINEAR]:
        gaps.assumed.append(
            "adapter.targets = all that sglang knows, ends included (--lora-target-modules all)"
        )
        return _adapter_slots(gaps, SGLANG_ADAPTERS, rank, dtype, None)
    if model is not None:
        present = {
            *linear_names(model),
            *ENDS,
            *(("gate_proj", "up_proj", "down_proj", "gate_up_proj") if has_experts(model) else ()),
        }
        _check_target_names(
            gaps, given, {name for name in SGLANG_JOINED if name in present or name == "qkv_proj"}, model
        )
    return _adapter_slots(gaps, SGLANG_ADAPTERS, rank, dtype, tuple(given))


# ---- transformers with peft, llama.cpp ---------------------------------------------------------------------


def _peft_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    """Adapters that are loaded and not merged, in fp32 unless peft is told to leave them
    (autocast_adapter_dtype).
    """
    if mesh.tp > 1:
        gaps.wrong(
            "mesh.tp",
            mesh.tp,
            "is not modelled beside peft's adapters",
            "--pp, or merge the adapter, which then costs nothing",
        )
    dtype = _adapter_dtype(gaps, FP32, (precision.parameters,), "peft")
    engine = find_engine("transformers")
    assert engine is not None
    return _loaded_adapters(gaps, dtype, targets_of(gaps, model, engine))


def _llama_cpp(gaps: RequestResolver, model: ModelSpec | None, _: Mesh, __: Precision) -> ServedAdapters:
    """Files of adapters, each in the type it was converted to (ggml-org/llama.cpp 0b03adaa
    convert_lora_to_gguf.py: f32 unless told otherwise).
    """
    dtype = _adapter_dtype(gaps, FP32, (FP16, BF16), "llama.cpp")
    given = gaps.request.get("adapter.targets")
    if given is None or list(given) == [ALL_LINEAR]:
        gaps.assumed.append("adapter.targets = every linear layer (what the files have is what is loaded)")
        return _loaded_adapters(gaps, dtype, None)
    if model is not None:
        _check_target_names(gaps, given, linear_names(model), model)
    return _loaded_adapters(gaps, dtype, tuple(given))


def _loaded_adapters(gaps: RequestResolver, dtype: DType, targets: tuple[str, ...] | None) -> ServedAdapters:
    """As many as are loaded, none of which stays on the host."""
    rank = gaps.request.get("adapter.rank")
    if rank is None:
        gaps.wrong(
            "adapter.rank",
            None,
            "is missing: an adapter has the rank it was trained with",
            "for example --lora-rank 16",
        )
    gaps.assumed.append(f"adapter.dtype = {dtype.name}") if gaps.request.get(
        "adapter.dtype"
    ) is None else None
    return ServedAdapters(
        slots=gaps.get("serving.max_loras", ADAPTERS), rank=rank or 0, targets=targets, dtype=dtype, host=0
    )


BY_ENGINE: dict[str, Callable[[RequestResolver, ModelSpec | None, Mesh, Precision], ServedAdapters]] = {
    "vllm": _vllm_adapters, "sglang": _sglang_adapters, "transformers": _peft_adapters, "llama.cpp": _llama_cpp,
}  # fmt: skip
"""Engines whose served adapters are modelled."""
