"""Recompute in backward: by the model's own switch (each layer saves its input and runs its forward again),
in stretches of layers, or of single modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memsheet.errors import input_error
from memsheet.plan.plan import Plan, Recompute, RecomputeMode
from memsheet.run.model import layers_of, word_table
from memsheet.run.recompute_segments import apply_stretches


def apply_recompute(model: nn.Module, plan: Plan) -> None:
    """Turn on what the plan asks for. Raises InputError for models without the switch or without layers, and
    for names of no module.
    """
    match plan.recompute.mode:
        case RecomputeMode.SELECTIVE:
            _recompute_named_modules(model, plan.recompute.modules)
        case RecomputeMode.FULL if plan.recompute.stretched:
            layers = layers_of(model)
            if layers is None or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
                why = f"stretches need one stack of layers, which {type(model).__name__} has not"
                raise input_error("recompute", "full", why, "recompute every layer")
            apply_stretches(layers, plan.recompute.starts(len(layers)))
        case RecomputeMode.FULL:
            _own_switch(model, plan.recompute)


def _own_switch(model: nn.Module, how: Recompute) -> None:
    """Every layer by itself, or only the first so many. A reentrant one comes back through its input alone,
    which then asks for a gradient where no embedding trains, as peft has it (0.21.2 utils/other.py:229).
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise input_error("recompute", "full", f"{type(model).__name__} cannot recompute its layers")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": how.reentrant})  # type: ignore[operator]
    table = word_table(model) if how.reentrant else None
    if table is not None and not any(one.requires_grad for one in table.parameters()):
        model.enable_input_require_grads()  # type: ignore[operator]
    layers = layers_of(model)
    if how.layers is not None and layers is not None:
        for layer in list(layers)[how.layers :]:
            layer.gradient_checkpointing = False  # type: ignore[assignment]


def _recompute_named_modules(model: nn.Module, names: Sequence[str]) -> None:
    """Recompute each module whose last name is one of ``names``."""
    found = {name: module for name, module in model.named_modules() if name.rpartition(".")[2] in names}
    missing = set(names) - {name.rpartition(".")[2] for name in found}
    if missing:
        known = sorted({name for layer in layers_of(model) or () for name, _ in layer.named_children()})
        raise input_error(
            "recompute.modules",
            min(missing),
            f"names no module of {type(model).__name__}",
            f"a layer has {', '.join(known)}",
        )
    for module in found.values():
        module.forward = partial(_checkpointed_forward, module.forward)


def _checkpointed_forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A module's forward under a checkpoint, which looks for its device and for what it keeps among the
    arguments without names.
    """
    if args:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    first = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
    return checkpoint(
        lambda tensor, **rest: forward(**{first: tensor}, **rest),
        kwargs.pop(first),
        use_reentrant=False,
        **kwargs,
    )
