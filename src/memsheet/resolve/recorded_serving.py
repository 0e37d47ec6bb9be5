"""Models that nobody has written down: which servers take their code over, and what of a plan they refuse."""

from __future__ import annotations

from memsheet.plan.dtypes import MXFP4
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, LatentAttention, LinearAttention, ModelSpec
from memsheet.plan.packages import TRANSFORMERS
from memsheet.plan.plan import Plan
from memsheet.plan.serving_facts import LibraryCode
from memsheet.plan.speculative import version_of
from memsheet.recording import DECODER

KNOWN_LAYOUTS = (Attention, LatentAttention, LinearAttention)


def check_recorded_serving(gaps: RequestResolver, plan: Plan, engine: Engine, model: ModelSpec) -> None:
    """A model that nobody has written down generates as the library runs its code, on one device, or as a
    server does that takes this code over.
    """
    kind = model.model_type
    if not engine.limits.library_modules:
        _check_inherited_limits(gaps, plan, engine, model)
    elif plan.mesh.gpus > 1:
        why = f"are more than the one device that {kind}'s own code is on record for"
        gaps.wrong("mesh", plan.mesh.gpus, why, "--gpus 1x…")
    if engine.limits.library_modules and plan.cache.kv_dtype is not plan.precision.compute:
        why = f"is not how the cache of {kind} is on record"
        gaps.wrong("cache.kv_dtype", plan.cache.kv_dtype and plan.cache.kv_dtype.name, why, "leave it out")
    if plan.speculative is not None:
        why = f"is not on record for {kind}"
        gaps.wrong("speculative.method", plan.speculative.method, why, "leave it out")


def _check_inherited_limits(gaps: RequestResolver, plan: Plan, engine: Engine, model: ModelSpec) -> None:
    kind, mesh, code = model.model_type, plan.mesh, engine.serving.library_code
    if why := unserved_reason(engine, model):
        gaps.wrong("engine", engine.name, why, "--engine transformers, on one GPU")
        return
    assert code is not None
    assert model.recording is not None
    assert model.recording.handing is not None
    if version_of(gaps.request.get("engine_version")) < code.since:
        why = f"was read for {kind} at {code.tag} alone"
        gaps.wrong("engine_version", gaps.request.get("engine_version"), why, "leave it out")
    if mesh.pp > 1 or mesh.attn_dp > 1:
        why = f"is not modelled for {kind}, whose layers nobody has written down"
        field = "pp" if mesh.pp > 1 else "attn_dp"
        gaps.wrong(f"mesh.{field}", getattr(mesh, field), why, "--tp")
    own = model.recording.handing.architecture in code.own
    if mesh.tp > 1 and not own:
        _check_inherited_ranks(gaps, mesh.tp, code, model)
    if plan.quantization is not None and plan.quantization.weights is MXFP4 and not own:
        why = f"is not taken where {engine.name} runs transformers' code, as it does {kind}'s"
        gaps.wrong("quantization.weights", "mxfp4", why, "another format")
    if plan.served_adapters is not None:
        why = f"beside {kind} are not modelled, whose layers nobody has written down"
        gaps.wrong("serving.adapters", int(plan.served_adapters.slots), why, "leave them out")


def _check_inherited_ranks(gaps: RequestResolver, tp: int, code: LibraryCode, model: ModelSpec) -> None:
    assert model.recording is not None
    handing = model.recording.handing
    if handing is not None and code.plan_words is not None and not handing.plan_words:
        why = f"GPUs need a tensor-parallel plan, and the config of {model.model_type} has none ({code.tag})"
        gaps.wrong("mesh.tp", tp, why, "--tp 1")
    heads = {mixer.kv_heads for mixer in model.mixers() if isinstance(mixer, Attention)}
    if not code.repeats_heads and any(count % tp for count in heads):
        why = f"does not divide the {min(heads)} key/value heads, which {code.tag} does not repeat here"
        gaps.wrong("mesh.tp", tp, why, f"--tp {min(heads)}")


def unserved_reason(engine: Engine, model: ModelSpec) -> str:
    """Why a server does not run a model that nobody has written down, or why nobody here knows how; empty
    where it does.
    """
    code, recording = engine.serving.library_code, model.recording
    assert recording is not None
    kind, handing = model.model_type, recording.handing
    if code is None or handing is None:
        return f"serves {kind} by code of its own, or not at all, and that is not written down here"
    own = handing.architecture in code.own
    if not own and not (handing.declares or (handing.dispatches and not code.asks_declared)):
        return (
            f"has no code for {kind}, and transformers' does not let a server run its attention "
            f"({code.tag} refuses it)"
        )
    if not handing.causal or recording.stacks != DECODER:
        return f"serves decoders here, and {kind} attends both ways or reads an encoder: not modelled"
    if not own and code.asks_every_layer and None in handing.attention:
        return (
            f"has no code for {kind}, and refuses transformers' for layers that do not hand their attention "
            f"over ({code.tag}, {code.file})"
        )
    words = sorted(set(handing.plan_words) - (code.plan_words or set()))
    if not own and code.plan_words is not None and words:
        version = recording.versions.get(TRANSFORMERS, "")
        return (
            f"has no code for {kind}, and {code.tag} raises on {words[0]}, a word of the plan for tensor "
            f"parallelism that transformers {version} has for it"
        )
    read = Attention if handing.architecture not in code.layouts else KNOWN_LAYOUTS
    if not all(isinstance(mixer, read) for mixer in model.mixers()):
        return (
            f"keeps of {kind} more than keys and values in heads, in a layout that is not written down here"
        )
    return ""
