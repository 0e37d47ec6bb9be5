"""Which module is running, forward and backward: names for what the recorder sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from memsheet.run.adapters import Linear4bit
from memsheet.sheet import Component, Instant
from memsheet.trace.recorder import Recorder

_INDEX = re.compile(r"\.\d+(?=[./]|$)")
_WRAPPERS = re.compile(
    r"^module(?=\.)|(^|\.)(_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod"
    r"|base_model\.model|base_layer|(?<=lora_[AB]\.)default)(?=\.|$)"
)


def fold_layer_indices(path: str) -> str:
    """A module's name with indices folded: ``model.layers.3.mlp`` → ``model.layers.*.mlp``; wrappers of other
    libraries go.
    """
    return _INDEX.sub(".*", _WRAPPERS.sub("", path).lstrip("."))


def layer_of(path: str, stack: str) -> int:
    """The index of the layer of the stack at ``stack`` that a module belongs to, -1 for none: a tower's
    layers are not the decoder's.
    """
    name = _WRAPPERS.sub("", path).lstrip(".")
    found = _INDEX.match(name, len(stack)) if name.startswith(stack) else None
    return int(found[0][1:]) if found else -1


def owning_module_names(model: nn.Module) -> dict[str, str]:
    """Every module's name → the nearest one at or above it that holds tensors, which what it makes is filed
    under.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        holds = next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
        found[name] = name if holds else found.get(name.rpartition(".")[0], "")
    return found


class Modules:
    """The module that runs now: in forward by hooks on modules, in backward by hooks on the gradients at
    their borders.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._stack: list[str] = []
        self._back = ""
        self._recomputed: tuple[int, str] | None = (
            None  # since which row a checkpoint runs forward again, and for whose backward
        )
        self._owners: dict[str, str] = {}
        recorder.where = self.current

    def current(self) -> str:
        """The name of the module, as it stands; empty outside all."""
        return self._stack[-1] if self._stack else self._back

    def watch(self, model: nn.Module, prefix: str = "") -> None:
        """Follow a model's modules from now on."""
        names = owning_module_names(model)
        for name, module in model.named_modules():
            owner = names[name]
            module.register_forward_pre_hook(self._enter(f"{prefix}{owner}"), with_kwargs=True)
            module.register_forward_hook(
                self._leave(f"{prefix}{owner}", output_part_name(name, owner)), always_call=True
            )

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            if not self._stack and self.recorder.instant is Instant.BACKWARD:
                self._again(name.rpartition(".")[0])
            outside = self.current() if self._stack else name.rpartition(".")[0]
            for tensor in _differentiable_tensors((args, kwargs)):
                if not tensor._backward_hooks:  # else the module that made it says where backward is
                    tensor.register_hook(self._backward_of(outside))
            self._stack.append(name)

        return hook

    def _leave(self, name: str, label: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            self._stack.pop()
            for tensor in _nested_tensors(output):
                row = self.recorder.row_of(tensor)
                if row is not None and row.path == name and not row.part:
                    row.part = label
                if (
                    tensor.requires_grad and tensor.grad_fn is not None and not tensor._backward_hooks
                ):  # an inner module's own
                    tensor.register_hook(self._backward_of(name))
            if not self._stack and self._recomputed:
                self.recorder.keep_from(self._recomputed[0])
                if (
                    output is None
                    # the checkpoint has what it wants and stops here (torch/utils/checkpoint.py
                    # _StopRecomputationError)
                ):
                    self._back, self._recomputed = self._recomputed[1], None

        return hook

    def _again(self, around: str) -> None:
        """A module runs while backward does: a checkpoint runs forward again, from inside ``around``, whose
        own hooks it leaves out.
        """
        self._recomputed = self._recomputed or (len(self.recorder.rows), self._back)
        self._back = around

    def _backward_of(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            self._back, self._recomputed = name, None

        return hook

    def outside(self) -> None:
        """No module runs: the optimizer's turn, or a new step's."""
        self._stack.clear()
        self._back = ""


def output_part_name(name: str, owner: str) -> str:
    """What a module's output is called under its owner."""
    return "output" if name == owner else name[len(owner) :].strip(".") or "output"


def _nested_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a module's arguments or results, without walking into objects such as caches and
    configurations.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for held in value:
            yield from _nested_tensors(held)
    elif isinstance(value, dict):
        for held in value.values():
            yield from _nested_tensors(held)


def _differentiable_tensors(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in _nested_tensors(value) if t.requires_grad and t.grad_fn is not None)


def claim_parameters(recorder: Recorder, model: nn.Module) -> None:
    """Parameters and buffers by their modules. The scales of a quantized weight are a part of it."""
    for name, parameter in model.named_parameters():
        recorder.claim(parameter, Component.PARAMETERS, name.rpartition(".")[0])
    for name, buffer in model.named_buffers():
        module = name.rpartition(".")[0]
        if isinstance(model.get_submodule(module), Linear4bit):
            recorder.claim(buffer, Component.PARAMETERS, module)
        recorder.claim(buffer, Component.BUFFERS, name)


def watch_gradients(recorder: Recorder, model: nn.Module) -> None:
    """Gradients are claimed the moment autograd has put them into ``.grad``."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                _gradient_claim_hook(recorder, name.rpartition(".")[0])
            )


def _gradient_claim_hook(recorder: Recorder, path: str) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            recorder.claim(parameter.grad, Component.GRADIENTS, path)

    return hook


def claim_states(recorder: Recorder, model: nn.Module, optimizer: Any) -> None:
    """Gradients that wait in ``.grad`` and an optimizer's states, by the parameter they belong to."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            recorder.claim(parameter.grad, Component.GRADIENTS, name.rpartition(".")[0])
    for parameter, master in getattr(optimizer, "masters", {}).items():
        recorder.claim(master, Component.MASTER_WEIGHTS, names.get(parameter, "optimizer"))
    for parameter, state in getattr(optimizer, "state", {}).items():
        for value in state.values() if isinstance(state, dict) else ():
            recorder.claim(value, Component.OPTIMIZER_STATES, names.get(parameter, "optimizer"))
