"""Experiment trackers that a training script has started: figures of a step go to each, by its own call.

Only those that are imported and have a run are sent to; none is imported for it. The step's key is that of
transformers' own callbacks (transformers 5.23 integrations/integration_utils.py, WandbCallback.on_log), so
that figures stand beside the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

Figures = Mapping[str, float]
STEP = "train/global_step"


def send_to_trackers(figures: Figures, step: int) -> list[str]:
    """Send ``figures`` of a step to every tracker with a run; their names."""
    sent = []
    for name, send in _started_trackers():
        send(figures, step)
        sent.append(name)
    return sent


def _started_trackers() -> Iterator[tuple[str, Callable[[Figures, int], None]]]:
    for name, started, send in TRACKERS:
        module = sys.modules.get(name)
        if module is not None and started(module):
            yield name, partial(send, module)


def _log_with_step(module: Any, figures: Figures, step: int) -> None:
    module.log({**figures, STEP: step})


def _log_metrics(module: Any, figures: Figures, step: int) -> None:
    module.log_metrics(dict(figures), step=step)


TRACKERS: tuple[tuple[str, Callable[[Any], bool], Callable[[Any, Figures, int], None]], ...] = (
    ("wandb", lambda wandb: getattr(wandb, "run", None) is not None, _log_with_step),
    ("trackio", lambda trackio: trackio.context_vars.current_run.get() is not None, _log_with_step),
    ("mlflow", lambda mlflow: mlflow.active_run() is not None, _log_metrics),
)
"""Each tracker: its package, whether it has a run, and how a step's figures are logged to it."""
