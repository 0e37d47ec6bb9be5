"""What a recorder learns of a rank's job: which tensors are parameters, gradients, states, buffers, and where
in the step it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memsheet.plan.plan import Plan
from memsheet.run.ranks import Job
from memsheet.run.watch import Watch
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark
from memsheet.trace.fake_distributed import freeze_ddp_buckets, reduce_without_peers
from memsheet.trace.modules import Modules, claim_parameters, claim_states, watch_gradients
from memsheet.trace.recorder import Recorder
from memsheet.trace.sharded import claim_sharded


class Recorded(Watch):
    """Of a rank that has the whole stack of layers. ``job`` is the one that is watched, once it is made."""

    job: Job

    def __init__(self, recorder: Recorder, *, alone: bool) -> None:
        """``reduce_without_peers``: the other ranks are not there."""
        self.modules = Modules(recorder)
        self._recorder, self._alone = recorder, alone
        self._around: Callable[[], str] | None = None
        self.synchronize = False  # what the parameters are is all the same

    def at(self, instant: Instant) -> None:
        if instant in (Instant.OPTIMIZER_STEP, Instant.FORWARD):
            self.modules.outside()
        if instant is Instant.OPTIMIZER_STEP:
            self.claim()
        self._recorder.mark(instant)

    def claim(self) -> None:
        """Gradients and states that are there now."""
        for called in self.job.called:
            claim_states(self._recorder, called, _states_of(self.job.optimizer))

    def built(self, model: nn.Module) -> None:
        self.modules.watch(model)

    def places(self, module: str) -> None:
        """What is made while parameters get their memory is filed under their modules."""
        around = self._around = self._around or self._recorder.where
        self._recorder.where = (lambda: module) if module else around
        self._around = around if module else None

    def holds(self, root: nn.Module, model: nn.Module, *, sharded: bool) -> None:
        claim_parameters(self._recorder, model)
        if sharded:
            claim_sharded(self._recorder, root, model)
        else:
            watch_gradients(self._recorder, model)

    def keeps(self, tensors: Iterable[tuple[torch.Tensor, Component, str]]) -> None:
        for tensor, component, path in tensors:
            self._recorder.claim(tensor, component, path)

    @contextmanager
    def replicating(self) -> Iterator[None]:
        before = len(self._recorder.rows)
        yield
        for row in self._recorder.rows[before:]:
            row.claim(Component.COMMUNICATION, "ddp/buckets")

    def replica(self, made: Any) -> None:
        (reduce_without_peers if self._alone else freeze_ddp_buckets)(made)

    def input(self, tensor: torch.Tensor, name: str) -> None:
        self._recorder.claim(tensor, Component.INPUTS, name)


class RecordedStages(Recorded):
    """Of a rank that has some of the layers: micro-batches alternate, and what a forward leaves waits for
    *its* backward, whatever comes between.
    """

    def at(self, instant: Instant) -> None:
        if instant is Instant.OPTIMIZER_STEP:
            self.modules.outside()
            self.claim()
        self._recorder.marks.append(Mark(len(self._recorder.events), instant))

    def claim(self) -> None:
        """States, and the buffers into which neighbours send (pipelining/stage.py: one for each micro-batch,
        for good).
        """
        for model in self.job.models:
            claim_states(self._recorder, model, self.job.optimizer)
        for stage in self.job.stages:
            for path, infos in (
                ("pipeline/receive", stage.args_recv_info),
                ("pipeline/receive_gradient", stage.grad_recv_info),
            ):
                for info in (info for chunk in infos.values() for info in chunk):
                    self._recorder.claim(info.buffer, Component.COMMUNICATION, path)

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._watch_forward(super().forward(function))

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._outside(super().backward(function))

    def loss(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._watch_forward(function, outside=False)

    def _watch_forward(self, function: Callable[..., Any], *, outside: bool = True) -> Callable[..., Any]:
        """``function``, a piece of forward: what it makes and leaves is kept for backward."""

        def run(*args: Any, **kwargs: Any) -> Any:
            first = len(self._recorder.rows)
            if outside:
                self.modules.outside()
            result = function(*args, **kwargs)
            self._recorder.keep_from(first)
            return result

        return run

    def _outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.modules.outside()
            return function(*args, **kwargs)

        return run


def watch_of(recorder: Recorder, plan: Plan, *, alone: bool) -> Recorded:
    """Who listens to a rank's job under ``plan``."""
    return (RecordedStages if plan.mesh.pp > 1 else Recorded)(recorder, alone=alone)


def _states_of(optimizer: Any) -> Any:
    """The optimizer that has states: under a sharded one the rank's own."""
    return getattr(optimizer, "optim", optimizer)
