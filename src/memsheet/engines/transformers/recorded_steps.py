"""What a model that nobody has written down takes while it generates: its own code on record."""

from __future__ import annotations

from memsheet.arith import Count, maximum, minimum
from memsheet.errors import input_error
from memsheet.formulas.model_code.recorded import PRECISIONS
from memsheet.formulas.recorded_lengths import side_words
from memsheet.formulas.serving.recorded_generation import decode_peak, prefill_peak, recorded_generation
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS
from memsheet.sheet import Bytes, Cited, Component, Instant, Item

RECORD = Cited(TRANSFORMERS, "the model's own code on record")


def recorded_working_items(spec: ModelSpec, plan: Plan) -> list[Item]:
    """What there is beside the cache while prompts are read and tokens are made, logits among it. Where
    nobody says how long prompts are, one of them is read at a time, or all at once at the high end.
    """
    full: Count = 0 if plan.serving.max_model_len is None else plan.serving.max_model_len
    prompt = full if plan.serving.prompt_tokens is None else plan.serving.prompt_tokens
    sequences: Count = 1 if plan.serving.max_sequences is None else plan.serving.max_sequences
    step, batch = (
        _decode_bytes(spec, plan, sequences, full, prompt),
        _prefill_bytes(spec, plan, sequences, prompt),
    )
    if plan.serving.prompt_tokens is not None:
        read = Bytes.exact(batch)
    else:
        one = _prefill_bytes(spec, plan, 1, prompt)
        read = Bytes(minimum(step, one), one, maximum(batch, one))
    at = {Instant.PREFILL: read, Instant.DECODE: Bytes.exact(step)}
    return [Item(Component.TEMPORARIES, "generation", at, RECORD)]


def recorded_step_bytes(spec: ModelSpec, plan: Plan, tokens: int) -> Count | None:
    """What one sequence takes beside its cache while its last of ``tokens`` is made, of as long a prompt;
    None where that would have to be run.
    """
    assert spec.recording is not None
    return None if side_words(spec.recording, tokens) else _decode_bytes(spec, plan, 1, tokens, tokens)


def _prefill_bytes(spec: ModelSpec, plan: Plan, sequences: Count, tokens: Count) -> Count:
    assert spec.recording is not None
    record = recorded_generation(spec.recording, plan, _precision(plan), sequences, tokens)
    return prefill_peak(record, spec.recording.kinds, {"b": sequences, "s": tokens})


def _decode_bytes(spec: ModelSpec, plan: Plan, sequences: Count, tokens: Count, prompt: Count) -> Count:
    assert spec.recording is not None
    alike = prompt is tokens or (isinstance(prompt, int) and isinstance(tokens, int) and prompt == tokens)
    read = prompt if spec.recording.holds_prompt and not alike else None
    record = recorded_generation(spec.recording, plan, _precision(plan), sequences, tokens, read)
    return decode_peak(record, {"b": sequences, "s": tokens})


def _precision(plan: Plan) -> str:
    """How the library is run for a record. Raises InputError for dtypes that none is made in."""
    said = plan.precision
    found = PRECISIONS.get((said.parameters, said.compute if said.casts else None))
    if found is None:
        raise input_error(
            "precision", said.parameters.name, "is not how a recording is made", "bf16-pure or fp32"
        )
    return found
