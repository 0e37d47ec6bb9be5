"""What transformers refuses or decides by a model's family and the cards: attention, tensor parallelism,
lengths, old cards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.engine_registry import ONE_GPU, find_engine, pool_servers, rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import FLASH_UNITS, is_older_device
from memsheet.plan.layers import ends_with_table
from memsheet.plan.model import Attention, CrossAttention, LatentAttention, ModelSpec
from memsheet.plan.plan import AttentionKind, Mesh
from memsheet.plan.speculative import version_of
from memsheet.plan.verified_families import NO_SDPA, WRITES_SCORES
from memsheet.plan.workload import KvCache, Serving, Workload


def kinds_of(model: ModelSpec | None) -> set[str]:
    """The families whose code runs a model's layers (of a multimodal model: its text model's)."""
    return {block.kind for block in model.blocks()} if model else set()


def _without_sdpa(model: ModelSpec) -> list[str]:
    """Kinds of a model's layers that have no fused attention in the library."""
    if model.recording is not None:
        return [model.model_type] if model.recording.eager_only else []
    return sorted(kinds_of(model) & NO_SDPA)


def attention_of(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, cluster: Cluster | None = None
) -> AttentionKind:
    """The engine's first; eager where its code is the library's and the family has no sdpa; on cards without
    FlashAttention what else the engine has, none of which makes a matrix of scores: FlashInfer's or Triton's
    kernels where pages are served (``READ_IN``; SGLang's server_args.py,
    _handle_attention_backend_compatibility: FlashInfer where it is installed, else Triton; Triton for latent
    attention).
    """
    serves = gaps.request.get("task") == "infer" and not engine.limits.library_modules
    library = engine.layers is None and not serves
    without = _without_sdpa(model) if library and model is not None else []
    written = bool(without) or (library and model is not None and model.source.own_code in WRITES_SCORES)
    first = engine.attention[0]
    if engine.usual_attention is not None and model is not None and not model.source.own_code:
        first = engine.usual_attention(kinds_of(model), gaps.request.get("engine_version"))
    default = AttentionKind.EAGER if written and AttentionKind.EAGER in engine.attention else first
    old = (
        cluster is not None and not engine.limits.own_kernels and is_older_device(cluster.device, FLASH_UNITS)
    )
    if (
        old and default is AttentionKind.FLASH
    ):  # TransformerEngine leaves its unfused one there (dot_product_attention/utils.py)
        default = next(
            (kind for kind in (AttentionKind.SDPA, AttentionKind.EAGER) if kind in engine.attention), default
        )
    kind: AttentionKind = gaps.choice("attention", default, engine.attention, engine.name)
    if kind is AttentionKind.XFORMERS and gaps.request.get("task") == "infer":
        gaps.wrong("attention", kind.value, "is not modelled in generation", "give --attention sdpa")
    if without and kind is AttentionKind.SDPA:
        gaps.wrong(
            "attention",
            kind.value,
            f"does not exist for {without[0]} in transformers, which raises",
            "give --attention eager",
        )
    return kind


def check_positions(gaps: RequestResolver, key: str, tokens: int | None, model: ModelSpec | None) -> None:
    """A table of learned positions ends where it ends; rotary positions go on."""
    if model and tokens and model.max_positions and tokens > model.max_positions and ends_with_table(model):
        gaps.wrong(key, tokens, f"exceeds the {model.max_positions} learned positions of {model.name}")


def missing_compute_capability(engine: Engine, method: str, cluster: Cluster | None) -> str:
    """The capability that a stored format needs where the cluster's cards are older, else nothing. Other
    vendors' cards have no such number.
    """
    capability = cluster.device.compute_capability if cluster else None
    major, _, minor = (capability or "").partition(".")
    needed = engine.serving.dequantizes_below.get(method)
    if needed is None or not (major.isdigit() and minor.isdigit()) or (int(major), int(minor)) >= needed:
        return ""
    return f"{needed[0]}.{needed[1]}"


def serves_in_pages(model: ModelSpec | None) -> bool:
    """Whether a server with a pool of pages is what a model is usually served by: a decoder that reads no
    other sequence.
    """
    stacks = model.stacks if model else ()
    mixers = (
        mixer for stack in stacks for run in stack.runs for block in run.pattern for mixer in block.mixers
    )
    encoder = any(stack.role == "encoder" for stack in stacks) or any(
        isinstance(mixer, CrossAttention) for mixer in mixers
    )
    return model is not None and model.head.kind == "causal_lm" and not encoder


POOLED_HEADS = ("none", "classification")


def check_decodes(gaps: RequestResolver, engine: Engine, model: ModelSpec | None, task: str) -> None:
    """A server that makes one token after another serves models that do, and perhaps encoders for what they
    make of a whole text; a picture's classifier has nothing to keep for the next.
    """
    if task != "infer" or model is None or engine.limits.library_modules or not model.stacks:
        return
    decodes = any(stack.role == "decoder" for stack in model.stacks)
    pooled = kinds_of(model) <= engine.serving.pooled or _is_causal(model)
    if not decodes and model.head.kind in POOLED_HEADS and pooled:
        return
    if not decodes:
        reason = (
            f"generates, and {model.name} is "
            f"{'a vision' if model.stacks[0].role == 'vision' else 'an'} encoder, which makes no "
            "tokens: serving it there is not modelled"
        )
        gaps.wrong("engine", engine.name, reason, "--engine transformers")


def _is_causal(model: ModelSpec) -> bool:
    """Whether all layers are a decoder's, which a server may read whole texts with."""
    mixers = [mixer for mixer in model.mixers() if isinstance(mixer, Attention)]
    return bool(mixers) and all(mixer.causal for mixer in mixers) and not model.towers


def check_served_families(gaps: RequestResolver, engine: Engine, model: ModelSpec | None, task: str) -> None:
    """A server has code for the families that it serves, and for some from or until a release alone."""
    version = version_of(gaps.request.get("engine_version"))
    first = _first_release(gaps, engine, model, task)
    if first is not None and model is not None and version < first:
        number = ".".join(map(str, first))
        has = "serves" if task == "infer" else "has"
        why = f"has no code for {model.model_type}, which {engine.name} {has} since {number}"
        gaps.wrong("engine_version", gaps.request.get("engine_version"), why, f"--engine-version {number}")
    own = {model.source.own_code} - {""} if model is not None else set()
    for kind in sorted(kinds_of(model) | own) if task == "infer" else ():
        found = engine.serving.unserved.get(kind)
        if found is not None and found.since <= version:
            reason = f"does not serve {kind} here, which {found.why}"
            gaps.wrong(
                "engine", engine.name, reason, found.hint or f"--engine {' or '.join(_serving_engines(kind))}"
            )


def _first_release(
    gaps: RequestResolver, engine: Engine, model: ModelSpec | None, task: str
) -> tuple[int, int, int] | None:
    """The release that first has code for a model, where an older one has none and the named version may be
    such a one.
    """
    facts, said = engine.serving, str(gaps.request.get("engine_version") or "")
    asked = task == "infer" or facts.trains_since
    if model is None or not asked or not re.match(facts.release_form, said):
        return None
    own_code = facts.trains_since and model.source.own_code
    return None if own_code else facts.served_since.get(model.model_type)


def _serving_engines(kind: str) -> list[str]:
    """Engines that have code for a family: servers of pages, else the library."""
    engines = [found for name in (*pool_servers(), ONE_GPU) if (found := find_engine(name)) is not None]
    able = [engine for engine in engines if kind not in engine.serving.unserved]
    servers = [engine.name for engine in able if engine.serving.pools_cache]
    return servers or [engine.name for engine in able]


def experts_split(gaps: RequestResolver, degrees: Mapping[str, int], engine: str) -> int:
    """Ranks that share one expert in a server: all tensor-parallel ones, or where experts are dealt (``ep``)
    those of one group, which is one where each rank is a group.
    """
    ep, etp, tp = degrees["ep"], degrees["etp"], degrees["tp"]
    found = find_engine(engine)
    grouped = found is not None and found.serving.cuts_dealt_experts
    ranks = [one for one in range(1, tp + 1) if tp % one == 0] if grouped else sorted({1, tp})
    if ep not in ranks:
        gaps.wrong(
            "mesh.ep",
            ep,
            f"is not how {engine} deals experts: "
            f"{'over as many groups as divide the ranks' if grouped else 'over all ranks or none'}",
            f"one of {', '.join(map(str, ranks))}",
        )
    if etp not in (1, tp):
        gaps.wrong(
            "mesh.etp",
            etp,
            f"does not exist in {engine}, which cuts an expert over all {tp} ranks or not at all",
            "leave it out",
        )
    return max(1, tp // ep) if grouped else 1 if ep > 1 else tp


def usual_options(
    gaps: RequestResolver, engine: Engine, mesh: Mesh, model: ModelSpec | None, cluster: Cluster | None
) -> Mapping[str, Any]:
    """What a server with a pool of pages takes where the plan says nothing; empty for engines without one."""
    if engine.served is None:
        return {}
    latents = [mixer for mixer in model.mixers() if isinstance(mixer, LatentAttention)] if model else []
    sparse = any(mixer.index_dim for mixer in latents)
    device = cluster.device if cluster else None
    usual = engine.served(gaps.request, device, mesh, latent=bool(latents), sparse=sparse, model=model)
    return rules_of(engine.name).usual_options(gaps, model, usual)


def workload_groups(
    gaps: RequestResolver,
    usual: Mapping[str, Any],
    engine: Engine,
    model: ModelSpec | None,
    cache: KvCache,
    workload: Workload,
) -> dict[str, Any]:
    """The workload with the rest of its lengths, the pool of a server's cache, the engine's own options."""
    options = rules_of(engine.name).own_options(gaps)
    if not isinstance(workload, Serving):
        return {"workload": workload, "cache": cache, "options": options}
    serving = replace(
        workload,
        prompt_tokens=gaps.get("serving.prompt_tokens", silent=True),
        output_tokens=gaps.get("serving.output_tokens", silent=True),
        max_batched_tokens=_usual_batch(gaps, engine),
    )
    if not usual:
        return {"workload": serving, "cache": cache, "options": options}
    loading = gaps.request.get("phase") == "load"
    batched, page, fraction = (
        gaps.get(f"serving.{field}", usual[f"serving.{field}"], silent=loading)
        for field in ("max_batched_tokens", "page_tokens", "memory_fraction")
    )
    rules_of(engine.name).check_pages(gaps, page, model)
    if fraction == 0:
        gaps.wrong("serving.memory_fraction", 0, "leaves the engine nothing", "for example 0.9")
    shared = int(gaps.request.get("serving.shared_prefix_tokens") or 0)
    return {
        "workload": replace(serving, max_batched_tokens=batched, shared_prefix_tokens=shared),
        "cache": replace(cache, page_tokens=page, memory_fraction=fraction),
        "options": _pooled_options(gaps, options),
    }


def _usual_batch(gaps: RequestResolver, engine: Engine) -> int | None:
    """Tokens that a server without a pool of pages computes at once."""
    usual = engine.serving.batched_tokens
    tokens: int | None = None if usual is None else gaps.get("serving.max_batched_tokens", usual)
    return tokens


def _pooled_options(gaps: RequestResolver, options: EngineOptions) -> EngineOptions:
    """With what servers of a pool of pages have alike."""
    given = (gaps.request.get(key) for key in ("serving.cuda_graphs", "cuda_graphs"))
    return replace(
        options,
        captures=bool(next((value for value in given if value is not None), True)),
        dispatch=gaps.request.get("serving.dispatch") or "gather",
        dp_dense=bool(gaps.request.get("serving.dp_dense")),
    )
