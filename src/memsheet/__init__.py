"""The memory budget sheet for large models: every byte on every GPU, for training and inference."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memsheet import textbook
    from memsheet.budget import Result, Verdict
    from memsheet.errors import InputError
    from memsheet.questions.answer import infer, train
    from memsheet.questions.check import check
    from memsheet.questions.compare import compare
    from memsheet.questions.diagnose import diagnose
    from memsheet.questions.explain import explain
    from memsheet.questions.export import export
    from memsheet.questions.fit import DoesNotFitError, assert_fits, lightning_callback, trainer_callback
    from memsheet.questions.job import job
    from memsheet.questions.measure import measure
    from memsheet.questions.measured import measure_step
    from memsheet.questions.on_oom import on_oom
    from memsheet.questions.plan import plan, plan_serving
    from memsheet.questions.solve import solve
    from memsheet.questions.solve_job import solve_job
    from memsheet.questions.sweep import sweep
    from memsheet.questions.trace import trace
    from memsheet.questions.traced import trace_step
    from memsheet.questions.verify import verify
    from memsheet.report.answer import Answer
    from memsheet.sheet import Component, Instant, Item, Sheet

__all__ = [
    "Answer",
    "Component",
    "DoesNotFitError",
    "InputError",
    "Instant",
    "Item",
    "Result",
    "Sheet",
    "Verdict",
    "assert_fits",
    "check",
    "compare",
    "diagnose",
    "explain",
    "export",
    "infer",
    "job",
    "lightning_callback",
    "measure",
    "measure_step",
    "on_oom",
    "plan",
    "plan_serving",
    "solve",
    "solve_job",
    "sweep",
    "textbook",
    "trace",
    "trace_step",
    "train",
    "trainer_callback",
    "verify",
]
__version__ = "1.0.0"

_HOMES = {
    "budget": ("Result", "Verdict"),
    "errors": ("InputError",),
    "questions.fit": ("DoesNotFitError", "assert_fits", "lightning_callback", "trainer_callback"),
    "questions.plan": ("plan", "plan_serving"),
    "questions.answer": ("infer", "train"),
    "questions.check": ("check",),
    "questions.compare": ("compare",),
    "questions.diagnose": ("diagnose",),
    "questions.explain": ("explain",),
    "questions.export": ("export",),
    "questions.job": ("job",),
    "questions.measure": ("measure",),
    "questions.measured": ("measure_step",),
    "questions.on_oom": ("on_oom",),
    "questions.solve": ("solve",),
    "questions.solve_job": ("solve_job",),
    "questions.sweep": ("sweep",),
    "questions.trace": ("trace",),
    "questions.traced": ("trace_step",),
    "questions.verify": ("verify",),
    "report.answer": ("Answer",),
    "sheet": ("Component", "Instant", "Item", "Sheet"),
}
"""Where each name is from: loaded when it is asked for, so that a start stays short."""
_HOME = {name: f"memsheet.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "textbook":
        return import_module("memsheet.textbook")
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """``memsheet.trace`` is the function, although a folder has that name, which importing it would put in
    its place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
