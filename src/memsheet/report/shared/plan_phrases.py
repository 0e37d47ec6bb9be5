"""The choices of a plan that matter, a phrase each."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.arith import Count
from memsheet.plan.engine_options import option_keys
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Adapter, AdapterKind, Implementation, Plan, Speculative, SpeculativeMethod
from memsheet.plan.workload import Training
from memsheet.units import format_count


def format_parameter_count(count: int) -> str:
    for factor, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= factor:
            return f"{count / factor:.2f} {letter}"
    return format_count(count)


def writes_tokens(model: ModelSpec) -> bool:
    """Whether a model writes one token after another; an encoder reads a text once, and keeps no cache."""
    return not model.stacks or any(stack.role == "decoder" for stack in model.stacks)


def plan_choice_phrases(plan: Plan, program: str = "", *, writes: bool = True) -> Iterator[str]:
    """``program``: whose command it is, where the engine's accounting stands in for it; ``writes``: whether
    the model writes tokens.
    """
    yield f"{program}, accounted as {plan.engine}" if program else plan.engine
    trains = isinstance(plan.workload, Training)
    if trains:
        yield f"zero {plan.zero}"
    yield from (
        f"{axis} {degree}"
        for axis in ("dp_replicate", "dp_shard", "cp", "tp", "attn_dp", "pp", "vpp", "ep")
        if (degree := getattr(plan.mesh, axis)) != 1
    )
    yield from _training_choice_phrases(plan) if trains else _serving_choice_phrases(plan, writes=writes)
    if plan.quantization:
        yield f"{plan.quantization.weights.name} weights"
    if _sequence_length(plan):
        yield f"{plan.attention.value} attention"
    yield from drafting_words(plan.speculative)
    if any((plan.offload.optimizer, plan.offload.parameters, plan.offload.activations)):
        yield "offload " + "+".join(
            name for name in ("optimizer", "parameters", "activations") if getattr(plan.offload, name)
        )


def _sequence_length(plan: Plan) -> Count | None:
    """Tokens of a sequence where any are counted."""
    job = plan.workload
    return job.seq_len if isinstance(job, Training) else job.max_model_len


def _training_choice_phrases(plan: Plan) -> Iterator[str]:
    precision = plan.precision
    same = precision.parameters is precision.compute
    yield (
        precision.parameters.name
        if same
        else f"{precision.parameters.name} computed in {precision.compute.name}"
    )
    if plan.fp8:
        yield f"fp8 products ({plan.fp8.recipe})"
    if plan.optimizer:
        way = plan.optimizer.implementation
        whole = way is Implementation.DISTRIBUTED and plan.zero == 0  # nothing of its states is divided
        yield plan.optimizer.name.value + ("" if whole else f" {way.value}")
    if not plan.training.seq_len:  # a bare parameter count: nothing below is counted
        return
    yield f"seq {plan.training.seq_len}"
    yield f"microbatch {plan.training.microbatch}"
    if plan.accumulation > 1:
        yield f"global batch {plan.training.global_batch}"
    yield f"recompute {plan.recompute.mode.value}" + (" (reentrant)" if plan.recompute.reentrant else "")
    if plan.adapter:
        yield _adapter_phrase(plan.adapter)
    if plan.loss.value != "plain":
        yield f"{plan.loss.value} loss"


def _adapter_phrase(adapter: Adapter) -> str:
    kind = adapter.kind.value
    if adapter.kind in (AdapterKind.IA3, AdapterKind.LN_TUNING):
        return kind
    if adapter.kind is AdapterKind.OFT:
        return f"{kind} in blocks of {adapter.block_size}"
    return f"{kind} of {adapter.prompt_length}" if adapter.kind.prompts else f"{kind} rank {adapter.rank}"


def _serving_choice_phrases(plan: Plan, *, writes: bool) -> Iterator[str]:
    yield plan.precision.parameters.name
    asked = plan.serving
    if not writes:
        yield f"up to {asked.max_sequences} texts of {asked.max_model_len} tokens"
        return
    if asked.max_sequences is not None and asked.max_model_len is not None:
        shared = engine_of(plan).serving.shares_length
        pooled = f"up to {asked.max_sequences} × {asked.max_model_len} tokens, as the pool holds them"
        alone = (
            f"{asked.max_model_len} tokens for {asked.max_sequences}"
            if shared
            else f"{asked.max_sequences} × {asked.max_model_len} tokens"
        )
        yield pooled if plan.cache.memory_fraction is not None else alone
    if plan.cache.kv_dtype and asked.max_model_len is not None:
        keys, values = option_keys(plan.options).get("k_dtype"), plan.cache.kv_dtype.name
        yield f"cache of {keys} keys, {values} values" if keys and keys != values else f"{values} cache"
    if room := plan.served_adapters:
        yield (
            f"{'room for' if plan.cache.memory_fraction is not None else 'with'} {room.slots} "
            f"adapter{'s' * (room.slots != 1)} of rank {room.rank}"
        )


def drafting_words(how: Speculative | None) -> tuple[str, ...]:
    """The plan's method and its tokens, for the line that says what runs."""
    if how is None:
        return ()
    name = how.method.value if how.method is not SpeculativeMethod.DRAFT else "draft model"
    return (f"{name} of {how.tokens} tokens",)
