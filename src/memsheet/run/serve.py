"""Prefill and decode as ``generate`` does them: one forward over the prompt, then one token at a time over a
cache.

The loop is that of transformers' ``_sample`` (generation/utils.py:3122) without stopping criteria, which read
values: unpadded prompts whose mask of ones is dropped, the last position's logits alone, their copy in fp32,
the likeliest token.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from memsheet.errors import input_error
from memsheet.frozen import dataclass, field
from memsheet.plan.packages import TRANSFORMERS
from memsheet.plan.plan import Plan
from memsheet.run.dtypes import torch_dtype
from memsheet.run.model import text_config_of
from memsheet.run.standard_inputs import with_standard_inputs

BACKENDS = {"fp8": ("fp8", None), "int8": ("hqq", 8)}
"""The cache's format → (backend, bits) of transformers' QuantizedCache (cache_utils.py:2113): quanto has 2
and 4 bits, hqq 1 to 8.
"""
DEFAULT_BACKEND = ("quanto", None)


def cache_kind(plan: Plan, asked: str | None) -> str:
    """dynamic, static or quantized: as asked, else quantized for a format that is not the compute dtype, and
    dynamic.

    Raises InputError where the format and what is asked contradict each other.
    """
    assert plan.cache.kv_dtype is not None
    quantized = plan.cache.kv_dtype is not plan.precision.compute
    if quantized and plan.cache.kv_dtype.name not in BACKENDS:
        raise input_error(
            "kv_dtype",
            plan.cache.kv_dtype.name,
            "is neither as keys are computed nor what they are quantized to",
            "fp8 or int8",
        )
    if quantized and asked in ("dynamic", "static"):
        raise input_error(
            "cache",
            asked,
            f"keeps keys as they are computed, not in {plan.cache.kv_dtype.name}",
            "--cache quantized, or no --kv-dtype",
        )
    return asked or ("quantized" if quantized else "dynamic")


def build_cache(config: Any, plan: Plan, kind: str) -> Any:
    """The library's own cache, empty; an encoder-decoder's with another for what its encoder reads
    (generation/utils.py:2327). A static one holds ``max_model_len`` tokens.
    """
    import transformers

    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder and kind == "dynamic":
        return transformers.EncoderDecoderCache(*(transformers.DynamicCache(config=text) for _ in range(2)))
    if kind == "static":
        return transformers.StaticCache(config=text, max_cache_len=int(plan.serving.max_model_len or 0))
    if kind == "dynamic":
        return transformers.DynamicCache(config=text)
    assert plan.cache.kv_dtype is not None
    backend, bits = BACKENDS.get(plan.cache.kv_dtype.name, DEFAULT_BACKEND)
    try:
        return transformers.QuantizedCache(backend, text, nbits=bits)
    except ImportError:
        package = {"quanto": "optimum-quanto"}.get(backend, backend)
        hint = f"pip install {package}; --kv-dtype fp8 needs no library"
        raise input_error(
            "cache", "quantized", f"is {backend}'s for this format, which is not installed", hint
        ) from None
    except ValueError as error:
        raise input_error("cache", "quantized", str(error).split(". ", 1)[0]) from None


@dataclass(slots=True)
class Generation:
    """What is carried from one step to the next. ``ids``: one token more than the cache holds, once the
    prompt is read.

    ``logits``: the newest, in fp32, which ``_sample`` holds on to until it has the next; ``prompt``: what
    ``generate`` began with; ``given``: what a model's own, around it, was given.
    """

    model: nn.Module
    plan: Plan
    ids: Tensor
    cache: Any
    logits: Tensor | None = None
    prompt: tuple[Tensor, ...] = ()
    arguments: dict[str, Any] = field(
        default_factory=dict
    )  # of the model's forward, that stay or grow by a token
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def cache_name(self) -> str:
        """What the model's forward calls its cache (generation/utils.py:2248)."""
        return "cache_params" if "mamba" in type(self.model).__name__.lower() else "past_key_values"


def begin_generation(model: nn.Module, plan: Plan, cache: Any, given: dict[str, Any]) -> Generation:
    """The prompts ``given``, ready to be read. A decoder's mask of ones is dropped, what an encoder reads is
    read.

    Raises InputError for a library whose ``generate`` is not the one that is followed here.
    """
    config: Any = model.config
    _check_loop()
    takes = inspect.signature(model.forward).parameters
    last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    if config.is_encoder_decoder:
        return _encoded_prompt(model, plan, cache, given, last)
    ids = given.pop("input_ids")
    given.pop("attention_mask", None)
    made = Generation(model, plan, ids, cache, arguments={**given, **last, "use_cache": True})
    if "position_ids" in takes:
        made.arguments["position_ids"] = _position_ids((ids.shape[0], ids.shape[1]), str(ids.device))
    made.prompt = (made.ids, *(value for value in made.arguments.values() if isinstance(value, Tensor)))
    return made


def prompt_inputs(config: Any, plan: Plan, device: str) -> dict[str, Tensor]:
    """What a model is given: prompts of ``prompt_tokens`` (of ``max_model_len`` where nobody says), the
    standard picture where it cannot do without one, and the mask of an encoder's words, which ``generate``
    drops for decoders alone (generation/utils.py:2897).
    """
    length = plan.serving.prompt_tokens
    shape = (
        int(plan.serving.max_sequences or 1),
        int((plan.serving.max_model_len if length is None else length) or 0),
    )
    ids = torch.randint(0, text_config_of(config).vocab_size, shape, device=device)
    dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
    given = with_standard_inputs({"input_ids": ids, "labels": ids}, config, dtype)
    del given["labels"]
    if config.is_encoder_decoder and "input_ids" in given:
        given["attention_mask"] = torch.ones(shape, dtype=torch.long, device=device)
    return given


def _encoded_prompt(
    model: Any, plan: Plan, cache: Any, given: dict[str, Tensor], last: dict[str, int]
) -> Generation:
    """A prompt that the encoder has read, and the one token with which the decoder begins."""
    name = model.main_input_name if model.main_input_name in given else next(iter(given))
    read = given.pop(name)
    arguments = model._maybe_prepare_encoder_kwargs_for_generation(
        read, {**given, **last, "use_cache": True}, name, model.generation_config
    )
    ids = torch.zeros((len(read), 1), dtype=torch.long, device=read.device)
    arguments.pop("input_ids", None)
    return Generation(model, plan, ids, cache, prompt=(read,), arguments=arguments)


def read_once(model: nn.Module, plan: Plan, device: str) -> Any:
    """One forward of a model that generates nothing."""
    return model(**prompt_inputs(model.config, plan, device), return_dict=True)


def _check_loop() -> None:
    from transformers import GenerationMixin

    if (
        "is_first_iteration"
        not in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    ):
        hint = "transformers 5; training is run with 4 too"
        raise input_error(
            TRANSFORMERS, version(TRANSFORMERS), "generates in another way than the loop here", hint
        )


def _position_ids(shape: tuple[int, int], device: str) -> Tensor:
    """Those of every sequence, counted from its mask (generation/utils.py
    _prepare_position_ids_for_generation).
    """
    return torch.ones(shape, dtype=torch.long, device=device).cumsum(-1).sub_(1)


def jump_to_cached_tokens(generation: Generation, tokens: int) -> None:
    """Go on as if ``tokens`` were in the cache already: ids and positions of one more."""
    shape, device = (generation.ids.shape[0], tokens + 1), generation.ids.device
    generation.ids = torch.zeros(shape, dtype=torch.long, device=device)
    if "position_ids" in generation.arguments:
        generation.arguments["position_ids"] = _position_ids(shape, str(device))


def generate_next_token(generation: Generation, *, first: bool = False) -> None:
    """One forward, of the whole prompt (``first``) or of the newest token, and the token that follows."""
    model: Any = generation.model
    inputs = model.prepare_inputs_for_generation(
        generation.ids,
        next_sequence_length=None if first else 1,
        is_first_iteration=first,
        **{generation.cache_name: generation.cache},
        **generation.arguments,
    )
    outputs = model(**inputs, return_dict=True)
    kept = outputs.get(generation.cache_name)
    if kept is not None:  # BLIP's comes back with another beside it, of what it read
        generation.cache = kept
    grown = model._update_model_kwargs_for_generation(
        outputs, dict(generation.arguments), is_encoder_decoder=model.config.is_encoder_decoder
    )
    generation.arguments = {name: grown[name] for name in generation.arguments}
    generation.logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
    token = torch.argmax(generation.logits, dim=-1)
    generation.ids = torch.cat([generation.ids, token[:, None]], dim=-1)


def for_decode(model: nn.Module) -> AbstractContextManager[Any]:
    """What ``generate`` changes after the prompt: experts that were grouped are gathered
    (generation/utils.py:2500).
    """
    optimized: Any = getattr(model, "_optimize_model_for_decode", None)
    return nullcontext() if optimized is None else optimized()


def cache_layers(cache: Any) -> list[Any]:
    """The layers of a cache; of an encoder-decoder's, the decoder's own."""
    return list(getattr(cache, "self_attention_cache", cache).layers)


def encoded_layers(cache: Any) -> list[Any]:
    """The layers of a cache that hold what an encoder has read; none of a decoder's cache."""
    read = getattr(cache, "cross_attention_cache", None)
    return [] if read is None else list(read.layers)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an attribute of a cache's layer: itself, or those it lists."""
    if isinstance(value, Tensor):
        return [value]
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for each in held for tensor in tensors_in(each)]
