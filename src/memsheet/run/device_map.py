"""A model that one process puts on several cards, layer by layer: accelerate's own hooks move what each
module is handed to its card (``device_map`` of ``from_pretrained``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import input_error
from memsheet.plan.plan import Plan, Schedule
from memsheet.run.model import layers_of


def apply_device_map(model: nn.Module, plan: Plan) -> nn.Module:
    """The model, in place, with its layers on the cards that the plan deals them to: what comes before them
    is on the first card, what follows on the last, a head that is tied on that of its table (accelerate
    1.15.0 utils/modeling.py, infer_auto_device_map: modules in order, tied ones together).

    Raises InputError for models that are not one stack of layers, and for layers that do not sum up.
    """
    if plan.schedule is not Schedule.NAIVE:
        return model
    with _disable_current_modes():
        from accelerate.hooks import attach_align_device_hook_on_blocks  # type: ignore[import-untyped]

    places, moved = card_of_modules(model, plan), dict[int, nn.Parameter]()
    for name, module in model.named_modules():
        card = torch.device("cuda", next((places[at] for at in _enclosing_names(name) if at in places), 0))
        for own, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in moved:  # a tied one is moved once
                there = parameter.detach().to(card)
                moved[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)
            module._parameters[own] = moved[id(parameter)]
        for own, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[own] = buffer.to(card)
    attach_align_device_hook_on_blocks(
        model,
        execution_device={name: torch.device("cuda", card) for name, card in {**places, "": 0}.items()},
        offload=dict.fromkeys(places, False),  # the root's own is left open, which moves what it returns
        skip_keys=getattr(model, "_skip_keys_device_placement", None),
        tied_params_map={},
    )
    return model


def card_of_modules(model: nn.Module, plan: Plan) -> dict[str, int]:
    """The card of each module that is not cut: the parts around the layers, and every layer."""
    layers = layers_of(model)
    path = next((name for name, module in model.named_modules() if module is layers), None)
    counts = plan.layers_per_stage
    if layers is None or path is None:
        reason = f"{type(model).__name__} is not one stack of layers"
        raise input_error("schedule", plan.schedule.value if plan.schedule else None, reason)
    if counts is None or len(counts) != plan.mesh.pp or sum(counts) != len(layers):
        reason = f"does not divide {len(layers)} layers over {plan.mesh.pp} cards"
        raise input_error("layers_per_stage", counts, reason)
    parents: list[Any] = [model]
    for part in path.split(".")[:-1]:
        parents.append(getattr(parents[-1], part))
    cards = [card for card, count in enumerate(counts) for _ in range(count)]
    prefix = path.split(".")
    found = {f"{path}.{number}": card for number, card in enumerate(cards)}
    start, end = plan.end_stages or (0, plan.mesh.pp - 1)
    for depth, parent in enumerate(parents):
        passed = False
        for name, _ in parent.named_children():
            if name == prefix[depth]:
                passed = True
                continue
            found[".".join([*prefix[:depth], name])] = cards[-1] if passed else start
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        found[next(name for name, module in model.named_modules() if module is head)] = end
    return found


def _enclosing_names(name: str) -> list[str]:
    """A module's name, and those of the modules around it, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
