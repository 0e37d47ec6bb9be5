"""Speculative decoding as a plan has it: a method that the engine's release has, who drafts, and how many
tokens.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import PAGED_SERVER, drafting_servers
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, LatentAttention, LinearAttention, ModelSpec, Recurrent, StateSpace
from memsheet.plan.plan import Mesh, Speculative, SpeculativeMethod
from memsheet.plan.speculative import HEADS

METHOD = "speculative.method"
WITHOUT_MODEL = (SpeculativeMethod.MTP, SpeculativeMethod.NGRAM)


def speculative_of(
    gaps: RequestResolver,
    engine: Engine,
    mesh: Mesh,
    model: ModelSpec | None,
    *,
    sequences: int,
    real: bool = False,
) -> Speculative | None:
    """How tokens are drafted, None where they are not. Every problem is reported under the key that says it.
    ``real``: the model's own code is run, which drafts nothing.
    """
    named = gaps.request.get(METHOD)
    if named is None:
        return None
    method = SpeculativeMethod(named)
    if real:
        gaps.wrong(
            METHOD, named, "is not run: the model alone is", "leave it out; `memsheet infer` accounts it"
        )
    elif gaps.request.get("task") != "infer":
        gaps.wrong(METHOD, named, "has no meaning in train", "leave it out")
    elif gaps.request.get("phase") == "load":
        gaps.wrong(METHOD, named, "has no meaning before a model serves", "leave out phase")
    else:
        _check_engine(gaps, engine, mesh, method, sequences)
        _check_model(gaps, engine, method, model)
        _check_heads_cut(gaps, mesh, method, model)
    return Speculative(
        method=method,
        tokens=_speculative_tokens(gaps, engine, method, model),
        model=gaps.request.get("speculative.model"),
    )


def _speculative_tokens(
    gaps: RequestResolver, engine: Engine, method: SpeculativeMethod, model: ModelSpec | None
) -> int:
    """Tokens of a step: as the plan says; of a checkpoint's own heads as many as the engine takes, or as
    there are.
    """
    ahead = model.ahead if model else 0
    usual = (engine.drafting.steps or ahead) if method is SpeculativeMethod.MTP else None
    tokens: int | None = gaps.get("speculative.tokens", usual or None)
    if (
        tokens is None and method is not SpeculativeMethod.MTP
    ):  # without layers of its own it is refused for that
        gaps.wrong(
            "speculative.tokens",
            None,
            "is missing; what is verified at once depends on it",
            "for example --speculative-tokens 4",
        )
    elif (
        tokens is not None
        and method is SpeculativeMethod.MTP
        and engine.drafting.whole_rounds
        and ahead
        and tokens > ahead
        and tokens % ahead
    ):
        gaps.wrong(
            "speculative.tokens",
            tokens,
            (
                f"is no multiple of the checkpoint's {ahead} layers for further tokens, which {engine.name} "
                "asks for"
            ),
        )
    return tokens or 1


def _check_engine(
    gaps: RequestResolver, engine: Engine, mesh: Mesh, method: SpeculativeMethod, sequences: int
) -> None:
    """What the engine's release has, and the cuts under which it was read."""
    drafting, version = engine.drafting, gaps.request.get("engine_version")
    methods = drafting.methods_of(version)
    if method not in methods:
        others = drafting_servers()
        has = (
            f"modelled there: {', '.join(m.value for m in methods)}"
            if methods
            else f"{', '.join(others[:-1])} and {others[-1]} have some"
        )
        gaps.wrong(
            METHOD,
            method.value,
            f"is not modelled for {engine.name} {version or ''}".rstrip(),
            has,
        )
    if "pp" not in drafting.axes and mesh.pp > 1:
        gaps.wrong(
            "mesh.pp", mesh.pp, f"is not modelled with speculative decoding in {engine.name}", "one stage"
        )
    if "tp" not in drafting.axes and mesh.tp > 1:
        gaps.wrong("mesh.tp", mesh.tp, f"is not modelled with an assistant model in {engine.name}", "one GPU")
    if drafting.sequences == 1 and sequences > 1:
        gaps.wrong(
            "serving.max_sequences",
            sequences,
            f"is more than the one sequence that {engine.name} drafts for",
            "--sequences 1",
        )
    if mesh.attn_dp > 1:
        gaps.wrong(
            METHOD, method.value, "is not modelled with data-parallel attention", "leave one of them out"
        )
    if gaps.request.get("serving.max_loras"):
        gaps.wrong(METHOD, method.value, "is not modelled with served adapters", "leave one of them out")
    given = gaps.request.get("speculative.tp")
    if given not in (None, mesh.tp):
        gaps.wrong(
            "speculative.tp",
            given,
            f"is not how {engine.name} cuts a draft: over the {mesh.tp} ranks that cut the model",
            "leave it out",
        )


def _check_model(
    gaps: RequestResolver, engine: Engine, method: SpeculativeMethod, model: ModelSpec | None
) -> None:
    """Whether there is somebody who drafts, with the same words."""
    name = gaps.request.get("speculative.model")
    if model is None:
        gaps.wrong(METHOD, method.value, "needs the model's layers", "name a model")
        return
    if method in WITHOUT_MODEL:
        _check_heads(gaps, method, model, name)
    elif name is None or model.draft is None:
        what = (
            "a smaller model of the same vocabulary"
            if method is SpeculativeMethod.DRAFT
            else "the folder or config.json of a head"
        )
        gaps.wrong(
            "speculative.model",
            name,
            f"is missing: {method.value} drafts with {what}",
            f"--draft-model {'qwen3-0.6b' if method is SpeculativeMethod.DRAFT else 'HEAD'}",
        )
    elif (
        method is SpeculativeMethod.DRAFT
        and abs(model.draft.vocab - model.vocab) > engine.drafting.vocabulary_gap
    ):
        reason = f"has a vocabulary of {model.draft.vocab:,}, not the {model.vocab:,} of {model.name}"
        gaps.wrong("speculative.model", name, reason, "a smaller model of the same family")
    elif method is SpeculativeMethod.DRAFT:
        _check_length(gaps, engine, model, model.draft)
    states = any(isinstance(m, StateSpace | LinearAttention | Recurrent) for m in model.mixers())
    if states and not engine.drafting.keeps_states:
        gaps.wrong(
            METHOD,
            method.value,
            f"keeps recurrent states of every drafted token, which is not modelled for {engine.name}",
            f"--engine {PAGED_SERVER}",
        )


def _check_heads_cut(
    gaps: RequestResolver, mesh: Mesh, method: SpeculativeMethod, model: ModelSpec | None
) -> None:
    """A draft is cut over the ranks that cut the model, and so are its heads."""
    draft = model.draft if model is not None and method not in WITHOUT_MODEL else None
    blocks = draft.blocks() if draft else []
    for heads in sorted(
        {m.heads for block in blocks for m in block.mixers if isinstance(m, Attention | LatentAttention)}
    ):
        if heads % int(mesh.tp):
            reason = f"has {heads} attention heads, which {mesh.tp} tensor-parallel ranks do not divide"
            gaps.wrong(
                "speculative.model",
                gaps.request.get("speculative.model"),
                reason,
                "another draft, or fewer ranks",
            )


def _check_length(gaps: RequestResolver, engine: Engine, model: ModelSpec, draft: ModelSpec) -> None:
    """A sequence longer than the draft was made for, to which newer releases shorten all of them."""
    length = (
        gaps.request.get("serving.max_model_len") or gaps.request.get("seq_len") or model.max_positions or 0
    )
    limit = draft.max_positions
    if limit and length > limit and engine.drafting.shortens(gaps.request.get("engine_version")):
        reason = f"exceeds the {limit:,} positions of {draft.name}, to which {engine.name} shortens it"
        gaps.wrong("serving.max_model_len", length, reason, f"--max-model-len {limit}")


def _check_heads(
    gaps: RequestResolver, method: SpeculativeMethod, model: ModelSpec, name: str | None
) -> None:
    if name is not None:
        gaps.wrong(
            "speculative.model",
            name,
            f"has no place in {method.value}, which drafts by itself",
            "leave it out",
        )
    if method is SpeculativeMethod.NGRAM:
        return
    kinds = {block.kind for block in model.blocks()}
    if not model.ahead:
        gaps.wrong(
            METHOD,
            method.value,
            f"needs layers for further tokens, and the config of {model.name} names none",
            "draft or eagle3",
        )
    elif not kinds & HEADS:
        gaps.wrong(
            METHOD,
            method.value,
            f"of {model.model_type} is not modelled yet",
            f"modelled: {', '.join(sorted(HEADS))}",
        )
