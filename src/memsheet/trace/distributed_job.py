"""A training step on one rank of many, recorded: the job that this rank would run, two steps of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from memsheet.frozen import replace
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Plan
from memsheet.run.mesh import build_mesh
from memsheet.run.model import build_config
from memsheet.run.pipeline import layers_of_stage, stages_of
from memsheet.run.ranks import check_rank_plan, rank_job
from memsheet.sheet import Instant
from memsheet.timeline import Timeline
from memsheet.trace.collective_pauses import wait_for_gloo_threads
from memsheet.trace.fake_distributed import among_others, fake_process_group
from memsheet.trace.fold import Depth, NotUniformError, extend_timeline_layers
from memsheet.trace.gloo import watch_gloo
from memsheet.trace.job import (
    STEPS,
    How,
    leave_out_layers,
    recorded_micro_batches,
    recorded_timeline,
    recording_context,
    refuse_pictures,
    tag_recorded_layers,
)
from memsheet.trace.recorder import Recorder
from memsheet.trace.watched import watch_of


def trace_rank(
    config: Mapping[str, Any], plan: Plan, how: How, rank: int, depth: Depth | None = None
) -> Timeline:
    """The timeline of rank ``rank`` of ``plan.mesh.gpus`` that train the model of ``config`` as ``plan``
    says. ``depth``: layers that may stand for others.

    Raises InputError for what cannot be run: see ``run.ranks``.
    """
    check_rank_plan(plan)
    if how.fake:
        refuse_pictures(plan)
    folds = _foldable_depth(plan, rank, depth)
    if folds is not None:
        with suppress(NotUniformError):
            recorder = _record_fake_rank(config, _shortened_stage_plan(plan, rank, folds), how, rank, folds)
            return extend_timeline_layers(tag_recorded_layers(recorder, folds), folds)
    return recorded_timeline(_record_fake_rank(config, plan, how, rank, None))


def record_rank(config: Mapping[str, Any], plan: Plan, device: str) -> Timeline:
    """The timeline of the rank that this process is, on real tensors and among the others, which do the same
    now.

    Raises InputError as ``trace_rank``.
    """
    check_rank_plan(plan)
    how, settings = How(device=device, fake=False, scratch=False), build_config(config, plan)
    mesh = build_mesh(plan, device)
    with among_others(), wait_for_gloo_threads(), recording_context(how) as recorder:
        _record_rank_steps(recorder, settings, plan, mesh, how, alone=False)
    return recorded_timeline(recorder)


def _foldable_depth(plan: Plan, rank: int, depth: Depth | None) -> Depth | None:
    """The layers of this rank that may stand for others. None where what is shared out depends on them all:
    the buckets of DistributedDataParallel, the shares of a sharded optimizer; or where a rank has several
    stretches of layers.
    """
    whole = engine_of(plan).runner is Runner.WHOLE_MODULE and (plan.mesh.data_parallel > 1 or plan.zero == 1)
    if depth is None or whole or plan.mesh.vpp > 1 or plan.recompute.layers is not None:
        return None
    if plan.mesh.pp == 1:
        return depth
    return depth.within(*layers_of_stage(depth.layers, plan, _pipeline_stage_of_rank(plan, rank)))


def _pipeline_stage_of_rank(plan: Plan, rank: int) -> int:
    """Stages are the slowest axis."""
    return int(rank * plan.mesh.pp // plan.mesh.gpus)


def _shortened_stage_plan(plan: Plan, rank: int, depth: Depth) -> Plan:
    """The plan of a model with fewer layers, all of them missing from this rank's stage."""
    if plan.mesh.pp == 1:
        return plan
    bounds = [layers_of_stage(depth.layers, plan, stage) for stage in range(stages_of(plan))]
    mine = _pipeline_stage_of_rank(plan, rank)
    left = tuple(
        after - first - (len(depth.left_out) if stage == mine else 0)
        for stage, (first, after) in enumerate(bounds)
    )
    return replace(plan, layers_per_stage=left)


def _record_fake_rank(
    config: Mapping[str, Any], plan: Plan, how: How, rank: int, depth: Depth | None
) -> Recorder:
    settings = build_config(config, plan)
    if depth is not None:
        leave_out_layers(settings, depth)
    with fake_process_group(int(plan.mesh.gpus), rank, how.device) as streams:
        mesh = build_mesh(plan, how.device)
        with recording_context(how) as recorder:
            recorder.stream = streams.number
            _record_rank_steps(recorder, settings, plan, mesh, how, alone=True)
    return recorder


def _record_rank_steps(
    recorder: Recorder, settings: Any, plan: Plan, mesh: DeviceMesh, how: How, *, alone: bool
) -> None:
    """Two steps of this rank, of which the second is the sheet's. ``alone``: the other ranks are not
    there.
    """
    if how.device == "cpu" and plan.mesh.gpus > 1:
        watch_gloo(recorder)
    watch = watch_of(recorder, plan, alone=alone)
    watch.job = job = rank_job(settings, plan, mesh, how.device, watch, recorded_micro_batches(plan))
    try:
        for step in range(STEPS):
            if step == STEPS - 1:
                watch.claim()
                recorder.marks.clear()
                watch.at(Instant.LOAD)
            job.step(None)
        watch.modules.outside()
        recorder.stop()
    finally:
        job.close()
