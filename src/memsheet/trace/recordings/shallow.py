"""A model of few of its layers: built so where the library takes a config of as few, else cut down once it is
built whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from memsheet.frozen import dataclass
from memsheet.plan.plan import Plan
from memsheet.run.model import build_config, build_model, layers_of, text_config_of, without_layers

NUMBERED = re.compile(r"(^|_)(idx|id|number)$|^(block_idx|layer_num|seed)$")
"""What layers call their own place, or make of it to draw by, which makes none another kind."""
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")
"""How configs of two stacks call the number of the second's layers."""


@dataclass(frozen=True, slots=True)
class Shallow:
    """The layers that are run, by their numbers in the whole model. ``whole``: that is all of them;
    ``built_whole``: the library takes no config of these alone.
    """

    kept: tuple[int, ...]
    whole: bool = False
    built_whole: bool = False


def build_shallow_model(config: Mapping[str, Any], plan: Plan, shallow: Shallow, device: str) -> nn.Module:
    """The model with the layers of ``shallow`` alone."""
    settings = build_config(config, plan)
    if shallow.whole:
        return build_model(settings, plan, device)
    if shallow.built_whole:
        return cut_down(build_model(settings, plan, device), shallow.kept)
    layers = text_config_of(settings).num_hidden_layers
    return build_model(without_layers(settings, set(range(layers)) - set(shallow.kept)), plan, device)


def cut_down(model: nn.Module, kept: Collection[int]) -> nn.Module:
    """A model with the layers ``kept`` of its stack, which call themselves by their new places. In place,
    and returned.
    """
    layers = layers_of(model)
    assert layers is not None
    text = text_config_of(model.config)
    if text.num_hidden_layers == len(layers):
        without_layers(model.config, set(range(len(layers))) - set(kept))
    for name in DECODER_LAYERS:
        if getattr(model.config, name, None) == len(layers):
            setattr(model.config, name, len(kept))
    path = next(name for name, module in model.named_modules() if module is layers)
    for place, number in enumerate(kept):
        _renumber_layer(layers[number], number, place)
    home, _, name = path.rpartition(".")
    setattr(model.get_submodule(home), name, nn.ModuleList(layers[number] for number in kept))
    return model


def _renumber_layer(layer: nn.Module, number: int, place: int) -> None:
    for module in layer.modules():
        for name, value in list(vars(module).items()):
            if type(value) is int and value == number and NUMBERED.search(name):
                setattr(module, name, place)
