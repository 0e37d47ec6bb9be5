"""Sequences longer than a model was made for: which servers refuse them, and what is said where they run."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.errors import Problem
from memsheet.plan.engine_registry import engine_of, find_engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import version_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.sequence_length import derived_max_length
from memsheet.plan.serving_facts import LengthLimit


def refuses_long_context(engine: str, version: str | None) -> bool:
    """Whether an engine's release stops at a length beyond the model's."""
    limit = _limit_of(engine)
    return limit is not None and version_of(version) >= limit.since


def _limit_of(engine: str) -> LengthLimit | None:
    found = find_engine(engine)
    return found.serving.length_limit if found is not None else None


def too_long(
    engine: str, version: str | None, model: ModelSpec | None, key: str, tokens: int | None
) -> Iterator[Problem]:
    """The problem of a length that the engine refuses to start with."""
    most, limit = derived_max_length(model), _limit_of(engine)
    if (
        model is None
        or model.source.positions_open
        or limit is None
        or not refuses_long_context(engine, version)
        or not most
        or not tokens
        or tokens <= most
    ):
        return
    yield Problem(
        field=key,
        value=tokens,
        reason=f"exceeds the {most:,} positions of {model.name}: {engine} refuses to start",
        hint=(
            f"{FLAGS.get(key, key)} {most}, or a config.json with rope_scaling (YaRN) or more positions: "
            f"what {limit.lets}=1 lets through takes the same room"
        ),
        refused=True,
    )


def check_length(gaps: RequestResolver, engine: str, model: ModelSpec | None, tokens: int | None) -> None:
    """The same of a request, under the key that says its length, unless something else is wrong with that."""
    key = (
        "serving.max_model_len"
        if gaps.request.get("serving.max_model_len") or not gaps.request.get("seq_len")
        else "seq_len"
    )
    if not gaps.is_wrong(key):
        gaps.problems += too_long(engine, gaps.request.get("engine_version"), model, key, tokens)


FLAGS = {"serving.max_model_len": "--max-model-len", "seq_len": "--seq-len", "context": "--context"}


def length_notes(plan: Plan, model: ModelSpec) -> Iterator[str]:
    """What to know of a length that a server takes although the model was made for less."""
    most, tokens = derived_max_length(model), plan.serving.max_model_len
    divided = engine_of(plan).serving.shares_length and not getattr(plan.options, "kv_unified", False)
    if tokens is not None and divided:
        tokens = -(-int(tokens) // int(plan.serving.max_sequences or 1))  # of one sequence
    if (
        not refuses_long_context(plan.engine, plan.engine_version)
        and most
        and tokens is not None
        and tokens > most
    ):
        yield (
            f"{tokens:,} tokens are beyond the {most:,} that {model.name} was made for: {plan.engine} "
            "goes on, and answers may be worse"
        )
