"""The real model, built by the transformers library from a config alone: no weights, no download, no code from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memsheet.errors import refuse
from memsheet.run.dtypes import torch_dtype
from memsheet.spec.plan import AttentionKind, Plan

ATTENTION = {AttentionKind.EAGER: "eager", AttentionKind.SDPA: "sdpa", AttentionKind.FLASH: "flash_attention_2"}
_NOT_ASKED = ("model_type", "auto_map", "quantization_config", "dtype", "torch_dtype")  # the plan says in what format it is
_HEADS = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")


def build_config(config: Mapping[str, Any], plan: Plan) -> Any:
    """The library's own config object with what the plan says: attention, dropout, no cache while training."""
    from transformers import AutoConfig

    given = {key: value for key, value in config.items() if key not in _NOT_ASKED}
    kind = config.get("model_type")
    try:
        built = AutoConfig.for_model(str(kind), **given)
    except ValueError:
        raise refuse("model_type", kind, "is not one that this transformers can build") from None
    for part in _parts(built):
        part.dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
        part.use_cache = plan.task == "infer"
        part._attn_implementation = ATTENTION[plan.attention]
        for name in [name for name in vars(part) if name.endswith(("dropout", "_pdrop", "dropout_prob"))]:
            setattr(part, name, plan.dropout)
    return built


def _parts(config: Any) -> Iterator[Any]:
    """A config and the ones nested in it (text, vision)."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _parts(value)


def without_layers(config: Any, left_out: range) -> Any:
    """The config without some layers: their number, and what lists say of each. In place, and returned."""
    text = config.get_text_config()
    layers = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, [held for number, held in enumerate(value) if number not in left_out])
    text.num_hidden_layers = layers - len(left_out)
    return config


def build_model(config: Any, plan: Plan, device: str) -> nn.Module:
    """The model on ``device`` in the plan's dtype, in training mode, tied weights tied. Its values are whatever memory held."""
    from transformers.initialization import no_init_weights

    with default_dtype(torch_dtype(plan.precision.parameters, "precision.parameters")), no_init_weights(), torch.device(device):
        model = _model_class(config)._from_config(config) if _named_class(config) else _model_class(config).from_config(config)
    model.tie_weights()
    result: nn.Module = model.train() if plan.task == "train" else model.eval()
    return result


def _named_class(config: Any) -> str | None:
    """The first of the config's architectures that the library has."""
    import transformers

    return next((name for name in config.architectures or () if hasattr(transformers, name)), None)


def _model_class(config: Any) -> Any:
    import transformers

    named = _named_class(config)
    if named:
        return getattr(transformers, named)
    for head in _HEADS:
        auto = getattr(transformers, head)
        if type(config) in auto._model_mapping:
            return auto
    raise refuse("model_type", config.model_type, "has no model that this transformers can build")


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
    """The stack of layers that holds most of the parameters (a decoder's, before an encoder's or a tower's)."""
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) > 0]
    outer = [(n, m) for n, m in stacks if not any(n.startswith(f"{other}.") for other, _ in stacks)]
    if not outer:
        return None
    return max(outer, key=lambda pair: ("decoder" in pair[0], sum(p.numel() for p in pair[1].parameters())))[1]
