"""A pipeline stage's training step, recorded: forward and backward of micro-batches as the schedule interleaves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from memsheet.run.model import build_model
from memsheet.run.optimizer import build_optimizer
from memsheet.run.pipeline import Stage, build_schedule, numbers_of
from memsheet.run.recompute import apply_recompute
from memsheet.run.step import mark_loss, tokens
from memsheet.run.tensor_parallel import apply_tensor_parallel
from memsheet.sheet import Component, Instant
from memsheet.spec.plan import Plan
from memsheet.timeline import Mark
from memsheet.trace.job import STEPS, How
from memsheet.trace.modules import Modules, claim_states
from memsheet.trace.recorder import Recorder

DataParallel = Callable[[Recorder, nn.Module, nn.Module, Plan, How, DeviceMesh], nn.Module]


class Watch:
    """Marks instants while micro-batches alternate: what a forward leaves waits for *its* backward, whatever comes between."""

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder, self._modules = recorder, modules

    def at(self, instant: Instant) -> None:
        self._recorder.marks.append(Mark(len(self._recorder.events), instant))

    def kept(self, function: Callable[..., Any], instant: Instant | None = None) -> Callable[..., Any]:
        """``function``, a piece of forward: what it makes and leaves is kept for backward."""

        def run(*args: Any, **kwargs: Any) -> Any:
            first = len(self._recorder.rows)
            if instant is not None:
                self._modules.outside()
                self.at(instant)
            result = function(*args, **kwargs)
            self._recorder.keep_from(first)
            return result

        return run

    def passed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a backward."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._modules.outside()
            self.at(Instant.BACKWARD)
            return function(*args, **kwargs)

        return run


def train_stages(recorder: Recorder, settings: Any, plan: Plan, how: How, mesh: DeviceMesh, parallel: DataParallel) -> None:
    """Two steps of this rank's stages. ``parallel`` gives a stage its memory and its data parallelism."""
    modules = Modules(recorder)
    watch = Watch(recorder, modules)
    stages = [_stage(settings, plan, how, number) for number in numbers_of(plan, mesh)]
    called = []
    for stage in stages:
        modules.watch(stage.model)
        apply_tensor_parallel(stage.model, plan, mesh)
        called.append(parallel(recorder, stage, stage.model, plan, how, mesh))
        if stage.is_last:
            mark_loss(stage.model, watch.at)
    schedule = build_schedule(stages, called, plan, mesh, how.device, watch.kept(stages[-1].loss))
    held = _torch_stages(schedule)
    for one in held:
        one.forward_one_chunk = watch.kept(one.forward_one_chunk, Instant.FORWARD)
        one.backward_one_chunk = watch.passed(one.backward_one_chunk)
    optimizer = build_optimizer([p for stage in stages for p in stage.parameters()], plan)
    ids = _inputs(recorder, settings, plan, how)
    for step in range(STEPS):
        if step == STEPS - 1:
            _claim(recorder, stages, held, optimizer)
            recorder.marks.clear()
            watch.at(Instant.LOAD)
        first, last = stages[0].is_first, stages[-1].is_last
        schedule.step(*((ids,) if first else ()), target=ids if last else None, losses=[] if last else None, return_outputs=False)
        modules.outside()
        _claim(recorder, stages, held, optimizer)
        watch.at(Instant.OPTIMIZER_STEP)
        optimizer.step()
        optimizer.zero_grad()
    recorder.stop()


def _stage(settings: Any, plan: Plan, how: How, number: int) -> Stage:
    model = build_model(settings, plan, "meta")
    apply_recompute(model, plan)
    return Stage(model, plan, number, how.device)


def _torch_stages(schedule: Any) -> list[Any]:
    return list(getattr(schedule, "_stages", None) or [schedule._stage])


def _inputs(recorder: Recorder, settings: Any, plan: Plan, how: How) -> Tensor:
    """The token ids of all micro-batches, which are the labels too."""
    whole = replace(plan, microbatch=plan.microbatch * plan.accumulation)
    ids: Tensor = tokens(settings, whole, how.device)["input_ids"]
    recorder.claim(ids, Component.INPUTS, "input_ids")
    return ids


def _claim(recorder: Recorder, stages: list[Stage], held: list[Any], optimizer: torch.optim.Optimizer) -> None:
    """States, and the buffers into which neighbours send (pipelining/stage.py: one for each micro-batch, for good)."""
    for stage in stages:
        claim_states(recorder, stage.model, optimizer)
    for one in held:
        for path, infos in (("pipeline/receive", one.args_recv_info), ("pipeline/receive_gradient", one.grad_recv_info)):
            for chunk in infos.values():
                for info in chunk:
                    recorder.claim(info.buffer, Component.COMMUNICATION, path)
