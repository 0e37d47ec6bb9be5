"""What Python code must be told for a step to run on fake tensors as it does on a GPU: a table of
replacements, undone afterwards.

Every row asserts that what it replaces is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, _meta_registrations

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.trace.attention import scaled_dot_product_attention

ANY_TESTED = "tested: torch 2.13, transformers 5.23"


@dataclass(frozen=True, slots=True)
class Patch:
    """``module``'s ``attribute`` (dotted) gets ``value`` while a trace runs."""

    module: str
    attribute: str
    value: Any
    why: str
    optional: bool = False  # a library's detail that only some versions have


def _always_false(*_: Any, **__: Any) -> bool:
    return False


def _always_true(*_: Any, **__: Any) -> bool:
    return True


def _return_none(*_: Any, **__: Any) -> None:
    return None


def _one_sequence(position_ids: Tensor) -> None:
    """That positions are those of one sequence, after the operations by which transformers finds out
    (masking_utils.py:750-780).
    """
    before = position_ids[:, :1] - 1
    steps = torch.diff(position_ids, prepend=before, dim=-1)  # these two live to the end, as they do there
    mask = (steps != 1).cumsum(-1)
    (mask[:, -1] == 0).all()


def _mask_hides_nothing(mask: Tensor) -> bool:
    """That a mask hides nothing, after the operations by which transformers finds out
    (masking_utils.py:262-264).
    """
    mask.sum() == mask.numel()  # noqa: B015 - it allocates what the real one does
    return True


def _h100_compute_capability(*_: Any, **__: Any) -> tuple[int, int]:
    """Compute capability of an H100: what decides which kernels a library calls."""
    return 9, 0


def _apply_new_parameters(
    self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True
) -> torch.nn.Module:
    """``Module._apply`` that makes new parameters: torch insists on swapping fake tensors in place, and that
    fails.
    """
    for child in self.children() if recurse else ():
        child._apply(fn)
    for name, parameter in list(self._parameters.items()):
        if parameter is not None:
            with torch.no_grad():
                made = fn(parameter)
            if made is not parameter:
                self._parameters[name] = torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
    for name, buffer in list(self._buffers.items()):
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _step_without_overflow(
    _: Any, optimizer: torch.optim.Optimizer, __: Any, *args: Any, **kwargs: Any
) -> Any:
    """The optimizer's turn, as when no gradient overflowed (torch amp/grad_scaler.py, which asks for the
    value).
    """
    return optimizer.step(*args, **kwargs)


_grouped_mm_of_bf16 = _meta_registrations._meta_grouped_mm_common


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    offs: Tensor | None = None,
    **more: Any,
) -> Tensor:
    """One output, its rows padded to 16 bytes, in the first operand's dtype. Other dtypes than bf16 run as
    one product a group, each into its part of that output (aten native/GroupedMMUtils.h at
    2295ac79:39-77,106-147; cuda/GroupedBlas.cpp at 00d4eaf9, end).
    """
    if scale_a is not None or scale_b is not None:
        made: Tensor = _grouped_mm_of_bf16(mat_a, mat_b, scale_a, scale_b, offs, **more)
        return made
    dtype = more.get("out_dtype") or mat_a.dtype
    one_is_2d = (mat_a.dim() == 2) != (mat_b.dim() == 2)
    groups = (
        [offs.size(0)]
        if offs is not None and mat_a.dim() == 2 == mat_b.dim()
        else []
        if one_is_2d
        else [mat_a.size(0)]
    )
    rows, columns = mat_a.size(-2), mat_b.size(-1)
    padded = -(-columns // (16 // dtype.itemsize)) * (16 // dtype.itemsize)
    return torch.empty_strided(
        [*groups, rows, columns],
        [*(rows * padded for _ in groups), padded, 1],
        dtype=dtype,
        device=mat_a.device,
    )


CUDA = (
    Patch(
        "torch.cuda.amp.common",
        "amp_definitely_not_available",
        _always_false,
        "autocast would switch itself off",
    ),
    Patch("torch.cuda", "is_bf16_supported", _always_true, "autocast would refuse bf16"),
    Patch("torch.cuda", "synchronize", _return_none, "there is nothing to wait for"),
    Patch(
        "torch.cuda",
        "get_device_capability",
        _h100_compute_capability,
        "libraries ask for it before they choose a kernel",
    ),
    Patch(
        "torch.nn.functional",
        "scaled_dot_product_attention",
        scaled_dot_product_attention,
        "the choice of kernel needs a GPU",
    ),
)
FAKE = (
    Patch("torch.nn.Module", "_apply", _apply_new_parameters, "fake parameters cannot be swapped"),
    Patch(
        "torch.amp.GradScaler",
        "_maybe_opt_step",
        _step_without_overflow,
        "a fake gradient does not say whether it is finite",
    ),
    Patch(
        "torch._meta_registrations", "_meta_grouped_mm_common", _grouped_mm, "experts would have to be bf16"
    ),
)
UNPADDED = (
    Patch(
        "transformers.masking_utils",
        "find_packed_sequence_indices",
        _one_sequence,
        "fake positions hold no packed sequences",
    ),
    Patch("transformers.masking_utils", "is_tracing", _always_false, "a fake tensor is no export"),
    Patch(
        "transformers.masking_utils",
        "fast_all",
        _mask_hides_nothing,
        "a fake mask hides no padding",
        optional=True,
    ),
)
"""Masks of full sequences: neither padded nor packed, as the training step's own tokens are."""


@contextmanager
def apply_patches(patches: Sequence[Patch]) -> Iterator[None]:
    """Replace for a while. Raises InputError where there is nothing to replace."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for patch in patches:
            owner = _patched_object(patch)
            if owner is None or not hasattr(owner, patch.attribute):
                if patch.optional:
                    continue
                raise input_error(
                    "patch",
                    f"{patch.module}.{patch.attribute}",
                    f"does not exist, and without it {patch.why}",
                    ANY_TESTED,
                )
            before = vars(owner).get(
                patch.attribute, getattr(owner, patch.attribute)
            )  # a static method as such
            undo.append((owner, patch.attribute, before))
            setattr(owner, patch.attribute, patch.value)
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)


def _patched_object(patch: Patch) -> Any:
    """The module or class that a row names."""
    try:
        return import_module(patch.module)
    except ImportError:
        parent, _, name = patch.module.rpartition(".")
        try:
            return getattr(import_module(parent), name, None)
        except ImportError:
            return None


# ---- operations that are one kernel on a GPU and several without -------------------------------------------


def _like_gradient(gradient: Tensor, _: Tensor) -> Tensor:
    return torch.empty_like(gradient)


KERNELS = {"silu_backward": _like_gradient, "mish_backward": _like_gradient}
"""native_functions.yaml gives these a CPU and a CUDA kernel beside a composite one, to which a torch without
CUDA falls back.
"""

IN_PLACE = ("_fused_sgd_",)
"""Fused optimizer steps that torch gives no fake version; each works in place and allocates nothing."""


@contextmanager
def register_cuda_kernels() -> Iterator[None]:
    """CUDA kernels of one output for operations that would be decomposed."""
    library = torch.library.Library("aten", "IMPL")
    for name in IN_PLACE:
        library.impl(name, _return_none, "Meta")
    for name, implementation in KERNELS.items() if torch.version.cuda is None else ():
        library.impl(name, implementation, "CUDA")
    try:
        yield
    finally:
        library._destroy()
