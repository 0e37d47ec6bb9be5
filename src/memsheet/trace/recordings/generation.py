"""A model of few layers that generates, at several sizes: what its cache holds, and what a prompt and the
last token of a full sequence allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from memsheet.plan.plan import Plan
from memsheet.recording import ALLOCATED, RELEASED, RecordedCache
from memsheet.run.adapters import apply_quantization
from memsheet.run.serve import (
    Generation,
    begin_generation,
    build_cache,
    cache_layers,
    for_decode,
    generate_next_token,
    jump_to_cached_tokens,
    tensors_in,
)
from memsheet.run.step import autocast_region
from memsheet.trace.job import How, recording_context
from memsheet.trace.modules import Modules, claim_parameters, fold_layer_indices
from memsheet.trace.recorder import Recorder, Row
from memsheet.trace.recordings.observe import NotRecordableError
from memsheet.trace.recordings.parts import STANDS, Found, FoundPass
from memsheet.trace.serving_job import GROWING, Slots, clear_prompt_cache, count_to, is_generating_decoder

LAST = 1  # the token before the last is made over the cache that follows a jump, and is not like the others


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """``prefill``, ``decode``: forward logs; what is saved is the cache, layer by layer as ``places`` says
    (of the prompt's).
    """

    prefill: FoundPass
    decode: FoundPass
    places: tuple[tuple[int, ...], ...]


def observe_generations(
    build: Callable[[str], nn.Module], plan: Plan, how: How, sizes: Sequence[tuple[int, int]]
) -> list[FoundGeneration]:
    """A generation of each of ``sizes`` (sequences, tokens of each), of prompts as long and of the last of as
    many tokens. Raises NotRecordableError for a model that generates nothing.
    """
    with recording_context(how) as recorder, torch.no_grad():
        modules = Modules(recorder)
        model = apply_quantization(build(how.device), plan)
        config = model.config
        _check_generates(model)
        modules.watch(model)
        claim_parameters(recorder, model)
        _observe_generation(recorder, model, config, _of_size(plan, *sizes[0]), how)  # what is made but once
        return [_observe_generation(recorder, model, config, _of_size(plan, *size), how) for size in sizes]


def observe_caches(
    build: Callable[[str], nn.Module],
    plan: Plan,
    how: How,
    kinds: Mapping[int, int],
    shorter: int,
    longer: int,
) -> tuple[RecordedCache, ...]:
    """What layers keep between tokens: of each kind (with the place of the layer that stands for it), after
    prompts of two lengths. Raises NotRecordableError where that is not so much a token and so much a
    sequence.
    """
    with recording_context(how), torch.no_grad():
        model, config = (made := build(how.device)), made.config
        _check_generates(model)
        found = [_caches_after(model, config, _of_size(plan, 2, tokens), how) for tokens in (shorter, longer)]
    if found[0] != found[1]:
        raise NotRecordableError("what it caches does not grow by as much with every token")
    return tuple(found[0][kinds[kind]] for kind in sorted(kinds))


def _check_generates(model: nn.Module) -> None:
    """Raises NotRecordableError for a model that generates nothing, or not by the library's one loop."""
    if not is_generating_decoder(model):
        raise NotRecordableError("is no decoder that generate takes")
    if getattr(type(model), "generate", None) is not GenerationMixin.generate:
        raise NotRecordableError(f"{type(model).__name__} has a generate of its own, which is not followed")


def _of_size(plan: Plan, sequences: int, tokens: int) -> Plan:
    return replace(
        plan,
        workload=replace(plan.serving, max_sequences=sequences, prompt_tokens=tokens, max_model_len=tokens),
    )


# ---- caches ------------------------------------------------------------------------------------------------


def _caches_after(model: nn.Module, config: Any, plan: Plan, how: How) -> list[RecordedCache]:
    cache = build_cache(config, plan, "dynamic")
    with autocast_region(plan, how.device):
        generation = begin_generation(model, plan, cache, how.device)
        generate_next_token(generation, first=True)
    sequences, tokens = generation.prompt[0].shape
    return [_layer_cache(layer, sequences, tokens) for layer in cache_layers(cache)]


def _layer_cache(layer: Any, sequences: int, tokens: int) -> RecordedCache:
    """What a layer of a cache keeps of each token, and of each sequence."""
    made = {"tokens": 0, "fp32": 0, "computed": 0}
    for name, value in vars(layer).items():
        for tensor in tensors_in(value):
            if name in GROWING and tensor.numel():
                made["tokens"] += _per(tensor, sequences * tokens)
            elif tensor.dim():
                made["fp32" if tensor.dtype is torch.float32 else "computed"] += _per(tensor, sequences)
    window = getattr(layer, "sliding_window", None)
    return RecordedCache(made["tokens"], int(window) if window else None, made["fp32"], made["computed"])


def _per(tensor: Tensor, count: int) -> int:
    if tensor.numel() % count:
        raise NotRecordableError("what it caches is not so much for each token")
    return tensor.numel() // count


# ---- what is made ------------------------------------------------------------------------------------------


def _observe_generation(
    recorder: Recorder, model: nn.Module, config: Any, plan: Plan, how: How
) -> FoundGeneration:
    slots, cache = Slots(recorder), build_cache(config, plan, "dynamic")
    full, begins = int(plan.serving.max_model_len or 0), len(recorder.events)
    with autocast_region(plan, how.device):
        generation = begin_generation(model, plan, cache, how.device)
        slots.claim(generation)
        generate_next_token(generation, first=True)
        prompted, places = len(recorder.events), _cache_rows(recorder, cache)
        slots.claim(generation)
        prefill = _found_pass(
            recorder, set(), range(begins, prompted), [row for layer in places for row in layer]
        )
        numbers = _numbers(recorder, set(), range(begins, prompted))
        _jump_to(recorder, generation, full - LAST - 1)
        with for_decode(model):
            generate_next_token(generation)
            slots.claim(generation)
            there, start = _live(recorder, range(begins, len(recorder.events))), len(recorder.events)
            before = [row for layer in _cache_rows(recorder, cache) for row in layer]
            generate_next_token(generation)
            slots.claim(generation)
    return FoundGeneration(
        prefill,
        _found_pass(recorder, there, range(start, len(recorder.events)), before),
        tuple(tuple(numbers[row] for row in layer) for layer in places),
    )


def _jump_to(recorder: Recorder, generation: Generation, tokens: int) -> None:
    missing = list(clear_prompt_cache(recorder, generation.cache))
    for fill in missing:
        fill.at(tokens)
    count_to(generation.cache, tokens)
    jump_to_cached_tokens(generation, tokens)


def _cache_rows(recorder: Recorder, cache: Any) -> list[list[int]]:
    """The storages of each layer of a cache, each once."""
    found = []
    for layer in cache_layers(cache):
        numbers = [
            number
            for value in vars(layer).values()
            for tensor in tensors_in(value)
            if tensor.dim() and (number := recorder.number_of(tensor)) is not None
        ]
        found.append(list(dict.fromkeys(numbers)))
    return found


def _live(recorder: Recorder, span: range) -> set[int]:
    """What was made in a span and is there after it."""
    live: set[int] = set()
    for at in span:
        event = recorder.events[at]
        live = live | {event} if event >= 0 else live - {~event}
    return live


def _events(recorder: Recorder, there: set[int], span: range) -> Iterator[tuple[str, int]]:
    """What is there, then what happens in a span to it and to what is made there."""
    known = {row for row in there if recorder.rows[row].component not in STANDS}
    yield from ((ALLOCATED, row) for row in sorted(known))
    for at in span:
        event = recorder.events[at]
        if event >= 0 and recorder.rows[event].component not in STANDS:
            known.add(event)
            yield ALLOCATED, event
        elif event < 0 and ~event in known:
            yield RELEASED, ~event


def _numbers(recorder: Recorder, there: set[int], span: range) -> dict[int, int]:
    made = [row for what, row in _events(recorder, there, span) if what == ALLOCATED]
    return {row: number for number, row in enumerate(made)}


def _found_pass(recorder: Recorder, there: set[int], span: range, saved: list[int]) -> FoundPass:
    numbers = _numbers(recorder, there, span)
    return FoundPass(
        storages=[_found(recorder.rows[row]) for row in numbers],
        forward=[(what, numbers[row]) for what, row in _events(recorder, there, span)],
        saved=[numbers[row] for row in saved if row in numbers],
    )


def _found(row: Row) -> Found:
    return Found(f"{fold_layer_indices(row.path)}/{row.part or row.op}", row.bytes, 0, "/" in row.op)
