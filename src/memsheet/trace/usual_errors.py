"""What went wrong in traced code: the person's own line, what fake tensors cannot do, and what people usually
do about it.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from memsheet.plan.packages import TRANSFORMERS

CURES = {
    "DataDependentOutputException": ("needs the value of a tensor, and a fake one has none", "leave .item(), float(loss), logging and asserts on values out of the step"),
    "DynamicOutputShapeException": ("makes a tensor whose shape depends on values", "replace nonzero, masked_select and unique by masks of a fixed shape"),
    "UnsupportedOperatorException": ("calls an operation that has no fake version", "register one with torch.library.register_fake, or trace without it"),
    "UnsupportedFakeTensorException": ("mixes fake tensors with ones of another kind", "make every tensor inside the traced function"),
    "FakeTensorDeviceMismatchError": ("mixes tensors of two devices", "bring them to one with .to(), or trace a step of the CPU: --device cpu"),
    "ModuleNotFoundError": ("needs a package that is not installed here", "install it into the environment that memsheet runs in"),
    "SystemExit": ("ends the program", 'leave sys.exit() out, and put what a script does under `if __name__ == "__main__"`'),
    "OutOfMemoryError": ("allocates real memory", "make tensors inside the traced function, where they take none"),
    "MemoryError": ("takes more real memory than a trace may", "--memory-limit gives it more; a trace itself needs little"),
}  # fmt: skip
"""Kinds of errors that torch raises on fake tensors (torch/_subclasses/fake_tensor.py), in words, with the
usual cure.
"""

FORKED, FRESH = (
    "autograd's threading",
    (
        "a backward pass ran in this process before; trace in a fresh interpreter or notebook kernel, first "
        "of all"
    ),
)
"""Of an error of torch in a forked process (torch/csrc/autograd/engine.cpp, in_bad_autograd_fork), and its
cure.
"""
VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""Those for which the author of the code alone can do something."""

_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = str(Path(__file__).resolve().parent.parent)


def is_own(filename: str) -> bool:
    """Whether a file is the person's: neither a library's, nor memsheet's, nor made up."""
    path = str(Path(filename).resolve()) if not filename.startswith("<") else filename
    return not path.startswith((*_LIBRARIES, _OURS, "<frozen", "<string"))


def own_line(frame: Any) -> str:
    """The innermost line of the person's own code among a frame's callers: ``train.py:12``; empty where there
    is none.
    """
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def explain_traced_error(error: BaseException, name: str) -> dict[str, str]:
    """``{"where", "reason", "hint"}`` for an error of the code that was traced."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_own(f.filename)]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name
    line = f" in `{frames[-1].line}`" if frames and frames[-1].line else ""
    if not frames and (last := _library_line(error)):
        line = f" at {last}"
    kind = next((name for name in (k.__name__ for k in type(error).__mro__) if name in CURES), "")
    if kind:
        reason, hint = CURES[kind]
        if not frames and kind in VALUES:
            hint = (
                "a model whose own code does so cannot be traced; `memsheet train` answers from "
                "formulas where it knows the family"
            )
        return {
            "where": where,
            "reason": f"{reason}{line} ({type(error).__name__}: {_first_line(error)})",
            "hint": hint,
        }
    if FORKED in str(error):
        return {
            "where": where,
            "reason": f"raised {type(error).__name__}: {_first_line(error)}",
            "hint": FRESH,
        }
    return {
        "where": where, "reason": f"raised {type(error).__name__}: {_first_line(error)}{line}",
        "hint": f"does it run by itself, outside memsheet? --debug shows where (Python {sys.version_info[0]}.{sys.version_info[1]})",
    }  # fmt: skip


def _library_line(error: BaseException) -> str:
    """The innermost line of a model in transformers: ``modeling_longformer.py:612``."""
    names = [
        f"{Path(f.filename).name}:{f.lineno}"
        for f in traceback.extract_tb(error.__traceback__)
        if TRANSFORMERS in Path(f.filename).parts
    ]
    return names[-1] if names else ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:200]
