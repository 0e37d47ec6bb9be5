"""Fake ``cuda`` tensors where there is no card, end to end through autograd. Two patches of private memory,
no compiler.

A torch that was built without CUDA has no device guard and no CUDA hooks, and its engine asks for both. One
that was built with it has both, but without a card it takes its own no-op guard, which counts one, and then
asks its hooks whether that one has a context, which they refuse. The patches put harmless ones in their
places:

* a guard whose every method returns 0, which torch then replaces by its own no-op guard
  (``_ensureCUDADeviceGuardSet``), where there is none;
* a private copy of the hooks' virtual table, in which CUDA is built and no context exists.

What they assume about torch is asserted; where an assumption fails the answer is a refusal that names the
tested versions. A torch that sees a card needs neither. A wrong assumption that no assert catches would
crash the process: this runs in a child.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from memsheet.errors import InputError, input_error

TESTED = ("2.13",)
PLATFORMS = ("linux",)

# c10/core/DeviceType.h: CUDA = 1; c10/core/impl/DeviceGuardImplInterface.cpp: the registry, an array of
# pointers by device type
_REGISTRY, _CUDA, _SLOTS = "_ZN3c104impl26device_guard_impl_registryE", 1, 32
# ATen/detail/CUDAHooksInterface.h, Itanium ABI: two destructors, then isBuilt, isAvailable
# (AcceleratorHooksInterface), hasPrimaryContext
_HOOKS, _IS_BUILT, _HAS_CONTEXT, _VIRTUALS, _HEADER = "_ZN2at6detail12getCUDAHooksEv", 2, 4, 70, 2

_KEPT: list[Any] = []  # what torch now points to must never be collected


@cache
def install_fake_cuda() -> None:
    """Make fake ``cuda`` tensors usable in this process. Raises InputError on a torch these patches were not
    tested with.
    """
    if torch.cuda.device_count():
        return
    _check_version()
    folder = Path(torch.__file__).parent / "lib"
    try:
        if not torch.backends.cuda.is_built():
            _give_guard(ctypes.CDLL(str(folder / "libc10.so")))
        _give_hooks(ctypes.CDLL(str(folder / "libtorch_cpu.so")))
    except (OSError, ValueError, AttributeError, AssertionError) as error:
        raise _unsupported_torch_error(f"is not laid out as expected ({error})") from None


def _check_version() -> None:
    if not torch.__version__.startswith(tuple(f"{version}." for version in TESTED)):
        raise _unsupported_torch_error("was not tested")
    if not sys.platform.startswith(PLATFORMS):
        raise _unsupported_torch_error(f"was not tested on {sys.platform}")


def _unsupported_torch_error(reason: str) -> InputError:
    return input_error(
        "torch",
        torch.__version__,
        f"{reason}, and tracing without a GPU patches it",
        (
            f"tested: torch {', '.join(f'{version}.*' for version in TESTED)} on Linux; where torch sees a "
            "card no patch is needed"
        ),
    )


def _give_guard(library: ctypes.CDLL) -> None:
    registry = (ctypes.c_void_p * _SLOTS).in_dll(library, _REGISTRY)
    assert not registry[_CUDA], "a CUDA device guard is registered already"
    zero = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: 0)
    table = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _KEPT.extend((zero, table, guard))
    registry[_CUDA] = ours = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()
    assert registry[_CUDA] != ours, "the device guard was not replaced"


def _give_hooks(library: ctypes.CDLL) -> None:
    hooks = getattr(library, _HOOKS)
    hooks.restype = ctypes.c_void_p
    pointer = ctypes.c_void_p.from_address(hooks())
    assert pointer.value is not None, "there are no CUDA hooks"
    word = ctypes.sizeof(ctypes.c_void_p)
    whole = (ctypes.c_void_p * (_VIRTUALS + _HEADER)).from_address(pointer.value - _HEADER * word)
    table = (ctypes.c_void_p * (_VIRTUALS + _HEADER))(*list(whole))
    yes = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: 1)
    no = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)(lambda _, __: 0)
    table[_HEADER + _IS_BUILT] = ctypes.cast(yes, ctypes.c_void_p).value
    table[_HEADER + _HAS_CONTEXT] = ctypes.cast(no, ctypes.c_void_p).value
    _KEPT.extend((yes, no, table))
    atexit.register(
        setattr, pointer, "value", pointer.value
    )  # Python's functions are gone before torch's last questions
    pointer.value = ctypes.addressof(table) + _HEADER * word
    accelerator = torch._C._accelerator_getAccelerator()
    assert torch.device(accelerator).type == "cuda", "cuda is not the accelerator"
