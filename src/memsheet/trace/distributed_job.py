"""A training step on one rank of many, recorded: the plan's mesh, the model cut along it, two steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from memsheet.errors import refuse
from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.context_parallel import Spread, apply_context_parallel
from memsheet.run.ddp import apply_ddp
from memsheet.run.expert_parallel import apply_expert_parallel
from memsheet.run.fsdp2 import apply_fsdp2
from memsheet.run.mesh import build_mesh
from memsheet.run.meta import materialize
from memsheet.run.model import build_config, build_model, without_layers
from memsheet.run.optimizer import build_optimizer
from memsheet.run.pipeline import layers_of_stage, stages_of
from memsheet.run.recompute import apply_recompute
from memsheet.run.step import tokens
from memsheet.run.tensor_parallel import apply_tensor_parallel
from memsheet.run.zero1 import build_zero1
from memsheet.sheet import Component
from memsheet.spec.plan import Implementation, Plan
from memsheet.timeline import Timeline
from memsheet.trace.fake_distributed import alone, distributed
from memsheet.trace.fold import Depth, NotUniformError, deepen
from memsheet.trace.job import How, recording, shallow, steps, timeline
from memsheet.trace.modules import Modules, claim_parameters, watch_gradients
from memsheet.trace.pipeline_job import train_stages
from memsheet.trace.recorder import Recorder
from memsheet.trace.sharded import claim_sharded


def trace_rank(config: Mapping[str, Any], plan: Plan, how: How, rank: int, depth: Depth | None = None) -> Timeline:
    """The timeline of rank ``rank`` of ``plan.mesh.gpus`` that train the model of ``config`` as ``plan`` says. ``depth``: layers that
    may stand for others.

    Raises InputError for what cannot be run: see ``run.mesh``, ``run.fsdp2``, ``run.tensor_parallel``, ``run.pipeline``.
    """
    _check(plan)
    folds = _folds(plan, rank, depth)
    if folds is not None:
        with suppress(NotUniformError):
            recorder = _recorded(config, _without(plan, rank, folds), how, rank, folds)
            return deepen(shallow(recorder, folds.period), folds)
    return timeline(_recorded(config, plan, how, rank, None))


def _folds(plan: Plan, rank: int, depth: Depth | None) -> Depth | None:
    """The layers of this rank that may stand for others. None where what is shared out depends on them all: the buckets of
    DistributedDataParallel, the shares of a sharded optimizer; or where a rank has several stretches of layers.
    """
    whole = plan.engine == "transformers" and (plan.mesh.data_parallel > 1 or plan.zero == 1)
    if depth is None or whole or plan.mesh.vpp > 1 or plan.recompute.layers is not None:
        return None
    if plan.mesh.pp == 1:
        return depth
    return depth.within(*layers_of_stage(depth.layers, plan, _stage(plan, rank)))


def _stage(plan: Plan, rank: int) -> int:
    """Stages are the slowest axis."""
    return int(rank * plan.mesh.pp // plan.mesh.gpus)


def _without(plan: Plan, rank: int, depth: Depth) -> Plan:
    """The plan of a model with fewer layers, all of them missing from this rank's stage."""
    if plan.mesh.pp == 1:
        return plan
    bounds = [layers_of_stage(depth.layers, plan, stage) for stage in range(stages_of(plan))]
    mine = _stage(plan, rank)
    left = tuple(after - first - (len(depth.left_out) if stage == mine else 0) for stage, (first, after) in enumerate(bounds))
    return replace(plan, layers_per_stage=left)


def _recorded(config: Mapping[str, Any], plan: Plan, how: How, rank: int, depth: Depth | None) -> Recorder:
    settings = build_config(config, plan)
    if depth is not None:
        without_layers(settings, depth.left_out)
    with distributed(int(plan.mesh.gpus), rank, how.device) as streams:
        mesh = build_mesh(plan, how.device)
        with recording(how) as recorder:
            recorder.stream = streams.number
            if plan.mesh.pp > 1:
                train_stages(recorder, settings, plan, how, mesh, data_parallel)
            else:
                _train(recorder, settings, plan, how, mesh)
    return recorder


def _check(plan: Plan) -> None:
    if plan.engine not in ("fsdp2", "transformers"):
        raise refuse("engine", plan.engine, "does not run without its own cluster", "fsdp2 or transformers")
    if plan.engine == "transformers" and plan.mesh.dp_shard > 1 and plan.zero != 1:
        raise refuse("mesh.dp_shard", plan.mesh.dp_shard, "is fully_shard's", "--engine fsdp2, or --zero 1")
    assert plan.optimizer is not None
    fused = plan.optimizer.implementation in (Implementation.FUSED, Implementation.FOREACH)
    if plan.engine == "transformers" and plan.mesh.tp > 1 and fused:
        raise refuse(
            "optimizer.implementation", plan.optimizer.implementation.value, "takes sharded tensors or plain ones, and the norms' stay plain",
            "loop, or engine fsdp2",
        )  # fmt: skip
    if plan.mesh.cp > 1 and (plan.mesh.pp > 1 or plan.engine != "fsdp2"):
        raise refuse("mesh.cp", plan.mesh.cp, "is run with fully_shard and without pipelines, as accelerate does", "--engine fsdp2")
    if plan.mesh.pp > 1 and (plan.adapter or plan.quantization or plan.zero == 1):
        raise refuse("mesh.pp", plan.mesh.pp, "is not run with adapters, quantized weights or a sharded optimizer yet")


def _train(recorder: Recorder, settings: Any, plan: Plan, how: How, mesh: DeviceMesh) -> None:
    modules = Modules(recorder)
    model = build_model(settings, plan, "meta")
    model = apply_adapter(apply_quantization(model, plan), plan)
    apply_recompute(model, plan)
    modules.watch(model)
    apply_tensor_parallel(model, plan, mesh)
    apply_expert_parallel(model, plan, mesh)
    called = data_parallel(recorder, model, model, plan, how, mesh)
    optimizer = _optimizer(called, plan, mesh)
    if plan.mesh.cp > 1:
        called = apply_context_parallel(called, model, plan, mesh, how.device)
        called.placed = lambda tensor, name: recorder.claim(tensor, Component.INPUTS, name)
    batch = tokens(settings, plan, "cpu" if isinstance(called, Spread) else how.device)
    for name, tensor in batch.items():
        recorder.claim(tensor, Component.INPUTS, name)
    try:
        steps(recorder, modules, called, optimizer, batch, plan, how)
    finally:
        if isinstance(called, Spread):
            called.close()


def data_parallel(recorder: Recorder, root: nn.Module, model: nn.Module, plan: Plan, how: How, mesh: DeviceMesh) -> nn.Module:
    """``root``, which calls ``model``, with memory, shared out among data-parallel ranks and claimed; what is to be called instead."""
    if plan.engine == "fsdp2":
        apply_fsdp2(root, model, plan, mesh)
        _materialize(recorder, model, how)
        claim_parameters(recorder, model)
        claim_sharded(recorder, root, model)
        return root
    _materialize(recorder, model, how)
    claim_parameters(recorder, model)
    watch_gradients(recorder, model)
    if plan.mesh.data_parallel == 1:
        return root
    before = len(recorder.rows)
    replica = apply_ddp(root, mesh, synchronize=False)
    for row in recorder.rows[before:]:
        row.claim(Component.COMMUNICATION, "ddp/buckets")
    alone(replica)
    return replica


def _materialize(recorder: Recorder, model: nn.Module, how: How) -> None:
    """Memory for the model, filed under its modules."""
    around, module = recorder.where, [""]
    recorder.where = lambda: module[0]
    materialize(model, how.device, lambda name: module.__setitem__(0, name))
    recorder.where = around


def _optimizer(model: nn.Module, plan: Plan, mesh: DeviceMesh) -> torch.optim.Optimizer:
    if plan.zero != 1:
        return build_optimizer(model.parameters(), plan)
    optimizer = build_zero1(model.parameters(), plan, mesh)
    optimizer.state = optimizer.optim.state  # where its own share's states are, for who claims them
    return optimizer
