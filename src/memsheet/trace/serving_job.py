"""Generation by a transformers model on fake tensors, recorded: the prompt, then the last tokens over a cache
of full length.

The tokens between are not made one by one: after the prompt the cache's tensors are replaced by ones as long
as they would then be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.run.adapters import apply_quantization, apply_served_adapters
from memsheet.run.model import build_config, build_model
from memsheet.run.own_generate import run_generation
from memsheet.run.serve import (
    Generation,
    cache_kind,
    cache_layers,
    encoded_layers,
    for_decode,
    generate_next_token,
    jump_to_cached_tokens,
    read_once,
    tensors_in,
)
from memsheet.run.step import autocast_region
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline, instant_peaks, live_storages
from memsheet.trace.job import How, recorded_timeline, recording_context
from memsheet.trace.modules import Modules, claim_parameters
from memsheet.trace.recorder import Recorder, Row
from memsheet.trace.values import with_values_if_asked

DECODED = 2  # the first after the jump is not like those that follow it
GROWING = {
    "keys": -2, "values": -2, "_quantized_keys": -2, "_quantized_values": -2, "indexer_keys": 1, "indexer_position_ids": -1,
}  # fmt: skip
"""What a layer of a dynamic cache holds for every token, and along which axis (cache_utils.py: DynamicLayer,
BaseQuantizedLayer, DynamicIndexedLayer).
"""
QUANTIZED = ("_quantized_keys", "_quantized_values")
_HOME = "transformers.cache_utils"


def trace_serving(config: Mapping[str, Any], plan: Plan, how: How, cache: str | None = None) -> Timeline:
    """The timeline of one rank that serves the model of ``config`` as ``plan`` says. ``cache``: dynamic,
    static or quantized; None as the plan says.

    Raises InputError for what cannot be traced.
    """
    _check_traceable_serving(plan)
    kind = cache_kind(plan, cache)
    found: Timeline = with_values_if_asked(lambda how: _trace_cached(config, plan, how, kind), how)
    return found


def _trace_cached(config: Mapping[str, Any], plan: Plan, how: How, kind: str) -> Timeline:
    with recording_context(how) as recorder, torch.no_grad():
        settings = build_config(config, plan)
        modules = Modules(recorder)
        model = apply_served_adapters(apply_quantization(build_model(settings, plan, how.device), plan), plan)
        if settings.is_encoder_decoder and kind != "dynamic":
            raise input_error(
                "cache", kind, "is no cache of an encoder-decoder's that is traced", "--cache dynamic"
            )
        modules.watch(model)
        claim_parameters(recorder, model)
        recorder.mark(Instant.LOAD)
        slots = Slots(recorder)
        if plan.serving.phase != "load":
            with autocast_region(plan, how.device):
                if generates(model):
                    trace_generation(slots, model, plan, kind, how.device)
                else:
                    recorder.mark(Instant.PREFILL)
                    read_once(model, plan, how.device)
        if recorder.end is None:
            recorder.stop()
    return slots.finished()


def _check_traceable_serving(plan: Plan) -> None:
    if plan.mesh.gpus > 1:
        raise input_error(
            "mesh",
            plan.mesh.gpus,
            "ranks that serve together are not traced yet",
            "one GPU; memsheet infer predicts more",
        )
    kind = plan.quantization.weights.name if plan.quantization else "nf4"
    if not kind.startswith(("nf4", "fp4")):
        raise input_error(
            "quantize",
            kind,
            "has kernels that fake tensors do not pass",
            "a config.json without quantization_config; or nf4",
        )
    if plan.adapter is not None:
        raise input_error(
            "adapter",
            "lora",
            "is not traced in inference",
            "its matrices merged into the weights take no memory",
        )


def generates(model: nn.Module) -> bool:
    """Whether ``generate`` makes tokens of a model; encoders are read once and make none."""
    able: Any = getattr(model, "can_generate", None)
    return able is not None and bool(able())


def trace_generation(slots: Slots, model: nn.Module, plan: Plan, kind: str, device: str) -> None:
    """The prompt, the jump to the end, the last tokens, over a cache of the ``kind``."""
    slots.recorder.mark(Instant.PREFILL)
    run_generation(model, plan, kind, device, lambda generation: _trace_tokens(slots, generation))


def _trace_tokens(slots: Slots, generation: Generation) -> None:
    recorder = slots.recorder
    full = int(generation.plan.serving.max_model_len or 0)
    slots.claim(generation)
    generate_next_token(generation, first=True)
    slots.claim(generation)
    missing = list(clear_prompt_cache(recorder, generation))
    recorder.mark(Instant.DECODE)
    start = max(full - DECODED, 1)
    for fill in missing:
        fill.at(start)
    count_to(generation.cache, start)
    jump_to_cached_tokens(generation, start)
    slots.claim(generation)
    with for_decode(generation.model):
        for _ in range(full - start):
            generate_next_token(generation)
            slots.claim(generation)
    recorder.stop()


# ---- the jump ----------------------------------------------------------------------------------------------


def clear_prompt_cache(recorder: Recorder, generation: Generation) -> Iterator[_Fill]:
    """Take the prompt's keys out of a cache that grows. Raises InputError for layers that a model brings with
    it.
    """
    prompt = generation.ids.shape[1] - 1
    for layer in cache_layers(generation.cache):
        if type(layer).__module__ != _HOME:
            raise input_error(
                "cache",
                type(layer).__name__,
                "is a model's own kind of cache, and how it grows is not known",
                "memsheet infer",
            )
        for name in GROWING if not hasattr(layer, "max_cache_len") else ():
            value = getattr(layer, name, None)
            tensor = value[0] if isinstance(value, tuple) else value  # quantized states come with their scale
            if (
                isinstance(tensor, Tensor) and tensor.dim() > 1
            ):  # of no elements too: keys without a rotated part
                yield _Fill(recorder, layer, name, tensor, prompt)
                del tensor, value


def count_to(cache: Any, tokens: int) -> None:
    """Set the layers' own counters: numbers, and in a static cache a tensor as well."""
    for layer in cache_layers(cache):
        for name in ("cumulative_length", "cumulative_length_int"):
            count = getattr(layer, name, None)
            if isinstance(count, Tensor):
                count.fill_(tokens)
            elif count is not None:
                setattr(layer, name, tokens)


class _Fill:
    """A tensor that is taken out of a cache after a ``prompt`` of so many tokens, to be made again at another
    length, and longer by what it held ahead of the prompt: a picture's keys, or a learned prefix's.
    """

    def __init__(self, recorder: Recorder, layer: Any, name: str, tensor: Tensor, prompt: int) -> None:
        row = recorder.row_of(tensor)
        self.recorder, self.path = recorder, row.path if row is not None else ""
        self.layer, self.name = layer, name
        self.shape, self.dtype, self.device = list(tensor.shape), tensor.dtype, tensor.device
        plain = name not in QUANTIZED and getattr(layer, "sliding_window", None) is None
        self.ahead = self.shape[GROWING[name]] - prompt if plain else 0
        self._put(None)

    def at(self, tokens: int) -> None:
        """What ``tokens`` would have left. A window's storage holds all of it and shows a token less
        (DynamicSlidingWindowLayer.update).
        """
        window = getattr(self.layer, "sliding_window", None)
        self.shape[GROWING[self.name]] = min(tokens, window) if window else tokens + self.ahead
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self.recorder.claim(made, Component.KV_CACHE, self.path)
        self._put(made[..., 1:, :] if window and tokens >= window else made)

    def _put(self, tensor: Tensor | None) -> None:
        held = getattr(self.layer, self.name)
        setattr(self.layer, self.name, (tensor, *held[1:]) if isinstance(held, tuple) else tensor)


# ---- names -------------------------------------------------------------------------------------------------


class Slots:
    """Which storages a cache holds after each step, and which of them replaced which."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._held: dict[tuple[int, str, int], Row] = {}
        self._replaced: list[tuple[Row, Row]] = []

    def claim(self, generation: Generation) -> None:
        """Name the inputs and the cache. A scalar is a counter or a scale."""
        self.recorder.claim(generation.ids, Component.INPUTS, "input_ids")
        for name, value in (*generation.given.items(), *generation.arguments.items()):
            self.recorder.claim(value, Component.INPUTS, name)
        layers = (*cache_layers(generation.cache), *encoded_layers(generation.cache))
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                for place, tensor in enumerate(tensors_in(value)):
                    self._claim((number, name, place), tensor)

    def _claim(self, slot: tuple[int, str, int], tensor: Tensor) -> None:
        row = self.recorder.row_of(tensor)
        if row is None:
            return
        row.claim(Component.KV_CACHE if tensor.dim() else Component.BUFFERS)
        before = self._held.get(slot, row)
        if before is not row:
            self._replaced.append((before, row))
        self._held[slot] = row

    def finished(self) -> Timeline:
        """The timeline, in which a layer's cache that is there twice while it grows counts once as a cache
        and once as temporary.
        """
        made = recorded_timeline(self.recorder)
        found = instant_peaks(made).get(Instant.DECODE)
        if found is None:
            return made
        numbers = {id(row): number for number, row in enumerate(self.recorder.rows)}
        there = live_storages(made, found.at)
        for before, after in self._replaced:
            if numbers[id(before)] in there and numbers[id(after)] in there:
                before.component, before.path = Component.TEMPORARIES, "cache_growth"
        return recorded_timeline(self.recorder)
