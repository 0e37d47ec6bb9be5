"""The real model, built by the transformers library from a config alone: no weights, no download, no code
from elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from typing import Any

import torch
from torch import nn

from memsheet.errors import input_error
from memsheet.guard import TAGGED
from memsheet.plan.attention_package import check_attention_package
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.plan.workload import Serving, Training
from memsheet.run.dtypes import torch_dtype
from memsheet.run.standard_inputs import STANDARD

ATTENTION = {
    AttentionKind.EAGER: "eager",
    AttentionKind.SDPA: "sdpa",
    AttentionKind.FLASH: "flash_attention_2",
}
_NOT_ASKED = (
    "model_type",
    "auto_map",
    "quantization_config",
    "dtype",
    "torch_dtype",
)  # the plan says in what format it is
_NO_JSON = ("NaN", "Infinity", "-Infinity")
PICTURE_TOKENIZER = "vqmodel."
"""Whose decoder draws pictures and is no stack of layers (transformers 5.23 modeling_janus.py,
JanusVQVAE).
"""
WORDS = "input_ids"
"""What the library calls a model's main input, where it is words."""
_BARE = "AutoModel"
_HEADS = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMaskedLM", _BARE)
_LISTS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
_SEQ2SEQ_HEADS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForTextToWaveform")


LAST_SHARING = "num_kv_shared_layers"
"""How configs call the number of last layers that take keys and values of layers before them (transformers
5.23 configuration_gemma4.py:104; a config of fewer layers than these is refused).
"""


def text_config_of(config: Any) -> Any:
    """The part of a model's config that its words have; the decoder's, where the library finds several."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def build_config(config: Mapping[str, Any], plan: Plan) -> Any:
    """The library's own config object with what the plan says: attention, dropout, no cache while
    training.
    """
    from transformers import AutoConfig

    if plan.attention not in ATTENTION:
        raise input_error(
            "attention",
            plan.attention.value,
            "is no kernel of transformers' own, which alone are run",
            "sdpa; `memsheet train` accounts it",
        )
    check_attention_package(plan.attention.value)
    given = {key: _number(value) for key, value in config.items() if key not in _NOT_ASKED}
    kind = config.get("model_type")
    try:
        built = AutoConfig.for_model(str(kind), **given)
    except ValueError:
        raise input_error("model_type", kind, "is not one that this transformers can build") from None
    attention = ATTENTION[plan.attention if _has_attention_heads(built) else AttentionKind.EAGER]
    for part in _nested_configs(built):
        part.dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
        part.use_cache = isinstance(plan.workload, Serving)
        part._attn_implementation = attention
        for name in [
            name
            for name, value in vars(part).items()
            if name.endswith(("dropout", "_pdrop", "dropout_prob", "dropout_rate"))
            and type(value) is not bool
        ]:
            if (
                getattr(part, name) != plan.dropout
            ):  # some configs take whole numbers alone, and so nothing but none
                setattr(part, name, plan.dropout)
    return built


def _number(value: Any) -> Any:
    """A value of a config with the numbers that JSON has no word for, as the library's own reader makes them
    (transformers 5.23 configuration_utils.py:1168).
    """
    if isinstance(value, Mapping):
        word = value.get(TAGGED)
        if len(value) == 1 and word in _NO_JSON:
            return float(word)
        return {key: _number(inner) for key, inner in value.items()}
    return [_number(inner) for inner in value] if isinstance(value, list) else value


def _has_attention_heads(config: Any) -> bool:
    """Whether there is a choice of kernels at all: state-space models have no heads, and the library refuses
    any choice but one.
    """
    return any(map(_has_heads, _nested_configs(config)))


def _has_heads(config: Any) -> bool:
    try:
        return getattr(config, "num_attention_heads", None) is not None
    except Exception as error:  # noqa: BLE001 - the library's own, of some versions: layers differ in how many
        return "per-layer" in str(error)


def _nested_configs(config: Any) -> Iterator[Any]:
    """A config and the ones nested in it (text, vision)."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _nested_configs(value)


def without_layers(config: Any, left_out: Collection[int]) -> Any:
    """The config without some layers: their number, what lists say of each, and lists of their numbers. In
    place, and returned.
    """
    text = text_config_of(config)
    layers = text.num_hidden_layers
    kept = [number for number in range(layers) if number not in left_out]
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, [value[number] for number in kept])
        elif "layer" in name and _are_layer_numbers(value, layers):
            setattr(text, name, [place for place, number in enumerate(kept) if number in value])
    shared = getattr(text, LAST_SHARING, None) or 0
    if shared:
        setattr(text, LAST_SHARING, sum(number >= layers - shared for number in kept))
    text.num_hidden_layers = len(kept)
    return config


def _are_layer_numbers(value: Any, layers: int) -> bool:
    """Whether a list names layers: whole numbers of layers, each once, in order."""
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        return False
    return value == sorted(set(value)) and all(0 <= number < layers for number in value)


def build_model(config: Any, plan: Plan, device: str) -> nn.Module:
    """The model on ``device`` in the plan's dtype, in training mode, tied weights tied. Its values are
    whatever memory held.
    """
    dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
    with default_dtype(dtype), _as_it_is(), torch.device(device):
        model = _build_from_config(config, plan)
    _bring_home(model, device, dtype)
    model.tie_weights()
    result: nn.Module = model.train() if isinstance(plan.workload, Training) else model.eval()
    return result


def _bring_home(model: nn.Module, device: str, dtype: torch.dtype) -> None:
    """What torch's old constructors made on the host in fp32, wherever the model is (transformers 5.23
    modeling_xlnet.py, XLNetRelativeAttention: ``torch.FloatTensor``), to where and what the model is, as
    loading weights into it does.
    """
    kind = torch.device(device).type
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type != kind:
                there = torch.empty_like(parameter, device=device, dtype=dtype, requires_grad=False)
                module._parameters[name] = nn.Parameter(there, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != kind:
                module._buffers[name] = buffer.to(device)


def _as_it_is() -> AbstractContextManager[None]:
    """The library's own way to leave new tensors' values alone, which moved in 5.0."""
    try:
        home = import_module("transformers.initialization")
    except ModuleNotFoundError:
        home = import_module("transformers.modeling_utils")
    found: AbstractContextManager[None] = home.no_init_weights()
    return found


def initialize_model_weights(model: nn.Module) -> nn.Module:
    """The values that the library's own classes begin with, in place."""
    model.initialize_weights()  # type: ignore[operator]
    return model


def parameters_of(config: Mapping[str, Any], plan: Plan) -> int:
    """How many parameters the model has, tied ones once."""
    return sum(
        parameter.numel() for parameter in build_model(build_config(config, plan), plan, "meta").parameters()
    )


def _build_from_config(config: Any, plan: Plan) -> Any:
    """The model of the class that its config names, else of the first kind of head that its family has."""
    made = _model_class(config)
    if made.__name__ == _BARE and isinstance(plan.workload, Training):
        raise input_error(
            "model_type",
            config.model_type,
            "makes no words: neither a loss nor a generation of it is known here",
            "name one in the config's architectures",
        )
    try:
        build = getattr(made, "from_config", None) or made._from_config  # an auto class has the first alone
        return build(_own_part(config, made))
    except ValueError as error:
        if "attention implementation" not in str(error):
            raise
        if _run_tower_eagerly(config, str(error).split(maxsplit=1)[0]):
            return _build_from_config(config, plan)
        known = [kind.value for kind in ATTENTION if kind is not plan.attention]
        raise input_error(
            "attention",
            plan.attention.value,
            f"is not how {config.model_type} runs",
            f"--attention {known[0]}",
        ) from None


def _own_part(config: Any, made: Any) -> Any:
    """The part of a config that a class is made of: the words' alone, where it has no towers (transformers
    5.23 auto_factory.py, _BaseAutoModelClass.from_config).
    """
    own, parts = getattr(made, "config_class", None), getattr(type(config), "sub_configs", None) or {}
    return text_config_of(config) if own is not None and own is parts.get("text_config") else config


def _run_tower_eagerly(config: Any, model_name: str) -> bool:
    """Whether a tower of the class ``model_name`` was asked for attention that it lacks, and is eager now:
    what the library does where nobody says (modeling_utils.py, get_correct_attn_implementation).
    """
    from transformers import AutoModel

    own = (config, text_config_of(config))
    for part in _nested_configs(config):
        made = getattr(AutoModel._model_mapping.get(type(part), None), "__name__", "")
        if made == model_name and all(part is not each for each in own):
            changed: bool = part._attn_implementation != ATTENTION[AttentionKind.EAGER]
            part._attn_implementation = ATTENTION[AttentionKind.EAGER]
            return changed
    return False


def _named_class(config: Any) -> str | None:
    """The first of the config's architectures that the library has."""
    import transformers

    return next((name for name in config.architectures or () if hasattr(transformers, name)), None)


def _model_class(config: Any) -> Any:
    import transformers

    named = _named_class(config)
    if named:
        return getattr(transformers, named)
    for head in _auto_model_classes(config):
        auto = getattr(transformers, head)
        if type(config) in auto._model_mapping:
            return auto
    return _listed_class(config)


def _listed_class(config: Any) -> Any:
    """The class of a type that the library's own tables name but do not find by its config, since two types
    have one (transformers 5.23 auto_factory.py, _LazyAutoMapping.__contains__: evolla). Raises InputError for
    a type that no table has.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    for table in _LISTS:
        if name := getattr(modeling_auto, table, {}).get(config.model_type):
            return getattr(transformers, name)
    raise input_error("model_type", config.model_type, "has no model that this transformers can build")


def _auto_model_classes(config: Any) -> tuple[str, ...]:
    """Kinds of heads, likeliest first: what reads both ways is trained on masked words, and what has two
    stacks on pairs.
    """
    if getattr(config, "is_encoder_decoder", False):
        return _SEQ2SEQ_HEADS + _HEADS
    if getattr(text_config_of(config), "vocab_size", None) is None:
        return ("AutoModelForImageClassification", _BARE)
    if config.model_type in STANDARD:  # with a picture, which the head for words alone leaves out (mllama)
        return ("AutoModelForImageTextToText", *_HEADS)
    both_ways = "is_decoder" in vars(config) and not config.is_decoder
    return ("AutoModelForMaskedLM", *_HEADS) if both_ways else _HEADS


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New floating-point tensors are of ``dtype`` meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def layers_of(model: nn.Module) -> nn.ModuleList | None:
    """The stack of layers that holds most of the parameters (a decoder's, before an encoder's; the words',
    before a tower's).
    """
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) > 0
    ]
    outer = [
        (n, m)
        for n, m in stacks
        if not any(n.startswith(f"{other}.") for other, _ in stacks) and PICTURE_TOKENIZER not in n
    ]
    if not outer:
        return None
    home, towers = _home_of_words(model), _tower_paths(model)

    def weight_of(pair: tuple[str, nn.ModuleList]) -> tuple[bool, bool, bool, int]:
        name, stack = pair
        own = name.startswith(home), not name.startswith(towers)
        return "decoder" in name, *own, sum(p.numel() for p in stack.parameters())

    return max(outer, key=weight_of)[1]


def word_table(model: Any) -> nn.Module | None:
    """The module that looks words up: of the model, else of what the library calls its decoder; None where it
    names none.
    """
    found: nn.Module | None = None
    with suppress(AttributeError, NotImplementedError):
        found = model.get_decoder().get_input_embeddings()
    with suppress(AttributeError, NotImplementedError):
        found = model.get_input_embeddings()
    return found


def _tower_paths(model: nn.Module) -> tuple[str, ...]:
    """The paths, with a dot, of models within one that looks words up, which are handed no words."""
    home = _home_of_words(model)
    return tuple(
        f"{name}."
        for name, module in model.named_modules()
        if name and getattr(module, "main_input_name", WORDS) != WORDS and not home.startswith(f"{name}.")
    )


def _home_of_words(model: nn.Module) -> str:
    """The path, with a dot, of the module that looks words up and so runs the layers behind them; empty where
    it is the model itself, or not known.
    """
    table = word_table(model)
    name = next((name for name, module in model.named_modules() if module is table), "")
    return f"{parent}." if (parent := name.rpartition(".")[0]) else ""
