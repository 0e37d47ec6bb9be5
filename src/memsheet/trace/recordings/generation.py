"""A model of few layers that generates, at several sizes: what its cache holds, and what a prompt and the
last token of a full sequence allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from memsheet.frozen import dataclass, replace
from memsheet.plan.plan import Plan
from memsheet.recording import ALLOCATED, RELEASED, RecordedCache
from memsheet.run.adapters import apply_quantization
from memsheet.run.model import layers_of
from memsheet.run.own_generate import run_generation
from memsheet.run.serve import (
    Generation,
    cache_layers,
    encoded_layers,
    for_decode,
    generate_next_token,
    jump_to_cached_tokens,
    read_once,
    tensors_in,
)
from memsheet.run.step import autocast_region
from memsheet.sheet import Component
from memsheet.trace.job import How, recording_context
from memsheet.trace.modules import Modules, claim_parameters, fold_layer_indices
from memsheet.trace.recorder import Recorder, Row
from memsheet.trace.recordings.observe import NotRecordableError
from memsheet.trace.recordings.parts import STANDS, FoundPass, PartStorage
from memsheet.trace.serving_job import GROWING, Slots, clear_prompt_cache, count_to, generates

GIVEN_WORDS = frozenset({"input_ids", "attention_mask", "position_ids", "mm_token_type_ids"})
"""Inputs that are no part of a record: a few numbers a token. Pictures are."""
CACHED = (24, 40)
"""Tokens of the prompts after which caches are looked at: fewer than any window."""
PROVING = 296
"""Of the one that proves what is kept ahead of tokens: more than layers compress into one."""
OTHER_CACHE = "its cache has more layers, or fewer, than its stack"
UNEVEN = "what it caches does not grow by as much with every token"
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
    build: Callable[[str], nn.Module],
    plan: Plan,
    how: How,
    sizes: Sequence[tuple[int, int]],
    prompt: int | None = None,
) -> list[FoundGeneration]:
    """A generation of each of ``sizes`` (sequences, tokens of each), of prompts as long (of ``prompt`` tokens
    where that is said) and of the last of as many tokens; one forward of a model that generates nothing.
    Raises InputError for a model that generates by code of its own.
    """
    with recording_context(how) as recorder, torch.no_grad():
        modules = Modules(recorder)
        model = apply_quantization(build(how.device), plan)
        modules.watch(model)
        claim_parameters(recorder, model)
        observe = _observe_generation if generates(model) else _observe_reading
        observe(recorder, model, _of_size(plan, *sizes[0], prompt), how)  # what is made but once
        return [observe(recorder, model, _of_size(plan, *size, prompt), how) for size in sizes]


def observe_caches(
    build: Callable[[str], nn.Module], plan: Plan, how: How, kinds: Mapping[int, int], layers: int
) -> tuple[RecordedCache, ...]:
    """What ``layers`` keep between tokens: of each kind (with the place of the layer that stands for it), in
    all turns in which they are run; nothing where it generates nothing. Raises NotRecordableError where that
    is not so much a token and so much a sequence.
    """
    with recording_context(how), torch.no_grad():
        model = build(how.device)
        if not generates(model):
            return tuple(RecordedCache(0) for _ in kinds)
        found = [_kept_after(model, _of_size(plan, 2, tokens), how) for tokens in CACHED]
        several = [_growing_cache(*layer) for layer in zip(*found, strict=True)]
        if any(ahead for _, ahead in several):
            _check_ahead(several, _kept_after(model, _of_size(plan, 2, PROVING), how))
    caches = [cache for cache, _ in several]
    every = len(caches) if len(caches) % layers else layers
    return tuple(_of_all_turns(caches[kinds[kind] :: every]) for kind in sorted(kinds))


def cache_slots(model: Any, layers: int) -> int:
    """Layers of a model's cache, of which some make one for each turn in which they are run; ``layers`` where
    it has no cache of the library's own.
    """
    if not generates(model) or model.config.is_encoder_decoder:
        return layers
    with suppress(Exception):  # the library's own, on a config that says no number of layers
        return len(DynamicCache(config=model.config.get_text_config(decoder=True)).layers)
    return layers


def check_turns(slots: int, layers: int) -> None:
    """Raises NotRecordableError for a cache that is not of so many layers, once or several times."""
    if not slots or slots % layers:
        raise NotRecordableError(OTHER_CACHE)


def _of_all_turns(turns: Sequence[RecordedCache]) -> RecordedCache:
    """What a layer keeps of all turns in which it is run. Raises NotRecordableError where they differ."""
    first = turns[0]
    if len(set(turns)) > 1:
        raise NotRecordableError(UNEVEN)
    sizes = (first.state_elements, first.computed_elements, first.memory_elements)
    states, computed, memory = (len(turns) * size for size in sizes)
    return RecordedCache(len(turns) * first.token_elements, first.window, states, computed, memory)


def _of_size(plan: Plan, sequences: int, tokens: int, prompt: int | None = None) -> Plan:
    return replace(
        plan,
        workload=replace(
            plan.serving,
            max_sequences=sequences,
            prompt_tokens=tokens if prompt is None else prompt,
            max_model_len=tokens,
        ),
    )


# ---- caches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerElements:
    """Elements that a layer of a cache keeps of a sequence: of its ``tokens`` (the newest ``window`` of them
    where there is one), of states in fp32 and as computed, and of what an encoder ``read``. ``length``: the
    tokens it was handed; behind an encoder that has the prompt the first alone.
    """

    tokens: int
    fp32: int
    computed: int
    window: int | None
    read: int = 0
    length: int = 0


def _kept_after(model: nn.Module, plan: Plan, how: How) -> list[LayerElements]:
    """What each layer keeps after a prompt."""

    def kept(generation: Generation) -> list[LayerElements]:
        sequences, length = generation.ids.shape
        generate_next_token(generation, first=True)
        own = [_layer_kept(layer, sequences) for layer in cache_layers(generation.cache)]
        read = [_held_elements(layer, sequences) for layer in encoded_layers(generation.cache)] or [0] * len(
            own
        )
        return [
            replace(layer, read=elements, length=length) for layer, elements in zip(own, read, strict=True)
        ]

    with autocast_region(plan, how.device):
        return run_generation(model, plan, "dynamic", how.device, kept)


def _growing_cache(first: LayerElements, second: LayerElements) -> tuple[RecordedCache, int]:
    """A layer's cache, of what it keeps after prompts of two lengths, and the elements among it that it keeps
    of each sequence ahead of its tokens: of a picture, of a prefix that is learned.
    """
    if first.length == second.length:
        of_token, ahead = first.tokens // first.length, 0
    else:
        of_token, ahead = _each_and_fixed(first.tokens, second.tokens, (first.length, second.length))
    read, fixed = _each_and_fixed(first.read, second.read, CACHED)
    states = (first.fp32, first.computed, first.window)
    uneven = second.tokens != of_token * second.length + ahead
    if uneven or states != (second.fp32, second.computed, second.window) or (ahead and first.window):
        raise NotRecordableError(UNEVEN)
    kept = first.computed + fixed + ahead
    return RecordedCache(of_token, first.window, first.fp32, kept, read), ahead


def _each_and_fixed(before: int, after: int, lengths: tuple[int, int]) -> tuple[int, int]:
    """Elements of each token, and beside them, of ``before`` and ``after`` at the two lengths."""
    shorter, longer = lengths
    each, rest = divmod(after - before, longer - shorter)
    if rest or before < each * shorter:
        raise NotRecordableError(UNEVEN)
    return each, before - each * shorter


def _check_ahead(several: list[tuple[RecordedCache, int]], kept: list[LayerElements]) -> None:
    """Raises NotRecordableError where what is kept ahead of tokens is more for a longer prompt."""
    for (cache, ahead), layer in zip(several, kept, strict=True):
        if ahead and layer.tokens != cache.token_elements * layer.length + ahead:
            raise NotRecordableError(UNEVEN)


def _held_elements(layer: Any, sequences: int) -> int:
    held = (tensor for value in vars(layer).values() for tensor in tensors_in(value) if tensor.dim())
    return sum(_per(tensor, sequences) for tensor in held)


def _layer_kept(layer: Any, sequences: int) -> LayerElements:
    """What a layer of a cache keeps of each sequence; numbers (of positions) by their width in bf16."""
    made = {"tokens": 0, "fp32": 0, "computed": 0}
    for name, value in vars(layer).items():
        for tensor in tensors_in(value):
            if tensor.dim():
                state = "fp32" if tensor.dtype is torch.float32 else "computed"
                wide = 1 if tensor.is_floating_point() else tensor.itemsize // torch.bfloat16.itemsize
                made["tokens" if name in GROWING else state] += wide * _per(tensor, sequences)
    return LayerElements(**made, window=getattr(layer, "sliding_window", None) or None)


def _per(tensor: Tensor, count: int) -> int:
    if tensor.numel() % count:
        raise NotRecordableError("what it caches is not so much for each sequence")
    return tensor.numel() // count


# ---- what is made ------------------------------------------------------------------------------------------


def _observe_reading(recorder: Recorder, model: nn.Module, plan: Plan, how: How) -> FoundGeneration:
    """One forward, after which nothing is kept."""
    begins = len(recorder.events)
    with autocast_region(plan, how.device):
        read_once(model, plan, how.device)
    there = range(begins, len(recorder.events))
    nothing = tuple(() for _ in layers_of(model) or ())
    return FoundGeneration(_found_pass(recorder, set(), there, []), FoundPass(), nothing)


def _observe_generation(recorder: Recorder, model: nn.Module, plan: Plan, how: How) -> FoundGeneration:
    begins = len(recorder.events)
    with autocast_region(plan, how.device):
        return run_generation(
            model, plan, "dynamic", how.device, lambda one: _observe_tokens(recorder, one, begins)
        )


def _observe_tokens(recorder: Recorder, generation: Generation, begins: int) -> FoundGeneration:
    """The prompt and the last token, of what there is since the event ``begins``."""
    slots = Slots(recorder)
    slots.claim(generation)
    generate_next_token(generation, first=True)
    prompted, rows = len(recorder.events), _cache_rows(recorder, generation.cache)
    slots.claim(generation)
    numbers = _numbers(recorder, set(), range(begins, prompted))
    places = [[row for row in layer if row in numbers] for layer in rows]  # without inputs that it refers to
    prefill = _found_pass(
        recorder, set(), range(begins, prompted), [row for layer in places for row in layer]
    )
    _jump_to(recorder, generation, int(generation.plan.serving.max_model_len or 0) - LAST - 1)
    with for_decode(generation.model):
        generate_next_token(generation)
        slots.claim(generation)
        there, start = _live(recorder, range(begins, len(recorder.events))), len(recorder.events)
        before = [row for layer in _cache_rows(recorder, generation.cache) for row in layer]
        generate_next_token(generation)
        slots.claim(generation)
    return FoundGeneration(
        prefill,
        _found_pass(recorder, there, range(start, len(recorder.events)), before),
        tuple(tuple(numbers[row] for row in layer) for layer in places),
    )


def _jump_to(recorder: Recorder, generation: Generation, tokens: int) -> None:
    missing = list(clear_prompt_cache(recorder, generation))
    for fill in missing:
        fill.at(tokens)
    count_to(generation.cache, tokens)
    jump_to_cached_tokens(generation, tokens)


def _cache_rows(recorder: Recorder, cache: Any) -> list[list[int]]:
    """The storages of each layer of a cache, each once."""
    return [
        list(dict.fromkeys(number for layer in both for number in _layer_rows(recorder, layer)))
        for both in zip_longest(cache_layers(cache), encoded_layers(cache))
    ]


def _layer_rows(recorder: Recorder, layer: Any) -> Iterator[int]:
    for value in vars(layer).values() if layer is not None else ():
        for tensor in tensors_in(value):
            if tensor.dim() and (number := recorder.number_of(tensor)) is not None:
                yield number


def _live(recorder: Recorder, span: range) -> set[int]:
    """What was made in a span and is there after it."""
    live: set[int] = set()
    for at in span:
        event = recorder.events[at]
        if event >= 0:
            live.add(event)
        else:
            live.discard(~event)
    return live


def _events(recorder: Recorder, there: set[int], span: range) -> Iterator[tuple[str, int]]:
    """What is there, then what happens in a span to it and to what is made there."""
    known = {row for row in there if not _stands(recorder.rows[row])}
    yield from ((ALLOCATED, row) for row in sorted(known))
    for at in span:
        event = recorder.events[at]
        if event >= 0 and not _stands(recorder.rows[event]):
            known.add(event)
            yield ALLOCATED, event
        elif event < 0 and ~event in known:
            yield RELEASED, ~event


def _stands(row: Row) -> bool:
    """Whether a storage is no part of a record: always there, or words that are given."""
    return row.component in STANDS and (row.component is not Component.INPUTS or row.path in GIVEN_WORDS)


def _numbers(recorder: Recorder, there: set[int], span: range) -> dict[int, int]:
    made = [row for what, row in _events(recorder, there, span) if what == ALLOCATED]
    return {row: number for number, row in enumerate(made)}


def _found_pass(recorder: Recorder, there: set[int], span: range, saved: list[int]) -> FoundPass:
    numbers = _numbers(recorder, there, span)
    return FoundPass(
        storages=[_part_storage(recorder.rows[row]) for row in numbers],
        forward=[(what, numbers[row]) for what, row in _events(recorder, there, span)],
        saved=[numbers[row] for row in saved if row in numbers],
    )


def _part_storage(row: Row) -> PartStorage:
    return PartStorage(f"{fold_layer_indices(row.path)}/{row.part or row.op}", row.bytes, 0, "/" in row.op)
