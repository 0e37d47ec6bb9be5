"""A stack of frames → what the memory is for (a component of a sheet), in which instant, and whose line.

Function names alone say it, as in a traceback (``signs.FRAMES``), innermost first; the autograd engine runs
backward in a thread of its own, whose stacks are empty (torch/csrc/autograd/engine.cpp), so that of a history
with stacks an allocation without one is backward's.
"""

from __future__ import annotations

from memsheet.diagnose.frames import (
    BACKWARD,
    FIRST_UPDATE,
    FRAMES,
    GATHER,
    LOGITS,
    RECOMPUTED,
    STATES,
    WEIGHTS,
)
from memsheet.diagnose.frames import Frame as Known
from memsheet.diagnose.snapshot.history import Frame
from memsheet.frozen import NamedTuple
from memsheet.sheet import Component, Instant

INPUTS = Known("inputs", "batch", "the batch that is fed")
FORWARD = Known("saved_activations", "model", "activations of the forward pass, kept for backward")
COMMUNICATION = Known("communication", "collectives", "buffers of collectives")
STEP = Known("temporaries", "optimizer", "what the optimizer's step needs beside its states")
OTHER = Known("unexplained", "", "frames that no table knows")
MORE: dict[str, Known] = {
    **dict.fromkeys(("_call_impl", "_wrapped_call_impl"), FORWARD),
    **dict.fromkeys(("_apply", "reset_parameters", "to_empty", "reset_to_defaults", "_initialize_weights"), WEIGHTS),
    **dict.fromkeys(("_next_data", "__next__", "_prepare_inputs", "_prepare_input", "send_to_device", "pin_memory", "collate", "get_batch"), INPUTS),
    **dict.fromkeys(("all_reduce", "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all_single", "_init_buckets", "foreach_reduce"), COMMUNICATION),
    **dict.fromkeys(("step", "optimizer_step", "_multi_tensor_sgd", "_multi_tensor_rmsprop", "clip_grad_norm_", "_foreach_norm"), STEP),
    "__init__": WEIGHTS,
}  # fmt: skip
"""Functions of PyTorch and of trainers that a traceback's table need not know."""
OF_FILES: dict[str, tuple[str, ...]] = {
    "step": ("torch/optim", "optim", "engine.py", "trainer.py", "accelerate"), "__init__": ("torch/nn/",), "__next__": ("torch/utils/data", "data"),
    "convert": ("torch/nn/modules",), "sample": ("sampl",), "evaluate": ("trainer",), "permute": ("moe", "expert"),
    "gelu": (), "backward": (), "adam": ("optim",), "adamw": ("optim",),
}  # fmt: skip
"""Names that many functions have: the parts of a path of which one must be there; none: they say nothing."""
RUNS_LAST = ("backward", "_engine_run_backward", "run_backward")
CHECKPOINT = "torch/utils/checkpoint"
LIBRARY, LIBRARY_STARTS, LIBRARY_ENDS = (
    "/torch/",
    ("torch/", "<frozen", "<eval_with_key>"),
    ("runpy.py", "threading.py", "contextlib.py"),
)
"""Files that are PyTorch's or Python's own."""
INSTANTS = {each.value: each for each in Instant}
OF_STEP = "step"
"""The outermost frame's file in a snapshot of ``memsheet trace``, whose name is the instant."""


class Meaning(NamedTuple):
    """What a stack is for. ``line``: the innermost line that is not PyTorch's, file:line function."""

    component: str
    instant: Instant | None
    line: str
    recomputed: bool = False


def stack_meaning(stack: tuple[Frame, ...]) -> Meaning:
    """What an allocation with these frames, innermost first, is for."""
    if not stack:
        return Meaning(Component.UNEXPLAINED.value, None, "")
    if stack[-1].file == OF_STEP:
        return _traced_meaning(stack)
    names = {frame.name.rpartition(".")[2] for frame in stack}
    known = next((found for frame in stack if (found := _known_frame(frame))), None)
    backward = not names.isdisjoint(RUNS_LAST) or known is RECOMPUTED
    checkpoint = any(CHECKPOINT in frame.file for frame in stack)
    line = next((line_words(frame) for frame in stack if not is_library(frame.file)), "") or line_words(
        stack[0]
    )
    if known is None:
        known = BACKWARD if backward else OTHER
    return Meaning(known.component, _instant_of(known, names, backward=backward), line, checkpoint)


def _traced_meaning(stack: tuple[Frame, ...]) -> Meaning:
    """Of a snapshot that ``memsheet trace`` wrote: its own line, or else the module of the operation."""
    own = stack[1] if len(stack) > 2 else stack[0]
    line = line_words(own) if own.line else f"{own.name or own.file}"
    return Meaning("", INSTANTS.get(stack[-1].name) or _instant_of_operation(stack[0].file), line)


def _instant_of_operation(operation: str) -> Instant:
    """On the way to the steady step, whose instants nobody marked."""
    if "backward" in operation:
        return Instant.BACKWARD
    return (
        Instant.OPTIMIZER_STEP if "_foreach" in operation or "_fused_adam" in operation else Instant.FORWARD
    )


def _known_frame(frame: Frame) -> Known | None:
    name = frame.name.rpartition(".")[2]
    found = FRAMES.get(name) or MORE.get(name)
    if found is None or name in RUNS_LAST:
        return None
    parts = OF_FILES.get(name)
    return found if parts is None or any(part in frame.file for part in parts) else None


def _instant_of(known: Known, names: set[str], *, backward: bool) -> Instant | None:
    if backward:
        return Instant.BACKWARD
    if known in (STATES, FIRST_UPDATE, STEP):
        return Instant.OPTIMIZER_STEP
    if known.component == LOGITS.component and known.path.startswith(LOGITS.path):
        return Instant.LOSS
    if known in (WEIGHTS, INPUTS):
        return Instant.LOAD
    return (
        Instant.FORWARD if known in (FORWARD, GATHER) or "forward" in names or "_call_impl" in names else None
    )


def is_library(file: str) -> bool:
    """Whether a file is PyTorch's, Python's or has no name, as compiled code's."""
    return (
        not file
        or file == "??"
        or LIBRARY in file
        or file.startswith(LIBRARY_STARTS)
        or file.endswith(LIBRARY_ENDS)
    )


def line_words(frame: Frame) -> str:
    """A frame in short: the last two parts of its file, its line, its function."""
    file = "/".join(frame.file.replace("\\", "/").split("/")[-2:])
    where = f"{file}:{frame.line}" if frame.line else file
    return f"{where} {frame.name}".strip()
