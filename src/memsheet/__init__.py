"""The memory budget sheet for large models: every byte on every GPU, for training and inference."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memsheet.api import infer, plan, plan_serving, train
    from memsheet.budget import Answer, Verdict
    from memsheet.errors import InputError
    from memsheet.fitting import DoesNotFitError, assert_fits, trainer_callback
    from memsheet.measuring import measure_step
    from memsheet.sheet import Component, Instant, Item, Sheet
    from memsheet.tracing import trace_step

__all__ = [
    "Answer",
    "Component",
    "DoesNotFitError",
    "InputError",
    "Instant",
    "Item",
    "Sheet",
    "Verdict",
    "assert_fits",
    "infer",
    "measure_step",
    "plan",
    "plan_serving",
    "trace_step",
    "train",
    "trainer_callback",
]
__version__ = "0.1.0"

_HOMES = {
    "api": ("infer", "plan", "plan_serving", "train"),
    "budget": ("Answer", "Verdict"),
    "errors": ("InputError",),
    "fitting": ("DoesNotFitError", "assert_fits", "trainer_callback"),
    "measuring": ("measure_step",),
    "sheet": ("Component", "Instant", "Item", "Sheet"),
    "tracing": ("trace_step",),
}
"""Where each name is from: loaded when it is asked for, so that a start stays short."""
_HOME = {name: f"memsheet.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
