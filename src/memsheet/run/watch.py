"""Who is told of a rank's job while it is made and run: nobody, a step that is run, or a recorder
(``trace.watched``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from memsheet.run.model import initialize_model_weights
from memsheet.run.step import At, Seen
from memsheet.sheet import Component, Instant


class Watch:
    """What is told of a rank's job while it is made and run. This one does not listen.

    ``synchronize``: replicas begin with the first one's parameters, which needs the others. ``seen`` is told
    each micro-batch's share of the step's loss, where it is known.
    """

    synchronize = True
    seen: Seen | None = None

    def at(self, instant: Instant) -> None:
        """The step enters ``instant``."""

    def built(self, model: nn.Module) -> None:
        """The model, whole and without memory."""

    def places(self, module: str) -> None:
        """Memory for the tensors of ``module`` comes next; empty where that is over."""

    def holds(self, root: nn.Module, model: nn.Module, *, sharded: bool) -> None:
        """The model has memory: ``sharded`` by fully_shard, or not. ``root`` is what is called."""

    def keeps(self, tensors: Iterable[tuple[torch.Tensor, Component, str]]) -> None:
        """An engine keeps these from step to step: each, what it is, and where it is filed."""

    def replicating(self) -> AbstractContextManager[None]:
        """Around the making of a replica."""
        return nullcontext()

    def replica(self, made: Any) -> None:
        """A DistributedDataParallel has been made."""

    def input(self, tensor: torch.Tensor, name: str) -> None:
        """A batch's tensor has been placed."""

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a stage's forward of a micro-batch."""
        return self._at(Instant.FORWARD, function)

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a stage's backward of a micro-batch."""
        return self._at(Instant.BACKWARD, function)

    def loss(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a last stage's loss of a micro-batch."""
        return function

    def _at(self, instant: Instant, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.at(instant)
            return function(*args, **kwargs)

        return run


class Running(Watch):
    """Of a rank that trains: parameters are given values, and ``at`` is told where the step is."""

    def __init__(self, at: At, seen: Seen | None = None) -> None:
        self._tell, self.seen = at, seen

    def at(self, instant: Instant) -> None:
        self._tell(instant)

    def holds(self, root: nn.Module, model: Any, *, sharded: bool) -> None:  # noqa: ARG002
        initialize_model_weights(model)
