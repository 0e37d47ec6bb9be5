"""A person's own training step on fake tensors: modules, optimizers and instants are found as they are used.

The function that is traced is called once, inside the trace, and returns ``(module, optimizer, step)`` or a
step alone; the step is then called twice. It may train anything that torch can run without values.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from memsheet.errors import input_error
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline
from memsheet.trace.fake_driver import cuda_driver_patches
from memsheet.trace.job import STEPS, How, recorded_timeline, recording_context
from memsheet.trace.modules import Modules, claim_parameters, claim_states, watch_gradients
from memsheet.trace.patches import Patch, apply_patches
from memsheet.trace.recorder import Recorder
from memsheet.trace.usual_errors import own_line

Build = Callable[[], Any]
_ENGINE_HOMES = ("torch.autograd", "torch.autograd.graph", "torch._tensor")


def function_in(name: str) -> Build:
    """The function that ``FILE.py:FUNCTION`` names. The file is run to find it, in this process.

    The modules beside it are its own to import, after everything that is installed: none of them takes the
    place of ours.
    """
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise input_error("model", name, f"{file} is not a file", "FILE.py:FUNCTION")
    own = _module_name(path.stem)
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.resolve().parent))
    sys.modules[own] = module
    spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise input_error(
            "model",
            name,
            f"{path.name} has no function {function}",
            f"it has {', '.join(known[:8])}" if known else "",
        )
    return found  # type: ignore[no-any-return]


def _module_name(stem: str) -> str:
    """What a file's module is called: as the file is, unless that is another module's name (a step may stand
    in ``numpy.py``).
    """
    taken = not stem.isidentifier() or stem in sys.modules or importlib.util.find_spec(stem) is not None
    return f"step_{stem}" if taken else stem


def trace_custom(build: Build, how: How) -> Timeline:
    """The timeline of the second call of the step that ``build`` makes."""
    with recording_context(how) as recorder, ExitStack() as stack:
        if how.fake and how.device == "cuda":
            answered = cuda_driver_patches(recorder)
            stack.enter_context(_patch_imported_names(build, answered))
            stack.enter_context(apply_patches(answered))
        stack.enter_context(torch.device(how.device))
        found = stack.enter_context(follow_training_calls(recorder))
        recorder.line = own_line
        module, optimizer, step = unpack_build_result(build())
        for number in range(STEPS):
            found.begin(module, optimizer, last=number == STEPS - 1)
            step()
        found.end()
    if not recorder.rows:
        other = "cpu" if how.device == "cuda" else "cuda"
        raise input_error(
            "device",
            how.device,
            "holds nothing in this step",
            f"--device {other}, or make its tensors on {how.device}",
        )
    return recorded_timeline(recorder)


@contextmanager
def _patch_imported_names(build: Build, patches: Sequence[Patch]) -> Iterator[None]:
    """What a file has imported by name (``from torch.cuda import synchronize``) is replaced there too, while
    a trace runs.
    """
    instead = {(patch.module, patch.attribute): patch.value for patch in patches}
    names: dict[str, Any] = getattr(build, "__globals__", {})
    known = {
        name: (str(getattr(value, "__module__", "")), str(getattr(value, "__name__", "")))
        for name, value in names.items()
    }
    before = {name: names[name] for name, key in known.items() if key in instead}
    names.update({name: instead[known[name]] for name in before})
    try:
        yield
    finally:
        names.update(before)


def unpack_build_result(made: Any) -> tuple[nn.Module | None, Any, Callable[[], Any]]:
    if isinstance(made, tuple) and len(made) == 3 and callable(made[2]):
        return made
    if callable(made) and not isinstance(made, nn.Module):
        return None, None, made
    raise input_error(
        "model",
        type(made).__name__,
        "is not what a traced function returns",
        "(module, optimizer, step), or a step to call",
    )


class _StepParts:
    """What a step turned out to use: its outermost modules and its optimizers."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.modules = Modules(recorder)
        self._roots: list[nn.Module] = []
        self._optimizers: list[Any] = []
        self._watched = False
        self._last = False

    def begin(self, module: nn.Module | None, optimizer: Any, *, last: bool) -> None:
        """A step begins. Before the last one everything that was found is claimed and followed."""
        if module is not None:
            self._roots = [module]
        if optimizer is not None and optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self.modules.outside()
        if last:
            self._last = True
            self._claim()
            self.recorder.claim_rest(Component.INPUTS)
            for root in self._roots:
                self.modules.watch(root)
                watch_gradients(self.recorder, root)
            self.recorder.marks.clear()
            self.recorder.mark(Instant.LOAD)
        self.recorder.mark(Instant.FORWARD)

    def end(self) -> None:
        self.modules.outside()
        self.recorder.stop()

    def _claim(self) -> None:
        for root in self._roots:
            claim_parameters(self.recorder, root)
            for optimizer in self._optimizers:
                claim_states(self.recorder, root, optimizer)

    def called(self, module: nn.Module, _: Any) -> None:
        """Some module's forward begins."""
        known = any(module is held for root in self._roots for held in root.modules())
        if not known and not self._last:
            self._roots = [root for root in self._roots if root not in set(module.modules())] + [module]
        if self.recorder.instant in (Instant.BACKWARD, Instant.OPTIMIZER_STEP) and not _in_backward():
            self.recorder.mark(Instant.FORWARD)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Some optimizer's step begins."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self.modules.outside()
        if self._last:
            self._claim()
        self.recorder.mark(Instant.OPTIMIZER_STEP)


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)


@contextmanager
def follow_training_calls(recorder: Recorder) -> Iterator[_StepParts]:
    """Follow modules, backward passes and optimizers wherever they are called."""
    found = _StepParts(recorder)
    run = torch.autograd.graph._engine_run_backward

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        recorder.mark(Instant.BACKWARD)
        return run(*args, **kwargs)

    patches = [
        Patch(home, "_engine_run_backward", _engine_run_backward, "backward would not be seen", optional=True)
        for home in _ENGINE_HOMES
    ]
    with ExitStack() as stack:
        stack.enter_context(apply_patches(patches))
        for handle in (
            register_module_forward_pre_hook(found.called),
            register_optimizer_step_pre_hook(found.stepped),
        ):
            stack.callback(handle.remove)
        yield found
