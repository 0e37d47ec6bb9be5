"""The memory budget sheet for large models: every byte on every GPU, for training and inference."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memsheet.api import infer, train
from memsheet.budget import Answer, Verdict
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant, Item, Sheet

if TYPE_CHECKING:
    from memsheet.measuring import measure_step
    from memsheet.tracing import trace_step

__all__ = ["Answer", "Component", "InputError", "Instant", "Item", "Sheet", "Verdict", "infer", "measure_step", "trace_step", "train"]
__version__ = "0.1.0"

_LATER = {
    "measure_step": "memsheet.measuring",
    "trace_step": "memsheet.tracing",
}  # loaded when they are asked for, so that a start stays short


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
