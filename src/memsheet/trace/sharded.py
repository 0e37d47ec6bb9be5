"""What fully_shard allocates, by name: gathered parameters, the buffers they arrive in, whole gradients and
the buffers they leave by.

Paths are those of groups: ``model.layers.*``, ``embeddings``, ``head``, and ``root`` for a group that goes
first and last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from memsheet.sheet import Component
from memsheet.trace.recorder import Recorder

_WORK = ("pre_forward", "post_forward", "pre_backward", "post_backward", "finalize_backward")
"""What a group does before and after its modules run (_fsdp_param_group.py), for itself or ahead of time for
another.
"""


class Gather(DefaultAllGather):
    """The group's all-gather, whose output is claimed."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._path = recorder, f"{name}/all_gather"

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        made = super().allocate(size, dtype=dtype, device=device)
        self._recorder.claim(made, Component.UNSHARDED_PARAMETERS, self._path)
        return made


class Scatter(DefaultReduceScatter):
    """The group's reduce-scatter: first its input is allocated, then its output (_fsdp_collectives.py,
    foreach_reduce).
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name
        self._has_input = False

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        made = super().allocate(size, dtype=dtype, device=device)
        self._recorder.claim(
            made,
            Component.COMMUNICATION,
            f"{self._name}/{'reduced_shard' if self._has_input else 'reduce_scatter'}",
        )
        self._has_input = not self._has_input
        return made


def claim_sharded(recorder: Recorder, root: nn.Module, model: Any) -> None:
    """Watch every group of a model that ``fully_shard`` was applied to, from its first step on. ``root``:
    what is called.
    """
    assert isinstance(root, FSDPModule)
    # pads the shards, which is the last time that parameters change places
    root._get_fsdp_state()._lazy_init()
    names = {module: name for name, module in model.named_modules()}
    working, around = list[str](), recorder.where
    recorder.where = lambda: working[0] if working else around()
    for group in _unique_param_groups(root):
        name = _param_group_name(group, model, names)
        group._all_gather_comm, group._reduce_scatter_comm = Gather(recorder, name), Scatter(recorder, name)
        for work in _WORK:
            setattr(group, work, _note_working_group(getattr(group, work), name, working))
        for parameter in group.fsdp_params:
            _claim_parameter(recorder, parameter, name, names[parameter._module_info.module])


def _unique_param_groups(root: nn.Module) -> Iterator[Any]:
    """Every group of parameters once, though a state can belong to several modules."""
    states = {
        id(m._get_fsdp_state()): m._get_fsdp_state() for m in root.modules() if isinstance(m, FSDPModule)
    }
    for state in states.values():
        yield from state._fsdp_param_groups


def _param_group_name(group: Any, model: Any, names: dict[nn.Module, str]) -> str:
    first, last = (
        model.get_input_embeddings() in group.modules,
        model.get_output_embeddings() in group.modules,
    )
    if first and last:
        return "root"
    if first or last:
        return "embeddings" if first else "head"
    return names.get(group.modules[0]) or "root"


def _note_working_group(function: Callable[..., Any], name: str, working: list[str]) -> Callable[..., Any]:
    """``function``, which a group does."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        working.append(name)
        try:
            return function(*args, **kwargs)
        finally:
            working.pop()

    return run


def _claim_parameter(recorder: Recorder, parameter: Any, group: str, module: str) -> None:
    """The shard, its gradient, and what they are while gathered: each is claimed as soon as it is there."""
    gathered = parameter.init_unsharded_param
    accumulated = parameter.to_accumulated_grad_if_needed

    def gather() -> None:
        fresh = not hasattr(parameter, "_unsharded_param")
        gathered()
        for output in parameter.all_gather_outputs:
            recorder.claim(output, Component.UNSHARDED_PARAMETERS, f"{group}/unsharded")
        if fresh and parameter._unsharded_param.requires_grad:
            parameter._unsharded_param.register_post_accumulate_grad_hook(
                _sharded_gradient_hook(recorder, module)
            )

    def accumulate() -> None:
        accumulated()
        recorder.claim(parameter.unsharded_accumulated_grad, Component.GRADIENTS, module)

    parameter.init_unsharded_param, parameter.to_accumulated_grad_if_needed = gather, accumulate
    recorder.claim(parameter.sharded_param, Component.PARAMETERS, module)
    if parameter.sharded_param.requires_grad:
        parameter.sharded_param.register_post_accumulate_grad_hook(_sharded_gradient_hook(recorder, group))


def _sharded_gradient_hook(recorder: Recorder, path: str) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        recorder.claim(parameter.grad, Component.GRADIENTS, path)

    return hook
