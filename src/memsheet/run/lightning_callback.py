"""A callback for Lightning's Trainer: the same as ``run.callback`` says to that of transformers. Lightning is
imported when a callback is made.
"""

from __future__ import annotations

import importlib
from typing import Any

from memsheet.errors import input_error
from memsheet.run import callback
from memsheet.run.step_watch import StepWatch
from memsheet.run.trackers import send_to_trackers
from memsheet.sheet import Sheet

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The names that the library goes by: one distribution each, with classes of its own."""


def lightning_prediction_callback(sheets: tuple[Sheet, ...]) -> Any:
    """A ``Callback`` for a job whose ranks are predicted to hold ``sheets``; it logs to the logger
    ``memsheet``, of each node once, and the peaks so far to the experiment trackers that have a run, as often
    as the Trainer logs (``log_every_n_steps``).
    """
    sheet, watch = max(sheets, key=lambda held: held.device.high), StepWatch()

    seen_step = [0]

    class Predicted(_lightning_package().Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            del module
            if trainer.local_rank == 0:
                callback.log_beginning(sheet)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
            del module
            step, every = int(trainer.global_step), trainer.log_every_n_steps
            if step == seen_step[0] or trainer.local_rank or not (gpu := callback.gpu_memory_counters()):
                return  # between two steps of the optimizer, gradients are there as well
            seen_step[0] = step
            callback.log_warnings(watch.warnings_of_step(gpu))
            if every and step % every == 0 and trainer.is_global_zero:
                send_to_trackers(callback.step_figures(sheet, gpu), step)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            del module
            if trainer.local_rank == 0:
                callback.log_ending(sheet)

    return Predicted()


def _lightning_package() -> Any:
    for name in PACKAGES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise input_error(
        "lightning_callback", None, "needs Lightning, which is not installed", "pip install lightning"
    )
