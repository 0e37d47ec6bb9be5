"""What a model's own code allocates while it generates, of a recording of few of its layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from memsheet.arith import Count, maximum
from memsheet.errors import InputError, input_error
from memsheet.formulas.recorded_lengths import side_words
from memsheet.formulas.tapes.evaluate import terms_bytes
from memsheet.plan.plan import Plan
from memsheet.recording import (
    ALLOCATED,
    GENERATES,
    PROMPT,
    RELEASED,
    RecordedGeneration,
    RecordedPass,
    Recording,
)
from memsheet.references import TRANSFORMERS, formula

Axes = dict[str, Count]


def recorded_generation(
    recording: Recording,
    plan: Plan,
    precision: str | None,
    sequences: Count,
    tokens: Count,
    prompt: Count | None = None,
) -> RecordedGeneration:
    """The record of prompts of so many ``tokens`` each, one of several; ``prompt``: those of a prompt that is
    held, where they are others. Raises InputError where it is one size at a time and no single size is asked.
    """
    words: dict[str, Any] = {GENERATES: True, "precision": precision, "attention": plan.attention.value}
    if plan.quantization is not None:
        words["quantize"] = plan.quantization.weights.name
    if prompt is not None:
        words[PROMPT] = _single_length(recording, prompt)
    sizes = (int(sequences), int(tokens)) if isinstance(sequences, int) and isinstance(tokens, int) else None
    several = sizes is None or sizes[0] > 1
    asked = {**words, **side_words(recording, tokens), **({"several": True} if several else {})}
    found = recording.generation_of(json.dumps(asked, sort_keys=True))
    if found is None and sizes is not None:
        at = {"sequences": sizes[0], "tokens": sizes[1]}
        found = recording.generation_of(json.dumps({**words, **at}, sort_keys=True))
    if found is None:
        raise _one_size_at_a_time(recording)
    return found


def _single_length(recording: Recording, tokens: Count) -> int:
    if not isinstance(tokens, int):
        raise _one_size_at_a_time(recording)
    return tokens


def _one_size_at_a_time(recording: Recording) -> InputError:
    why = f"of {recording.model_type} is on record at one size at a time"
    return input_error(
        "serving.max_model_len", None, why, "give --max-model-len and --sequences to `memsheet infer`"
    )


@formula(cites=TRANSFORMERS, at="the model's own code on record: its allocations, played", counts="int")
def prefill_peak(record: RecordedGeneration, kinds: tuple[int, ...], axes: Axes) -> Count:
    """Bytes at the peak of reading prompts, the caches of the whole model's layers (of ``kinds``) above what
    they hold afterwards not counted: what there is beside the full cache.
    """
    caches = [
        sum(terms_bytes(record.prefill.storages[place].terms, axes) for place in layer)
        for layer in record.places
    ]
    of_kind = {kinds[number]: size for number, size in zip(record.kept, caches, strict=True)}
    whole: Count = 0
    before = [0, *(whole := whole + of_kind[kind] for kind in kinds)]
    there = [*(before[number] for number in _last_alike(kinds, record.kept)), whole]
    peak: Count = 0
    for done, live in _live_by_layer(record, axes):
        peak = maximum(peak, live - sum(caches[:done]) + there[done])
    return maximum(0, peak - whole)


def _last_alike(kinds: tuple[int, ...], kept: tuple[int, ...]) -> Iterator[int]:
    """Of each layer that was run the number of the last layer of its kind behind one of the kind before it,
    where most caches are there; its own where the whole model has no such two, or was run.
    """
    if len(kept) == len(kinds):
        yield from kept
        return
    pairs = {pair: number for number, pair in enumerate(pairwise(kinds), 1)}
    yield kept[0]
    for before, number in pairwise(kept):
        yield max(number, pairs.get((kinds[before], kinds[number]), number))


@formula(cites=TRANSFORMERS, at="the model's own code on record: its allocations, played", counts="int")
def decode_peak(record: RecordedGeneration, axes: Axes) -> Count:
    """Bytes at the peak of making the last token of full sequences, beside their cache."""
    held = sum(terms_bytes(record.decode.storages[place].terms, axes) for place in record.decode.saved)
    peak: Count = 0
    for live in _live_bytes(record.decode, axes):
        peak = maximum(peak, live)
    return maximum(0, peak - held)


def _live_by_layer(record: RecordedGeneration, axes: Axes) -> Iterator[tuple[int, Count]]:
    """After each event: how many of the layers that were run have their whole cache, and the bytes there."""
    waiting = [set(layer) for layer in record.places]
    done = 0
    for (what, place), live in zip(record.prefill.forward, _live_bytes(record.prefill, axes), strict=True):
        yield done, live
        if what == ALLOCATED:
            for layer in waiting:
                layer.discard(place)
        while done < len(waiting) and not waiting[done]:
            done += 1


def _live_bytes(found: RecordedPass, axes: Axes) -> Iterator[Count]:
    live: Count = 0
    for what, place in found.forward:
        size = terms_bytes(found.storages[place].terms, axes)
        if what == ALLOCATED:
            live = live + size
        elif what == RELEASED:
            live = live - size
        yield live
