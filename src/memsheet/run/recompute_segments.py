"""Recompute in stretches of layers: only what enters a stretch is kept, and backward runs the whole stretch
forward again.

A model's own loop calls its layers one by one, each with arguments of its own (masks differ by kind of
layer). So every layer of a stretch but the last only notes how it was called and hands its input on; the last
one runs them all, inside one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memsheet.errors import input_error

Call = Callable[[Tensor], Any]


def apply_stretches(layers: nn.ModuleList, starts: Sequence[int]) -> None:
    """Recompute the layers from each of ``starts`` up to the next one together."""
    for start, stop in pairwise((*starts, len(layers))):
        calls: list[Call] = []
        *noting, running = list(layers)[start:stop]
        for layer in noting:
            layer.forward = partial(_defer_layer_call, calls, layer.forward)
        running.forward = partial(_run_deferred_layers, calls, running.forward)


def _defer_layer_call(
    calls: list[Call], forward: Callable[..., Any], hidden: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """A layer that does nothing yet."""
    calls.append(lambda x: forward(x, *args, **kwargs))
    return hidden


def _run_deferred_layers(
    calls: list[Call], forward: Callable[..., Any], hidden: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The last layer of a stretch: all of them, to be forgotten and run again."""
    noted = [*calls, lambda x: forward(x, *args, **kwargs)]
    calls.clear()
    return checkpoint(_one_by_one, noted, hidden, use_reentrant=False)


def _one_by_one(calls: Sequence[Call], hidden: Any) -> Any:
    for call in calls:
        if not isinstance(hidden, Tensor):
            raise input_error(
                "recompute",
                type(hidden).__name__,
                "is what its layers hand on, and stretches hand on hidden states alone",
                "recompute every layer",
            )
        hidden = call(hidden)
    return hidden
